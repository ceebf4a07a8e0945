import gzip
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structlearn.data.treebank import (
    Entry,
    binarise,
    clean,
    collapse_unaries,
    from_cnf,
    iter_treebank,
    parse_tree,
    parse_trees,
    read_treebank,
    restore_unaries,
    strip_functions,
    to_cnf,
    unbinarise,
)
from structlearn.errors import ArgumentError, FormatError, TreeError
from structlearn.trees import Tree

# Invented sentences with what real treebanks hold: traces, indices, gaps, long chains, wide nodes, odd labels.
SAMPLE = """
( (S
    (NP-SBJ-1 (DT The) (NN cat) )
    (VP (VBZ wants)
      (S (NP-SBJ (-NONE- *-1)) (VP (TO to) (VP (VB sleep)))))
    (. .)))
((SBARQ (WHNP-2 (WP What)) (SQ (VBD did) (NP-SBJ (PRP you)) (VP (VB see) (NP (-NONE- *T*-2)))) (. ?)))
(ROOT (FRAG (ADVP|PRT (RB Up))))
(TOP (NP=2 (NP (DT a) (JJ big) (, ,) (JJ old) (CC and) (JJ green) (NN door)) (PRN (-LRB- -LRB-) (CD 2) (-RRB- -RRB-))))
"""
DIRECTIONS = ("left", "right")
ORDERS = [(h, v) for h in (0, 1, 2, None) for v in (1, 2, 3)]


def sample() -> list[Tree]:
    return list(parse_trees(SAMPLE))


def trees():
    labels = st.text("AB+^@~\\ -", max_size=3)
    leaf = st.builds(Tree, labels, st.text("ab+@^\\", min_size=1, max_size=2))
    return st.recursive(
        leaf, lambda below: st.builds(Tree, labels, st.lists(below, min_size=1, max_size=6)), max_leaves=16
    )


def test_reads_penn_brackets():
    cat, question, fragment, door = sample()
    assert cat.label == question.label == ""
    assert cat.leaves() == ("The", "cat", "wants", "*-1", "to", "sleep", ".")
    assert [t.label for t in fragment.preorder()] == ["ROOT", "FRAG", "ADVP|PRT", "RB"]
    assert door.pos()[-3:] == (("-LRB-", "-LRB-"), ("2", "CD"), ("-RRB-", "-RRB-"))
    assert list(parse_trees("")) == []
    assert parse_tree("( NP\n\t( DT a )( NN  b))") == parse_tree("(NP (DT a) (NN b))")


def test_clean_by_default():
    cat, question, fragment, door = (clean(tree) for tree in sample())
    assert cat.bracket() == "(S (NP (DT The) (NN cat)) (VP (VBZ wants) (S (VP (TO to) (VP (VB sleep))))) (. .))"
    assert question.bracket() == "(SBARQ (WHNP (WP What)) (SQ (VBD did) (NP (PRP you)) (VP (VB see))) (. ?))"
    assert fragment.bracket() == "(FRAG (ADVP|PRT (RB Up)))"
    assert door.label == "NP"


def test_clean_options():
    cat, _, fragment, door = sample()
    kept = clean(cat, empty=True, functions=True)
    assert kept == cat.children[0]
    assert clean(cat, functions=True).children[0].label == "NP-SBJ-1"
    assert clean(cat, empty=True).leaves() == cat.leaves()
    assert clean(cat, top="ROOT").bracket().startswith("(ROOT (S (NP ")
    assert clean(fragment, top="TOP").bracket() == "(TOP (FRAG (ADVP|PRT (RB Up))))"
    assert clean(clean(door, top="TOP"), top="TOP") == clean(door, top="TOP")
    two = parse_tree("((S (NN a)) (. .))")
    assert clean(two).bracket() == "(TOP (S (NN a)) (. .))"
    assert clean(two, top="ROOT").bracket() == "(ROOT (S (NN a)) (. .))"
    assert clean(parse_tree("((S (NP (-NONE- *)) (VP (-NONE- *?*))))")) is None
    assert clean(parse_tree("(TOP word)")).bracket() == "(TOP word)"
    assert clean(parse_tree("(NN word)"), top="TOP").bracket() == "(TOP (NN word))"


