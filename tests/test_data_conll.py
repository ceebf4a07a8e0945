"""Column files, sparse features and the chunker on them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from structlearn.data.chunk_features import Tokens, chunk_features
from structlearn.data.conll import Sentence, read_conll2000
from structlearn.data.sparse import FeatureIndex, SparseBag, case_pattern, hash_strings, mix, stem
from structlearn.errors import ArgumentError, FormatError
from structlearn.search import ALMA, beam_search, laso
from structlearn.search.chunker import ChunkCorpus, ChunkScorer

TEXT = "He PRP B-NP\nreads VBZ B-VP\nold JJ B-NP\nbooks NNS I-NP\n. . O\n\n\nOld JJ B-NP\nmen NNS I-NP\nread VBP B-VP\n"


@pytest.fixture
def sentences(tmp_path: Path) -> list[Sentence]:
    (tmp_path / "a.txt").write_text(TEXT)
    return read_conll2000(tmp_path / "a.txt")


def test_reads_plain_and_gzipped(tmp_path: Path, sentences: list[Sentence]) -> None:
    assert [s.words for s in sentences] == [["He", "reads", "old", "books", "."], ["Old", "men", "read"]]
    assert sentences[1].chunks == ["B-NP", "I-NP", "B-VP"]
    with gzip.open(tmp_path / "a.gz", "wt") as file:
        file.write(TEXT)
    assert read_conll2000(tmp_path / "a.gz") == sentences


def test_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(TEXT + "\nword NN\n")
    with pytest.raises(FormatError, match=r"bad\.txt:12: expected 3 columns or a blank line, got 2: 'word NN'"):
        read_conll2000(path)
    path.write_bytes(b"a b O\n\xff b O\n")
    with pytest.raises(FormatError, match=r"bad\.txt:2: expected utf-8 text"):
        read_conll2000(path)
    path = tmp_path / "bad.gz"
    path.write_bytes(gzip.compress(TEXT.encode())[:-10])
    with pytest.raises(FormatError, match="a whole gzip file"):
        read_conll2000(path)


def test_hashes_mind_order_and_number_what_is_known() -> None:
    a, b = hash_strings(["a", "b"])
    assert mix(a, b) != mix(b, a)
    many = mix(torch.arange(100_000), 7)
    assert len(many.unique()) == 100_000
    index = FeatureIndex(torch.stack([a, a, b]), min_count=2)
    assert index.size == 2
    assert index(torch.stack([b, a, mix(a)])).tolist() == [0, 1, 0]
    with pytest.raises(ArgumentError, match="min_count"):
        FeatureIndex(many, min_count=0)


def test_bag_sums_rows_and_never_reads_row_zero() -> None:
    bag = SparseBag(4, 2, value=0.5)
    with torch.no_grad():
        bag.weight.copy_(torch.tensor([[9.0, 9.0], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert bag(torch.tensor([[[1, 2, 0], [3, 3, 0]]])).tolist() == [[[2.0, 3.0], [5.0, 6.0]]]


def test_words() -> None:
    assert [case_pattern(w) for w in ("Confidence", "1,000", "IBM", "U.S.", "")] == ["Aa", "0,0", "A", "A.A.", ""]
    assert [stem(w) for w in ("Reading", "sing", "companies")] == ["read", "sing", "compan"]


def test_features_do_not_cross_sentences(sentences: list[Sentence]) -> None:
    both = chunk_features(Tokens(sentences), 4)
    alone = [chunk_features(Tokens([s]), 4) for s in sentences]
    for i in range(3):
        assert torch.equal(both[i], torch.cat([part[i] for part in alone]))
    assert (both.spans[:, :, 0] != 0).sum(1).tolist() == [4, 4, 3, 2, 1, 3, 2, 1]


def test_chunker_learns_what_it_sees(sentences: list[Sentence]) -> None:
    corpus = ChunkCorpus(sentences, 3)
    assert corpus.labels == ("O", "NP", "VP")
    model = ChunkScorer(corpus)
    update = ALMA(model.parameters())
    rows = torch.arange(2)
    batch = corpus.batch(rows)
    for _ in range(10):
        update(laso(model(batch), batch.gold, 3, margin=update.margin))
    found = beam_search(model(batch), 3)
    assert corpus.tags(rows, found.output) == [s.chunks for s in sentences]
    # In another corpus the same words have the same scores.
    again = ChunkCorpus(sentences[1:], like=corpus)
    assert torch.equal(beam_search(model(again.batch(torch.tensor([0]))), 3).output[0], found.output[1, :3])


def test_a_chunk_that_is_too_wide_is_not_learnt(sentences: list[Sentence]) -> None:
    corpus = ChunkCorpus(sentences, 1)
    assert corpus.learnable.tolist() == [False, False]
    assert ChunkCorpus(sentences, 2).learnable.tolist() == [True, True]
    assert not list(corpus.batches(4, generator=torch.Generator()))
    assert torch.cat(list(corpus.batches(1))).tolist() == [1, 0]


@pytest.mark.corpus
def test_conll2000_is_whole(data_dir: Path) -> None:
    test = read_conll2000(data_dir / "conll2000" / "test.txt.gz")
    assert len(test) == 2012
    assert sum(len(s.words) for s in test) == 47377
    assert sum(tag.startswith("B-") for s in test for tag in s.chunks) == 23852


@pytest.mark.corpus
def test_chunker_on_a_slice_of_conll2000(data_dir: Path) -> None:
    sentences = read_conll2000(data_dir / "conll2000" / "test.txt.gz")
    train, held_out = ChunkCorpus(sentences[:200]), sentences[200:260]
    model = ChunkScorer(train)
    update = ALMA(model.parameters())
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for rows in train.batches(16, generator=generator):
            batch = train.batch(rows)
            update(laso(model(batch), batch.gold, 5, margin=update.margin))
    test = ChunkCorpus(held_out, like=train)
    rows = torch.arange(60)
    with torch.no_grad():
        found = test.tags(rows, beam_search(model(test.batch(rows)), 5).output)
    right = sum(a == b for x, s in zip(found, held_out, strict=True) for a, b in zip(x, s.chunks, strict=True))
    assert right / sum(len(s.chunks) for s in held_out) > 0.85
