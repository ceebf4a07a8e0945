"""Structured prediction for PyTorch.

Scores over a structured output space are one batched object, a *structure*; every way of learning takes that
object. The public API is what this page names. Each name is imported when it is first used, so that the command line
answers before torch is there.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from structlearn import constraints as constraints
    from structlearn import costs as costs
    from structlearn import data as data
    from structlearn import encoders as encoders
    from structlearn import errors as errors
    from structlearn import features as features
    from structlearn import losses as losses
    from structlearn import metrics as metrics
    from structlearn import ops as ops
    from structlearn import reranking as reranking
    from structlearn import search as search
    from structlearn import semirings as semirings
    from structlearn import solvers as solvers
    from structlearn import tasks as tasks
    from structlearn.errors import StructLearnError as StructLearnError
    from structlearn.losses import CRFLoss as CRFLoss
    from structlearn.losses import PerceptronLoss as PerceptronLoss
    from structlearn.losses import SoftmaxMargin as SoftmaxMargin
    from structlearn.losses import StructuredHinge as StructuredHinge
    from structlearn.losses import most_violated as most_violated
    from structlearn.saving import load as load
    from structlearn.saving import save as save
    from structlearn.solvers import StructuredSVM as StructuredSVM
    from structlearn.structures import Alignment as Alignment
    from structlearn.structures import Candidates as Candidates
    from structlearn.structures import Categorical as Categorical
    from structlearn.structures import Grammar as Grammar
    from structlearn.structures import LinearChain as LinearChain
    from structlearn.structures import SecondOrderChain as SecondOrderChain
    from structlearn.structures import SemiMarkov as SemiMarkov
    from structlearn.structures import SpanTree as SpanTree
    from structlearn.structures import Structure as Structure
    from structlearn.structures import WeightedCFG as WeightedCFG
    from structlearn.taxonomy import Taxonomy as Taxonomy
    from structlearn.torch_struct import from_torch_struct as from_torch_struct
    from structlearn.torch_struct import to_torch_struct as to_torch_struct
    from structlearn.trees import Tree as Tree

# The same names at run time: the modules whose members are named above, and those that are named themselves.
_MEMBERS = {
    "errors": ("StructLearnError",),
    "losses": ("CRFLoss", "PerceptronLoss", "SoftmaxMargin", "StructuredHinge", "most_violated"),
    "saving": ("load", "save"),
    "solvers": ("StructuredSVM",),
    "structures": (
        *("Alignment", "Candidates", "Categorical", "Grammar", "LinearChain", "SecondOrderChain", "SemiMarkov"),
        *("SpanTree", "Structure", "WeightedCFG"),
    ),
    "taxonomy": ("Taxonomy",),
    "torch_struct": ("from_torch_struct", "to_torch_struct"),
    "trees": ("Tree",),
}
_MODULES = (
    *("constraints", "costs", "data", "encoders", "errors", "features", "losses", "metrics", "ops", "reranking"),
    *("search", "semirings", "solvers", "tasks"),
)
_HOME = {name: module for module, names in _MEMBERS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"structlearn.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"structlearn.{name}")
    else:
        raise AttributeError(f"module 'structlearn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
