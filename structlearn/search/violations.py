"""Where a search goes wrong, and the update that follows: Δ as a linear form in the scores.

Every learner compares y-good hypotheses with others and moves the weights along

    Δ = sum over errors of   (1/|sibs|) sum_{n in sibs} Φ(n)  -  (1/|nodes|) sum_{n in nodes} Φ(n),

Φ(n) the features of the path to n. The searches here find the errors without gradients and return <w, Δ> as a function
of the scores, so that Δ is one backward pass into whatever produced them.

    standard        one error: the best goal is not y-good; the y-good one against it.
    early           the same at the layer where the last y-good state falls off the beam, and the search stops there.
    max_violation   the same at the layer where the best state outranks the best y-good one by most.
    laso            an error wherever the queue loses its last y-good state; the queue is emptied, the y-good siblings
                    are put in, and the search goes on to the end. The whole queue is in nodes.
    lattice         LaSO for exact search: the queue is a column of the Viterbi lattice, every state with its best path.
                    An error wherever a y-good state keeps another path than the y-good one.

Siblings are the y-good candidates of the layer, at most a beam of them. nodes are those of the queue that rank no lower
than any y-good one: all of it if the good ones are cut off. So <w, Δ> <= 0 for each error, on which the bound R²/γ² on
their number rests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, InfeasibleError
from structlearn.search.beam import Search
from structlearn.search.ranking import Layer, top
from structlearn.search.space import S, SearchSpace, choose
from structlearn.search.tally import Tally

Rescore = Callable[["Violations"], tuple[SearchSpace[Any], float]]


class Violations(NamedTuple):
    """What a search found.

    value: <w, Δ>, summed over the batch; its gradient with respect to the weights is Δ.
    errors: (B,) number of errors of each example.
    lost: (B,) how often the queue lost its last y-good state.
    first: (B,) layer of the first error, -1 if there is none.
    """

    value: Tensor
    errors: Tensor
    lost: Tensor
    first: Tensor


def _share(members: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, K) bool to 1/number in each row."""
    count = members.sum(1, keepdim=True).clamp(min=1)
    return members.to(dtype) / count


def unreachable(missing: Tensor) -> InfeasibleError:
    """The error for the first example of ``missing`` (B,) bool."""
    return InfeasibleError(
        "gold",
        "an output that operators lead to",
        f"none for example {int(missing.nonzero()[0])}",
        "is a part of it outside the space (a width, a label), or shut by -inf?",
    )


def laso(
    space: SearchSpace[S],
    gold: Any,
    beam: int | None,
    *,
    margin: float = 0.0,
    recombine: bool = False,
    against: Literal["queue", "last"] = "queue",
    rescore: Rescore | None = None,
) -> Violations:
    """Learning as search optimisation: every loss of the last y-good state is an error, mended on the spot.

    Args:
        space: B search problems.
        gold: their outputs, in the form that ``space.y_good`` takes.
        beam: K.
        margin: y-good hypotheses are ranked by their score less this, so they must win by it.
        recombine: see :func:`beam_search`.
        against: nodes are the whole "queue", or the "last" of it alone.
        rescore: called after every layer with errors, with the violations of that layer; the search goes on in the
            space that it returns, the same one with other scores, and with the margin that it returns. Without it all
            errors of the batch are found under one set of weights.
    """
    search = Search(space, beam, recombine, gold)
    whole = Tally(search)
    errors = torch.zeros(space.batch_size, dtype=torch.int64, device=search.layers[0].g.device)
    lost, first = errors.clone(), errors - 1
    for t in range(1, space.layers + 1):
        last = t == space.layers
        with torch.no_grad():
            found = search.candidates(margin)
            assert found.good is not None
            index = search.rank(found.f)
            kept = search.pick(found, index, found.f)
            assert kept.good is not None
            alive = kept.g > -torch.inf
            survivors = (kept.good & alive).any(1)
            gone = found.good.any(1) & ~survivors & ~search.open_good()
            wrong = gone | ~(kept.good & alive)[:, 0] if last else gone
        if bool(wrong.any()):
            with torch.no_grad():
                pool = torch.where(found.good, found.g, -torch.inf)
                siblings = search.pick(found, top(pool, kept.g.shape[1]), pool)
                able = siblings.g > -torch.inf
                if bool((wrong & ~able.any(1)).any()):
                    raise unreachable(wrong & ~able.any(1))
                # Where equal states are recombined, a queue that lost the good ones may hold others that rank lower.
                best = torch.where(found.good, found.every, -torch.inf).amax(1, keepdim=True)
                before = alive & ~kept.good & (found.f.gather(1, index) >= best)
                if against == "last":
                    # The lowest of a queue that lost the good ones; at the end the first, which was taken for the goal.
                    rank = before.cumsum(1)
                    before = before & (rank == (1 if last else rank[:, -1:]))
            tally = whole if rescore is None else Tally(search)
            tally.add(t, siblings, _share(able & wrong[:, None], kept.g.dtype))
            tally.add(t, kept, -_share(before & wrong[:, None], kept.g.dtype))
            errors = errors + wrong
            lost = lost + (wrong & ~survivors)
            first = torch.where(wrong & (first < 0), t, first)
            kept = _where(wrong, siblings, kept)
            if rescore is not None:
                here = Violations(tally.value(space), wrong.long(), (wrong & ~survivors).long(), first)
                space, margin = rescore(here)
                search.push(kept, wrong)
                search.rescored(space)
                continue
        search.push(kept, wrong)
    value = whole.value(space) if whole.found else nothing(space)
    return Violations(value, errors, lost, first)


def lattice(space: SearchSpace[S], gold: Any, *, margin: float = 0.0, rescore: Rescore | None = None) -> Violations:
    """:func:`laso` with exact search: no limit to the beam, hypotheses with equal futures recombined.

    A y-good hypothesis that recombination drops has lost to the best path into its state. The y-good siblings move
    against all states of that column of the lattice, each with its best path, that rank no lower than they do.

    Args:
        space: with ``keys`` or ``first_order``, which say what futures are equal.
        gold, margin, rescore: as for :func:`laso`.
    """
    if not space.first_order and space.keys(space.initial()) is None:
        raise ArgumentError("space", "one that says which states have equal futures", "no keys", "use laso with a beam")
    return laso(space, gold, None, margin=margin, recombine=True, rescore=rescore)


def _where(rows: Tensor, these: Layer[S], others: Layer[S]) -> Layer[S]:
    assert these.good is not None
    assert others.good is not None
    at = rows[:, None]
    return Layer(
        choose(rows, these.state, others.state),
        torch.where(at, these.g, others.g),
        torch.where(at, these.good, others.good),
        torch.where(at, these.parent, others.parent),
        torch.where(at, these.operator, others.operator),
    )


def nothing(space: SearchSpace[S]) -> Tensor:
    """0 that is a function of the scores, so that a backward pass runs."""
    state = space.initial()
    operator = torch.zeros((space.batch_size, 1), dtype=torch.int64, device=state[0].device)
    return space.score(state, operator).nan_to_num(0, 0, 0).sum() * 0
