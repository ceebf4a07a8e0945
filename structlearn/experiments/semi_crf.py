"""A semi-CRF over the potentials of a chunker: the probabilistic baseline of learning as search.

    L = mean over sentences of  log Z - s(y),   Z over all segmentations of at most W words a segment,

minimised by AdaGrad over the same sparse features and in the same batches as the searching learners.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from structlearn.experiments.search_runs import Outcome
from structlearn.losses import CRFLoss
from structlearn.metrics.chunks import chunk_scores
from structlearn.search.chunker import ChunkScorer
from structlearn.search.spaces.chunking import ChunkingSpace
from structlearn.structures import SemiMarkov


def structure(space: ChunkingSpace) -> SemiMarkov:
    """The same outputs and scores as those of a search space, for exact inference."""
    c = space.labels
    between = space.transition if space.edges is None else space.transition + space.edges
    if space.edges is None:
        between = between.expand(space.batch_size, space.layers, -1, -1)
    first = torch.arange(space.layers, device=between.device)[:, None, None] == 0
    segments = space.segments + torch.where(first, between[:, :, None, c], 0)
    return SemiMarkov(segments, between[:, 1:, :c], lengths=space.lengths)


def semi_crf(
    train: Any, test: Any, epochs: int, *, batch: int = 16, learning_rate: float = 0.1, seed: int = 0
) -> Outcome:
    """Trained on one :class:`ChunkCorpus` and measured on another."""
    model, loss = ChunkScorer(train), CRFLoss()
    optimiser = torch.optim.Adagrad(model.parameters(), lr=learning_rate)
    draw = torch.Generator().manual_seed(seed)
    began = time.process_time()
    for _ in range(epochs):
        for rows in train.batches(batch, generator=draw):
            sentences = train.batch(rows)
            optimiser.zero_grad()
            loss(structure(model(sentences)), sentences.gold).backward()
            optimiser.step()
    trained = time.process_time()
    tags: dict[int, list[str]] = {}
    with torch.no_grad():
        for rows in test.batches(128):
            output = structure(model(test.batch(rows))).argmax()
            tags.update(zip(rows.tolist(), test.tags(rows, output), strict=True))
    seconds = time.process_time() - trained
    s = chunk_scores([tags[i] for i in range(len(tags))], [sentence.chunks for sentence in test.sentences])
    parts = (100 * s.precision, 100 * s.recall, 100 * s.f1)
    return Outcome(*parts, None, trained - began, seconds, int(test.lengths.sum()))
