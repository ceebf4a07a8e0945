"""Learning with and without constraints on generated data: when does training under them pay?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from structlearn.constraints.bounds import crossing, global_bound, local_bound
from structlearn.experiments.base import Experiment, Mean, Report, Settings, Table, progress
from structlearn.viz.base import BLACK, BLUE, ORANGE, figure

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KAPPAS = (0.0, 0.15, 0.3)
MODES = ("LO", "L+I", "IBT")
CYCLES = 100
STYLES = {"LO": (BLACK, "o", ":"), "L+I": (BLUE, "s", "-"), "IBT": (ORANGE, "^", "--")}


class Data(NamedTuple):
    """For each of T problems: inputs (T, m, c, d+1) with a 1 for the bias, and outputs (T, m, c) in {0, 1}."""

    x: Floats
    y: Ints


def outputs(c: int) -> Ints:
    """All 2^c, (2^c, c)."""
    return np.indices((2,) * c).reshape(c, -1).T.astype(np.int64)


def best(scores: Floats, allowed: Ints) -> Ints:
    """argmax over allowed (T, K, c) of sum_i (2 y_i - 1) f_i, for scores (T, m, c)."""
    index = np.einsum("tmc,tkc->tmk", scores, 2.0 * allowed - 1.0).argmax(2)
    found: Ints = np.take_along_axis(allowed, index[:, :, None], 1)
    return found


def draw(rng: np.random.Generator, kappa: float, m: int, c: int, d: int) -> tuple[Ints, Data, Data]:
    """A random half of {0, 1}^c, m training and 2000 test examples of a random hypothesis under it.

    Exactly a share ``kappa`` of the examples have local answers outside the half: examples are drawn until there are
    enough of both kinds.
    """
    every = outputs(c)
    half = every[np.sort(rng.permutation(len(every))[: len(every) // 2])]
    weight, bias = rng.normal(size=(c, d)), rng.normal(size=c)
    known = {y.tobytes() for y in half}
    total = m + 2000
    want = {True: total - round(kappa * total), False: round(kappa * total)}
    found: dict[bool, list[Floats]] = {True: [], False: []}
    while any(len(found[kind]) < want[kind] for kind in found):
        x = rng.normal(size=(1000, c, d))
        local = ((x * weight).sum(2) + bias > 0).astype(np.int64)
        for example, y in zip(x, local, strict=True):
            kind = y.tobytes() in known
            if len(found[kind]) < want[kind]:
                found[kind].append(example)
    x = np.stack(found[True] + found[False])[rng.permutation(total)]
    scores = (x * weight).sum(2) + bias
    y = best(scores[None], half[None])[0]
    x = np.concatenate([x, np.ones((total, c, 1))], 2)
    return half, Data(x[None, :m], y[None, :m]), Data(x[None, m:], y[None, m:])


def perceptron(data: Data, allowed: Ints | None) -> Floats:
    """Weights (T, c, d+1) of the online perceptron; ``allowed`` (T, K, c): predict under the constraint (IBT).

    It stops after a cycle without mistakes, or after ``CYCLES``. All T problems take each step together.
    """
    t, m, c, size = data.x.shape
    weight = np.zeros((t, c, size))
    signs = None if allowed is None else 2.0 * allowed - 1.0
    rows = np.arange(t)
    for _ in range(CYCLES):
        mistakes = 0
        for i in range(m):
            x = data.x[:, i]
            scores = np.einsum("tcd,tcd->tc", weight, x)
            if allowed is None or signs is None:
                guess = (scores > 0).astype(np.int64)
            else:
                guess = allowed[rows, np.matmul(signs, scores[:, :, None])[:, :, 0].argmax(1)]
            off = data.y[:, i] - guess
            wrong = np.count_nonzero(off)
            if wrong:
                mistakes += int(wrong)
                weight += off[:, :, None] * x
        if not mistakes:
            break
    return weight


def measure(train: Data, test: Data, half: Ints) -> dict[str, Floats]:
    """Share of right parts and of wholly right outputs, (T, 2), by mode."""
    found = {}
    every = np.repeat(outputs(half.shape[2])[None], len(half), 0)
    local, joint = perceptron(train, None), perceptron(train, half)
    for mode, weight, space in (("LO", local, every), ("L+I", local, half), ("IBT", joint, half)):
        right = best(np.einsum("tcd,tmcd->tmc", weight, test.x), space) == test.y
        found[mode] = np.stack([right.mean((1, 2)), right.all(2).mean(1)], 1)
    return found


def run(settings: Settings) -> Report:
    """All kappas and seeds at once, one training size after the other."""
    c, d = (3, 8) if settings.smoke else (5, 100)
    sizes = (10, 40) if settings.smoke else (50, 100, 200, 400, 800, 1600)
    seeds = 3 if settings.smoke else 10
    drawn = [
        [draw(np.random.default_rng((settings.seed, seed, k)), kappa, max(sizes), c, d) for seed in range(seeds)]
        for k, kappa in enumerate(KAPPAS)
    ]
    flat = [one for group in drawn for one in group]
    half = np.stack([one[0] for one in flat])
    train = Data(*(np.concatenate([one[1][i] for one in flat]) for i in range(2)))
    test = Data(*(np.concatenate([one[2][i] for one in flat]) for i in range(2)))
    # accuracy[mode][size]: (kappas, seeds, 2)
    accuracy: dict[str, dict[int, Floats]] = {mode: {} for mode in MODES}
    for m in progress(sizes, "training sizes"):
        found = measure(Data(train.x[:, :m], train.y[:, :m]), test, half)
        for mode in MODES:
            accuracy[mode][m] = 100 * found[mode].reshape(len(KAPPAS), seeds, 2)
    tables = [table(accuracy, sizes, k) for k in range(len(KAPPAS))]
    notes = [
        f"c = {c} binary parts, inputs in R^{d} drawn from a normal distribution, C(Y) a random half of the outputs, "
        f"{seeds} seeds, 2,000 test examples each; perceptron stopped after a cycle without mistakes or {CYCLES}; the "
        "paper prints curves, not figures",
        "bounds as functions of m: structlearn.constraints.bounds; eps_opt of the local bound is LO's error at the "
        "largest training size, of the global bound 0, since a separating hypothesis exists",
        *verdicts(accuracy, sizes),
    ]
    return Report(tables, notes, lambda: picture(accuracy, sizes, c, d))


def table(accuracy: dict[str, dict[int, Floats]], sizes: tuple[int, ...], k: int) -> Table:
    """One kappa: accuracy of parts by mode, and paired differences."""
    rows: list[list[Any]] = []
    for m in sizes:
        lo, li, ibt = (accuracy[mode][m][k, :, 0] for mode in MODES)
        whole = [Mean.of(accuracy[mode][m][k, :, 1].tolist()) for mode in MODES]
        means = [Mean.of(values.tolist()) for values in (lo, li, ibt, li - lo, ibt - li)]
        rows.append([f"{m} examples", *means, *whole])
    columns = ["", *MODES, "L+I - LO", "IBT - L+I", *(f"{mode} whole" for mode in MODES)]
    return Table(f"right parts in %, κ = {KAPPAS[k]:g}; right outputs in %", columns, rows)


def verdicts(accuracy: dict[str, dict[int, Floats]], sizes: tuple[int, ...]) -> list[str]:
    """Whether the paper's orderings show, by paired differences and their 95 % intervals."""

    def difference(first: str, second: str, k: int, m: int) -> Mean:
        return Mean.of((accuracy[first][m][k, :, 0] - accuracy[second][m][k, :, 0]).tolist())

    def said(mean: Mean) -> str:
        return f"{mean.value:+.2f} ± {mean.half or 0:.2f}"

    low = [difference("L+I", "LO", k, m) for k in range(len(KAPPAS)) for m in sizes]
    easy = [difference("L+I", "IBT", 0, m) for m in sizes]
    hard = difference("IBT", "L+I", len(KAPPAS) - 1, max(sizes))
    least = min(low, key=lambda mean: mean.value)
    close = min(easy, key=lambda mean: mean.value)
    return [
        f"L+I - LO at its least: {said(least)} (paper: L+I is never worse)",
        f"κ = 0: L+I - IBT at its least over training sizes: {said(close)} (paper: L+I wins)",
        f"κ = {KAPPAS[-1]:g}, {max(sizes)} examples: IBT - L+I {said(hard)} (paper: IBT wins)",
    ]


