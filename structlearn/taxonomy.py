"""Classes arranged in a tree or in a lattice (a directed acyclic graph)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from structlearn.errors import ArgumentError


class Taxonomy:
    """Nodes 0..Z-1 with parents; the K classes are some of the nodes.

    Args:
        parents: for each node its parents (one int, a sequence, or () for a root).
        classes: the nodes that are classes, in label order; all nodes without children if not given.
        names: optional node names.
    """

    def __init__(
        self,
        parents: Sequence[int | Sequence[int]],
        *,
        classes: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.parents = tuple((p,) if isinstance(p, int) else tuple(p) for p in parents)
        nodes = len(self.parents)
        for node, above in enumerate(self.parents):
            for p in above:
                if not 0 <= p < nodes:
                    raise ArgumentError(
                        "parents", f"nodes in 0..{nodes - 1}", f"{p} above node {node}", "use () for a root"
                    )
        has_child = {p for above in self.parents for p in above}
        self.classes = (
            tuple(range(nodes))
            if classes is None and not has_child
            else (tuple(n for n in range(nodes) if n not in has_child) if classes is None else tuple(classes))
        )
        self.names = tuple(names) if names is not None else tuple(map(str, range(nodes)))
        self._order = self._sorted()

    @classmethod
    def flat(cls, num_classes: int) -> Taxonomy:
        """No structure: every class is its own root."""
        return cls([()] * num_classes)

    @property
    def num_nodes(self) -> int:
        """Z."""
        return len(self.parents)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.classes)

    def _sorted(self) -> list[int]:
        """Nodes, parents before children; a cycle raises."""
        order: list[int] = []
        state = [0] * self.num_nodes
        for root in range(self.num_nodes):
            stack = [(root, iter(self.parents[root]))] if state[root] == 0 else []
            state[root] = state[root] or 1
            while stack:
                node, above = stack[-1]
                p = next(above, None)
                if p is None:
                    stack.pop()
                    state[node] = 2
                    order.append(node)
                elif state[p] == 1:
                    cycle = [n for n, _ in stack]
                    cycle = cycle[cycle.index(p) :]
                    raise ArgumentError(
                        "parents", "no cycle", " -> ".join(map(str, [*cycle, p])), "remove one of these links"
                    )
                elif state[p] == 0:
                    state[p] = 1
                    stack.append((p, iter(self.parents[p])))
        return order

    def ancestors(self) -> Tensor:
        """(K, Z) bool: node z is class k itself or above it."""
        above = torch.eye(self.num_nodes, dtype=torch.bool)
        for node in self._order:
            for p in self.parents[node]:
                above[node] |= above[p]
        return above[list(self.classes)]

    def distance(self) -> Tensor:
        """(K, K) height of the first common ancestor above gold: [gold, predicted].

        The number of steps up from gold to the nearest node that is predicted or above it (in a lattice, along the
        shortest way); without a common ancestor, one more than the longest way up from gold.
        """
        ways = torch.full((self.num_nodes, self.num_nodes), self.num_nodes, dtype=torch.int64)
        for node in self._order:
            ways[node, node] = 0
            for p in self.parents[node]:
                ways[node] = torch.minimum(ways[node], ways[p] + 1)
        ways = ways[list(self.classes)]
        known = ways.masked_fill(ways >= self.num_nodes, 0).amax(1) + 1
        above = self.ancestors()
        common = above[:, None, :] & above[None, :, :]
        steps = torch.where(common, ways[:, None, :], self.num_nodes).amin(-1)
        return torch.where(common.any(-1), steps, known[:, None])
