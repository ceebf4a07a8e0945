"""Constraints on outputs: masks and automata on chains."""

from structlearn.constraints.automata import DFA as DFA
from structlearn.constraints.automata import AutomatonChain as AutomatonChain
from structlearn.constraints.masks import ChainMask as ChainMask
