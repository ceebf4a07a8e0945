"""Feature maps of alignments, candidates of homologues, the generative baseline and the synthetic data."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import structlearn as sl
from structlearn.baselines import log_odds
from structlearn.data.homologues import HiddenModel
from structlearn.data.substitution import AMINO_ACIDS, TABLES, substitution_table
from structlearn.errors import ArgumentError, DTypeError, InfeasibleError, LabelError, ShapeError
from structlearn.metrics import decoy_error


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("mode", ["global", "local", "semiglobal"])
def test_joint_features_are_the_histogram_of_operations(mode: str, affine: bool) -> None:
    torch.manual_seed(0)
    a = sl.features.AlignmentMap(5, gap=-0.5, gap_open=-1.5 if affine else None, mode=mode)  # type: ignore[arg-type]
    with torch.no_grad():
        a.substitution.normal_()
    x, z = torch.randint(0, 5, (3, 6)), torch.randint(0, 5, (3, 4))
    x[1, 4:], z[1, 2:] = -100, 99
    lengths = ([6, 4, 6], [4, 2, 4])
    s = a((x, z), lengths)
    y = s.sample(1)[0]
    psi = a.joint((x, z), y, lengths)
    torch.testing.assert_close(psi @ a.weights(), s.score(y))
    if mode == "global":
        for b in range(3):
            path = [op for op in y[b].tolist() if op >= 0]
            counts = torch.zeros(5, 5)
            i = j = 0
            for op in path:
                if op == 0:
                    counts[x[b, i], z[b, j]] += 1
                i, j = i + (op != 2), j + (op != 1)
            assert torch.equal(psi[b, :25].view(5, 5), counts)
            in_gaps = sum(op != 0 for op in path)
            opened = sum(op != 0 and op != before for before, op in pairwise([0, *path]))
            assert psi[b, 25:].tolist() == ([in_gaps - opened, opened] if affine else [in_gaps])


def test_tables_are_those_of_biopython() -> None:
    matrices = pytest.importorskip("Bio.Align.substitution_matrices")
    for name in TABLES:
        known = matrices.load(name)
        table = substitution_table(name, AMINO_ACIDS + "BZX*")
        assert torch.equal(table, table.T)
        for i, a in enumerate(AMINO_ACIDS + "BZX*"):
            for j, b in enumerate(AMINO_ACIDS + "BZX*"):
                assert float(table[i, j]) == float(known[a][b])


def test_encoders_score_by_similarity() -> None:
    torch.manual_seed(0)
    f, g = nn.Linear(3, 4), nn.Linear(2, 4)
    a = sl.features.EncoderAlignmentMap(4, f, other=g, gap=-0.2, gap_open=-0.4)
    x, z = torch.randn(2, 5, 3), torch.randn(2, 6, 2)
    s = a((x, z))
    torch.testing.assert_close(s.match, torch.einsum("bnf,bmf->bnm", f(x), g(z)) / 2)
    y = s.argmax()
    torch.testing.assert_close(a.joint((x, z), y) @ a.weights(), s.score(y))
    sl.CRFLoss()(s, y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in a.parameters())
    with pytest.raises(ShapeError, match=r"x\[1\]: expected \(B, M, 4\) after the encoder"):
        sl.features.EncoderAlignmentMap(4, f, other=nn.Linear(2, 3))((x, z))


def test_mistakes_are_named() -> None:
    a = sl.features.AlignmentMap(4)
    x = torch.tensor([[0, 1, 4]])
    with pytest.raises(LabelError, match=r"x\[0\]: expected letters in 0..3 at unpadded places, got 4 at \(0, 2\)"):
        a((x, x[:, :2]))
    assert a((x, x[:, :2]), ([2], None)).batch_size == 1
    with pytest.raises(DTypeError, match=r"x\[1\]: expected integer letters"):
        a((x[:, :2], x.float()))
    with pytest.raises(ShapeError, match=r"table: expected \(A, A\)"):
        sl.features.AlignmentMap.from_table(torch.zeros(3, 4))
    with pytest.raises(ArgumentError, match="name: expected one of"):
        substitution_table("BLOSUM99")
    with pytest.raises(ArgumentError, match="letters of ARNDCQEGHILKMFPSTWYVBZX"):
        substitution_table("PAM250", "AJ")
    with pytest.raises(ArgumentError, match="laplace: expected a number > 0"):
        log_odds(x, x, torch.tensor([[0, 0, 0]]), 5, laplace=0.0)
    with pytest.raises(ArgumentError, match="keep: expected a probability"):
        HiddenModel.random(keep=1.5)


def test_candidates_are_a_ragged_choice() -> None:
    scores = torch.tensor([[1.0, 3.0, float("nan")], [2.0, 0.0, 5.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    s = sl.Candidates(scores, mask=mask)
    assert s.argmax().tolist() == [1, 2]
    assert s.count().tolist() == [2, 3]
    torch.testing.assert_close(s.log_partition()[0], torch.tensor([1.0, 3.0]).logsumexp(0))
    assert s.marginals().scores[0, 2] == 0
    s.log_partition().sum().backward()
    assert scores.grad is not None
    assert scores.grad[0, 2] == 0
    assert s.replace(scores=-scores).argmax().tolist() == [0, 1]
    loss = sl.StructuredHinge(sl.costs.ZeroOne(), reduction="none")(s, torch.tensor([0, 2]))
    assert loss.tolist() == [3.0, 0.0]
    with pytest.raises(InfeasibleError, match=r"none for batch rows \[1\]"):
        sl.Candidates(scores, mask=torch.tensor([[True, True, False], [False] * 3])).argmax()
    with pytest.raises(ShapeError, match=r"mask: expected \(B, M\) = \(2, 3\)"):
        sl.Candidates(scores, mask=mask[:, :2])
    with pytest.raises(DTypeError, match="mask: expected bool"):
        sl.Candidates(scores, mask=mask.long())


def test_log_odds_count_aligned_letters() -> None:
    x, y = torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 1]])
    path = torch.tensor([[0, 1, 2, 0, -100, -100]])
    found = log_odds(x, y, path, 2, laplace=1.0)
    joint = torch.tensor([[2.0, 1.0], [1.0, 2.0]]) / 6
    p, q = torch.tensor([2.0, 3.0]) / 5, torch.tensor([3.0, 2.0]) / 5
    torch.testing.assert_close(found, (joint / (p[:, None] * q)).log())


def test_synthetic_homologues_are_aligned_with_their_natives() -> None:
    hidden = HiddenModel.random(generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(hidden.substitution.sum(1), torch.ones(20))
    data = hidden.draw(6, length=30, decoys=3, generator=torch.Generator().manual_seed(1))
    again = hidden.draw(6, length=30, decoys=3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(data.candidates, again.candidates)
    s = sl.Alignment(
        torch.zeros(6, 30, data.candidates.shape[2]), gap=0.0, y_lengths=data.lengths[:, 0], x_lengths=[30] * 6
    )
    assert s.score(data.paths).tolist() == [0.0] * 6  # every path consumes exactly both sequences
    assert (data.candidates[0, 0, : data.lengths[0, 0]] >= 0).all()


def test_learning_finds_the_homologue() -> None:
    g = torch.Generator().manual_seed(3)
    hidden = HiddenModel.random(keep=0.3, generator=g)
    train, test = (hidden.draw(size, length=20, decoys=4, generator=g) for size in (12, 40))
    table = log_odds(train.natives, train.candidates[:, 0], train.paths, 20, y_lengths=train.lengths[:, 0])
    generative = sl.features.HomologueMap(
        sl.features.AlignmentMap.from_table(table, gap=-1.0, gap_open=None, mode="local")
    )
    model = sl.features.HomologueMap(sl.features.AlignmentMap(20, gap=-0.1, mode="local"))
    hinge = sl.StructuredHinge(sl.costs.ZeroOne())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(15):
        optimizer.zero_grad()
        candidates = model(
            train.natives,
            train.candidates,
            (train.native_lengths, train.lengths),
            homologue=train.homologue,
            path=train.paths,
        )
        hinge(candidates, train.homologue).backward()
        optimizer.step()

    def error(m: sl.features.HomologueMap) -> float:
        found = m(test.natives, test.candidates, (test.native_lengths, test.lengths)).argmax()
        return decoy_error(found, test.homologue)

    assert error(generative) < 0.4  # 4 decoys: guessing errs in 0.8
    assert error(model) < 0.4


def test_a_given_alignment_scores_the_homologue() -> None:
    g = torch.Generator().manual_seed(5)
    data = HiddenModel.random(generator=g).draw(3, length=10, decoys=2, generator=g)
    model = sl.features.HomologueMap(sl.features.AlignmentMap.from_table("BLOSUM62", gap_open=None))
    lengths = (data.native_lengths, data.lengths)
    free = model(data.natives, data.candidates, lengths)
    given = model(data.natives, data.candidates, lengths, homologue=data.homologue, path=data.paths)
    pairs = model.alignment((data.natives, data.candidates[:, 0]), (data.native_lengths, data.lengths[:, 0]))
    torch.testing.assert_close(given.scores[:, 0], pairs.score(data.paths))
    torch.testing.assert_close(free.scores[:, 0], pairs.max())
    assert torch.equal(given.scores[:, 1:], free.scores[:, 1:])
    assert bool((free.scores >= given.scores).all())


def test_nan_in_padding_does_not_reach_gradients_of_encoded_pairs() -> None:
    feature_map = sl.features.EncoderAlignmentMap(3, nn.Identity())
    first, second = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
    lengths = torch.tensor([4, 2]), torch.tensor([3, 5])
    found = []
    for padding in (0.0, torch.nan):
        for x, sizes in zip((first, second), lengths, strict=True):
            for row, n in zip(x, sizes.tolist(), strict=True):
                row[n:] = padding
        value = feature_map((first, second), lengths).log_partition().sum()
        found.append(torch.autograd.grad(value, list(feature_map.parameters())))
    for plain, with_nan in zip(*found, strict=True):
        assert torch.equal(plain, with_nan)
