"""Speeds of reranking: scoring candidates, and the tree kernel beside plain Python. `python -m benchmarks.rerank`.

Linear scores are timed with features at hand, for models with few and with many support vectors and for growing numbers
of candidates; kernel scores, which do depend on the support vectors, stand beside them. The tree kernel of all pairs of
trees is timed against the recurrence in plain Python, whose time for all pairs is extrapolated from a sample. What the
models are worth is the table of `structlearn reproduce rerank`. Times are of the process.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from structlearn.experiments.rerank_models import Prepared
from structlearn.reranking import NBest, TreeKernel, VotingReranker, read_blocks, read_jsonl
from structlearn.reranking.tree_kernel import tree_kernel
from structlearn.trees import Tree

DATA = Path(os.environ.get("STRUCTLEARN_DATA") or Path(__file__).resolve().parents[1] / ".." / "shared" / "data")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", type=Path, default=DATA / "nbest" / "wsj00.nbest.gz")
    parser.add_argument("--train", type=int, default=800, help="lists to train, the rest is scored")
    parser.add_argument("--trees", type=int, default=2000, help="trees of the tree kernel")
    parser.add_argument("--slices", type=int, default=20)
    options = parser.parse_args(arguments)
    lists = read_jsonl(options.lists) if ".jsonl" in options.lists.name else read_blocks(options.lists)
    train, test = lists[: options.train], lists[options.train :]
    scoring(train, test, options.slices)
    trees = [tree for item in lists for tree in item.candidates[: 1 + options.trees // len(lists)]]
    tree_speed(trees[: options.trees])


def _seconds(call: Callable[[], object], repeats: int) -> float:
    call()
    began = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - began) / repeats


def scoring(train: Sequence[NBest], test: Sequence[NBest], slices: int) -> None:
    """Time a candidate, by number of candidates and of training pairs."""
    features = Prepared([*train, *test]).among(train)
    print("| model | training pairs | support vectors | candidates | ms | µs a candidate |\n|---|---|---|---|---|---|")
    for share in (8, 1):
        part = train[: len(train) // share]
        model = VotingReranker(features, slices=slices, C=0.05, tol=1e-2).fit(part)
        pairs = sum(min(len(item.others), slices) for item in part)
        for portion in (4, 2, 1):
            rows = features.transform(test[: len(test) // portion]).rows
            took = _seconds(lambda rows=rows, model=model: rows @ model.coef_, 20)  # type: ignore[misc]
            print(
                f"| linear | {pairs} | folded | {rows.shape[0]} | {1e3 * took:.2f} | {1e6 * took / rows.shape[0]:.3f} |"
            )
    short = [item.keep(range(min(5, len(item)))) for item in test[:20]]
    count = sum(map(len, short))
    for share in (8, 1):
        part = train[: len(train) // share]
        kernel = VotingReranker(kernel=TreeKernel(0.3, normalise=True), slices=1, C=1.0).fit(part)
        took = _seconds(lambda kernel=kernel: kernel.votes(short), 1)  # type: ignore[misc]
        sizes = f"{len(part)} | {len(kernel.support_)} | {count}"
        print(f"| tree kernel | {sizes} | {1e3 * took:.0f} | {1e6 * took / count:.0f} |")


def tree_speed(trees: Sequence[Tree], sample: int = 12) -> None:
    """All pairs of trees, beside plain Python on some of the pairs."""
    kernel = TreeKernel(0.3)
    part = list(trees[:: max(len(trees) // sample, 1)][:sample])
    began = time.process_time()
    slow = [[tree_kernel(u, v, 0.3) for v in part] for u in part]
    python = (time.process_time() - began) / len(part) ** 2
    error = abs(torch.tensor(slow, dtype=torch.float64) - torch.from_numpy(kernel(part, list(part)))).max()
    print(f"\ntree kernel, all pairs of {len(trees)} trees; largest difference from plain Python {float(error):.1e}")
    threads = torch.get_num_threads()
    for n in (1, 2):
        torch.set_num_threads(n)
        began = time.perf_counter()
        kernel(trees, trees)
        took = time.perf_counter() - began
        pairs = len(trees) * (len(trees) + 1) / 2
        print(f"{n} threads: {took:.2f} s, {python * pairs / took:.0f}x plain Python ({python * 1e6:.0f} us a pair)")
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
