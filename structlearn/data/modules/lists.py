"""N-best lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from structlearn.baselines.pcfg import PCFG
from structlearn.data.codecs.lists import RerankingCodec
from structlearn.data.modules.base import TaskData
from structlearn.data.synthetic import synthetic_trees
from structlearn.reranking import NBest, kbest_lists, read_blocks, read_jsonl

_PARSER_SEED = 1000  # the generated parser has seen other trees than the lists are made for


class RerankingData(TaskData):
    """N-best lists in JSON lines, or blocks (.nbest); with no ``train`` the k best trees of a small PCFG.

    Args:
        train, validation, test, batch_size, examples, seed, workers: see :class:`TaskData`.
        size: how many numbers features are hashed to.
        k: candidates of generated lists.
    """

    def __init__(
        self,
        train: Path | str | None = None,
        validation: Path | str | None = None,
        test: Path | str | None = None,
        *,
        size: int = 1 << 18,
        k: int = 8,
        batch_size: int = 32,
        examples: int | None = None,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        super().__init__(train, validation, test, batch_size=batch_size, examples=examples, seed=seed, workers=workers)
        self.size, self.k = size, k

    def read(self, path: Path) -> list[NBest]:
        return read_blocks(path) if ".nbest" in path.suffixes else read_jsonl(path)

    def generate(self, count: int, seed: int) -> list[NBest]:
        parser = PCFG.fit(synthetic_trees(60, seed=_PARSER_SEED))
        return kbest_lists(parser, synthetic_trees(count, seed=seed), self.k, tags=True)

    def make_codec(self, examples: Sequence[NBest]) -> RerankingCodec:
        return RerankingCodec(self.size)
