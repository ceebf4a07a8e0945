"""Parse trees as charts of span labels or of rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from structlearn.data.batch import Batch, Kept, TokenInputs, one, padded, padded_square
from structlearn.data.binarise import Direction, chain_tag, from_cnf, to_cnf
from structlearn.data.brackets import parse_trees
from structlearn.data.codecs.base import Codec
from structlearn.data.codecs.tokens import parse_sentences
from structlearn.data.extract import extract_grammar
from structlearn.data.vocabulary import PADDING, Vocabulary, normal_form
from structlearn.errors import FormatError, LabelError
from structlearn.structures import Grammar, charts
from structlearn.structures.base import PAD
from structlearn.trees import Tree

_LETTERS = 20


class EncodedTree(NamedTuple):
    """Words (N,), letters (N, K), tags (N,) and gold (N, N) of a sentence, and the tree itself."""

    words: Tensor
    chars: Tensor
    tags: Tensor
    gold: Tensor
    tree: Tree


class ParsingCodec(Codec):
    """Trees to words, parts of speech and charts.

    Args:
        nonterminals, preterminals: names in Chomsky normal form, see :mod:`structlearn.data.binarise`.
        rules: (R, 3) of the grammar.
        roots: (NT + P,) bool, which symbols may cover a sentence.
        words, chars: vocabularies.
        kind: "rules": charts of rules of the grammar over observed parts of speech; "spans": charts of labels.
        direction, h, v: of binarisation.

    Trees that the grammar does not derive get gold PAD: they are evaluated but not trained on. ``parse`` refuses
    sentences of more than ``most_words`` words, since the charts of a sentence grow with the square of its length.
    """

    formats = ("brackets", "text", "jsonl")
    most_words = 1000

    def __init__(
        self,
        nonterminals: Sequence[str],
        preterminals: Sequence[str],
        rules: Tensor,
        roots: Tensor,
        words: Vocabulary,
        chars: Vocabulary,
        kind: Literal["rules", "spans"] = "spans",
        direction: Direction = "right",
        h: int | None = 2,
        v: int = 1,
    ) -> None:
        self.grammar = Grammar(rules, nonterminals, preterminals)
        self.roots, self.words, self.chars, self.kind = roots, words, chars, kind
        self.direction, self.h, self.v = direction, h, v
        self.labels = (*nonterminals, *preterminals)
        parts = [chain_tag(name) for name in preterminals]
        self.pos = tuple(sorted(set(parts)))
        self._tag = {tag: i for i, tag in enumerate(self.pos)}
        self.tag_table = torch.tensor([[part == tag for part in parts] for tag in self.pos])
        self._label = [{name: i for i, name in enumerate(nonterminals)}]
        self._label.append({name: i + len(nonterminals) for i, name in enumerate(preterminals)})

    @classmethod
    def fit(
        cls,
        trees: Sequence[Tree],
        *,
        kind: Literal["rules", "spans"] = "spans",
        min_count: int = 2,
        direction: Direction = "right",
        h: int | None = 2,
        v: int = 1,
    ) -> ParsingCodec:
        """From cleaned training trees."""
        g = extract_grammar(trees, direction=direction, h=h, v=v)
        words = Vocabulary.of((normal_form(w) for t in trees for w in t.leaves()), min_count=min_count)
        chars = Vocabulary.of(c for t in trees for w in t.leaves() for c in w)
        roots = g.root_counts > 0
        return cls(g.nonterminals, g.preterminals, g.rules, roots, words, chars, kind, direction, h, v)

    def encode(self, examples: Sequence[Tree]) -> list[EncodedTree]:
        return [self._encode(tree) for tree in examples]

    def _encode(self, tree: Tree) -> EncodedTree:
        words, tags = zip(*tree.pos(), strict=True)
        letters = [self.chars(w[: _LETTERS // 2] + w[_LETTERS // 2 :][-_LETTERS // 2 :]) for w in words]
        longest = max(map(len, letters))
        chars = torch.tensor([row + [PADDING] * (longest - len(row)) for row in letters])
        numbers = torch.tensor([self._tag.get(tag, 0) for tag in tags])
        return EncodedTree(torch.tensor(self.words(map(normal_form, words))), chars, numbers, self._chart(tree), tree)

    def _chart(self, tree: Tree) -> Tensor:
        """(N, N); all PAD for a tree that training could not learn."""
        size = len(tree.leaves())
        cnf = to_cnf(tree, direction=self.direction, h=self.h, v=self.v)
        if self.kind == "rules":
            try:
                return charts.from_trees([cnf], self.grammar, size)[0]
            except LabelError:
                return torch.full((size, size), PAD)
        found = torch.full((size, size), PAD)
        for node, span in zip(cnf.preorder(), cnf.spans(preterminals=True), strict=True):
            label = self._label[node.is_preterminal].get(node.label)
            if label is None:
                return torch.full((size, size), PAD)
            found[span.start, span.end] = label
        return found

    def learnable(self, encoded: EncodedTree) -> bool:
        """Whether a tree's gold is in the output space."""
        return bool((encoded.gold != PAD).any())

    def collate(self, encoded: Sequence[EncodedTree]) -> Batch:
        lengths = torch.tensor([len(e.words) for e in encoded])
        tags = padded([e.tags for e in encoded])
        words, chars = padded([e.words for e in encoded]), _square([e.chars for e in encoded])
        x = TokenInputs(lengths, words, chars, tags=tags, text=Kept([e.tree.leaves() for e in encoded]))
        kept = Kept([e.tree for e in encoded])
        gold = padded_square([e.gold for e in encoded], PAD)
        return Batch(x, gold, lengths, torch.arange(len(encoded)), one(), kept)

    def length(self, encoded: EncodedTree) -> int:
        return len(encoded.words)

    def tree_of(self, cnf: Tree, words: Sequence[str], tags: Sequence[str]) -> Tree:
        """The treebank tree of an output over these words and parts of speech."""
        place = iter(zip(words, tags, strict=True))

        def visit(node: Tree, children: list[Tree]) -> Tree:
            if not node.is_preterminal:
                return Tree("@" if node.label == "GLUE" and node is not cnf else node.label, children)
            word, tag = next(place)
            known = self.kind == "spans" or chain_tag(node.label) == tag
            return Tree(node.label if known and not node.label.startswith("@") else tag, word)

        whole = cnf.fold(visit)
        top = "TOP" if whole.label == "GLUE" or whole.label.startswith("@") else whole.label
        return from_cnf(whole if whole.is_preterminal else Tree(top, whole.children))

    def parse(self, text: str, form: str, source: str = "text") -> list[Tree]:
        """Brackets are read for their words and parts of speech; text is words, or word/tag."""
        self.check_format(form)
        trees = self._trees(text, form, source)
        for number, tree in enumerate(trees, start=1):
            if (size := len(tree.leaves())) > self.most_words:
                remedy = "split it, or set most_words of the codec; charts take memory by the square of the length"
                place = f"{source}, sentence {number}"
                raise FormatError(place, f"at most {self.most_words:,} words", f"{size:,}", remedy)
        return trees

    def _trees(self, text: str, form: str, source: str) -> list[Tree]:
        if form == "brackets":
            return list(parse_trees(text, source=source))
        if form == "jsonl":
            sentences = parse_sentences(text, form, source)
            pairs = [list(zip(s.words, s.pos, strict=True)) for s in sentences]
        else:
            split = [[token.rpartition("/") for token in s.words] for s in parse_sentences(text, form, source)]
            pairs = [[(word, tag) if slash else (tag, "") for word, slash, tag in row] for row in split]
        return [Tree("TOP", [Tree(tag or "XX", word) for word, tag in row]) for row in pairs]

    def render(self, example: Tree, output: Tree, form: str) -> str:
        if form == "jsonl":
            return json.dumps({"words": list(example.leaves()), "tree": output.bracket()}, ensure_ascii=False)
        return output.bracket()


def _square(chars: Sequence[Tensor]) -> Tensor:
    """Letters (N_i, K_i) as one tensor (B, N, K)."""
    n, k = (max((c.shape[axis] for c in chars), default=0) for axis in (0, 1))
    found = torch.full((len(chars), n, k), PADDING)
    for row, c in zip(found, chars, strict=True):
        row[: c.shape[0], : c.shape[1]] = c
    return found
