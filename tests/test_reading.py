"""Text from elsewhere: one reader for all formats, within limits, and mutants of every format end in words."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import mutate_texts
import pytest

import structlearn as sl
from structlearn import cli, encoders, tasks
from structlearn.data import conll, fasta, letters, modules, propbank, taxonomies, treebank
from structlearn.data.brackets import parse_tree
from structlearn.data.chunk_features import Tokens
from structlearn.data.codecs.trees import ParsingCodec
from structlearn.errors import ArgumentError, FormatError
from structlearn.reranking import read_blocks, read_jsonl
from structlearn.storage import text

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
READERS: dict[str, Callable[[Path], object]] = {
    "columns": lambda path: list(conll.read_columns(path, 3)),
    "chunks": conll.read_conll2000,
    "letters": letters.read_letters,
    "pairs": fasta.read_pairs,
    "propbank": propbank.read_propbank,
    "treebank": treebank.read_treebank,
    "taxonomy": taxonomies.read_taxonomy,
    "jsonl": read_jsonl,
    "blocks": read_blocks,
    "tagging": lambda path: modules.TaggingData().read(path),
    "texts": lambda path: modules.ClassificationData().read(path),
}
# Of every format in the test suite; ``python tests/mutate_texts.py`` makes 2,000.
MUTANTS = int(os.environ.get("STRUCTLEARN_MUTANTS", "6"))


@pytest.mark.parametrize("name", READERS)
def test_every_reader_says_what_is_wrong_with_a_file(name: str, tmp_path: Path) -> None:
    def fails(path: Path, message: str) -> None:
        with pytest.raises(FormatError, match=re.escape(str(path)) + message):
            READERS[name](path)

    fails(tmp_path / "missing", ": expected a file, got no such file; check the path")
    fails(tmp_path, ": expected (a regular file, got a folder|files ending in .*, got none)")
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(b"a\tb\n" * 100)[:-9])
    fails(packed, ": expected a whole gzip file, got Compressed file ended")
    packed.write_bytes(b"a\tb\n")
    fails(packed, ": expected a whole gzip file, got Not a gzipped file")
    packed.write_bytes(gzip.compress(b"\0" * (64 << 20)))
    fails(packed, ": expected at most 6,[0-9,]+ bytes, got more; .*set .* STRUCTLEARN_MAX_TEXT_BYTES")
    plain = tmp_path / "plain"
    plain.write_bytes(b"\n\n\xff\n")
    fails(plain, ":3: expected utf-8 text, got byte 0xff")
    os.truncate(plain, 1 << 40)
    fails(plain, ": expected at most 268,435,456 bytes, got 1,099,511,627,776; .*STRUCTLEARN_MAX_TEXT_BYTES")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fails(pipe, ": expected a regular file, got a pipe")
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    fails(link, ": expected a regular file, got a device")


def test_limits_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"a" * (17 << 20)))
    with pytest.raises(FormatError, match="at most 4,194,304 bytes"):
        text.read_text(path)
    monkeypatch.setenv(text.LIMIT, str(17 << 20))
    assert len(next(text.numbered_lines(text.read_text(path), "a"))[1]) == 17 << 20
    monkeypatch.setenv(text.LIMIT, str((17 << 20) - 1))
    with pytest.raises(FormatError, match="at most 17,825,791 bytes"):
        text.read_text(path)
    monkeypatch.setenv(text.LIMIT, "many")
    with pytest.raises(FormatError, match="STRUCTLEARN_MAX_TEXT_BYTES: expected a number of bytes, got 'many'"):
        text.read_text(path)
    monkeypatch.delenv(text.LIMIT)
    with pytest.raises(FormatError, match="a:1: expected lines of at most 16,777,216 characters, got 17,825,792"):
        list(text.numbered_lines("a" * (17 << 20), "a"))


def test_lines_end_at_line_feeds_alone() -> None:
    assert list(text.numbered_lines("a\u2028b\x85c\r\n\nd", "s")) == [(1, "a\u2028b\x85c"), (2, ""), (3, "d")]
    assert list(text.numbered_lines("", "s")) == []
    rows = text.json_lines(json.dumps({"a": "\u2028"}, ensure_ascii=False) + "\n", "s", "{}")
    assert [row for _, row in rows] == [{"a": "\u2028"}]


def test_a_byte_order_mark_is_no_part_of_the_text_and_gzip_members_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfa b c\n") + gzip.compress(b"d e f\n"))
    assert conll.read_conll2000(path) == [conll.Sentence(["a", "d"], ["b", "e"], ["c", "f"])]
    path = tmp_path / "wide.txt"
    path.write_bytes("a b c\n".encode("utf-16"))
    assert list(conll.read_columns(path, 3, encoding="utf-16")) == [[["a"], ["b"], ["c"]]]
    with pytest.raises(ArgumentError, match="encoding: expected the name of an encoding of text, got 'utf-99'"):
        text.read_text(path, "utf-99")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (mutate_texts.PROPBANK.replace("(TOP(S(NP*", "(NP*"), "2: expected balanced brackets, got a '\\)' too many"),
        (mutate_texts.PROPBANK.replace("woman\tNN", "woman\t"), "3: expected five columns that are not empty"),
        (mutate_texts.PROPBANK.replace("woman\tNN\t*)\t-\t", "woman "), "3: expected five columns and more"),
    ],
)
def test_propositions_name_the_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(content)
    with pytest.raises(FormatError, match=f"{path}:{message}"):
        propbank.read_propbank(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [(0, "1", None), (1, "A", "a letter a to z"), (5, "x", "number of a fold"), (6, "nan", "numbers as pixels")],
)
def test_letters_name_the_line(field: int, value: str, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "letters.data"
    fields = ["1", "a", "-1", "1", "0", "3", *["0"] * 128]
    fields[field] = value
    path.write_text("\n" + "\t".join(fields) + "\n")
    if message is None:
        assert letters.read_letters(path)[0][1] == 3
        path.write_text("\t".join(fields).replace("-1", "2"))
        message = "got the end inside a word"
    with pytest.raises(FormatError, match=message):
        letters.read_letters(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"words": ["\\ud800"]}', "text that UTF-8 can hold, got half of a surrogate pair"),
        ('{"words": "a b"}', "'words', a list of texts, got 'a b'"),
        ('{"words": []}', "'words', a list of at least one text"),
        ('{"words": ["a"], "pos": ["X", "Y"]}', "1 pos, one per word, got 2"),
        ('{"words": [["a"]]}', "'words', a list of texts"),
        ("[" * 100_000, "expected (JSON|at most 64 levels)"),
        ('{"words": [1' + "0" * 5000 + "]}", "JSON, got Exceeds the limit"),
        ("3", "one JSON object per line, got int"),
    ],
)
def test_predict_says_what_is_wrong_with_a_row(row: str, message: str) -> None:
    for data in (modules.TaggingData(examples=8), modules.JointData(examples=8), modules.ParsingData(examples=8)):
        with pytest.raises(FormatError, match=f"in:3: .*{message}"):
            data.codec.parse('{"words": ["a", 7]}\n\n' + row + "\n", "jsonl", "in")


def test_predict_refuses_sequences_and_images_of_another_kind() -> None:
    aligning = modules.AligningData(examples=4).codec
    assert aligning.parse('{"x": "a-C.D", "y": "D"}', "jsonl")[0][2:4] == ("aCD", "D")
    for row, message in (('{"x": "AC"}', "'y', a text, got nothing"), ('{"x": "A C", "y": ""}', "'x', letters A to Z")):
        with pytest.raises(FormatError, match=message):
            aligning.parse(row, "jsonl")
    images = modules.LetterData(examples=4).codec
    for value in ([], [[0]], 3, [["x"] * 128], [[1e39] * 128], [0] * 128):
        with pytest.raises(FormatError, match="in:1: expected 'images', a list of 128 pixels for each letter"):
            images.parse(json.dumps({"images": value}), "jsonl", "in")


def test_predict_reads_and_writes_utf8_whatever_the_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = modules.TaggingData(examples=8)
    folder = sl.save(tasks.Tagging(data.codec, encoders.WordsAndLetters(4, 3, 3)), tmp_path / "model")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("caf\u00e9\n".encode()), "ascii"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    assert cli.main(["predict", str(folder), "--format", "text"]) == 0
    sys.stdout.flush()
    assert written.getvalue().decode().startswith("caf\u00e9/")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    assert cli.main(["predict", str(folder), "--format", "text"]) == 2


def test_configurations_are_checked_before_they_are_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    laughs = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10) if i else 'x'}]\n" for i in range(30))
    for content, message in (
        (laughs.encode(), "expected YAML without anchors and aliases"),
        (b"[" * 100_000, "at most 64 levels of nesting"),
        (b"\xff", "expected utf-8 text"),
        (b"a: b: c\n", "expected YAML"),
    ):
        path = tmp_path / "config.yaml"
        path.write_bytes(content)
        assert cli.main(["fit", f"--config={path}"]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert str(path) in said


@pytest.mark.parametrize(
    "part", ["columns", "letter data", "blocks data", "a3m", "text data", "taxonomy", "propbank", "treebank table"]
)
def test_mutants_are_read_or_end_in_words(part: str, tmp_path: Path) -> None:
    report = mutate_texts.run(MUTANTS, 1, part, tmp_path)
    assert not report.wrong, report.wrong
    assert sum(report.ends.values()) >= MUTANTS


def test_mutants_of_what_predict_reads_end_in_words(tmp_path: Path) -> None:
    for part in ("predict aligning", "predict parsing rules", "predict reranking", "predict sparse tagging"):
        report = mutate_texts.run(MUTANTS, 1, part, tmp_path)
        assert not report.wrong, report.wrong


def test_sparse_features_of_no_sentences_are_none() -> None:
    tokens = Tokens([])
    assert len(tokens.place) == 0
    assert not any(bool(values.any()) for values in (*tokens.word.values(), *tokens.pos.values()))


def test_charts_of_long_trees_take_memory_by_the_square_of_their_words() -> None:
    """A chart of 2,000 words has 32 MB; all cuts of all its spans would have 8 GB."""
    tree = parse_tree("(S " + "(A a)" * 2000 + ")")
    codec = ParsingCodec.fit([tree], kind="rules")
    gold = codec.encode([tree])[0].gold
    assert int((gold != -100).sum()) == 2 * 2000 - 1
    rules, left, right = codec.grammar.rules[gold[0, -1]].tolist()
    assert [codec.grammar.symbols[n] for n in (rules, left, right)] == ["S", "A", "@S~A"]


@pytest.mark.parametrize("form", ["text", "brackets", "jsonl"])
def test_sentences_that_are_too_long_to_chart_are_refused(form: str) -> None:
    codec = ParsingCodec.fit([parse_tree("(S (A a) (A a))")])
    words = ["a"] * (codec.most_words + 1)
    long = {
        "text": " ".join(words),
        "brackets": "(S " + "(A a)" * len(words) + ")",
        "jsonl": json.dumps({"words": words, "pos": ["A"] * len(words)}),
    }
    with pytest.raises(FormatError, match=r"here, sentence 1: expected at most 1,000 words, got 1,001; split it"):
        codec.parse(long[form] + "\n", form, "here")
