"""Pictures draw, and show what they are given: read back from the axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import structlearn as sl
from structlearn import viz
from structlearn.data.treebank import parse_tree
from structlearn.errors import ArgumentError
from structlearn.search import ChunkingSpace, Search, TaggingSpace

PNG = b"\x89PNG"
GOLD = parse_tree("(S (NP (DT the) (NN dog)) (VP (VBZ saw) (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town)))))")
OTHER = parse_tree("(S (NP (DT the) (NN dog)) (VP (VBZ saw) (NP (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town))))))")


def axes() -> Any:
    return viz.figure(5, 4).subplots()


def saved(ax: Any, folder: Path) -> bytes:
    ax.figure.savefig(folder / "picture.png")
    return (folder / "picture.png").read_bytes()


def boxed(ax: Any) -> list[str]:
    return [t.get_text() for t in ax.texts if t.get_weight() == "bold"]


def test_transition_matrix_names_its_axes(tmp_path: Path) -> None:
    ax, scores = axes(), torch.tensor([[0.0, 2.0], [-1.0, 0.5]])
    viz.transition_matrix(ax, scores, ["B-NP", "I-NP"], what="tag")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("tag", "tag before")
    (image,) = ax.get_images()
    assert torch.equal(torch.as_tensor(image.get_array().data), scores)
    assert image.get_clim() == (-2.0, 2.0)
    assert saved(ax, tmp_path).startswith(PNG)


def test_label_posteriors_hold_the_marginals(tmp_path: Path) -> None:
    s = sl.LinearChain(torch.randn(1, 4, 3), torch.randn(3, 3))
    ax, path = axes(), s.argmax()[0]
    viz.label_posteriors(ax, s.marginals().unary[0], ["a", "b", "c"], tokens=["w", "x", "y", "z"], path=path)
    shown = torch.as_tensor(ax.get_images()[0].get_array().data)
    torch.testing.assert_close(shown.sum(0), torch.ones(4))
    assert ax.collections[0].get_offsets().tolist() == [[n, c] for n, c in enumerate(path.tolist())]
    assert saved(ax, tmp_path).startswith(PNG)


def test_parse_tree_places_words_and_boxes_what_gold_lacks(tmp_path: Path) -> None:
    ax = axes()
    viz.parse_tree(ax, OTHER, gold=GOLD)
    places = {t.get_text(): t.get_position() for t in ax.texts}
    assert [places[word] for word in OTHER.leaves()] == [(float(n), 0) for n in range(7)]
    assert places["DT"][1] == 1
    assert places["S"][1] == max(y for _, y in places.values())
    assert boxed(ax) == ["NP"]  # the constituent that takes the cat into town
    nodes = sum(1 for _ in OTHER.preorder())
    assert not [line for line in ax.lines if line.get_linestyle() == "--"]
    assert len(ax.lines) == nodes - 1 + 7  # every node but the top hangs on a line, and so does every word
    assert saved(ax, tmp_path).startswith(PNG)


def test_parse_tree_says_what_is_missed(tmp_path: Path) -> None:
    ax = axes()
    viz.parse_tree(ax, GOLD, gold=OTHER)
    assert boxed(ax) == []
    (missed,) = (line for line in ax.lines if line.get_linestyle() == "--")
    assert [round(x) for x in missed.get_xdata()] == [3, 6]  # a cat in town
    assert saved(ax, tmp_path).startswith(PNG)


def test_parse_tree_counts_equal_constituents() -> None:
    ax = axes()
    viz.parse_tree(ax, parse_tree("(X (X (X (A a) (B b))))"), gold=parse_tree("(X (X (A a) (B b)))"))
    assert boxed(ax) == ["X"]
    plain = axes()
    viz.parse_tree(plain, sl.Tree("X", "word"))
    assert [t.get_text() for t in plain.texts] == ["word", "X"]
    assert boxed(plain) == []


def test_gap_curves_and_bounds_show_the_history(tmp_path: Path) -> None:
    x = torch.randn(12, 4, 3)
    y = x.argmax(-1)
    fitted = sl.StructuredSVM(sl.features.ChainMap(3, 3), sl.costs.Hamming(), C=1.0, solver="one_slack").fit(x, y)
    history = fitted.history_
    ax = axes()
    viz.gap_curves(ax, {"one": history, "again": history}, over="round")
    assert len(ax.lines) == 2
    assert list(ax.lines[0].get_ydata()) == [max(row.relative_gap, 1e-16) for row in history]
    assert ax.get_yscale() == "log"
    assert ax.lines[0].get_label() == f"one: {history[-1].relative_gap:.1e}"
    other = axes()
    viz.bounds(other, history, over="oracle_calls")
    primal, dual = (list(line.get_ydata()) for line in other.lines)
    assert primal == history["primal"]
    assert all(low <= high for low, high in zip(dual, primal, strict=True))
    assert saved(ax, tmp_path).startswith(PNG)


def test_beam_lattice_draws_every_hypothesis_and_the_best_path(tmp_path: Path) -> None:
    unary, transition, lengths = torch.randn(2, 5, 4), torch.randn(4, 4), torch.tensor([5, 3])
    space = TaggingSpace(unary, transition, lengths=lengths)
    gold = sl.LinearChain(unary, transition, lengths=lengths).argmax()
    search = Search(space, 2, gold=gold).run()
    for row, length in enumerate(lengths.tolist()):
        ax = axes()
        viz.beam_lattice(ax, search, row=row, names="abcd", tokens="vwxyz")
        assert len(ax.lines) == len(ax.texts) - 1 == 2 * length
        thick = sorted((line for line in ax.lines if line.get_linewidth() > 2), key=lambda line: line.get_xdata()[0])
        ends = [(line.get_xdata()[1], line.get_ydata()[1]) for line in thick]
        by_place = {t.get_position(): t.get_text() for t in ax.texts}
        path = search.paths(torch.zeros(2, dtype=torch.int64))[row, :length].tolist()
        assert [by_place[end] for end in ends] == ["abcd"[c] for c in path]
        assert [t.get_text() for t in ax.get_xticklabels()] == ["start", *"vwxyz"[:length]]
        assert saved(ax, tmp_path).startswith(PNG)


def test_beam_lattice_marks_where_gold_is_still_in_reach() -> None:
    unary = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]])
    search = Search(TaggingSpace(unary, torch.zeros(2, 2)), 1, gold=torch.tensor([[0, 0, 1]])).run()
    ax = axes()
    viz.beam_lattice(ax, search)
    frames = [t.get_bbox_patch().get_linewidth() for t in sorted(ax.texts, key=lambda t: t.get_position())]
    assert frames == [2.2, 2.2, 1.0, 1.0]  # greedy search takes label 1 at the second place, and gold is lost


def test_beam_lattice_of_segments_spans_layers() -> None:
    space = ChunkingSpace(torch.randn(1, 5, 3, 2), torch.randn(2, 2))
    ax = axes()
    viz.beam_lattice(ax, Search(space, 2).run(), names=lambda layer, operator: f"{operator // 2 + 1} words")
    assert max(line.get_xdata()[1] - line.get_xdata()[0] for line in ax.lines) > 1
    with pytest.raises(ArgumentError, match=r"call search\.run\(\) first"):
        viz.beam_lattice(ax, Search(space, 2))