def picture(accuracy: dict[str, dict[int, Floats]], sizes: tuple[int, ...], c: int, d: int) -> Any:
    """Learning curves above, bounds below, a column for each kappa."""
    drawing = figure(12, 7)
    axes = drawing.subplots(2, len(KAPPAS), sharey="row")
    grid = np.geomspace(sizes[0], 1e7, 60)
    for k, kappa in enumerate(KAPPAS):
        top, low = axes[0][k], axes[1][k]
        for mode in MODES:
            colour, marker, line = STYLES[mode]
            means = [Mean.of(accuracy[mode][m][k, :, 0].tolist()) for m in sizes]
            values = [mean.value for mean in means]
            halves = [mean.half or 0.0 for mean in means]
            top.errorbar(sizes, values, halves, color=colour, marker=marker, linestyle=line, label=mode, capsize=3)
        top.set_title(f"κ = {kappa:g}", fontsize=10)
        top.set_xlabel("training examples")
        floor = max(0.0, 1 - accuracy["LO"][max(sizes)][k, :, 0].mean() / 100) if kappa else 0.0
        low.plot(grid, [local_bound(m, d, optimum=floor) for m in grid], color=BLUE, label=f"local, ε_opt {floor:.2f}")
        low.plot(grid, [global_bound(m, c, d) for m in grid], color=ORANGE, linestyle="--", label="global, ε_opt 0")
        for mode in MODES[1:]:
            errors = [1 - accuracy[mode][m][k, :, 0].mean() / 100 for m in sizes]
            colour, marker, _ = STYLES[mode]
            low.plot(sizes, errors, color=colour, marker=marker, linestyle="", markersize=4, label=f"measured {mode}")
        if (cross := crossing(c, d, floor)) is not None:
            low.axvline(cross, color="0.6", linewidth=0.8)
            low.text(cross, 0.9, f" bounds cross at\n {cross:,.0f}", fontsize=7, va="top")
        low.set_ylim(0, 1)
        low.set_xlabel("training examples")
        for ax in (top, low):
            ax.set_xscale("log")
            ax.grid(color="0.9")
            ax.spines[["top", "right"]].set_visible(False)
            ax.legend(frameon=False, fontsize=8)
    axes[0][0].set_ylabel("right parts in %, 95 % intervals")
    axes[1][0].set_ylabel("error: bound and measured")
    return drawing


EXPERIMENT = Experiment(
    name="constrained-synthetic",
    about="local learning, inference added, training under constraints: learning curves on generated data",
    paper="Punyakanok, Roth, Yih, Zimak 2005, figure 2 and section 6",
    corpora=(),
    minutes=3,
    run=run,
)
