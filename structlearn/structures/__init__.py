"""Structured output spaces: one class a space, each a readable torch dynamic program plus native kernels."""

from structlearn.structures.alignment import Alignment as Alignment
from structlearn.structures.base import Structure as Structure
from structlearn.structures.candidates import Candidates as Candidates
from structlearn.structures.categorical import Categorical as Categorical
from structlearn.structures.chain import LinearChain as LinearChain
from structlearn.structures.grammar import WeightedCFG as WeightedCFG
from structlearn.structures.rules import Grammar as Grammar
from structlearn.structures.second_order import SecondOrderChain as SecondOrderChain
from structlearn.structures.semimarkov import SemiMarkov as SemiMarkov
from structlearn.structures.span_tree import SpanTree as SpanTree
