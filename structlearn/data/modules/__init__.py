"""LightningDataModules: examples of each stage, read or generated, and their codec."""

from structlearn.data.modules.base import TaskData as TaskData
from structlearn.data.modules.letters import LetterData as LetterData
from structlearn.data.modules.tokens import SegmentationData as SegmentationData
from structlearn.data.modules.tokens import TaggingData as TaggingData
