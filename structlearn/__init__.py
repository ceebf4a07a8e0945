"""Structured prediction for PyTorch.

Scores over a structured output space are one batched object, a *structure*; every way of learning takes that
object. The public API is what this page names.
"""

from structlearn import constraints as constraints
from structlearn import costs as costs
from structlearn import errors as errors
from structlearn import features as features
from structlearn import ops as ops
from structlearn import semirings as semirings
from structlearn import solvers as solvers
from structlearn.errors import StructLearnError as StructLearnError
from structlearn.losses import CRFLoss as CRFLoss
from structlearn.losses import PerceptronLoss as PerceptronLoss
from structlearn.losses import SoftmaxMargin as SoftmaxMargin
from structlearn.losses import StructuredHinge as StructuredHinge
from structlearn.losses import most_violated as most_violated
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

__version__ = "0.1.0"
