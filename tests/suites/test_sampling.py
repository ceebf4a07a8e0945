"""Samples come as often as their probabilities say: Pearson's chi^2 with fixed seeds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from .cases import Case
from .structures import ENTRIES, Entry

DRAWS = 4000
ENGINES = {"cpu": ("normal", "mask-1e4"), "reference": ("normal",)}
CELLS = [(entry, engine, kind) for engine, kinds in ENGINES.items() for kind in kinds for entry in ENTRIES]


@pytest.mark.parametrize(("entry", "engine", "kind"), [c for c in CELLS if c[1] in c[0].engines], ids=str)
def test_frequencies(entry: Entry, engine: str, kind: str) -> None:
    """The reference is slow and draws few. Hundreds of rows are tested: their p-values stay above 1e-5."""
    draws = DRAWS if engine == "cpu" else DRAWS // 20
    problem = Case(entry.name, size=entry.sizes[0].name, kind=kind, dtype="f32", seed=21).problem
    y = problem.make(engine).sample(draws, torch.Generator().manual_seed(0)).reshape(draws, problem.batch, -1).numpy()
    for b, row in enumerate(problem.rows):
        seen = Counter(row.space.number[tuple(x.tolist())] for x in y[:, b])
        expected = draws * row.probabilities.astype(np.float64)
        found = np.array([seen[i] for i in range(len(expected))])
        rare = expected < 5
        bins = np.append(expected[~rare], expected[rare].sum()), np.append(found[~rare], found[rare].sum())
        used = bins[0] > 1e-9
        assert bins[1][~used].sum() == 0, f"row {b}: impossible samples"
        if used.sum() > 1:
            statistic = ((bins[1] - bins[0])[used] ** 2 / bins[0][used]).sum()
            assert stats.chi2.sf(statistic, used.sum() - 1) > 1e-5, f"row {b}: chi^2 = {statistic}"
