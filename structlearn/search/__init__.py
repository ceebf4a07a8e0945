"""Learning as search: spaces, beams for a whole batch, and updates made while searching."""

from structlearn.search.beam import Found as Found
from structlearn.search.beam import Search as Search
from structlearn.search.beam import beam_search as beam_search
from structlearn.search.comparison import compare as compare
from structlearn.search.loss import BeamSearchLoss as BeamSearchLoss
from structlearn.search.queue import Node as Node
from structlearn.search.queue import best_first as best_first
from structlearn.search.queue import queue_search as queue_search
from structlearn.search.space import SearchSpace as SearchSpace
from structlearn.search.spaces.chunking import ChunkingSpace as ChunkingSpace
from structlearn.search.spaces.joint import JointScores as JointScores
from structlearn.search.spaces.joint import JointSpace as JointSpace
from structlearn.search.spaces.shift_reduce import ShiftReduceSpace as ShiftReduceSpace
from structlearn.search.spaces.structures import space_of as space_of
from structlearn.search.spaces.tagging import TaggingSpace as TaggingSpace
from structlearn.search.structure_loss import StructureBeamLoss as StructureBeamLoss
from structlearn.search.updates import ALMA as ALMA
from structlearn.search.updates import Perceptron as Perceptron
from structlearn.search.violations import Violations as Violations
from structlearn.search.violations import laso as laso
from structlearn.search.violations import lattice as lattice
