"""Chunking by whole segments: learning as search beside standard perceptron and semi-CRF, and over beams."""

from __future__ import annotations

from typing import Any

from structlearn.experiments.base import Experiment, Report, Settings, Table
from structlearn.experiments.search_runs import (
    PASSES,
    SHARE,
    Plan,
    choose_epochs,
    columns,
    corpora,
    learners_and_beams,
    measure,
    prepare,
    row,
    train,
)
from structlearn.experiments.semi_crf import semi_crf

MOST = 8  # passes that fit into five minutes of one core


def learners(passes: int) -> list[Plan]:
    """What is compared at beam 10."""
    return [
        Plan("LaSO, ALMA", epochs=passes),
        Plan("LaSO, perceptron", update="perceptron", epochs=passes),
        Plan("early update", "early", "perceptron", epochs=passes),
        Plan("standard perceptron", "standard", "perceptron", epochs=passes),
    ]


def run(settings: Settings) -> Report:
    """Learners and beams on a share of the corpus; then the chosen one on all of it."""
    sentences, held = corpora(settings)
    passes = 1 if settings.smoke else PASSES
    part = prepare("chunking", sentences[: len(sentences) // SHARE])
    test = prepare("chunking", held, part)
    plans = learners(passes)
    rows, beams = learners_and_beams("chunking", part, test, plans, settings.seed)
    exact = semi_crf(part, test, passes, seed=settings.seed)
    crf = Plan("semi-CRF, exact", epochs=passes)
    rows.append([*row(crf, exact)[:1], None, *row(crf, exact)[2:]])

    most = Plan("LaSO, ALMA", epochs=2 if settings.smoke else MOST)
    inner, outer = sentences[: len(sentences) // SHARE], sentences[-(len(sentences) // 10) :]
    curve = choose_epochs("chunking", inner, outer, most, settings.seed)
    best = most._replace(epochs=curve.index(max(curve)) + 1)
    whole = prepare("chunking", sentences)
    model, seconds = train("chunking", whole, best, settings.seed)
    final = measure("chunking", model, prepare("chunking", held, whole), best.beam, seconds)
    head = columns("chunking")
    size = f"{len(sentences) // SHARE:,} of {len(sentences):,} training sentences"
    tables = [
        Table("all training sentences, passes chosen on held-out ones", head, [row(best, final)]),
        Table(
            "the choice: F on the last tenth of the training sentences, trained on the first eighth",
            ["pass", "F"],
            [[str(i), f] for i, f in enumerate(curve, 1)],
        ),
        Table(f"learners, {size}", head, rows),
        Table(f"beams, {size}", head, beams),
    ]
    return Report(tables, notes(settings), lambda: draw(curve, rows, beams))


def notes(settings: Settings) -> list[str]:
    """What the figures are of."""
    if settings.smoke:
        return ["generated sentences stand in for everything"]
    return [
        "CoNLL-2000, train and test as given, F by conlleval's rules; features of words and whole chunks, at most 10 "
        "words a chunk; averaged weights; batches of 16 sentences; α = 0.9, B = 1/α, C = √2, p = 2 as in the paper",
        "the number of passes was chosen on the last tenth of the training sentences by a model of the first eighth "
        "of them, to save time, and the model then trained on all; learners and beams are compared at a fixed number "
        f"of passes, {PASSES}, over that eighth, set by the time they take",
        "the paper's ordering: LaSO at least as good as the perceptron, near or above the semi-CRF in a fraction of "
        "its time; its figures are not at hand; the semi-CRF here learns by AdaGrad, exactly",
        "seconds are of the process, one thread, feature extraction left out (7 s for all sentences)",
    ]


def draw(curve: list[float], rows: list[list[Any]], beams: list[list[Any]]) -> Any:
    """F by pass, by learner and by beam."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(range(1, len(curve) + 1), curve, marker="o")
    left.set(title="held-out sentences", xlabel="passes", ylabel="F")
    names, scores = [cells[0] for cells in rows], [cells[5] for cells in rows]
    middle.barh(names[::-1], scores[::-1])
    middle.set(title="learners, an eighth of the sentences", xlabel="F", xlim=(min(scores) - 1, max(scores) + 0.3))
    right.plot([cells[1] for cells in beams], [cells[5] for cells in beams], marker="o")
    right.set(title="LaSO with ALMA, an eighth", xlabel="beam", ylabel="F")
    return figure


EXPERIMENT = Experiment(
    name="laso-chunking",
    about="chunking by segments: LaSO beside early update, standard perceptron and semi-CRF; beams 1, 5, 10, 25",
    paper="Daumé and Marcu 2005, chunking",
    corpora=("conll2000",),
    minutes=6,
    run=run,
)
