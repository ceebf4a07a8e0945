// Inside and outside sums over the constituents that exist, every one a number m 2^e (scale.h). With x the
// sum over cuts of a pair of children, in the words of span_tree_sum.h:
//   raw[A] = sum_r w_r x_pair(r),   I[A] = raw[A] exp(spans[A])
//   P(r | A) = w_r x / raw[A],   P(k | pair) = I[B] I[C] / x.
// The outside pass forms x again. Limited like grammar_max.h, with an exponent to handle at every step. A sentence with
// scores beyond CFG::widest() that may count is left to grammar_exact.h.
#pragma once
#include "grammar_exact.h"
#include "scale.h"

namespace sl {

template <class T>
class SparseSum {
 public:
  explicit SparseSum(const CFG<T>& cfg) : cfg_(cfg), widest_(cfg.widest()), made_(cfg.NT), mu_(cfg.NT), raw_(cfg.NT) {}

  double log_z = 0;
  Scaled<T> total;  // Z

  // False if there are scores beyond what exponents in T hold, and they may count.
  bool inside(int64_t b) {
    b_ = b, n_ = cfg_.length(b);
    log_z = 0;
    total = {T(1), T(0)};
    if (n_ == 0) return true;
    chart_.reset(cfg_, n_, kEmpty);
    cells_.assign(n_ * n_ + 1, {0, 0});
    entries_.clear();
    least_ = most_ = 0;
    if (packed_for_ < 0 || cfg_.args.rules_b) pack();
    least_ = rules_least_, most_ = rules_most_;
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (const T x = cfg_.terms(b, j)[p]; x > kNegInf<T>) set(j, j, cfg_.NT + p, weigh(x));
      for (int64_t i = j - 1; i >= 0; --i) cell(i, j);
    }
    Sum sum;
    roots([&](int64_t symbol, const Scaled<T>& x) {
      const Scaled<T> w = weigh(cfg_.root(b_, symbol));
      sum.add(x.m * w.m, x.e + w.e);
    });
    total = {sum.m, sum.e};
    log_z = total.log();
    // Scores below -widest count as -widest: that changes nothing where derivations without them are all that counts.
    if (most_ > widest_) return false;
    return least_ >= -widest_ || log_z == kNegInf<double> || log_z > -double(widest_) + double(3 * n_ + 2) * double(most_) + 100;
  }

  // weight P is added to out; call after inside.
  void outside(T weight, const GrammarGradient<T>& out) {
    if (n_ == 0 || total.m == 0) return;
    out_ = out;
    root_shares([&](int64_t symbol, T share) {
      const T p = weight * share;
      if (symbol < cfg_.args.root_count) out.roots[symbol] += p;
      if (n_ == 1) out.terms[symbol - cfg_.NT] += p;
      else mu_[symbol] = p;
    });
    if (n_ == 1) return;
    for (int64_t j = n_ - 1; j >= 0; --j) {
      for (int64_t i = 0; i < j; ++i) spread(i, j);
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (cfg_.terms(b_, j)[p] > kNegInf<T>) out.terms[j * cfg_.P + p] += take(j, j, cfg_.NT + p);
    }
  }

  // For drawing: calls f(symbol, share) for roots, f(rule, weight) for the rules that make symbol over i..j, in their
  // order, and f(k, weight) for the cuts of a rule; weights are relative to a common factor.
  int64_t words() const { return n_; }
  bool feasible() const { return total.m > 0; }
  template <class F>
  void root_shares(F&& f) {
    roots([&](int64_t symbol, const Scaled<T>& x) {
      const Scaled<T> w = weigh(cfg_.root(b_, symbol));
      f(symbol, (x.m * w.m / total.m) * power2(std::min(x.e + w.e - total.e, T(2))));
    });
  }
  template <class F>
  void ways(int64_t i, int64_t j, int64_t symbol, F&& f) {
    Cuts c;
    const Entry* made = entry(i, j, symbol);
    for (int64_t t = cfg_.args.parent_start[symbol]; t < cfg_.args.parent_start[symbol + 1]; ++t) {
      const int64_t r = cfg_.args.parent_rules[t];
      if (!chart_.cuts(i, j, cfg_.left(r), cfg_.right(r), &c)) continue;
      const Sum x = sum_cuts(c);
      const Scaled<T> w = weigh(cfg_.rules(b_)[r]);
      f(r, x.m * w.m * power2(std::min(x.e + w.e - made->e, T(2))));
    }
  }
  template <class F>
  void cuts_of(int64_t i, int64_t j, int64_t r, F&& f) {
    Cuts c;
    chart_.cuts(i, j, cfg_.left(r), cfg_.right(r), &c);
    const Sum x = sum_cuts(c);
    for_cuts(c, [&](int64_t k) { f(k, term(c, k, x.e)); });
  }

