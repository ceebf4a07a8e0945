import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import accuracy_score, classification_report, f1_score, precision_score, recall_score

from structlearn.errors import ArgumentError, LabelError, ShapeError
from structlearn.metrics import ChunkF1, chunk_scores

PREFIXES = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES"}


def corpora(scheme: str):
    names = ["O", *[f"{p}-{t}" for p in PREFIXES[scheme] for t in ("NP", "VP-x")]]
    pair = st.tuples(st.sampled_from(names), st.sampled_from(names))
    return st.lists(st.lists(pair, min_size=1, max_size=8), min_size=1, max_size=4)


def split(corpus):
    return [[p for p, _ in row] for row in corpus], [[g for _, g in row] for row in corpus]


# (gold, predicted, matched, predicted segments, gold segments), worked by hand from the rules of conlleval.
WORKED = [
    ("B-NP I-NP O B-VP", "B-NP I-NP O B-VP", 2, 2, 2),
    ("B-NP I-NP I-NP", "B-NP I-NP O", 0, 1, 1),
    ("B-NP I-NP", "B-NP B-NP", 0, 2, 1),
    # I after O begins a segment, so both mean one NP over words 1 and 2.
    ("O B-NP I-NP", "O I-NP I-NP", 1, 1, 1),
    # Another type begins another segment, whatever the prefix.
    ("B-NP I-VP", "B-NP B-VP", 2, 2, 2),
    ("B-NP I-NP I-VP I-NP", "B-NP I-NP O I-NP", 2, 2, 3),
    # IOB1 writes B only between neighbours of one type.
    ("I-NP B-NP I-NP", "B-NP B-NP I-NP", 2, 2, 2),
    # A segment is only right with its type.
    ("B-NP I-NP", "B-VP I-VP", 0, 1, 1),
    ("O O", "O O", 0, 0, 0),
    ("O O", "B-NP O", 0, 1, 0),
    ("S-NP B-NP E-NP", "S-NP B-NP I-NP", 2, 2, 2),
    # E and S end what they close: E E is two segments, I after E begins one.
    ("B-NP E-NP E-NP", "B-NP E-NP I-NP", 2, 2, 2),
    ("S-NP S-NP", "B-NP E-NP", 0, 1, 2),
    ("B-NP S-NP O", "B-NP O O", 1, 1, 2),
]


@pytest.mark.parametrize(("gold", "predicted", "matched", "found", "total"), WORKED)
def test_worked_examples(gold, predicted, matched, found, total):
    scores = chunk_scores([predicted.split()], [gold.split()], "BIOES")
    assert scores.precision == (matched / found if found else 0.0)
    assert scores.recall == (matched / total if total else 0.0)
    assert scores.f1 == (2 * matched / (found + total) if found + total else 0.0)
    assert sum(count for *_, count in scores.by_type.values()) == total


@pytest.mark.parametrize("scheme", PREFIXES)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning", "ignore:.*seems not to be NE tag")
def test_agrees_with_seqeval(scheme, data):
    predicted, gold = split(data.draw(corpora(scheme)))
    scores = chunk_scores(predicted, gold, scheme)
    assert scores.precision == pytest.approx(precision_score(gold, predicted, zero_division=0))
    assert scores.recall == pytest.approx(recall_score(gold, predicted, zero_division=0))
    assert scores.f1 == pytest.approx(f1_score(gold, predicted, zero_division=0))
    assert scores.accuracy == pytest.approx(accuracy_score(gold, predicted))
    if any(tag != "O" for row in gold + predicted for tag in row):
        report = classification_report(gold, predicted, output_dict=True, zero_division=0)
        for name, (precision, recall, f1, count) in scores.by_type.items():
            found = report[name]
            expected = [found["precision"], found["recall"], found["f1-score"], found["support"]]
            assert [precision, recall, f1, count] == pytest.approx(expected)


@pytest.mark.parametrize("scheme", PREFIXES)
@given(data=st.data())
def test_metric_over_ragged_batches_is_the_function(scheme, data):
    corpus = data.draw(corpora(scheme))
    predicted, gold = split(corpus)
    names = ["O", *[f"{p}-{t}" for p in PREFIXES[scheme] for t in ("NP", "VP-x", "unused")]]
    metric = ChunkF1(names, scheme)
    for rows in (slice(0, 2), slice(2, None)):
        if not gold[rows]:
            continue
        width = max(map(len, gold[rows])) + 1
        batch = [
            [[names.index(t) for t in row] + [-100] * (width - len(row)) for row in side[rows]]
            for side in (predicted, gold)
        ]
        p, g = torch.tensor(batch)
        metric.update(p.masked_fill(g == -100, 1), g)
    result = metric.compute()
    expected = chunk_scores(predicted, gold, scheme)
    for name in ("precision", "recall", "f1", "accuracy"):
        assert result[name].item() == pytest.approx(getattr(expected, name))
    for kind in ("NP", "VP-x"):
        assert result[f"f1/{kind}"].item() == pytest.approx(expected.by_type.get(kind, (0, 0, 0.0, 0))[2])
    assert result["f1/unused"] == 0
    metric.reset()
    assert metric.counts.sum() == metric.words == 0


def test_empty_corpora():
    assert chunk_scores([], []).f1 == 0
    assert chunk_scores([[]], [[]]).accuracy == 0
    metric = ChunkF1(["O", "B-X", "I-X"])
    metric.update(torch.zeros((2, 0), dtype=torch.int64), torch.zeros((2, 0), dtype=torch.int64))
    assert metric.compute()["f1"] == 0


def test_wrong_arguments():
    with pytest.raises(ShapeError, match="predicted: expected 1 sequences, as gold, got 2"):
        chunk_scores([["O"], ["O"]], [["O"]])
    with pytest.raises(ShapeError, match="expected 2 tags in sequence 1, as gold, got 1"):
        chunk_scores([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(ArgumentError, match="'X-NP'"):
        chunk_scores([["X-NP"]], [["O"]])
    metric = ChunkF1(["O", "B-X"])
    with pytest.raises(ShapeError, match=r"expected \(B, N\) = \(1, 2\), as gold, got \(1, 3\)"):
        metric.update(torch.zeros((1, 3), dtype=torch.int64), torch.zeros((1, 2), dtype=torch.int64))
    with pytest.raises(LabelError, match=r"gold: expected labels in 0..1 where gold is not -100, got 2 at \(0, 1\)"):
        metric.update(torch.tensor([[0, 0]]), torch.tensor([[0, 2]]))
    with pytest.raises(LabelError, match=r"predicted: .* got -100 at \(0, 0\)"):
        metric.update(torch.tensor([[-100, 0]]), torch.tensor([[0, 0]]))
