"""Losses on structures: ``loss(structure, gold)``; gradients flow into whatever produced the potentials."""

from structlearn.losses.hinge import StructuredHinge as StructuredHinge
from structlearn.losses.likelihood import CRFLoss as CRFLoss
from structlearn.losses.likelihood import SoftmaxMargin as SoftmaxMargin
from structlearn.losses.named import LOSS_NAMES as LOSS_NAMES
from structlearn.losses.named import loss_by_name as loss_by_name
from structlearn.losses.perceptron import PerceptronLoss as PerceptronLoss
from structlearn.losses.violation import Violation as Violation
from structlearn.losses.violation import most_violated as most_violated
