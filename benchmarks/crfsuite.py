"""CRFsuite on the same sentences as the linear tagger."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.study import RESULTS
from structlearn.metrics.chunks import chunk_scores


def chunk_f1(predicted: Sequence[Any], test: Sequence[Any]) -> float:
    return chunk_scores(predicted, [s.chunks for s in test]).f1


def crfsuite(train: Sequence[Any], test: Sequence[Any], **options: Any) -> dict[str, Any]:
    """CRFsuite's l2sgd, c2=1, on its usual chunking set: words and parts of speech in a window of two, n-grams."""
    import pycrfsuite

    trainer = pycrfsuite.Trainer(algorithm="l2sgd", params={"c2": 1.0, **options}, verbose=False)
    for s in train:
        trainer.append(_crfsuite_features(s), s.chunks)
    path = str(RESULTS / "crfsuite.model")
    began, cpu = time.perf_counter(), time.process_time()
    trainer.train(path)
    entry: dict[str, Any] = {
        "crfsuite_seconds": time.process_time() - cpu,
        "crfsuite_wall": time.perf_counter() - began,
    }
    entry["crfsuite_passes"] = len(trainer.logparser.iterations)
    tagger = pycrfsuite.Tagger()
    tagger.open(path)
    entry["crfsuite_f1"] = 100 * chunk_f1([tagger.tag(_crfsuite_features(s)) for s in test], test)
    tagger.close()
    Path(path).unlink()
    return entry


def _crfsuite_features(sentence: Any) -> list[list[str]]:
    n = len(sentence.words)

    def at(values: Sequence[str], t: int) -> str:
        return values[t] if 0 <= t < n else "_"

    rows = []
    for t in range(n):
        words = [at(sentence.words, t + k) for k in range(-2, 3)]
        parts = [at(sentence.pos, t + k) for k in range(-2, 3)]
        row = [f"w{k}={word}" for k, word in enumerate(words)] + [f"p{k}={part}" for k, part in enumerate(parts)]
        row += [f"w12={words[1]}|{words[2]}", f"w23={words[2]}|{words[3]}"]
        row += [f"p{k}{k + 1}={parts[k]}|{parts[k + 1]}" for k in range(4)]
        row += [f"p{k}{k + 1}{k + 2}={'|'.join(parts[k : k + 3])}" for k in range(3)]
        rows.append(row)
    return rows