def test_function_tags():
    labels = ["NP-SBJ-1", "NP=2", "PP-LOC=3", "NP", "-NONE-", "-LRB-", "PRT|ADVP", "", "$"]
    assert [strip_functions(label) for label in labels] == [
        "NP",
        "NP",
        "PP",
        "NP",
        "-NONE-",
        "-LRB-",
        "PRT|ADVP",
        "",
        "$",
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("(S (NN a))\n(S (NN a)))", 2, "expected a bracket, got ')' with no open bracket"),
        (
            "(S (NN a))\n\n(S\n (NP (NN a)",
            3,
            "expected a ')' for every '(', got the end of the text inside '(S', 2 brackets open",
        ),
        ("\n\n(S", 3, "1 bracket open"),
        ("(S\n(NN New York))", 2, "expected one word or brackets in a bracket, got 'New' and more in '(NN'"),
        ("(S (NN a)\n b)", 2, "'b' and more in '(S'"),
        ("(S\n a (NN b))", 2, "'a' and more in '(S'"),
        ("\nwords", 2, "'words' outside brackets"),
        ("(S (NN a)\n (NP))", 2, "expected a word or brackets inside, got '(NP)'; remove the bracket"),
        ("(S\n ((X b) (Y c)))", 2, "expected a label after every '(', got none inside '(S'"),
        ("( (S (X a))\n( (S (X b)) )\n( (S (X c)) ))", 2, "or the ')' that is missing before it"),
        ("()", 1, "expected a word or brackets inside, got '()'"),
    ],
)
@pytest.mark.parametrize("suffix", [".mrg", ".mrg.gz"])
def test_bad_brackets_name_file_and_line(tmp_path: Path, text: str, line: int, message: str, suffix: str):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    with pytest.raises(FormatError) as caught:
        read_treebank(path)
    assert str(caught.value).startswith(f"{path}:{line}: expected ")
    assert message in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_reads_files_folders_and_tables(tmp_path: Path):
    (tmp_path / "b.mrg").write_text(SAMPLE)
    (tmp_path / "a.mrg.gz").write_bytes(gzip.compress(b"((S (NN gz)))"))
    lines = [f"doc{i % 2}\t{i // 2}\t{tree.bracket()}\r\n" for i, tree in enumerate(sample())]
    (tmp_path / "c.tsv").write_text("".join(lines), newline="")
    (tmp_path / "notes.txt").write_text("not a treebank (")
    entries = list(iter_treebank(tmp_path))
    places = [("a", 0), *[("b", i) for i in range(4)], ("doc0", 0), ("doc1", 0), ("doc0", 1), ("doc1", 1)]
    assert [(e.document, e.number) for e in entries] == places
    assert [e.tree for e in entries[1:5]] == [e.tree for e in entries[5:]] == sample()
    assert read_treebank(str(tmp_path / "b.mrg")) == [clean(tree) for tree in sample()]
    (tmp_path / "gone.mrg").write_text("((S (-NONE- *)))")
    assert read_treebank(tmp_path / "gone.mrg") == []
    (tmp_path / "latin.mrg").write_bytes("(S (NN café))".encode("latin-1"))
    assert read_treebank(tmp_path / "latin.mrg", encoding="latin-1")[0].leaves() == ("café",)


def test_bad_files(tmp_path: Path):
    def fails(name: str, data: bytes, message: str) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match=re.escape(str(tmp_path / name)) + message):
            read_treebank(tmp_path / name)

    fails("a.tsv", b"d\t0\t(S (NN a))\nd\t1\n", ":2: expected document, number and tree between tabs, got 'd")
    fails("b.tsv", b"d\tfirst\t(S (NN a))\n", ":1: expected document, number and tree")
    fails("c.tsv", b"d\t0\t(S (NN a))\n\nd\t1\t(S (NN a)\n", r":3: expected a '\)' for every")
    fails("d.tsv", b"d\t0\t(S (NN a)) (S (NN b))\n", ":1: expected one tree, got 2 trees")
    fails("e.mrg.gz", b"(S (NN a))", ": expected a whole gzip file, got ")
    fails("f.mrg.gz", gzip.compress(b"(S (NN a))" * 50)[:-9], ": expected a whole gzip file, got ")
    fails("g.mrg", b"(S\n(NN caf\xe9))", ":2: expected utf-8 text, got byte 0xe9; name the file's encoding")
    (tmp_path / "none").mkdir()
    with pytest.raises(FormatError, match=r"expected files ending in \.mrg"):
        read_treebank(tmp_path / "none")
    with pytest.raises(FormatError, match=r"missing\.mrg: expected a file, got no such file"):
        read_treebank(tmp_path / "missing.mrg")


def test_unaries_collapse_and_come_back():
    tree = parse_tree("(S (VP (VP (VB go)) (NP (NP (NN home)))))")
    collapsed = collapse_unaries(tree)
    assert collapsed.bracket() == "(S+VP (VP+VB go) (NP+NP+NN home))"
    assert restore_unaries(collapsed) == tree
    contraction = parse_tree("(S (PP (P+D du)) (A\\B x))")
    assert collapse_unaries(contraction).bracket() == r"(S (PP+P\+D du) (A\\B x))"
    assert restore_unaries(collapse_unaries(contraction)) == contraction


