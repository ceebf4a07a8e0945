"""Pictures on matplotlib axes (extra ``viz``): each function draws one on the axes that it is given."""

from structlearn.viz.alignment import alignment_matrix as alignment_matrix
from structlearn.viz.alignment import dot_plot as dot_plot
from structlearn.viz.base import figure as figure
from structlearn.viz.beams import beam_lattice as beam_lattice
from structlearn.viz.chain import label_posteriors as label_posteriors
from structlearn.viz.chain import labelled_word as labelled_word
from structlearn.viz.chain import transition_matrix as transition_matrix
from structlearn.viz.curves import bounds as bounds
from structlearn.viz.curves import gap_curves as gap_curves
from structlearn.viz.curves import learning_curves as learning_curves
from structlearn.viz.trees import parse_tree as parse_tree
