"""Chains: Viterbi with path, and log-partition with gradients, beside every peer. `python -m benchmarks.chain`."""

from benchmarks import study
from benchmarks.cases import chain_case
from benchmarks.chain_checks import PARTITION, VITERBI, bars
from benchmarks.harness import Effort
from benchmarks.study import Plan, Study

FULL = Plan(
    shapes=((32, 50, 10), (32, 100, 50), (64, 25, 9), (8, 500, 20), (16, 100, 200), (1, 20, 9)),
    memory=(16, 100, 200),
    warm=(2, 4, 200),
    large=(256, 2000, 64),
    axes={
        "N": ((256, 250, 64), (256, 500, 64), (256, 1000, 64), (256, 1500, 64), (256, 2000, 64)),
        "B": ((32, 2000, 64), (64, 2000, 64), (128, 2000, 64), (192, 2000, 64), (256, 2000, 64)),
    },
)
QUICK = Plan(
    shapes=((4, 12, 5),),
    memory=(4, 20, 32),
    warm=(2, 4, 32),
    large=(16, 64, 8),
    axes={"N": ((16, 16, 8), (16, 32, 8), (16, 64, 8)), "B": ((4, 64, 8), (8, 64, 8), (16, 64, 8))},
    effort=Effort(rounds=3, fewest=2, seconds=0.02),
    patience=0.0,
)
STUDY = Study(
    key="chain",
    module="benchmarks.chain",
    title="Linear chains, float32, ragged lengths; shapes are (B,N,C)",
    operations=(VITERBI, PARTITION),
    make=chain_case,
    full=FULL,
    quick=QUICK,
    bars=bars,
)

if __name__ == "__main__":
    study.main(STUDY)
