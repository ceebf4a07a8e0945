"""LightningDataModules: examples of each stage, read or generated, and their codec."""

from structlearn.data.modules.base import TaskData as TaskData
from structlearn.data.modules.letters import LetterData as LetterData
from structlearn.data.modules.lists import RerankingData as RerankingData
from structlearn.data.modules.pairs import AligningData as AligningData
from structlearn.data.modules.texts import ClassificationData as ClassificationData
from structlearn.data.modules.tokens import JointData as JointData
from structlearn.data.modules.tokens import SegmentationData as SegmentationData
from structlearn.data.modules.tokens import TaggingData as TaggingData
from structlearn.data.modules.trees import ParsingData as ParsingData
