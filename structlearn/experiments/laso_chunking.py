"""Chunking by whole segments: learning as search beside standard perceptron and semi-CRF, and over beams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from structlearn.experiments.base import Experiment, Report, Settings, Table
from structlearn.experiments.kept import Kept
from structlearn.experiments.search_runs import (
    PASSES,
    Plan,
    columns,
    corpora,
    curve,
    height,
    held_out,
    learners_and_beams,
    prepare,
    row,
)
from structlearn.experiments.semi_crf import semi_crf

MOST = 7  # passes to choose among, as many as keep every learner within five minutes of one core


def learners(passes: int, runs: int) -> list[Plan]:
    """What is compared at beam 10."""
    return [
        Plan("LaSO, ALMA", epochs=passes, skip=3, runs=runs, B=100.0, C=1.0, counts="errors"),
        Plan("LaSO, perceptron", update="perceptron", epochs=passes),
        Plan("early update", "early", "perceptron", epochs=passes),
        Plan("standard perceptron", "standard", "perceptron", epochs=passes, batch=8, runs=runs),
    ]


def run(settings: Settings) -> Report:
    """Passes of each learner chosen on held-out sentences; then all of the corpus, learners and beams."""
    sentences, test = corpora(settings)
    plans = learners(1, 1) if settings.smoke else learners(MOST, 4)
    some, rest = held_out(sentences, every=1)
    inner = prepare("chunking", some)
    outer = prepare("chunking", rest, inner)
    kept = Kept(settings, EXPERIMENT.name)
    curves: list[list[float]] = []
    for plan in plans:
        watch = partial(curve, "chunking", inner, outer, plan, settings.seed)
        curves.append(kept.part(f"choice, {plan._replace(runs=1)}, seed {settings.seed}", watch))
    chosen = [plan._replace(epochs=f.index(max(f)) + 1) for plan, f in zip(plans, curves, strict=True)]

    whole = prepare("chunking", sentences)
    final = prepare("chunking", test, whole)
    rows, beams = learners_and_beams("chunking", whole, final, chosen, settings.seed, kept)
    crf = Plan("semi-CRF, exact", epochs=min(PASSES, plans[0].epochs))
    exact = row(crf, [semi_crf(whole, final, crf.epochs, seed=settings.seed)])
    rows.append([exact[0], None, *exact[2:]])
    head, size = columns("chunking"), f"all {len(sentences):,} training sentences"
    tables = [
        Table(f"learners, {size}, passes chosen on held-out ones", head, rows),
        Table(f"beams, {size}", head, beams),
        Table(
            f"the choice: F on the last fifth of the training sentences, by the other {len(some):,}",
            ["pass", *(plan.name for plan in plans)],
            [[str(i), *scores] for i, scores in enumerate(zip(*curves, strict=True), 1)],
        ),
    ]
    return Report(tables, notes(settings) + kept.close(), lambda: draw(plans, curves, rows, beams))


def notes(settings: Settings) -> list[str]:
    """What the figures are of."""
    if settings.smoke:
        return ["generated sentences stand in for everything"]
    return [
        "CoNLL-2000, train and test as given, F by conlleval's rules; features of words and whole chunks, at most 10 "
        "words a chunk; batches of 16 sentences, of 8 for the standard perceptron; weights averaged over all passes "
        "but the first, with ALMA but the first three",
        "ALMA: α = 0.9, p = 2; the margin is compared with scores of features that are not of length 1, so B = 100; "
        "C = 1; k counts errors, a batch with e of them moves by C √(e/k)",
        "F is a mean over runs that differ in the order of sentences, with the 95 % interval of that mean where there "
        "are several; precision, recall and seconds are means too; sampling of the test sentences is not in it",
        f"passes were chosen among 1 to {MOST} for each learner by the same procedure, on the last fifth of the "
        "training sentences by a model of the others; each was then trained on all of them",
        "the paper's ordering: LaSO at least as good as the perceptron, near or above the semi-CRF in a fraction of "
        "its time; its figures are not at hand; the semi-CRF here learns by AdaGrad, exactly",
        "seconds are of the process, one thread, feature extraction left out (7 s for all sentences)",
    ]


def draw(
    plans: Sequence[Plan], curves: Sequence[Sequence[float]], rows: list[list[Any]], beams: list[list[Any]]
) -> Any:
    """F by pass, by learner and by beam."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for plan, scores in zip(plans, curves, strict=True):
        left.plot(range(1, len(scores) + 1), scores, marker="o", label=plan.name)
    left.set(title="held-out sentences", xlabel="passes", ylabel="F")
    left.legend()
    names, scores = [cells[0] for cells in rows], [height(cells[5]) for cells in rows]
    middle.barh(names[::-1], scores[::-1])
    middle.set(title="test, beam 10", xlabel="F", xlim=(min(scores) - 0.5, max(scores) + 0.2))
    right.plot([cells[1] for cells in beams], [height(cells[5]) for cells in beams], marker="o")
    right.set(title="test, LaSO with ALMA", xlabel="beam", ylabel="F")
    return figure


EXPERIMENT = Experiment(
    name="laso-chunking",
    about="chunking by segments: LaSO beside early update, standard perceptron and semi-CRF; beams 1, 5, 10, 25",
    paper="Daumé and Marcu 2005, chunking",
    corpora=("conll2000",),
    minutes=50,
    run=run,
)
