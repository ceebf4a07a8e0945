"""A tree over a sentence."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from structlearn.costs import Cost, Hamming
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.errors import ArgumentError
from structlearn.features import FeatureMap, RuleMap, SpanScorerMap
from structlearn.metrics.brackets import BracketScore, bracket_scores
from structlearn.structures import SpanTree, Structure, WeightedCFG
from structlearn.structures.base import PAD
from structlearn.tasks.base import Loss, OptimizerOf, Prediction, ScheduleOf, Task, adam, encoder_size
from structlearn.trees import Tree


class Parsing(Task):
    """s(y) = sum over spans of a score of their ends and label, or sum over rules of their weights.

    Args:
        codec: :class:`ParsingCodec`, whose ``kind`` says which of the two.
        encoder: x to (B, N, out_features) for spans; None for rules, which read parts of speech.
        loss, cost, metric, optimizer, schedule, confidences: see :class:`Task`; Hamming loss over spans and evalb's
            scores by default. The reported cost is 1 - F1 of the brackets of a sentence.
        feature_map: in place of the one that ``kind`` asks for.
        scorer, hidden: of :class:`SpanScorerMap`.

    Confidences are P(span with its label | x), (B, N, N), 0 where the tree has no span.
    """

    def __init__(
        self,
        codec: Codec,
        encoder: nn.Module | None = None,
        loss: Loss = "crf",
        cost: Cost | None = None,
        metric: Metric | None = None,
        *,
        feature_map: FeatureMap | None = None,
        scorer: Literal["biaffine", "mlp"] = "biaffine",
        hidden: int = 128,
        optimizer: OptimizerOf = adam,
        schedule: ScheduleOf | None = None,
        confidences: bool = False,
    ) -> None:
        super().__init__(codec, loss, cost or Hamming(), metric or BracketScore(), optimizer, schedule, confidences)
        kind = codec.kind  # type: ignore[attr-defined]
        if feature_map is None and kind == "rules":
            grammar, tags, roots = codec.grammar, codec.tag_table, codec.roots  # type: ignore[attr-defined]
            feature_map = RuleMap(grammar, tags=tags, roots=roots)
        elif feature_map is None:
            if encoder is None:
                raise ArgumentError("encoder", "a module, for spans", None, "e.g. encoders.BiLSTM")
            labels: int = len(codec.labels)  # type: ignore[attr-defined]
            feature_map = SpanScorerMap(
                encoder_size(encoder, codec), labels, scorer=scorer, hidden=hidden, encoder=encoder
            )
        self.feature_map = feature_map

    def forward(self, batch: Batch) -> Structure:
        x = batch.x.tags if isinstance(self.feature_map, RuleMap) else batch.x
        structure = self.feature_map(x, batch.lengths)
        if isinstance(structure, SpanTree):
            return structure.replace(spans=structure.spans.masked_fill(~self._allowed(structure), float("-inf")))
        # Sentences that the grammar cannot derive are joined from parts that it can, but not in training.
        return structure if self.training else structure.with_glue()

    def _allowed(self, structure: SpanTree) -> Tensor:
        """(N, N, L): words have labels of preterminals, larger spans those of phrases."""
        n, labels = structure.spans.shape[2:]
        device = structure.spans.device
        word = torch.eye(n, dtype=torch.bool, device=device).unsqueeze(-1)
        phrase = torch.arange(labels, device=device) < self.codec.grammar.num_nonterminals  # type: ignore[attr-defined]
        return word ^ phrase

    def trees(self, structure: Structure, output: Tensor, batch: Batch) -> list[Tree]:
        """Outputs as treebank trees."""
        assert batch.kept is not None
        assert isinstance(structure, SpanTree | WeightedCFG)
        codec: Any = self.codec
        pairs = [list(zip(*tree.pos(), strict=True)) for tree in batch.kept.examples]
        words = [[str(w) for w in row[0]] for row in pairs]
        if isinstance(structure, SpanTree):
            found = structure.trees(output, words, codec.labels)
        else:
            found = structure.trees(output, words)
        rows = zip(found, pairs, strict=True)
        return [codec.tree_of(tree, row[0], row[1]) for tree, row in rows]

    def scored(self, structure: Structure, output: Tensor, batch: Batch) -> tuple[Any, ...]:
        assert batch.kept is not None
        trees = [
            self._tagged(t, g) for t, g in zip(self.trees(structure, output, batch), batch.kept.examples, strict=True)
        ]
        return trees, batch.kept.examples

    def _tagged(self, tree: Tree, gold: Tree) -> Tree:
        """``tree`` with gold's parts of speech, which say what words count."""
        tags = iter(tag for _, tag in gold.pos())
        return tree.fold(
            lambda node, below: Tree(next(tags), node.word) if node.is_preterminal else Tree(node.label, below)
        )

    def cost_of(self, structure: Structure, output: Tensor, batch: Batch) -> Tensor:
        """1 - F1 of each sentence: gold trees need not be in the space of the grammar."""
        pairs = zip(*self.scored(structure, output, batch), strict=True)
        return torch.tensor([1.0 - bracket_scores([tree], [gold]).f1 for tree, gold in pairs], device=output.device)

    def confidence(self, structure: Structure, output: Tensor) -> Tensor:
        if isinstance(structure, SpanTree):
            found = structure.marginals().spans.gather(-1, output.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            return found.masked_fill(output == PAD, 0.0)
        assert isinstance(structure, WeightedCFG)
        phrases = structure.symbols(output).clamp(min=0, max=structure.grammar.num_nonterminals - 1)
        inner = structure.span_marginals().gather(-1, phrases.unsqueeze(-1)).squeeze(-1)
        words = output.diagonal(0, -2, -1).clamp(min=0)
        single = structure.marginals().terms.gather(-1, words.unsqueeze(-1)).squeeze(-1)
        diagonal = torch.eye(output.shape[-1], dtype=torch.bool, device=output.device)
        return torch.where(diagonal, single.unsqueeze(-1), inner).masked_fill(output == PAD, 0.0)

    @torch.no_grad()
    def decoded(self, batch: Batch, prediction: Prediction) -> list[dict[str, Any]]:
        trees = self.trees(self(batch), prediction.output, batch)
        if prediction.confidence is None:
            return self.rows(trees, prediction, None)
        spans = [
            [[i, j, round(p, 6)] for (i, j), p in zip((y != PAD).nonzero().tolist(), c[y != PAD].tolist(), strict=True)]
            for y, c in zip(prediction.output, prediction.confidence, strict=True)
        ]
        return self.rows(trees, prediction, spans)
