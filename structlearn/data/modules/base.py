"""What all data modules share: examples of each stage, a codec made from the training ones, bucketed loaders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset

from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.data.sampling import BucketSampler, Rows
from structlearn.data.synthetic import split
from structlearn.errors import ArgumentError

Stage = Literal["train", "validation", "test"]
SEEDS: dict[str, int] = {"train": 0, "validation": 1, "test": 2}


class Encoded(Dataset[Batch]):
    """Encoded examples, taken a batch at a time."""

    def __init__(self, codec: Codec, examples: Sequence[Any]) -> None:
        self.codec, self.examples = codec, examples
        self.items = codec.encode(examples)
        self.lengths = [codec.length(item) for item in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: Rows) -> Batch:
        batch = self.codec.collate([self.items[i] for i in rows.places])
        return batch._replace(places=torch.tensor(rows.places), share=torch.tensor(rows.share))


class ResumableLoader(DataLoader[Batch]):
    """A loader that goes on in the middle of an epoch; Lightning keeps its state in checkpoints.

    Batches are fetched ahead, so how many of them training has finished is asked of the trainer.
    """

    finished: Callable[[], int] | None = None

    def state_dict(self) -> dict[str, int]:
        return {"done": self.finished() % max(len(self), 1) if self.finished is not None else 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert isinstance(self.sampler, BucketSampler)
        self.sampler.skip = state["done"]


class TaskData(pl.LightningDataModule):
    """Examples of the three stages.

    Args:
        train, validation, test: files; with no ``train`` all stages are generated. Without ``validation`` every tenth
            training example is held out for it.
        batch_size: B.
        examples: how many to generate, or the most to read of a file; None reads all.
        seed: of the order of training examples, and of generated ones.
        workers: processes that make batches.
    """

    def __init__(
        self,
        train: Path | str | None = None,
        validation: Path | str | None = None,
        test: Path | str | None = None,
        *,
        batch_size: int = 32,
        examples: int | None = None,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        super().__init__()
        self.files: dict[str, Path | None] = {
            name: Path(path).expanduser() if path is not None else None
            for name, path in (("train", train), ("validation", validation), ("test", test))
        }
        if train is None and (validation is not None or test is not None):
            raise ArgumentError("train", "a file, where there are others", None, "leave all out to generate data")
        self.batch_size, self.limit, self.seed, self.workers = batch_size, examples, seed, workers
        self._encoded: dict[str, Encoded] = {}

    @abstractmethod
    def read(self, path: Path) -> list[Any]:
        """The examples of a file."""

    @abstractmethod
    def generate(self, count: int, seed: int) -> list[Any]:
        """``count`` examples."""

    @abstractmethod
    def make_codec(self, examples: Sequence[Any]) -> Codec:
        """The codec of training examples."""

    @cached_property
    def _training(self) -> tuple[list[Any], list[Any]]:
        """Training examples and those held out of them."""
        path = self.files["train"]
        if path is None:
            return self._generated("train"), self._generated("validation")
        examples = self.read(path)[: self.limit]
        return (examples, []) if self.files["validation"] is not None else split(examples, 0.1)

    def _generated(self, stage: str) -> list[Any]:
        count = self.limit or 200
        return self.generate(count if stage == "train" else max(8, count // 4), 10 * self.seed + SEEDS[stage])

    def examples(self, stage: Stage) -> list[Any]:
        """The examples of a stage, in their order."""
        if stage == "train":
            return self._training[0]
        path = self.files[stage]
        if path is not None:
            return self.read(path)[: self.limit]
        if stage == "validation":
            return self._training[1]
        return self._generated(stage) if self.files["train"] is None else self._training[1]

    @cached_property
    def codec(self) -> Codec:
        """Made from the training examples; belongs to the model."""
        return self.make_codec(self.examples("train"))

    def encoded(self, stage: Stage) -> Encoded:
        if stage not in self._encoded:
            self._encoded[stage] = Encoded(self.codec, self.examples(stage))
        return self._encoded[stage]

    def loader(self, stage: Stage, *, shuffle: bool = False) -> ResumableLoader:
        """Batches of a stage; by length, or shuffled for training."""
        data = self.encoded(stage)
        sampler = BucketSampler(data.lengths, self.batch_size, shuffle=shuffle, seed=self.seed)
        # A generator of its own: an iterator draws a seed, which would move the random numbers of dropout.
        generator = torch.Generator().manual_seed(self.seed)
        return ResumableLoader(data, batch_size=None, sampler=sampler, num_workers=self.workers, generator=generator)

    def train_dataloader(self) -> ResumableLoader:
        loader = self.loader("train", shuffle=True)
        if self.trainer is not None:
            loader.finished = self._finished
        return loader

    def _finished(self) -> int:
        assert self.trainer is not None
        return self.trainer.fit_loop.epoch_loop.batch_progress.current.processed  # type: ignore[attr-defined]

    def val_dataloader(self) -> ResumableLoader:
        return self.loader("validation")

    def test_dataloader(self) -> ResumableLoader:
        return self.loader("test")

    def predict_dataloader(self) -> ResumableLoader:
        return self.loader("test")
