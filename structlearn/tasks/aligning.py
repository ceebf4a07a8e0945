"""Two sequences aligned."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from structlearn.costs import AlignedPairs, Cost
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.features import AlignmentMap, EncoderAlignmentMap, FeatureMap
from structlearn.metrics import AlignmentScore
from structlearn.structures import Alignment, Structure
from structlearn.structures.base import PAD
from structlearn.tasks.base import Loss, OptimizerOf, Prediction, ScheduleOf, Task, adam, encoder_size


class Aligning(Task):
    """s(y) = sum over matches of W[x_i, z_j], or of f(x)_i^T W f(z)_j, plus gap scores.

    Args:
        codec: :class:`AligningCodec`.
        encoder: letters to (B, N, out_features); None learns one score for each pair of letters.
        loss, cost, metric, optimizer, schedule, confidences: see :class:`Task`; the share of gold's pairs that are
            missed, and Q and column scores by default.
        feature_map: in place of the one that ``encoder`` asks for.
        table: where the scores of letters start: "BLOSUM62", "PAM250", or None for 0.
        gap, gap_open: where gap scores start; linear gaps if ``gap_open`` is None.
        mode: of the alignment.

    Confidences are P(pair | x) of each match at its place in the path, (B, N+M), 0 at gaps.
    """

    def __init__(
        self,
        codec: Codec,
        encoder: nn.Module | None = None,
        loss: Loss = "hinge-margin",
        cost: Cost | None = None,
        metric: Metric | None = None,
        *,
        feature_map: FeatureMap | None = None,
        table: Literal["BLOSUM62", "PAM250"] | None = None,
        gap: float = -1.0,
        gap_open: float | None = None,
        mode: Literal["global", "local", "semiglobal"] = "global",
        optimizer: OptimizerOf = adam,
        schedule: ScheduleOf | None = None,
        confidences: bool = False,
    ) -> None:
        super().__init__(
            codec, loss, cost or AlignedPairs(), metric or AlignmentScore(), optimizer, schedule, confidences
        )
        if feature_map is None:
            alphabet: str = codec.alphabet  # type: ignore[attr-defined]
            if encoder is not None:
                size = encoder_size(encoder, codec)
                feature_map = EncoderAlignmentMap(size, encoder, gap=gap, gap_open=gap_open, mode=mode)
            elif table is not None:
                feature_map = AlignmentMap.from_table(table, alphabet=alphabet, gap=gap, gap_open=gap_open, mode=mode)
            else:
                feature_map = AlignmentMap(len(alphabet), gap=gap, gap_open=gap_open, mode=mode)
        self.feature_map = feature_map

    def forward(self, batch: Batch) -> Structure:
        if isinstance(self.feature_map, AlignmentMap):
            # The vocabulary numbers letters from 2.
            return self.feature_map((batch.x[0].words - 2, batch.x[1].words - 2), batch.lengths)
        return self.feature_map(batch.x, batch.lengths)

    def scored(self, structure: Structure, output: Tensor, batch: Batch) -> tuple[Any, ...]:
        return output, batch.gold

    def confidence(self, structure: Structure, output: Tensor) -> Tensor:
        assert isinstance(structure, Alignment)
        match = structure.marginals().match
        pairs = structure.pairs(output).clamp(min=0)  # (B, K, 2), in the order of the path
        rows = torch.arange(len(output), device=output.device)[:, None]
        found = match[rows, pairs[..., 0], pairs[..., 1]]
        at = ((output == 0).cumsum(-1) - 1).clamp(min=0, max=max(found.shape[1] - 1, 0))
        return found.gather(1, at).masked_fill(output != 0, 0.0)

    def decoded(self, batch: Batch, prediction: Prediction) -> list[dict[str, Any]]:
        paths = [[op for op in row if op != PAD] for row in prediction.output.tolist()]
        if prediction.confidence is None:
            return self.rows(paths, prediction, None)
        shares = [
            [round(p, 6) for p in c[: len(y)].tolist()] for c, y in zip(prediction.confidence, paths, strict=True)
        ]
        return self.rows(paths, prediction, shares)
