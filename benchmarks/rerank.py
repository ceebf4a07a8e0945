"""Reranking the n-best lists of a parser, as a table of labelled brackets. `python -m benchmarks.rerank`.

Lists are split by document: `--dev` and `--test` name the first document of the development and of the test part. C is
chosen on the development part, and so are β and γ. Every row is one way to choose a candidate of each test sentence;
gains over the parser's first choice carry the p of a paired bootstrap. The tree kernel is also timed against the
recurrence in plain Python, whose time for all pairs is extrapolated from a sample.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from structlearn.reranking import (
    CandidateFeatures,
    NBest,
    SingleCandidateSVM,
    TreeKernel,
    VotedPerceptron,
    VotingReranker,
    paired_bootstrap,
    read_blocks,
    read_jsonl,
)
from structlearn.reranking.combine import choose, tune
from structlearn.reranking.features import Table
from structlearn.reranking.matches import Matches, corpus_scores
from structlearn.reranking.tree_kernel import tree_kernel

DATA = Path(os.environ.get("STRUCTLEARN_DATA") or Path(__file__).resolve().parents[1] / ".." / "shared" / "data")


class Kept(CandidateFeatures):
    """Features that are read once for all models: the same lists give the same table."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[tuple[str, int], Table] = {}

    def _key(self, lists: Sequence[NBest]) -> tuple[str, int]:
        return lists[0].name, sum(map(len, lists))

    def fit_transform(self, lists: Sequence[NBest]) -> Table:  # type: ignore[override]
        key = self._key(lists)
        if key not in self._tables:
            self._tables = {key: super().fit_transform(lists)}
        return self._tables[key]

    def transform(self, lists: Sequence[NBest]) -> Table:  # type: ignore[override]
        key = self._key(lists)
        if key not in self._tables:
            self._tables[key] = super().transform(lists)
        return self._tables[key]


def _picked(lists: Sequence[NBest], indices: Sequence[int]) -> list[Matches]:
    return [item.counts[i] for item, i in zip(lists, indices, strict=True)]


