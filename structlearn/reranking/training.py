"""A voting reranker into the weights of a task: its votes are linear in hashed features, and so is the task's score.

s(candidate) = <sum_j w_j, φ> + β log P + γ |brackets|
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from structlearn.data.codecs.lists import BRACKETS_IN_TENS, RerankingCodec
from structlearn.errors import ArgumentError
from structlearn.features import CandidateMap
from structlearn.reranking.features import HashedFeatures
from structlearn.reranking.lists import NBest
from structlearn.reranking.voting import VotingReranker


def train_voting(task: Any, train: Sequence[NBest], development: Sequence[NBest], **options: Any) -> VotingReranker:
    """Train on lists, tune β and γ on development lists, and put the result into the task.

    Args:
        task: :class:`structlearn.tasks.Reranking` with a :class:`CandidateMap`.
        train, development: lists with gold trees.
        options: of :class:`VotingReranker`: slices, width, C, tol, n_jobs.
    """
    codec, feature_map = task.codec, task.feature_map
    if not isinstance(codec, RerankingCodec) or not isinstance(feature_map, CandidateMap):
        got = f"{type(task).__name__} with {type(feature_map).__name__}"
        raise ArgumentError("model", "structlearn.tasks.Reranking with its own map", got, "voting chooses from lists")
    reranker = VotingReranker(HashedFeatures(codec.size, codec.families), **options).fit(train, development)
    with torch.no_grad():
        feature_map.bag.weight[:, 0] = torch.from_numpy(reranker.coef_)
        feature_map.values.copy_(torch.tensor([reranker.beta_, reranker.gamma_ * BRACKETS_IN_TENS]))
    return reranker
