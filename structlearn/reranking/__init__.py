"""Reranking n-best lists by voting: pairs of candidates as samples, any kernel between candidates."""

from structlearn.reranking.baselines import SingleCandidateSVM as SingleCandidateSVM
from structlearn.reranking.baselines import VotedPerceptron as VotedPerceptron
from structlearn.reranking.features import CandidateFeatures as CandidateFeatures
from structlearn.reranking.fragments import FragmentFeatures as FragmentFeatures
from structlearn.reranking.kbest import kbest_lists as kbest_lists
from structlearn.reranking.lists import NBest as NBest
from structlearn.reranking.lists import read_blocks as read_blocks
from structlearn.reranking.lists import read_jsonl as read_jsonl
from structlearn.reranking.lists import write_jsonl as write_jsonl
from structlearn.reranking.preference import LinearKernel as LinearKernel
from structlearn.reranking.preference import preference_kernel as preference_kernel
from structlearn.reranking.significance import paired_bootstrap as paired_bootstrap
from structlearn.reranking.tree_kernel import TreeKernel as TreeKernel
from structlearn.reranking.voting import VotingReranker as VotingReranker
