"""Generative models estimated by counting: what the papers compare discriminative training with."""

from structlearn.baselines.lexicon import Lexicon as Lexicon
from structlearn.baselines.log_odds import log_odds as log_odds
from structlearn.baselines.pcfg import PCFG as PCFG
