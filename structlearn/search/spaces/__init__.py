"""Search spaces, one file each."""

from structlearn.search.spaces.chunking import ChunkingSpace as ChunkingSpace
from structlearn.search.spaces.joint import JointScores as JointScores
from structlearn.search.spaces.joint import JointSpace as JointSpace
from structlearn.search.spaces.shift_reduce import ShiftReduceSpace as ShiftReduceSpace
from structlearn.search.spaces.tagging import TaggingSpace as TaggingSpace
