"""Learning as search on CoNLL-2000: F by conlleval's rules, times of training and decoding.

    python -m benchmarks.laso chunking --beam 10                      # segments, LaSO with ALMA
    python -m benchmarks.laso chunking --beam 10 --strategy standard --update perceptron
    python -m benchmarks.laso joint --beam 10 --strategy early        # parts of speech and chunks together

The corpus is looked for in the folder STRUCTLEARN_DATA, by default ../shared/data. Times are of the process, features
included where said. A line is added to results/laso.csv for every run.
"""

import argparse
import csv
import os
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.study import RESULTS
from structlearn.data.conll import read_conll2000
from structlearn.metrics.chunks import chunk_scores
from structlearn.search import ALMA, Perceptron, beam_search, compare, laso
from structlearn.search.chunker import ChunkCorpus, ChunkScorer
from structlearn.search.joint_tagger import JointCorpus, JointScorer

DATA = Path(os.environ.get("STRUCTLEARN_DATA", "../shared/data"))


def decode(model: torch.nn.Module, corpus: Any, beam: int, size: int, limit: int | None = None) -> tuple[Any, float]:
    """Chunk tags of the sentences, in order, and seconds."""
    tags: dict[int, list[str]] = {}
    began = time.perf_counter()
    with torch.no_grad():
        for rows in corpus.batches(size):
            if limit is None or int(rows[0]) < limit:
                found = beam_search(model(corpus.batch(rows)), beam)
                tags.update(zip(rows.tolist(), corpus.tags(rows, found.output), strict=True))
    return tags, time.perf_counter() - began


def f_score(tags: dict[int, list[str]], corpus: Any) -> float:
    return 100 * chunk_scores([tags[i] for i in range(len(tags))], [s.chunks for s in corpus.sentences]).f1


def run(options: argparse.Namespace) -> dict[str, Any]:
    began, cpu = time.perf_counter(), time.process_time()
    folder = DATA / "conll2000"
    sentences = read_conll2000(folder / "train.txt.gz")[: options.sentences]
    train: Any
    test: Any
    if options.task == "chunking":
        train = ChunkCorpus(sentences)
        test = ChunkCorpus(read_conll2000(folder / "test.txt.gz"), like=train)
        model: torch.nn.Module = ChunkScorer(train, value=options.value)
    else:
        train = JointCorpus(sentences)
        test = JointCorpus(read_conll2000(folder / "test.txt.gz"), like=train)
        model = JointScorer(train, value=options.value)
    features = time.perf_counter() - began
    update = (
        ALMA(model.parameters(), alpha=options.alpha) if options.update == "alma" else Perceptron(model.parameters())
    )
    generator = torch.Generator().manual_seed(options.seed)
    for epoch in range(options.epochs):
        errors = 0
        if epoch == options.forget:
            update.forget()
        for rows in train.batches(options.batch, generator=generator):
            batch = train.batch(rows)
            if options.strategy == "laso":
                found = laso(model(batch), batch.gold, options.beam, margin=update.margin)
            else:
                found = compare(model(batch), batch.gold, options.beam, strategy=options.strategy, margin=update.margin)
            update(found)
            errors += int(found.errors.sum())
        print(f"epoch {epoch + 1}: {errors} errors, {time.process_time() - cpu:.0f} s of CPU", flush=True)
    train_cpu, train_wall = time.process_time() - cpu, time.perf_counter() - began
    with torch.no_grad():
        for parameter, mean in zip(model.parameters(), update.averaged(), strict=True):
            parameter.copy_(mean)
    decode(model, test, options.beam, 128)
    tags, seconds = decode(model, test, options.beam, 128)
    some, alone = decode(model, test, options.beam, 1, limit=100)
    tokens = int(test.lengths.sum())
    single = sum(len(test.sentences[i].words) for i in some) / alone
    if any(tags[i] != some[i] for i in some):
        raise AssertionError("a batch decodes otherwise than its sentences one by one")
    return {
        **{name: getattr(options, name) for name in ("task", "strategy", "update", "beam", "batch", "epochs")},
        "f1": round(f_score(tags, test), 2),
        "train_cpu_s": round(train_cpu, 1),
        "train_wall_s": round(train_wall, 1),
        "features_s": round(features, 1),
        "decode_tokens_per_s": round(tokens / seconds),
        "batched_over_single": round(tokens / seconds / single, 1),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("chunking", "joint"))
    parser.add_argument("--beam", type=int, default=10)
    parser.add_argument("--strategy", choices=("laso", "early", "max_violation", "standard"), default="laso")
    parser.add_argument("--update", choices=("alma", "perceptron"), default="alma")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--forget", type=int, default=0, help="epochs that the averaged weights leave out")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=0.9)
    parser.add_argument("--value", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=None, help="of the training corpus; all if not given")
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
