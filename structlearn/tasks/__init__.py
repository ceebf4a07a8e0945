"""Tasks: LightningModules of an encoder, a feature map, a loss, a cost and a metric, each named in the constructor."""

from structlearn.tasks.base import Prediction as Prediction
from structlearn.tasks.base import Task as Task
from structlearn.tasks.tagging import Tagging as Tagging
