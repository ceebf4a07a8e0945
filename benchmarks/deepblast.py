"""log Z of alignments and its gradient beside the package DeepBLAST. `python -m benchmarks.deepblast`.

Needs `pip install --no-deps deepblast` (its own requirements pin old packages) beside the extra `bench`. It begins
with free gaps, which no mode of `sl.Alignment` does, so the two answers differ and each is checked by itself: ours
against the table's float64 answers, DeepBLAST's against its own recurrence in float64.
"""

import numpy as np
import torch

import structlearn as sl
from benchmarks import harness
from benchmarks.alignment_cases import partition, random_case, totals
from benchmarks.harness import Effort
from benchmarks.quiet import Quiet

SHAPES = ((32, 100, 100), (32, 300, 300))


def measure(shape: tuple[int, int, int]) -> str:
    """Both answers checked, then timed in turns."""
    from deepblast.nw import NeedlemanWunschDecoder

    smooth = NeedlemanWunschDecoder("softmax")
    case = random_case(shape)
    match = torch.from_numpy(case.match).requires_grad_()
    # DeepBLAST adds the match score of a cell to its gaps, too.
    gap = (case.gap - match.detach()).requires_grad_()

    def theirs() -> torch.Tensor:
        match.grad = gap.grad = None
        log_z: torch.Tensor = smooth(match, gap)
        log_z.sum().backward()
        return log_z.detach()

    def ours() -> torch.Tensor:
        match.grad = None
        log_z = sl.Alignment(match, gap=case.gap).log_partition()
        log_z.sum().backward()
        return log_z.detach()

    np.testing.assert_allclose(ours().numpy(), partition(case)[0], rtol=1e-4)
    free_start = totals(case.match.astype(np.float64), case.gap, 0.0)[:, -1, -1]
    np.testing.assert_allclose(theirs().numpy(), free_start, rtol=1e-4)
    one, other = harness.time_in_turns([ours, theirs], Effort(), Quiet(20.0))
    return (
        f"{case}: structlearn {one.median * 1e3:.2f} ms, DeepBLAST {other.median * 1e3:.1f} ms"
        f" ({other.median / one.median:.1f}x)"
    )


def main() -> None:
    """Print median milliseconds of both at one thread."""
    torch.set_num_threads(1)
    for shape in SHAPES:
        print(measure(shape), flush=True)


if __name__ == "__main__":
    main()