def _best_of(
    make: Callable[[float], VotingReranker], Cs: Sequence[float], train: list[NBest], dev: list[NBest]
) -> VotingReranker:
    models = [make(C).fit(train, dev) for C in Cs]
    return max(models, key=lambda model: model.score(dev))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", type=Path, default=DATA / "nbest" / "wsj00.nbest.gz")
    parser.add_argument("--dev", default="wsj_0050")
    parser.add_argument("--test", default="wsj_0070")
    parser.add_argument("--slices", type=int, default=20)
    parser.add_argument("--tree-slices", type=int, default=2, help="0 leaves the tree kernel out")
    parser.add_argument("--tree-top", type=int, default=20, help="candidates of a list that the tree kernel scores")
    parser.add_argument("--limit", type=int, help="lists of each part, to see that everything works")
    args = parser.parse_args()
    lists = read_jsonl(args.lists) if ".jsonl" in args.lists.name else read_blocks(args.lists)
    train = [item for item in lists if item.name < args.dev][: args.limit]
    dev = [item for item in lists if args.dev <= item.name < args.test][: args.limit]
    test = [item for item in lists if item.name >= args.test][: args.limit]
    print(f"{args.lists.name}: {len(train)} lists to train, {len(dev)} to tune, {len(test)} to test\n")

    features, Cs = Kept(), (0.0005, 0.005, 0.05, 0.5)
    first = _picked(test, [item.first for item in test])
    oracle = _picked(test, [item.best for item in test])
    rows = {"first best": first}
    start = time.perf_counter()
    linear = _best_of(lambda C: VotingReranker(features, slices=args.slices, C=C, tol=1e-2), Cs, train, dev)
    rows[f"linear voting, C={linear.C:g}"] = voting = _picked(test, linear.predict(test))
    wide = _best_of(lambda C: VotingReranker(features, slices=1, width=args.slices, C=C, tol=1e-2), Cs[:3], train, dev)
    rows[f"linear, one slice of all pairs, C={wide.C:g}"] = joint = _picked(test, wide.predict(test))
    print(f"linear voting: {time.perf_counter() - start:.0f} s, {len(features.index)} features, {linear.slices} slices")
    single = _best_of(lambda C: SingleCandidateSVM(features, slices=args.slices, C=C, tol=1e-2), Cs[:3], train, dev)
    rows[f"single-parse SVM, C={single.C:g}"] = alone = _picked(test, single.predict(test))
    perceptron = VotedPerceptron(features, slices=args.slices, epochs=5).fit(train, dev)
    rows["voted perceptron"] = _picked(test, perceptron.predict(test))
    if args.tree_slices:
        start = time.perf_counter()
        rows["tree kernel"] = _tree_voting(args, train, dev, test)
        print(f"tree kernel: {time.perf_counter() - start:.0f} s, {args.tree_slices} slices, top {args.tree_top}")
    rows["oracle"] = oracle

    print("\n| model | LR | LP | F1 | CB | 0CB | 2CB | F1 - first (95%) | p |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, chosen in rows.items():
        s, gain = corpus_scores(chosen), paired_bootstrap(chosen, first, draws=2000)
        shares = " | ".join(f"{100 * x:.2f}" for x in (s.recall, s.precision, s.f1))
        crossing = f"{s.crossing:.2f} | {100 * s.no_crossing:.1f} | {100 * s.two_crossing:.1f}"
        interval = f"{100 * gain.difference:+.2f} ({100 * gain.low:+.2f}, {100 * gain.high:+.2f})"
        print(f"| {name} | {shares} | {crossing} | {interval} | {gain.p:.4f} |")
    low, high = corpus_scores(first).f1, corpus_scores(oracle).f1
    for name, chosen in (("slices", voting), ("one slice", joint)):
        share = (corpus_scores(chosen).f1 - low) / (high - low)
        pairwise = paired_bootstrap(chosen, alone, draws=2000)
        print(f"\n{name}: {100 * share:.1f}% of the distance to the oracle; ", end="")
        print(f"{100 * pairwise.difference:+.2f} over the single-parse SVM, p = {pairwise.p:.4f}")
    print(f"β = {linear.beta_:.3g}, γ = {linear.gamma_:.3g}\n\n| slices | F1 dev | F1 test |\n|---|---|---|")
    for slices in (1, 2, 3, 5, 7, 10, 15, 20):
        if slices <= len(linear.weights_):
            weights = tune(dev, linear.votes(dev, slices=slices))
            both = [
                corpus_scores(_picked(part, choose(part, weights.combine(part, linear.votes(part, slices=slices))))).f1
                for part in (dev, test)
            ]
            print(f"| {slices} | {100 * both[0]:.2f} | {100 * both[1]:.2f} |")
    _tree_speed(lists)


def _tree_voting(args: argparse.Namespace, train: list[NBest], dev: list[NBest], test: list[NBest]) -> list[Matches]:
    """The tree kernel among the first candidates of each list."""
    dev, test = ([item.keep(range(min(args.tree_top, len(item)))) for item in part] for part in (dev, test))
    kernel = TreeKernel(0.3, normalise=True)
    model = VotingReranker(kernel=kernel, slices=args.tree_slices, C=1.0).fit(train, dev)
    return _picked(test, model.predict(test))


def _tree_speed(lists: list[NBest], count: int = 2000, sample: int = 12) -> None:
    """All pairs of ``count`` trees, beside plain Python on some of the pairs."""
    trees = [item.candidates[item.first] for item in lists][:count]
    kernel = TreeKernel(0.3)
    part = trees[:: max(len(trees) // sample, 1)][:sample]
    start = time.perf_counter()
    slow = [[tree_kernel(u, v, 0.3) for v in part] for u in part]
    python = (time.perf_counter() - start) / len(part) ** 2
    error = abs(torch.tensor(slow, dtype=torch.float64) - torch.from_numpy(kernel(part, list(part)))).max()
    print(f"\ntree kernel, all pairs of {len(trees)} trees; largest difference from plain Python {float(error):.1e}")
    threads = torch.get_num_threads()
    for n in (1, 2):
        torch.set_num_threads(n)
        start = time.perf_counter()
        kernel(trees, trees)
        took = time.perf_counter() - start
        pairs = len(trees) * (len(trees) + 1) / 2
        print(f"{n} threads: {took:.2f} s, {python * pairs / took:.0f}x plain Python ({python * 1e6:.0f} us a pair)")
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