def test_binarised_by_hand():
    tree = parse_tree("(NP (DT a) (JJ b) (JJ c) (PP (IN d) (NN e)))")
    assert binarise(tree).bracket() == "(NP (DT a) (@NP~DT (JJ b) (@NP~DT~JJ (JJ c) (PP (IN d) (NN e)))))"
    assert binarise(tree, h=1).bracket() == "(NP (DT a) (@NP~DT (JJ b) (@NP~JJ (JJ c) (PP (IN d) (NN e)))))"
    assert binarise(tree, h=0).bracket() == "(NP (DT a) (@NP (JJ b) (@NP (JJ c) (PP (IN d) (NN e)))))"
    left = binarise(tree, direction="left", h=1, v=2)
    assert left.bracket() == "(NP (@NP~PP (@NP~JJ (DT a) (JJ b)) (JJ c)) (PP^NP (IN d) (NN e)))"


def test_markov_orders_look_through_chains():
    tree = parse_tree("(S (NP (NN a)) (VP (VP (VB b) (NN c) (NN d))) (. .))")
    assert to_cnf(tree, h=2, v=3).bracket() == (
        "(S (NP+NN a) (@S~NP (VP+VP^S (VB b) (@VP+VP^S~VB (NN c) (NN d))) (. .)))"
    )
    deep = parse_tree("(S (X (Y (Z (A a) (B b)) (C c))) (D d))")
    assert to_cnf(deep, v=3).bracket() == "(S (X+Y^S (Z^Y^X (A a) (B b)) (C c)) (D d))"


@given(trees(), st.sampled_from(DIRECTIONS), st.sampled_from(ORDERS))
def test_cnf_round_trip(tree: Tree, direction, order):
    h, v = order
    assert restore_unaries(collapse_unaries(tree)) == tree
    assert unbinarise(binarise(tree, direction=direction, h=h, v=v)) == tree
    cnf = to_cnf(tree, direction=direction, h=h, v=v)
    assert from_cnf(cnf) == tree
    assert cnf.leaves() == tree.leaves()
    assert all(node.is_preterminal or len(node.children) == 2 for node in cnf.preorder())


@given(trees(), st.sampled_from(DIRECTIONS))
def test_lower_orders_make_coarser_symbols(tree: Tree, direction):
    sizes = [len({n.label for n in to_cnf(tree, direction=direction, h=h).preorder()}) for h in (0, 1, 2, None)]
    assert sizes == sorted(sizes)


def test_wrong_options():
    tree = sample()[0]
    with pytest.raises(ArgumentError, match="direction: expected 'left' or 'right', got 'up'"):
        binarise(tree, direction="up")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="h: expected an integer >= 0, or None"):
        binarise(tree, h=-1)
    with pytest.raises(ArgumentError, match="v: expected an integer >= 1"):
        binarise(tree, v=0)
    with pytest.raises(TreeError, match="a phrase at the top, got the intermediate node '@NP'"):
        unbinarise(parse_tree("(@NP (NN a) (NN b))"))


@pytest.fixture(scope="module")
def corpus(data_dir: Path) -> list[Entry]:
    return list(iter_treebank(data_dir / "treebank"))


@pytest.mark.corpus
def test_round_trip_on_the_treebank(data_dir: Path, corpus: list[Entry]):
    lines = gzip.decompress((data_dir / "treebank" / "wsj_sample.mrg.tsv.gz").read_bytes()).decode("ascii").splitlines()
    assert [f"{e.document}\t{e.number}\t{e.tree.bracket()}" for e in corpus] == lines
    assert all(from_cnf(to_cnf(e.tree)) == e.tree for e in corpus)


@pytest.mark.corpus
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cleaned_treebank(corpus: list[Entry], direction):
    trees = [tree for tree in (clean(e.tree) for e in corpus) if tree is not None]
    assert len(trees) == 3914
    assert sum(len(tree.leaves()) for tree in trees) == 94084
    nodes = [node for tree in trees for node in tree.preorder()]
    assert len({node.label for node in nodes if node.is_preterminal}) == 45
    assert len({node.label for node in nodes if not node.is_preterminal}) == 27
    rules = {(node.label, *[child.label for child in node.subtrees]) for node in nodes if not node.is_preterminal}
    # The published count takes the rule from the outermost bracket to each root label too.
    assert len(rules) + len({tree.label for tree in trees}) == 3764
    for h, v in ((2, 1), (None, 3)):
        assert [from_cnf(to_cnf(tree, direction=direction, h=h, v=v)) for tree in trees] == trees
