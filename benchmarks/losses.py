"""Losses on chains beside plain Viterbi and pytorch-crf, a training step each. `python -m benchmarks.losses`.

Every contestant does forward and backward on the same ragged batch (32,50,10), in turns. Before anything is timed,
the values of the ways to the same loss are compared: exact counting, lambda-search and the reference must agree.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import harness, process, report
from benchmarks.harness import Effort
from benchmarks.quiet import Quiet
from benchmarks.report import Bar
from benchmarks.study import RESULTS

SHAPE = (32, 50, 10)
QUICK_SHAPE = (4, 8, 4)
# float32 scores of some fifty terms, times a cost of up to fifty.
TOLERANCE = 1e-4


def _batch(shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    b, n, c = shape
    unary = torch.randn(shape, generator=generator).requires_grad_()
    transition = torch.randn((c, c), generator=generator).requires_grad_()
    lengths = torch.randint(n // 2, n + 1, (b,), generator=generator)
    lengths[0] = n
    return unary, transition, lengths, torch.randint(0, c, (b, n), generator=generator)


def _calls(shape: tuple[int, int, int]) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """Named calls, and what differs between ways to the same value."""
    import structlearn as sl

    unary, transition, lengths, gold = _batch(shape)
    hamming = sl.costs.Hamming()

    def step(loss: Callable[[Any], torch.Tensor], backend: str = "auto") -> Callable[[], Any]:
        def call() -> None:
            unary.grad = transition.grad = None
            loss(sl.LinearChain(unary, transition, lengths=lengths, backend=backend)).backward()

        return call

    hinges = {
        "hinge, margin": sl.StructuredHinge(hamming),
        "hinge, slack exact": sl.StructuredHinge(hamming, rescaling="slack"),
        "hinge, slack search": sl.StructuredHinge(hamming, rescaling="slack", inference="search"),
        "hinge, margin squared": sl.StructuredHinge(hamming, squared=True),
        "hinge, slack squared": sl.StructuredHinge(hamming, rescaling="slack", squared=True),
    }
    crf = sl.CRFLoss()
    calls = {"Viterbi": step(lambda chain: chain.max().sum())}
    calls |= {name: step(lambda chain, loss=loss: loss(chain, gold)) for name, loss in hinges.items()}
    calls["CRF"] = step(lambda chain: crf(chain, gold))
    slack = hinges["hinge, slack exact"]
    calls["hinge, slack exact, reference backend"] = step(lambda chain: slack(chain, gold), "reference")
    try:
        from torchcrf import CRF
    except ModuleNotFoundError:
        pass
    else:
        peer, mask = CRF(shape[2], batch_first=True), torch.arange(shape[1]) < lengths[:, None]
        with torch.no_grad():
            peer.transitions.copy_(transition)
            peer.start_transitions.zero_()
            peer.end_transitions.zero_()
        calls["CRF, pytorch-crf"] = lambda: (-peer(unary, gold, mask=mask, reduction="mean")).backward()

    with torch.no_grad():
        chain = sl.LinearChain(unary, transition, lengths=lengths)
        slow = sl.LinearChain(unary, transition, lengths=lengths, backend="reference")
        exact = float(slack(chain, gold))
        ways = {
            "slack by search": (float(hinges["hinge, slack search"](chain, gold)), exact),
            "slack by the reference": (float(slack(slow, gold)), exact),
        }
        if "CRF, pytorch-crf" in calls:
            ways["pytorch-crf"] = (float(-peer(unary, gold, mask=mask, reduction="mean")), float(crf(chain, gold)))
    wrong = [f"{name}: {a:.6g} against {b:.6g}" for name, (a, b) in ways.items() if abs(a - b) > TOLERANCE * abs(b)]
    return calls, wrong


def _work(quick: bool) -> dict[str, float]:
    calls, wrong = _calls(QUICK_SHAPE if quick else SHAPE)
    if wrong:
        raise SystemExit("refused: results differ: " + "; ".join(wrong))
    effort = Effort(rounds=2, fewest=1, seconds=0.01) if quick else Effort()
    timings = harness.time_in_turns(list(calls.values()), effort, Quiet(0.0 if quick else 60.0))
    return {name: timing.median * 1e3 for name, timing in zip(calls, timings, strict=True)}


def _bars(ms: dict[str, float]) -> list[Bar]:
    margin, slack = ms["hinge, margin"], ms["hinge, slack exact"]
    bars = [
        Bar("margin hinge over Viterbi, forward and backward", 1.3, margin / ms["Viterbi"], at_most=True),
        Bar("exact slack hinge over margin hinge", 25, slack / margin, at_most=True),
        Bar("slack hinge by lambda-search over margin hinge", 6, ms["hinge, slack search"] / margin, at_most=True),
        Bar("reference over exact slack hinge", 100, ms["hinge, slack exact, reference backend"] / slack),
    ]
    if "CRF, pytorch-crf" in ms:
        bars.append(Bar("pytorch-crf over a CRF step", 8, ms["CRF, pytorch-crf"] / ms["CRF"]))
    return bars


def main() -> None:
    """Measure in a worker process, print the tables and write losses.md."""
    options, work = process.measured("benchmarks.losses", __doc__, _work, threads=2, results=RESULTS)
    if work is None:
        return
    ms: dict[str, float] = work
    shape = QUICK_SHAPE if options.quick else SHAPE
    lines = [
        f"# Losses on a chain {shape}, Hamming cost, float32, threads: {options.threads}",
        "",
        *(f"- {line}" for line in report.machine()),
        "",
        "| forward and backward | median ms |",
        "|---|---|",
        *(f"| {name} | {value:.3g} |" for name, value in ms.items()),
        "",
    ]
    if not options.quick:
        lines += [*report.bar_table(_bars(ms)), ""]
    text = "\n".join(lines)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "losses.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
