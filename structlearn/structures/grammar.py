"""Derivations of a weighted context-free grammar in Chomsky normal form.

A derivation of n words puts a preterminal over every word and builds n-1 larger constituents, each by one binary rule.
With A_ij the symbol over the words i..j and r_ij the rule A_ij -> A_ik A_k+1,j that makes it,

    s(y) = root_scores[A_0,n-1] + sum_t terms[t, A_tt] + sum_{i<j} ( rule_scores[r_ij] + spans[i, j, A_ij] ).

Recurrence over any semiring, by width:

    a[i, i, p] = terms[i, p]
    x[i, j, r] = (+)_{i <= k < j} a[i, k, left of r] (x) a[k+1, j, right of r]
    a[i, j, A] = ( (+)_{r: A -> ..} x[i, j, r] (x) rule_scores[r] ) (x) spans[i, j, A]
    total      = (+)_A a[0, n-1, A] (x) root_scores[A].

Cuts are summed before rules: N^2 (N pairs + rules) work, where a pair is two children that share a rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from structlearn.errors import InfeasibleError, ShapeError
from structlearn.ops import choose_backend, value_and_gradient
from structlearn.ops import grammar as ops
from structlearn.ops import grammar_gpu as gpu_ops
from structlearn.ops._register import is_eager
from structlearn.semirings import Count, Entropy, KMax, Log, Max, Sample, Semiring, evaluate, in_units
from structlearn.structures import charts, checks, cky, grammar_count
from structlearn.structures.base import (
    PAD,
    Structure,
    check_count,
    marginals_by_autograd,
    recordable,
    recording,
)
from structlearn.structures.counting import CountedBest, Counter, CountTable
from structlearn.structures.rules import Grammar
from structlearn.trees import Tree

_NATIVE = ("reference", "cpu", "triton", "torch-struct")
NEG_INF = float("-inf")


class GrammarPotentials(NamedTuple):
    """One tensor a field of :class:`WeightedCFG`; spans is None where it has none."""

    terms: Tensor
    rule_scores: Tensor
    root_scores: Tensor
    spans: Tensor | None


class Constituent(NamedTuple):
    """The words start..end, both inclusive, under a symbol; rule is None over a single word."""

    start: int
    end: int
    symbol: int
    rule: int | None


class WeightedCFG(Structure):
    """s(y) = root_scores[A_0,n-1] + sum_t terms[t, A_tt] + sum_{i<j} (rule_scores[r_ij] + spans[i, j, A_ij]).

    Args:
        grammar: symbols and binary rules.
        terms: (B, N, P) score of preterminal p over word n; -inf where it cannot stand there.
        rule_scores: (R,) shared, or (B, R) for each sentence.
        root_scores: (NT,) or (B, NT) score of a nonterminal over the whole sentence, or (S,) or (B, S) to let
            preterminals be roots too, which is the only way for a sentence of one word to have a derivation.
        spans: (B, N, N, NT) score of nonterminal A over the words i..j, i < j; the rest is never read. 0 if not given.
        lengths: (B,) number of words of each sentence, 0..N; all N if not given. What stands at or beyond a length
            is never read, NaN included. Lengths on the CPU are checked; on a GPU only with ``validate``.
        backend: "auto", or one of ``ops.backends()``.
        validate: look for NaN and for scores above finfo.max / 4, +inf included, at unpadded places (and, on a GPU,
            at the lengths).

    Outputs are charts (B, N, N), int64: the rule number at every constituent i < j of the derivation, the preterminal
    (0..P-1) at i = j, -100 everywhere else; :meth:`symbols`, :meth:`constituents` and :meth:`trees` read them. Ties:
    the lowest root, then the lowest rule, then the first cut, then the same in the left part and in the right part.
    Half-precision potentials are computed in float32.
    """

    fields = ("terms", "rule_scores", "root_scores", "spans")
    named = GrammarPotentials

    def __init__(
        self,
        grammar: Grammar,
        terms: Tensor,
        rule_scores: Tensor,
        root_scores: Tensor,
        *,
        spans: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        backend: str = "auto",
        validate: bool = False,
    ) -> None:
        self.grammar = grammar
        checks.check_tensor("terms", terms, 3, "(B, N, P)")
        self._check_shapes(terms, rule_scores, root_scores, spans)
        self.terms: Tensor
        self.rule_scores: Tensor
        self.root_scores: Tensor
        given = {"terms": terms, "rule_scores": rule_scores, "root_scores": root_scores, "spans": spans}
        self.terms, self.rule_scores, self.root_scores, self.spans = checks.same_kind(given)  # type: ignore[assignment]
        self.lengths = checks.check_lengths("lengths", lengths, terms.shape[0], terms.shape[1], terms.device)
        self.backend = choose_backend(backend, terms.device.type, _NATIVE)
        if validate:
            self._validate()

    def _check_shapes(self, terms: Tensor, rule_scores: Tensor, root_scores: Tensor, spans: Tensor | None) -> None:
        g = self.grammar
        b, n, p = terms.shape
        if p != g.num_preterminals:
            expected = f"(B, N, P) with P={g.num_preterminals}, the grammar's preterminals"
            raise ShapeError("terms", expected, tuple(terms.shape), "preterminals come last")
        rules, nt, s = g.num_rules, g.num_nonterminals, g.num_symbols
        for name, value, shapes, expected in (
            ("rule_scores", rule_scores, [(rules,), (b, rules)], f"(R,) or (B, R) with R={rules}, B={b}"),
            (
                "root_scores",
                root_scores,
                [(nt,), (b, nt), (s,), (b, s)],
                f"(NT,), (B, NT), (S,) or (B, S) with NT={nt}, S={s}, B={b}",
            ),
            ("spans", spans, [(b, n, n, nt)], f"(B, N, N, NT) = ({b}, {n}, {n}, {nt})"),
        ):
            if value is None and name == "spans":
                continue
            if not isinstance(value, Tensor) or tuple(value.shape) not in shapes:
                got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ShapeError(name, expected, got, "sizes follow from the grammar and from terms")

    def _validate(self) -> None:
        if self.lengths is not None:
            b, n = self.terms.shape[:2]
            checks.check_lengths("lengths", self.lengths.cpu(), b, n, self.terms.device)
        words = checks.unpadded(self.lengths, self.batch_size, self.terms.shape[1], self.terms.device)
        checks.check_potential("terms", self.terms, words)
        checks.check_potential("rule_scores", self.rule_scores, None)
        checks.check_potential("root_scores", self.root_scores, None)
        if self.spans is not None:
            checks.check_potential("spans", self.spans, self.mask.triu(1))

    @property
    def batch_size(self) -> int:
        return self.terms.shape[0]

    @property
    def mask(self) -> Tensor:
        """(B, N, N), true at the spans of each sentence."""
        return charts.span_mask(self.lengths, self.batch_size, self.terms.shape[1], self.terms.device)

    @property
    def _lengths(self) -> Tensor:
        if self.lengths is not None:
            return self.lengths
        return torch.full((self.batch_size,), self.terms.shape[1], device=self.terms.device)

    def replace(self, **potentials: Tensor | None) -> Self:
        given = self._given(potentials)
        return type(self)(self.grammar, **given, lengths=self.lengths, backend=self.backend)  # type: ignore[arg-type]

    def with_glue(self, score: float = -100.0) -> WeightedCFG:
        """The same with :meth:`Grammar.with_glue`, so that every sentence has a derivation.

        A sentence that has one without keeps its derivations and their scores; in the others each use of a glue rule,
        of GLUE as the root and of ANY over a word adds ``score``.
        """
        g = self.grammar
        glued = g.with_glue()
        extra = glued.num_rules - g.num_rules
        rule_scores = _padded(self.rule_scores, extra, score)
        root_scores = _padded(self.root_scores[..., : g.num_nonterminals], 1, score)
        words = self.root_scores[..., g.num_nonterminals :]
        if words.shape[-1] == 0:
            words = self.root_scores.new_full((*self.root_scores.shape[:-1], g.num_preterminals), NEG_INF)
        root_scores = torch.cat([root_scores, _padded(words, 1, score)], -1)
        spans = None if self.spans is None else _padded(self.spans, 1, 0.0)
        with torch.no_grad():
            derived = self.max() > NEG_INF
        # Every glue ends in ANY, so forbidding that forbids all of it.
        word = torch.where(derived, NEG_INF, score).to(self.terms.dtype)
        terms = torch.cat([self.terms, word[:, None, None].expand(*self.terms.shape[:2], 1)], -1)
        return WeightedCFG(
            glued, terms, rule_scores, root_scores, spans=spans, lengths=self.lengths, backend=self.backend
        )

    def _require_feasible(self, score: Tensor) -> None:
        if score.numel() and float(score.detach().min()) == NEG_INF:
            rows = (score == NEG_INF).nonzero().flatten().tolist()
            raise InfeasibleError(
                type(self).__name__,
                "a derivation of every sentence",
                f"none for batch rows {rows[:10]}{' ...' if len(rows) > 10 else ''}",
                "with_glue().argmax() joins the parts that the grammar covers; max() returns -inf instead of raising",
            )

    def symbols(self, y: Tensor) -> Tensor:
        """The symbol number at every constituent of charts (..., N, N), -100 elsewhere."""
        parents = self.grammar.rules[:, 0].to(y.device)
        words = torch.eye(y.shape[-1], dtype=torch.bool, device=y.device)
        inner = parents[y.clamp(min=0, max=max(len(parents) - 1, 0))] if len(parents) else torch.zeros_like(y)
        return torch.where(y == PAD, PAD, torch.where(words, y + self.grammar.num_nonterminals, inner))

    def constituents(self, y: Tensor) -> list[list[Constituent]]:
        """The constituents of each sentence of charts (B, N, N), the parts before the whole."""
        found = []
        for chart, symbols, n in zip(y.tolist(), self.symbols(y).tolist(), self._lengths.tolist(), strict=True):
            spans = [] if n == 0 or chart[0][n - 1] == PAD else charts.spans_of(chart, n)
            found.append([Constituent(i, j, symbols[i][j], None if i == j else chart[i][j]) for i, j in spans])
        return found

    def trees(self, y: Tensor, words: Sequence[Sequence[str]] | None = None) -> list[Tree | None]:
        """The charts (B, N, N) as trees of symbol names over words (positions if not given), None where none is.

        A word under glue's ANY is named by its best preterminal, if it has one.
        """
        names, over = self.grammar.symbols, self.symbols(y)
        if self.grammar.any_word is not None:
            best, tag = self.terms[..., :-1].max(-1)
            word = over.diagonal(0, -2, -1)
            glued = (word == self.grammar.any_word) & (best > NEG_INF)
            word.copy_(torch.where(glued, self.grammar.num_nonterminals + tag, word))
        return charts.trees(over, self.mask, lambda symbol, start, end: names[symbol], words)

    def chart(self, trees: Sequence[Tree]) -> Tensor:
        """The charts (B, N, N) of trees in normal form, whose labels are the grammar's names."""
        return charts.from_trees(trees, self.grammar, self.terms.shape[1]).to(self.terms.device)

    def same_output(self, y: Tensor, z: Tensor) -> Tensor:
        return ((y == z) | ~self.mask).flatten(-2).all(-1)

    def padded(self, y: Tensor) -> Tensor:
        return y.masked_fill(~self.mask, PAD)

    @property
    def absent(self) -> int:
        return self.grammar.num_symbols

    def position_counts(self, mask: Tensor) -> Tensor:
        return charts.tree_sizes(self._lengths)

    def positions(self, y: Tensor) -> tuple[Tensor, Tensor, int, torch.dtype]:
        mask = self.mask
        y = checks.check_label_tensor("y", y, tuple(mask.shape), self.terms.device)
        charts.check_derivations(y, mask, self.grammar)
        symbols = self.symbols(y.masked_fill(~mask, PAD))
        return charts.cells(symbols, mask, self.absent), mask.flatten(1), self.absent + 1, self.terms.dtype

    def parts_of_positions(self, table: Tensor) -> dict[str, Tensor]:
        cells = table.view(*self.mask.shape, self.absent + 1)
        nt = self.grammar.num_nonterminals
        return {"spans": cells[..., :nt], "terms": cells.diagonal(0, 1, 2).mT[..., nt:-1]}

    def max_by_count(self, counter: Counter) -> CountTable:
        return grammar_count.max_by_count(self, counter)

    def best_by_count(self, counter: Counter, offset: Tensor, slope: Tensor) -> CountedBest:
        return grammar_count.best_by_count(self, counter, offset, slope)

    @property
    def _args(self) -> tuple[Any, ...]:
        return self.terms, self.rule_scores, self.root_scores, self.spans, self.lengths, *ops.unpack(self.grammar)

    @property
    def _needs_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(x.requires_grad for x in self.potentials.values())

    def _filled(
        self, terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Terms, rules (1 or B, R), roots (1 or B, S) and spans (B, N, N, NT) with numbers at padded places."""
        g, mask = self.grammar, self.mask
        terms = terms.masked_fill(~mask.diagonal(0, 1, 2)[..., None], 0.0)
        roots = _padded(roots, g.num_symbols - roots.shape[-1], NEG_INF)
        if spans is None:
            spans = terms.new_zeros(()).expand(*mask.shape, g.num_nonterminals)
        else:
            spans = spans.masked_fill(~mask.triu(1)[..., None], 0.0)
        rules = rules if rules.dim() == 2 else rules.unsqueeze(0)
        return terms, rules, roots if roots.dim() == 2 else roots.unsqueeze(0), spans

    def _reference(self, semiring: Semiring) -> Tensor:
        def recurrence(semiring: Semiring, *potentials: Tensor | None) -> Tensor:
            terms, rules, roots, spans = (semiring.lift(x) for x in self._filled(*potentials))  # type: ignore[arg-type]
            return cky.total(semiring, self.grammar, terms, rules, roots, spans, self._lengths)

        return evaluate(semiring, recurrence, self._args[:4])

    def _total(self, semiring: Semiring) -> Tensor:
        """:meth:`_reference`, by torch-struct where that is the backend."""
        if self.backend == "torch-struct":
            from structlearn.torch_struct.grammar import total

            return total(self, semiring)
        return self._reference(semiring)

    def _reference_outputs(self, semiring: Semiring) -> tuple[Tensor, Tensor]:
        """Charts (width, B, N, N) and totals (width, B): the parts of output i are the gradient of total i."""
        with recording():
            terms, spans = self.marked()
            totals = self.replace(terms=terms, spans=spans)._reference(semiring)
            return self._charts(totals, totals, terms, spans), totals.detach()

    def marked(self) -> tuple[Tensor, Tensor]:
        """terms and spans (0 where not given) as leaves that gradients of totals mark the constituents on."""
        size = (*self.mask.shape, self.grammar.num_nonterminals)
        spans = self.terms.new_zeros(size) if self.spans is None else recordable(self.spans)
        return recordable(self.terms).requires_grad_(), spans.requires_grad_()

    def _charts(self, totals: Tensor, scores: Tensor, terms: Tensor, spans: Tensor) -> Tensor:
        """Charts (..., B, N, N) of the outputs that the gradients of ``totals`` (..., B) mark, PAD if forbidden."""
        marks = [
            torch.autograd.grad(
                total.sum(), (terms, spans), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for total in totals
        ]
        words, inner = (torch.stack(x) for x in zip(*marks, strict=True))
        if not self.grammar.num_nonterminals:
            inner = inner.new_zeros((*inner.shape[:-1], 1))
        keep = self.mask & (scores > NEG_INF)[..., None, None]
        symbols = inner.argmax(-1).masked_fill(~(keep & (inner.amax(-1) > 0.5)), PAD)
        single = words.argmax(-1).masked_fill(~(keep.diagonal(0, -2, -1) & (words.amax(-1) > 0.5)), PAD)
        return charts.rules_of(symbols, single, self.grammar)

    def _best(self) -> tuple[Tensor, Tensor]:
        if self.backend == "triton":
            y, score = gpu_ops.best(*self._args)
            return y, score
        if self.backend != "cpu":
            y, scores = self._reference_outputs(Max())
            return y[0], scores[0]
        y, score = ops.best(*self._args)
        return y, score

    def max(self) -> Tensor:
        if self.backend in ("reference", "torch-struct"):
            best = self._total(Max())[0]
            return torch.where(best == NEG_INF, best.detach(), best)  # no output, no gradient
        if self.backend == "triton":
            y, best = gpu_ops.best(*self._args)
            if not self._needs_gradient:
                return best
            return self._scores(y, missing=True).masked_fill(best == NEG_INF, NEG_INF)
        score: Tensor = ops.best_score(*self._args)[1]
        return score

    def score(self, y: Tensor) -> Tensor:
        """s(y) for charts (B, N, N), or (..., B, N, N) with scores (..., B); padded places are ignored."""
        y = checks.check_label_tensor("y", y, tuple(self.mask.shape), self.terms.device)
        return self._scores(y, missing=False)

    def _scores(self, y: Tensor, missing: bool) -> Tensor:
        """s(y); with ``missing``, -inf without a gradient for charts that hold no derivation."""
        if self.backend == "cpu":
            flat = y.reshape(math.prod(y.shape[:-3]), *y.shape[-3:])
            scores: Tensor = ops.score(*self._args, flat, missing).view(y.shape[:-2])
            return scores
        if not missing:
            charts.check_derivations(y, self.mask, self.grammar)

        def look_up(_: float, *potentials: Tensor | None) -> Tensor:
            return cky.score(self.grammar, *self._filled(*potentials), y, self.mask, self._lengths)  # type: ignore[arg-type]

        value = in_units(look_up, self._args[:4])
        found = charts.holds_tree(y, self._lengths)
        return torch.where(found, value, NEG_INF) if missing else value

    def log_partition(self) -> Tensor:
        if self.backend in ("reference", "torch-struct"):
            return self._total(Log())[0]
        if self.backend == "triton":
            total: Tensor = gpu_ops.forward(*self._args)[0]
            return total
        args, keep = self._args, self._needs_gradient
        if keep and is_eager(self.terms):
            return value_and_gradient.grammar_log_partition(*args)
        log_z: Tensor = ops.forward(*args, keep)[0]
        return log_z

    def marginals(self) -> GrammarPotentials:
        """d (sum_b log Z_b) / d potentials.

        terms (B, N, P) holds the probabilities of preterminals, spans (B, N, N, NT), where it was given, those of
        constituents (see :meth:`span_marginals`); per-sentence rule_scores (B, R) hold the expected number of uses
        of each rule and root_scores (B, .) the probabilities of roots, shared ones their sum over the batch.
        Differentiable.
        """
        if self.backend == "triton":
            log_z, chart, raw = gpu_ops.forward(*[x.detach() if isinstance(x, Tensor) else x for x in self._args])
            results = gpu_ops.backward(*self._args, log_z, chart, raw, torch.ones_like(log_z))
            return GrammarPotentials(results[0], results[1], results[2], None if self.spans is None else results[3])
        if self.backend != "cpu":
            found: GrammarPotentials = marginals_by_autograd(self)
            return found
        results = ops.backward(*self._args, self.terms.new_empty(0), self.terms.new_ones(self.batch_size))
        return GrammarPotentials(results[0], results[1], results[2], None if self.spans is None else results[3])

    def log_partition_and_marginals(self) -> tuple[Tensor, GrammarPotentials]:
        if self.backend != "cpu" or not is_eager(self.terms):
            return super().log_partition_and_marginals()
        log_z, gradient = value_and_gradient.grammar(*self._args)
        return log_z, GrammarPotentials(*gradient[:4])

    def span_marginals(self) -> Tensor:
        """P(nonterminal A is over i..j), (B, N, N, NT); 0 for single words and where padded. Differentiable."""
        if self.spans is not None:
            found = self.marginals().spans
        else:
            found = (
                self.replace(spans=self.terms.new_zeros((*self.mask.shape, self.grammar.num_nonterminals)))
                .marginals()
                .spans
            )
        assert found is not None
        return found

    def count(self) -> Tensor:
        """Number of derivations that are not forbidden, (B,), float64."""
        return ops.count(*self._args) if self.backend == "cpu" else self._reference(Count())[0]

    def entropy(self) -> Tensor:
        value: Tensor = ops.entropy(*self._args) if self.backend == "cpu" else self._reference(Entropy())[1]
        return value

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """Charts (k, B, N, N) and scores (k, B), best first; the scores are differentiable.

        Equal scores: the lowest root, then the lowest rule, then the first cut, then the better left part, then the
        same inside the parts.
        """
        check_count("k", k)
        y, scores = ops.kbest(*self._args, k) if self.backend == "cpu" else self._reference_outputs(KMax(k))
        if self._needs_gradient:
            scores = self._scores(y, missing=True).masked_fill(scores == NEG_INF, NEG_INF)
        return y, scores

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """n draws from p(y) = exp(s(y)) / Z, charts (n, B, N, N), all -100 where there is no derivation."""
        check_count("n", n)
        if self.backend != "cpu":
            return self._reference_outputs(Sample(n, generator))[0]
        shape = (n, self.batch_size, max(2 * self.terms.shape[1] - 1, 0), 2)
        uniform = torch.rand(shape, generator=generator, dtype=self.terms.dtype, device=self.terms.device)
        y: Tensor = ops.sample(*self._args, uniform)
        return y


def _padded(x: Tensor, count: int, value: float) -> Tensor:
    """``count`` more entries ``value`` at the end of the last axis."""
    return torch.cat([x, x.new_full((*x.shape[:-1], count), value)], -1) if count else x
