"""Constraints on outputs: said in words, solved by automata, enumeration or 0/1 programs, on chains and on parts."""

from structlearn.constraints.automata import DFA as DFA
from structlearn.constraints.automata import AutomatonChain as AutomatonChain
from structlearn.constraints.compiled import Compiled as Compiled
from structlearn.constraints.conflicts import GoldViolation as GoldViolation
from structlearn.constraints.conflicts import gold_violations as gold_violations
from structlearn.constraints.constrained import Constrained as Constrained
from structlearn.constraints.constrained import independent as independent
from structlearn.constraints.language import Constraint as Constraint
from structlearn.constraints.language import Labels as Labels
from structlearn.constraints.masks import ChainMask as ChainMask
from structlearn.constraints.solution import Solution as Solution
from structlearn.constraints.statements import allowed as allowed
from structlearn.constraints.statements import at_least as at_least
from structlearn.constraints.statements import at_most as at_most
from structlearn.constraints.statements import everything as everything
from structlearn.constraints.statements import exactly as exactly
from structlearn.constraints.statements import forbid as forbid
from structlearn.constraints.statements import implies as implies
from structlearn.constraints.statements import linear as linear
from structlearn.constraints.statements import no_overlap as no_overlap
from structlearn.constraints.statements import parse as parse
from structlearn.constraints.statements import regular as regular
from structlearn.constraints.statements import require as require
from structlearn.constraints.statements import soft as soft
