"""Structured prediction for PyTorch.

Scores over a structured output space are one batched object, a *structure*; every way of learning takes that
object. The public API is what this page names.
"""

from structlearn import ops as ops
from structlearn import semirings as semirings
from structlearn.errors import StructLearnError as StructLearnError
from structlearn.structures import Alignment as Alignment
from structlearn.structures import Categorical as Categorical
from structlearn.structures import LinearChain as LinearChain
from structlearn.structures import Structure as Structure

__version__ = "0.1.0"
