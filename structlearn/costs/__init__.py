"""Costs Delta(gold, y) >= 0 with Delta(gold, gold) = 0, each saying how it decomposes."""

from structlearn.costs.aligned_pairs import AlignedPairs as AlignedPairs
from structlearn.costs.base import Additive as Additive
from structlearn.costs.base import Cost as Cost
from structlearn.costs.base import Counted as Counted
from structlearn.costs.brackets import BracketF1 as BracketF1
from structlearn.costs.f1 import F1 as F1
from structlearn.costs.hamming import Hamming as Hamming
from structlearn.costs.segment_f1 import SegmentF1 as SegmentF1
from structlearn.costs.tree import TreeCost as TreeCost
from structlearn.costs.zero_one import ZeroOne as ZeroOne
