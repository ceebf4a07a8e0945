"""Parts of speech and chunks together: LaSO beside early and standard updates, and over beams."""

from __future__ import annotations

from typing import Any

from structlearn.experiments.base import Experiment, Report, Settings, Table
from structlearn.experiments.kept import Kept
from structlearn.experiments.search_runs import PASSES, Plan, columns, corpora, height, learners_and_beams, prepare


def learners(passes: int) -> list[Plan]:
    """What is compared at beam 10."""
    return [
        Plan("LaSO, perceptron", update="perceptron", epochs=passes),
        Plan("early update", "early", "perceptron", epochs=passes),
        Plan("standard perceptron", "standard", "perceptron", epochs=passes),
        Plan("LaSO, ALMA", epochs=passes),
        Plan("max-violation", "max_violation", "perceptron", epochs=passes),
    ]


def run(settings: Settings) -> Report:
    """Every learner at beam 10, then LaSO at every beam."""
    sentences, held = corpora(settings)
    whole = prepare("joint", sentences)
    test = prepare("joint", held, whole)
    kept = Kept(settings, EXPERIMENT.name)
    plans = learners(1 if settings.smoke else PASSES)
    rows, beams = learners_and_beams("joint", whole, test, plans, settings.seed, kept)
    size = f"all {len(sentences):,} training sentences"
    tables = [
        Table(f"learners, {size}", columns("joint"), rows),
        Table(f"beams, {size}", columns("joint"), beams),
    ]
    return Report(tables, notes(settings) + kept.close(), lambda: draw(rows, beams))


def notes(settings: Settings) -> list[str]:
    """What the figures are of."""
    if settings.smoke:
        return ["generated sentences stand in for everything"]
    return [
        "CoNLL-2000 with its parts of speech, which are Brill's and not gold, to be predicted too; F of chunks by "
        "conlleval's rules; a word and its neighbours as features, no part of speech among them",
        f"{PASSES} passes for every learner, set by the time they take; nothing was chosen by these test sentences; "
        "weights averaged over all passes but the first, batches of 16, α = 0.9 as in the paper; one run each",
        "the paper's ordering: LaSO > early update > standard update; its figures are not at hand",
        "seconds are of the process, one thread, feature extraction left out",
    ]


def draw(rows: list[list[Any]], beams: list[list[Any]]) -> Any:
    """F by learner and by beam."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names, scores = [cells[0] for cells in rows], [height(cells[6]) for cells in rows]
    left.barh(names[::-1], scores[::-1])
    left.set(title="beam 10", xlabel="F of chunks", xlim=(min(scores) - 1, max(scores) + 0.3))
    right.plot([cells[1] for cells in beams], [height(cells[6]) for cells in beams], marker="o")
    right.set(title="LaSO, perceptron", xlabel="beam", ylabel="F of chunks")
    return figure


EXPERIMENT = Experiment(
    name="laso-joint",
    about="parts of speech and chunks together: LaSO, max-violation, early and standard updates; beams 1, 5, 10, 25",
    paper="Daumé and Marcu 2005, joint tagging and chunking",
    corpora=("conll2000",),
    minutes=25,
    run=run,
)
