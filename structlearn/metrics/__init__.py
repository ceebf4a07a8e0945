"""Scores of outputs against gold, by the rules of the field's own programs; functions, and torchmetrics over them."""

from structlearn.metrics.alignment import AlignmentScore as AlignmentScore
from structlearn.metrics.alignment import AlignmentScores as AlignmentScores
from structlearn.metrics.alignment import alignment_scores as alignment_scores
from structlearn.metrics.alignment import decoy_error as decoy_error
from structlearn.metrics.brackets import COLLINS as COLLINS
from structlearn.metrics.brackets import BracketCounts as BracketCounts
from structlearn.metrics.brackets import BracketRules as BracketRules
from structlearn.metrics.brackets import BracketScore as BracketScore
from structlearn.metrics.brackets import BracketScores as BracketScores
from structlearn.metrics.brackets import bracket_counts as bracket_counts
from structlearn.metrics.brackets import bracket_scores as bracket_scores
from structlearn.metrics.brackets import constituents as constituents
from structlearn.metrics.chosen import ChosenF1 as ChosenF1
from structlearn.metrics.chunks import ChunkF1 as ChunkF1
from structlearn.metrics.chunks import ChunkScores as ChunkScores
from structlearn.metrics.chunks import chunk_scores as chunk_scores
from structlearn.metrics.mean import Mean as Mean
from structlearn.metrics.positions import PositionError as PositionError
from structlearn.metrics.segments import SegmentScore as SegmentScore
