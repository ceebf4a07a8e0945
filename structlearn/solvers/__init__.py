"""Exact structured SVMs: cutting planes and Frank-Wolfe, each answer with a certificate."""

from structlearn.solvers.certificate import Certificate as Certificate
from structlearn.solvers.certificate import ConvergenceWarning as ConvergenceWarning
from structlearn.solvers.certificate import History as History
from structlearn.solvers.estimator import StructuredSVM as StructuredSVM
from structlearn.solvers.layer import SVMLayer as SVMLayer
from structlearn.solvers.own import OutputSpace as OutputSpace
from structlearn.solvers.refit import Refit as Refit
from structlearn.solvers.refit import refit_head as refit_head
