"""Every query of every structure in every engine, over odd scores, padding, tensors and lengths.

``STRUCTLEARN_CASES=100000`` adds that many random cases, for a nightly run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from structlearn.errors import BackendError

from .cases import CASES, Case, cases, random_cases
from .checks import CHECKS
from .structures import ENTRIES, Entry

pytestmark = pytest.mark.usefixtures("poisoned_memory")
PAIRS = [(entry, engine) for entry in ENTRIES for engine in entry.engines]
# One structure for each family of Triton kernels, and the queries that have some; nightly runs take all.
TRITON = (
    "LinearChain-edges",
    "LinearChain-steps",
    "SemiMarkov",
    "SpanTree",
    "WeightedCFG-own",
    "Alignment-global-affine",
)
TRITON_QUERIES = ("argmax", "max", "log_partition", "gradient", "marginals", "topk")
CELLS = [
    (entry, engine, query)
    for entry, engine in PAIRS
    for query in CHECKS
    if engine != "triton" or CASES or (entry.name in TRITON and query in TRITON_QUERIES)
]


def failure(case: Case, engine: str, query: str) -> str | None:
    """What is wrong with one query of one case, or None."""
    problem = case.problem
    try:
        CHECKS[query](problem.make(engine), problem, engine)
    except BackendError as error:
        # Triton may lack a query, and torch-struct empty batches and scores of spans; the message names what has it.
        lacks = engine == "triton" or re.search("(at least one .*|without spans) for torch-struct", str(error))
        return None if lacks else f"{case}: {error}"
    except (Exception, pytest.fail.Exception) as error:
        return f"{case}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


def report(failures: Iterable[str | None], of: int) -> None:
    """Fails with the first of the messages."""
    messages = [message for message in failures if message is not None]
    assert not messages, f"{len(messages)} of {of} cases\n" + "\n".join(messages[:12])


@pytest.mark.parametrize(("entry", "engine", "query"), CELLS, ids=str)
def test_query(entry: Entry, engine: str, query: str) -> None:
    table = cases(entry, engine)
    report((failure(case, engine, query) for case in table), len(table))


if CASES:

    @pytest.mark.parametrize(("entry", "engine"), PAIRS, ids=str)
    def test_random_cases(entry: Entry, engine: str) -> None:
        table = random_cases(entry, CASES // len(PAIRS) // (20 if engine == "triton" else 1))
        report((failure(case, engine, query) for case in table for query in CHECKS), len(table) * len(CHECKS))