 private:
  template <class F>
  void roots(F&& f) {  // f(symbol, inside) over the symbols that cover the sentence
    if (n_ == 1) {
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (const T x = cfg_.terms(b_, 0)[p]; x > kNegInf<T> && cfg_.root(b_, cfg_.NT + p) > kNegInf<T>)
          f(cfg_.NT + p, weigh(x));
      return;
    }
    const auto [begin, end] = cells_[n_ - 1];
    for (int64_t t = begin; t < end; ++t)
      if (const Entry& x = entries_[t]; cfg_.root(b_, x.symbol) > kNegInf<T>) {
        const Scaled<T> whole = with_span(x, 0, n_ - 1);
        if (whole.m > 0) f(x.symbol, whole);
      }
  }

  static constexpr int kFields = 3;  // m, e, P
  T kEmpty[kFields] = {T(0), kZeroExponent<T>};
  using Chart = SparseChart<T, kFields>;
  using Cuts = typename Chart::Cuts;
  using Sum = ScaledSum<T, 0>;

  struct Weighted {
    int32_t parent, rule;
    T m, e;
  };
  struct Entry {  // raw, before spans
    int32_t symbol;
    T m, e;
  };

  Scaled<T> weigh(T score) {
    if (!(score > kNegInf<T>)) return {};
    least_ = std::min(least_, score), most_ = std::max(most_, score);
    return Scaled<T>::exp(double(std::clamp(score, -widest_, widest_)));
  }
  void pack() {
    packed_for_ = b_;
    packed_.resize(cfg_.R);
    for (int64_t t = 0; t < cfg_.R; ++t) {
      const int32_t r = cfg_.args.pair_rules[t];
      const Scaled<T> w = weigh(cfg_.rules(b_)[r]);
      packed_[t] = {cfg_.args.pair_parents[t], r, w.m, w.e};
    }
    rules_least_ = least_, rules_most_ = most_;
  }
  Scaled<T> with_span(const Entry& x, int64_t i, int64_t j) {
    const T* spans = cfg_.spans(b_, i, j);
    if (!spans) return {x.m, x.e};
    const Scaled<T> w = weigh(spans[x.symbol]);
    return w.m > 0 ? Scaled<T>{x.m * w.m, x.e + w.e} : Scaled<T>{};
  }
  void set(int64_t i, int64_t j, int64_t symbol, const Scaled<T>& x) {
    const auto places = chart_.insert(cfg_, i, j, symbol);
    for (T* to : {places.left, places.right}) {
      if (!to) continue;
      to[0] = x.m, to[chart_.stride()] = x.e;
    }
  }

  template <class F>
  static void for_cuts(const Cuts& c, F&& f) {
    if (c.few) {
      for (uint64_t bits = c.few; bits; bits &= bits - 1) f(c.first + __builtin_ctzll(bits));
    } else {
      for (int64_t k = c.first; k <= c.last; ++k) f(k);
    }
  }
  T term(const Cuts& c, int64_t k, T e) const {
    const int64_t s = chart_.stride();
    return c.left[k] * c.right[k] * power2(c.left[k + s] + c.right[k + s] - e);
  }
  Sum sum_cuts(const Cuts& c) const {
    const int64_t s = chart_.stride();
    Sum x;
    if (c.few) {
      x.e = 2 * kZeroExponent<T>;
      for_cuts(c, [&](int64_t k) { x.e = std::max(x.e, c.left[k + s] + c.right[k + s]); });
      for_cuts(c, [&](int64_t k) { x.m += term(c, k, x.e); });
      return x;
    }
    const int64_t from = c.first / kLanes<T> * kLanes<T>;
    Vec<T> top = splat<T>(2 * kZeroExponent<T>), sum{};
    for (int64_t k = from; k <= c.last; k += kLanes<T>) top = vmax(load(c.left + k + s) + load(c.right + k + s), top);
    x.e = hmax(top);
    for (int64_t k = from; k <= c.last; k += kLanes<T>)
      sum += scale2(load(c.left + k) * load(c.right + k), load(c.left + k + s) + load(c.right + k + s) - x.e);
    x.m = hsum(sum);
    return x;
  }

