"""Learning as search on CoNLL-2000, a run a command: F by conlleval's rules, times of training and decoding.

    python -m benchmarks.laso chunking --beam 10                      # segments, LaSO with ALMA
    python -m benchmarks.laso chunking --beam 10 --strategy standard --update perceptron
    python -m benchmarks.laso joint --beam 10 --strategy early        # parts of speech and chunks together
    python -m benchmarks.laso chunking --held-out --skip 0            # to choose by: no test sentence is read

The corpus is looked for in the folder STRUCTLEARN_DATA, by default ../shared/data; `--smoke` takes generated sentences.
Times are of the process, features included where said. A line is added to results/laso.csv for every run. The tables
with all learners and beams are those of `structlearn reproduce laso-chunking laso-joint`.
"""

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.study import RESULTS
from structlearn.experiments.base import Settings
from structlearn.experiments.search_runs import Plan, corpora, decode, held_out, measure, prepare, train


def run(options: argparse.Namespace) -> dict[str, Any]:
    began = time.process_time()
    sentences, held = corpora(Settings(smoke=options.smoke, seed=options.seed))
    if options.held_out:
        sentences, held = held_out(sentences, options.every)
    corpus = prepare(options.task, sentences[: options.sentences])
    test = prepare(options.task, held, corpus)
    features = time.process_time() - began
    names = ("strategy", "update", "beam", "epochs", "batch", "skip", "B", "C", "counts")
    plan = Plan("run", **{name: getattr(options, name) for name in names})
    wall = time.perf_counter()
    model, seconds = train(options.task, corpus, plan, options.seed)
    wall = time.perf_counter() - wall
    decode(model, test, plan.beam)
    outcome = measure(options.task, model, test, plan.beam)
    batched, _ = decode(model, test, plan.beam)
    some, alone = decode(model, test, plan.beam, 1, limit=100)
    single = sum(len(test.sentences[i].words) for i in some) / max(alone, 1e-9)
    for i, output in some.items():
        if not torch.equal(output, batched[i][: len(output)]):
            raise AssertionError(f"sentence {i} decodes otherwise in a batch than alone")
    speed = outcome.tokens / max(outcome.decode, 1e-9)
    return {
        "task": options.task,
        **{name: getattr(plan, name) for name in names},
        "held_out": options.held_out,
        "f1": round(outcome.f1, 2),
        "train_cpu_s": round(seconds, 1),
        "train_wall_s": round(wall, 1),
        "features_cpu_s": round(features, 1),
        "decode_tokens_per_s": round(speed),
        "batched_over_single": round(speed / single, 1),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("chunking", "joint"))
    parser.add_argument("--beam", type=int, default=10)
    parser.add_argument("--strategy", choices=("laso", "early", "max_violation", "standard"), default="laso")
    parser.add_argument("--update", choices=("alma", "perceptron"), default="alma")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--skip", type=int, default=1, help="passes that are left out of the average of the weights")
    parser.add_argument("--B", type=float, default=None, help="of ALMA, the scale of the margin; 1/α if not given")
    parser.add_argument("--C", type=float, default=Plan("run").C, help="of ALMA, the scale of the step")
    parser.add_argument("--counts", choices=("updates", "errors"), default="updates", help="what k of ALMA counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=None, help="of the training corpus; all if not given")
    parser.add_argument(
        "--held-out", action="store_true", help="learn from and measure on parts of the training corpus"
    )
    parser.add_argument("--every", type=int, default=4, help="with --held-out: learn from one of so many sentences")
    parser.add_argument("--smoke", action="store_true", help="a few generated sentences, to see that everything works")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    row = run(options)
    print(row)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / "laso.csv"
    begun = path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if not begun:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
