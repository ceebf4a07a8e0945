"""Tasks: LightningModules of an encoder, a feature map, a loss, a cost and a metric, each named in the constructor."""

from structlearn.tasks.aligning import Aligning as Aligning
from structlearn.tasks.base import Prediction as Prediction
from structlearn.tasks.base import Task as Task
from structlearn.tasks.classification import Classification as Classification
from structlearn.tasks.constrained import Constrained as Constrained
from structlearn.tasks.joint import JointTagging as JointTagging
from structlearn.tasks.parsing import Parsing as Parsing
from structlearn.tasks.reranking import Reranking as Reranking
from structlearn.tasks.searching import SearchParsing as SearchParsing
from structlearn.tasks.searching import SearchSegmentation as SearchSegmentation
from structlearn.tasks.searching import SearchTagging as SearchTagging
from structlearn.tasks.segmentation import Segmentation as Segmentation
from structlearn.tasks.sparse_tagging import SparseTagging as SparseTagging
from structlearn.tasks.tagging import Tagging as Tagging
