"""Trains and tests every task for one epoch, in as many processes as torchrun started; rank 0 writes what it found.

torchrun --nproc-per-node 2 tests/ddp_program.py OUT.pt
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from task_cases import CASES


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def run(batch_size: int, **options: Any) -> dict[str, Any]:
    """Test scores and weights of every task after an epoch over 37 examples: a ragged last step, uneven shards."""
    found = {}
    for name, case in CASES.items():
        torch.manual_seed(0)
        data = case.data(examples=37, batch_size=batch_size)
        task = case.task(data.codec, optimizer=sgd)
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            **options,
        )
        trainer.fit(task, data)
        scores = trainer.test(task, data, verbose=False)[0]
        weights = torch.cat([p.detach().flatten() for p in task.parameters()])
        found[name] = {"scores": scores, "weights": weights, "steps": trainer.global_step}
    return found


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results = run(4, strategy="ddp", devices=int(os.environ["WORLD_SIZE"]))
    if os.environ["RANK"] == "0":
        torch.save(results, sys.argv[1])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
