"""The papers' tables, each a module with a constant ``EXPERIMENT``; ``structlearn reproduce NAME`` runs one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from structlearn.errors import ArgumentError

if TYPE_CHECKING:
    from structlearn.experiments.base import Experiment

# In the order of the papers; modules are imported when one is asked for.
MODULES = {
    "taxonomy": "taxonomy",
    "ner": "ner",
    "alignment": "alignment",
    "parsing": "parsing",
    "rerank": "rerank",
    "laso-chunking": "laso_chunking",
    "laso-joint": "laso_joint",
    "constrained-synthetic": "constrained_synthetic",
    "constrained-np": "constrained_np",
    "constrained-srl": "constrained_srl",
    "ocr": "ocr",
    "losses": "losses",
}


def load(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in MODULES:
        raise ArgumentError("NAME", f"one of {', '.join(MODULES)}", repr(name), "see structlearn reproduce --list")
    experiment: Experiment = importlib.import_module(f"structlearn.experiments.{MODULES[name]}").EXPERIMENT
    return experiment
