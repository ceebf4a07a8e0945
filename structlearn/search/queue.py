"""Search by a queue, one example at a time: what the batched search is held against, and A*.

    nodes <- [initial]
    repeat: take the first node; if it is a goal, it is the answer; else nodes <- enqueue(nodes, its successors)

``enqueue`` alone makes the search best-first, A*, beam or greedy, and through the scores that it compares it is the
part that is learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, InfeasibleError
from structlearn.search.space import S, SearchSpace


@dataclass(frozen=True)
class Node(Generic[S]):
    """A state with the path that led to it."""

    state: S  # (1, 1, ...)
    g: Tensor  # (), score of the path
    h: Tensor  # ()
    layer: int
    path: tuple[int, ...]
    good: bool
    key: int | None = None

    @property
    def f(self) -> Tensor:
        """g + h, by which nodes are ranked, ()."""
        return self.g + self.h


Queue = list[Node[Any]]
Enqueue = Callable[[Queue, Queue], Queue]


def best_first(nodes: Queue, following: Queue) -> Queue:
    """Highest f = g + h first. A* if h never underestimates, and then the first goal is the best."""
    return sorted([*nodes, *following], key=lambda node: -float(node.f))


def beam(k: int | None, *, recombine: bool = False) -> Enqueue:
    """The k of highest f in each layer, layer by layer; with ``recombine`` one a key."""
    if k is not None and k < 1:
        raise ArgumentError("k", "an integer >= 1, or None for no limit", k, "1 is greedy search")

    def enqueue(nodes: Queue, following: Queue) -> Queue:
        queue: Queue = []
        pool = [*nodes, *following]
        for layer in sorted({node.layer for node in pool}):
            mates = sorted((node for node in pool if node.layer == layer), key=lambda node: -float(node.f))
            if recombine:
                seen: set[int | None] = set()
                mates = [n for n in mates if n.key is None or not (n.key in seen or seen.add(n.key))]  # type: ignore[func-returns-value]
            queue += mates[:k]
        return queue

    return enqueue


greedy: Enqueue = beam(1)


def initial_node(space: SearchSpace[S], *, gold: Any = None) -> Node[S]:
    """The first node of a space with one example."""
    if space.batch_size != 1:
        raise ArgumentError("space", "one example", f"{space.batch_size}", "use beam_search for a batch")
    state = space.initial()
    h = space.heuristic(state)
    zero = space.expand(state).new_zeros(())
    return Node(state, zero, zero if h is None else h[0, 0], 0, (), gold is not None)


def successors(space: SearchSpace[S], node: Node[S], *, gold: Any = None) -> Queue:
    """One node for every operator that applies."""
    scores = space.expand(node.state)[0, 0].detach()
    good = None if gold is None else space.y_good(node.state, gold)[0, 0]
    keys = space.keys(node.state)
    following: Queue = []
    for a in (scores > -torch.inf).nonzero()[:, 0].tolist():
        state = space.advance(node.state, torch.full((1, 1), a, device=scores.device))
        h = space.heuristic(state)
        following.append(
            Node(
                state,
                node.g + scores[a],
                scores.new_zeros(()) if h is None else h[0, 0],
                node.layer + 1 + a // (space.operators // space.reach),
                (*node.path, a),
                node.good and good is not None and bool(good[a]),
                None if keys is None else int(keys[0, 0, a]),
            )
        )
    return following


def queue_search(
    space: SearchSpace[S], enqueue: Enqueue, *, trace: Callable[[Node[S], Queue], None] | None = None
) -> Node[S]:
    """The first goal that is taken from the queue.

    Args:
        space: one example.
        enqueue: (queue, successors) -> queue; :func:`best_first`, :func:`beam` or :data:`greedy`.
        trace: called with every node that is taken and the queue it leaves.
    """
    nodes: Queue = [initial_node(space)]
    while nodes:
        node, *nodes = nodes
        if trace is not None:
            trace(node, nodes)
        if bool(space.is_goal(node.state)[0, 0]):
            return node
        nodes = enqueue(nodes, successors(space, node))
    raise InfeasibleError("space", "a goal that operators lead to", "an empty queue", "allow an operator in the space")
