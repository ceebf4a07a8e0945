"""Launch functions of the weighted grammar's Triton kernels; recurrences and limits are described beside the kernels.

Shapes everywhere: terms (B, N, P); rules (R,) or (B, R); roots (NT,), (S,), (B, NT) or (B, S); spans (B, N, N, NT) or
None; lengths (B,) int64 or None; tables as `structlearn.structures.rules` packs them. float32 or float64. Derivations
are charts (B, N, N): rule numbers, preterminals over single words, -100 elsewhere. A row of length 0 has score and
log-partition 0; one without derivation has -inf, a chart of -100 and gradient 0.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .launch import PAD_LABEL, Launch, run

BLOCK = 128
_UNPACKED = WeakIdKeyDictionary()  # tables of a grammar -> what `_unpack` made of them for a device


def _unpack(
    tables: Tensor, nonterminals: int, preterminals: int, count: int, pairs: int, device: Any
) -> dict[str, Any]:
    """The tables by name, on ``device``, with pairs by right child and the longest lists."""
    sizes = {
        "table": 3 * count,
        "parent_start": nonterminals + 1,
        "parent_rules": count,
        "left_start": nonterminals + preterminals + 1,
        "pair_right": pairs,
        "pair_start": pairs + 1,
        "pair_rules": count,
        "pair_parents": count,
        "rule_pair": count,
    }
    found = dict(zip(sizes, tables.split(list(sizes.values())), strict=True))
    symbols = torch.arange(nonterminals + preterminals, dtype=torch.int32)
    found["pair_left"] = symbols.repeat_interleave(found["left_start"].diff().long())
    found["right_pairs"] = found["pair_right"].argsort(stable=True).to(torch.int32)
    by_right = torch.bincount(found["pair_right"].long(), minlength=len(symbols)).cumsum(0)
    found["right_start"] = torch.cat([by_right.new_zeros(1), by_right]).to(torch.int32)
    named: dict[str, Any] = {name: x.clone().to(device) for name, x in found.items()}
    for name, starts in (("most", "pair_start"), ("most_left", "left_start"), ("most_right", "right_start")):
        named[name] = int(found[starts].diff().max()) if len(found[starts]) > 1 else 0
    return named


class Potentials:
    """What every kernel takes."""

    def __init__(
        self,
        terms: Tensor,
        rules: Tensor,
        roots: Tensor,
        spans: Tensor | None,
        lengths: Tensor | None,
        tables: Tensor,
        nonterminals: int,
        pairs: int,
    ) -> None:
        self.B, self.N, self.P = terms.shape
        self.NT, self.S, self.Q, self.R = nonterminals, nonterminals + self.P, pairs, rules.shape[-1]
        self.terms = terms if terms.stride(-1) == 1 or self.P == 1 else terms.contiguous()
        self.rules, self.roots_given = rules.contiguous(), roots
        missing = self.S - roots.shape[-1]
        self.roots = torch.nn.functional.pad(roots, (0, missing), value=float("-inf")).contiguous()
        self.spans = None if spans is None else spans.contiguous()
        self.lengths = None if lengths is None else lengths.contiguous()
        key = (nonterminals, self.P, self.R, pairs, terms.device)
        kept = _UNPACKED.setdefault(tables, {})
        if key not in kept:
            kept[key] = _unpack(tables.cpu(), nonterminals, self.P, self.R, pairs, terms.device)
        self.tables = kept[key]
        self.stride_r = self.R if rules.dim() == 2 else 0
        self.stride_o = self.S if roots.dim() == 2 else 0

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.terms.dtype, device=self.terms.device)

    def named(self, *names: str) -> dict[str, Any]:
        """Arguments that are fields of this object or tables of the grammar."""
        return {name: self.tables[name] if name in self.tables else getattr(self, name) for name in names}

    def pair(self, chart: Tensor, pairs: Tensor, width: int, log: bool) -> Launch:
        from .grammar_kernels import grammar_pair_kernel

        args = self.named("lengths", "pair_left", "pair_right", "N", "S", "Q")
        args |= {"chart": chart, "pairs": pairs, "width": width, "LOG": log, "BLOCK_Q": BLOCK}
        grid = (self.B, self.N - width + 1, -(-self.Q // BLOCK))
        return Launch(grammar_pair_kernel, grid, args, 4, "log" if log else "max")

    def inside(self, chart: Tensor, raw: Tensor, total: Tensor, symbol: Tensor, log: bool) -> list[Launch]:
        """Words, then widths in order, then roots."""
        from .grammar_kernels import grammar_parent_kernel, grammar_root_kernel, grammar_word_kernel

        variant = "log" if log else "max"
        pairs = self.empty(self.B, self.N, self.Q)
        strides = {"stride_b": self.terms.stride(0), "stride_n": self.terms.stride(1)}
        words = self.named("terms", "lengths", "N", "P", "NT") | strides | {"chart": chart, "BLOCK_S": BLOCK}
        launches = [Launch(grammar_word_kernel, (self.B, self.N), words, 4)]
        span_strides = (0, 0, 0) if self.spans is None else self.spans.stride()[:3]
        fixed = self.named(
            "rules", "spans", "lengths", "parent_start", "parent_rules", "rule_pair", "N", "S", "Q", "NT", "stride_r"
        ) | dict(zip(("stride_b", "stride_i", "stride_j"), span_strides, strict=True))
        # A block for the rules of a symbol: they are few in a treebank's grammar.
        fixed |= {"pairs": pairs, "chart": chart, "raw": raw, "LOG": log, "BLOCK_R": BLOCK}
        for width in range(2, self.N + 1):
            launches.append(self.pair(chart, pairs, width, log))
            grid = (self.B, self.N - width + 1, self.S)
            launches.append(Launch(grammar_parent_kernel, grid, fixed | {"width": width}, 4, variant))
        roots = self.named("roots", "lengths", "N", "S", "stride_o")
        roots |= {"chart": chart, "total": total, "symbol": symbol, "LOG": log, "BLOCK_S": BLOCK}
        return [*launches, Launch(grammar_root_kernel, (self.B,), roots, 4, variant)]


def plan_best(*potentials: Any) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    from .grammar_kernels import grammar_trace_kernel

    x = Potentials(*potentials)
    chart, score, symbol = x.empty(x.B, x.N, x.N, x.S), x.empty(x.B), x.empty(x.B, dtype=torch.int32)
    launches = x.inside(chart, chart, score, symbol, log=False)
    labels = torch.full((x.B, x.N, x.N), PAD_LABEL, dtype=torch.int64, device=x.terms.device)
    args = x.named("rules", "lengths", "table", "parent_start", "parent_rules", "N", "S", "NT", "stride_r")
    args |= {"chart": chart, "score": score, "symbol": symbol, "labels": labels, "BLOCK_R": BLOCK}
    args["stack"] = x.empty(x.B, x.N, 3, dtype=torch.int64)
    return [*launches, Launch(grammar_trace_kernel, (x.B,), args, 4)], (labels, score)


def best(*potentials: Any) -> tuple[Tensor, Tensor]:
    """argmax_y s(y) and max_y s(y): charts (B, N, N) int64, score (B,)."""
    launches, outputs = plan_best(*potentials)
    run(launches, potentials[0].device)
    return outputs


def plan_forward(*potentials: Any) -> tuple[list[Launch], tuple[Tensor, Tensor, Tensor]]:
    x = Potentials(*potentials)
    chart, raw = x.empty(x.B, x.N, x.N, x.S), x.empty(x.B, x.N, x.N, x.NT)
    log_z, symbol = x.empty(x.B), x.empty(x.B, dtype=torch.int32)
    return x.inside(chart, raw, log_z, symbol, log=True), (log_z, chart, raw)


def forward(*potentials: Any) -> tuple[Tensor, Tensor, Tensor]:
    """log sum_y exp s(y): log_z (B,), and for `backward` a (B, N, N, S) and raw (B, N, N, NT)."""
    launches, outputs = plan_forward(*potentials)
    run(launches, potentials[0].device)
    return outputs


def plan_backward(x: Potentials, chart: Tensor, raw: Tensor, share: Tensor, d_rules: Tensor) -> list[Launch]:
    """From P of the roots, which ``share`` (B, N, N, S) holds, to all of it; expected uses into d_rules (B, R)."""
    from .grammar_grad import grammar_child_kernel, grammar_gate_kernel, grammar_rule_kernel

    pairs, gates = x.empty(x.B, x.N, x.Q), x.empty(x.B, x.N, x.Q)
    tables = ("pair_start", "pair_rules", "pair_parents", "most")
    gate = x.named("rules", "lengths", "N", "S", "Q", "NT", "stride_r", *tables)
    gate |= {"share": share, "raw": raw, "gates": gates, "BLOCK_Q": BLOCK}
    sides = ("left_start", "pair_right", "right_start", "right_pairs", "pair_left", "most_left", "most_right")
    child = x.named("lengths", "N", "S", "Q", *sides)
    child |= {"chart": chart, "gates": gates, "share": share, "BLOCK_S": BLOCK}
    rule = x.named("rules", "lengths", "table", "rule_pair", "N", "S", "Q", "NT", "R", "stride_r")
    rule |= {"share": share, "raw": raw, "pairs": pairs, "d_rules": d_rules, "BLOCK_R": BLOCK}
    launches = []
    for width in range(x.N, 1, -1):
        at = {"width": width}
        launches += [
            x.pair(chart, pairs, width, log=True),
            Launch(grammar_rule_kernel, (x.B, -(-x.R // BLOCK)), rule | at, 4),
            Launch(grammar_gate_kernel, (x.B, x.N - width + 1, -(-x.Q // BLOCK)), gate | at, 4),
            Launch(grammar_child_kernel, (x.B, (width - 1) * x.N, -(-x.S // BLOCK)), child | at, 4),
        ]
    return launches


def backward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """sum_b grad_b d log_z_b / d (terms, rules, roots, spans), given (*potentials, log_z, chart, raw, grad)."""
    *potentials, log_z, chart, raw, grad = args
    x = Potentials(*potentials)
    share, d_rules = torch.zeros_like(chart), x.empty(x.B, x.R).zero_()
    feasible = log_z > float("-inf")
    rows = torch.arange(x.B, device=chart.device)
    last = (x.N - 1 if x.lengths is None else x.lengths - 1) * torch.ones_like(rows)
    top = x.empty(x.B, x.S).zero_()
    if x.N:
        some = last >= 0
        top = chart[rows, last.clamp(min=0), 0] + x.roots
        top = (top - torch.where(feasible, log_z, 0.0)[:, None]).exp() * some[:, None]
        share[rows, last.clamp(min=0), 0] = top
        run(plan_backward(x, chart, raw, share, d_rules), chart.device)
    weight = torch.where(feasible, grad, 0.0)
    words = (torch.arange(x.N, device=chart.device) <= last[:, None])[..., None]
    d_terms = (
        torch.where(words, share[:, 0, :, x.NT :], 0.0) * weight[:, None, None] if x.N else torch.zeros_like(x.terms)
    )
    d_rules *= weight[:, None]
    d_roots = (top * weight[:, None])[:, : x.roots_given.shape[-1]]
    d_spans = None
    if x.spans is not None:
        place = torch.arange(x.N, device=chart.device)
        width = place - place[:, None]
        by_span = share[:, width.clamp(min=0), place[:, None], : x.NT]
        inside = (width > 0) & (place <= last[:, None, None])
        d_spans = torch.where(inside[..., None], by_span, 0.0) * weight[:, None, None, None]
    return (
        d_terms,
        d_rules if x.rules.dim() == 2 else d_rules.sum(0),
        d_roots if x.roots.dim() == 2 else d_roots.sum(0),
        d_spans,
    )