  void cell(int64_t i, int64_t j) {
    Cuts c;
    for (const int32_t left : chart_.present(i))
      for (int64_t q = cfg_.args.left_start[left]; q < cfg_.args.left_start[left + 1]; ++q) {
        if (!chart_.cuts(i, j, left, cfg_.args.pair_right[q], &c)) continue;
        const Sum x = sum_cuts(c);
        for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t) {
          const Weighted& w = packed_[t];
          if (w.m == 0) continue;
          Sum& made = made_[w.parent];
          if (made.m == 0) touched_.push_back(w.parent);
          made.add(x.m * w.m, x.e + w.e);
        }
      }
    const int64_t begin = int64_t(entries_.size());
    for (const int32_t a : touched_) {
      Sum& made = made_[a];
      // As summed: shares of it are then relative to the very exponents that were added up, rounded or not.
      const Entry x{a, made.m, made.e};
      made = Sum();
      entries_.push_back(x);
      const Scaled<T> whole = with_span(x, i, j);
      if (whole.m > 0) set(i, j, a, normal(whole.m, whole.e));
    }
    touched_.clear();
    cells_[i * n_ + j] = {begin, int64_t(entries_.size())};
  }
  static Scaled<T> normal(T m, T e) {
    int power;
    const T f = std::frexp(m, &power);
    return {f * 2, e + T(power - 1)};
  }
  const Entry* entry(int64_t i, int64_t j, int64_t symbol) const {
    const auto [begin, end] = cells_[i * n_ + j];
    for (int64_t t = begin; t < end; ++t)
      if (entries_[t].symbol == symbol) return &entries_[t];
    return nullptr;
  }

  // P of a constituent, gathered from its places.
  T take(int64_t i, int64_t j, int64_t symbol) {
    T p = 0;
    const auto places = chart_.find(i, j, symbol);
    for (const T* from : {places.left, places.right})
      if (from) p += from[2 * chart_.stride()];
    return p;
  }

  // From P of the constituents i..j to their rules and children.
  void spread(int64_t i, int64_t j) {
    const bool whole = i == 0 && j == n_ - 1;
    const auto [begin, end] = cells_[i * n_ + j];
    for (int64_t t = begin; t < end; ++t) {
      const Entry& x = entries_[t];
      if (!whole) mu_[x.symbol] = take(i, j, x.symbol);
      if (out_.spans) out_.spans[(i * cfg_.N + j) * cfg_.NT + x.symbol] += mu_[x.symbol];
      raw_[x.symbol] = t;
    }
    Cuts c;
    for (const int32_t left : chart_.present(i))
      for (int64_t q = cfg_.args.left_start[left]; q < cfg_.args.left_start[left + 1]; ++q) {
        bool wanted = false;
        for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t)
          wanted |= mu_[packed_[t].parent] != 0;
        if (wanted && chart_.cuts(i, j, left, cfg_.args.pair_right[q], &c)) spread_pair(q, c);
      }
    for (int64_t t = begin; t < end; ++t) mu_[entries_[t].symbol] = 0;
  }
  void spread_pair(int64_t q, const Cuts& c) {
    const Sum x = sum_cuts(c);
    T pair = 0;
    for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t) {
      const Weighted& w = packed_[t];
      const T p = mu_[w.parent];
      if (w.m == 0 || p == 0) continue;
      const Entry& raw = entries_[raw_[w.parent]];
      const T share = x.m * w.m / raw.m * power2(std::min(x.e + w.e - raw.e, T(2)));
      const T used = p * share;
      out_.rules[w.rule] += used;
      pair += used;
    }
    const int64_t s = chart_.stride();
    for_cuts(c, [&](int64_t k) {
      const T part = pair * (term(c, k, x.e) / x.m);
      c.left[k + 2 * s] += part, c.right[k + 2 * s] += part;
    });
  }

  const CFG<T>& cfg_;
  const T widest_;
  T least_ = 0, most_ = 0, rules_least_ = 0, rules_most_ = 0;  // of the scores weighed
  GrammarGradient<T> out_;
  int64_t b_ = 0, n_ = 0, packed_for_ = -1;
  Chart chart_;
  std::vector<Weighted> packed_;
  std::vector<Sum> made_;
  std::vector<int32_t> touched_;
  std::vector<Entry> entries_;
  std::vector<std::pair<int64_t, int64_t>> cells_;  // [i n + j]: range of entries
  std::vector<T> mu_;
  std::vector<int64_t> raw_;  // entry of each symbol of the cell at hand
};

}  // namespace sl
