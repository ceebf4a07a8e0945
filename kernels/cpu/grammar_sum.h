// Inside and outside sums over the constituents that exist, every one a number m 2^e (scale.h), and
// optionally the derivative of everything along a direction v in the space of potentials. With x the
// sum over cuts of a pair of children, in the words of span_tree_sum.h:
//   raw[A] = sum_r w_r x_pair(r),   I[A] = raw[A] exp(spans[A])
//   P(r | A) = w_r x / raw[A],   P(k | pair) = I[B] I[C] / x
//   (log raw)'[A] = sum_r P(r | A) (v_r + (log x)'),   (log x)' = sum_k P(k | pair) ((log I[B])' + (log I[C])').
// The outside pass forms x again. Limited like grammar_max.h, with an exponent to handle at every step.
#pragma once
#include "grammar.h"
#include "scale.h"

namespace sl {

template <class T>
struct GrammarDirection {  // shapes of the potentials, contiguous; spans null where there are none
  const T *terms = nullptr, *rules = nullptr, *roots = nullptr, *spans = nullptr;
};

template <class T>
struct GrammarGradient {  // where one sentence's derivatives go; spans may be null
  T *terms = nullptr, *rules = nullptr, *roots = nullptr, *spans = nullptr;
};

template <class T, bool Tangent>
class SparseSum {
 public:
  SparseSum(const CFG<T>& cfg, const GrammarDirection<T>& v = {}) : cfg_(cfg), v_(v), made_(cfg.NT), mu_(cfg.NT), dmu_(cfg.NT), raw_(cfg.NT) {}

  double log_z = 0, along = 0;
  Scaled<T> total;  // Z

  void inside(int64_t b) {
    b_ = b, n_ = cfg_.length(b);
    log_z = along = 0;
    total = {T(1), T(0)};
    if (n_ == 0) return;
    chart_.reset(cfg_, n_, kEmpty);
    cells_.assign(n_ * n_ + 1, {0, 0});
    entries_.clear();
    if (packed_for_ < 0 || cfg_.args.rules_b) pack();
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (const T x = cfg_.terms(b, j)[p]; x > kNegInf<T>) set(j, j, cfg_.NT + p, Scaled<T>::exp(x), Tangent ? v_terms(j)[p] : T(0));
      for (int64_t i = j - 1; i >= 0; --i) cell(i, j);
    }
    ScaledSum<T, 1> sum;
    roots([&](int64_t symbol, const Scaled<T>& x, T slope) {
      const Scaled<T> w = Scaled<T>::exp(cfg_.root(b_, symbol));
      const T d = Tangent ? slope + v_root(symbol) : T(0);
      sum.add(x.m * w.m, x.e + w.e, &d);
    });
    total = {sum.m, sum.e};
    log_z = total.log();
    along = sum.m > 0 ? double(sum.mean[0]) / double(sum.m) : 0;
  }

  // weight P (or, with Tangent, weight P') is added to out; call after inside.
  void outside(T weight, const GrammarGradient<T>& out) {
    if (n_ == 0 || total.m == 0) return;
    out_ = out;
    roots([&](int64_t symbol, const Scaled<T>& x, T slope) {
      const Scaled<T> w = Scaled<T>::exp(cfg_.root(b_, symbol));
      const T p = weight * (x.m * w.m / total.m) * power2(std::min(x.e + w.e - total.e, T(2)));
      const T dp = Tangent ? p * (slope + v_root(symbol) - T(along)) : T(0);
      if (symbol < cfg_.args.root_count) out.roots[symbol] += Tangent ? dp : p;
      if (n_ == 1) out.terms[symbol - cfg_.NT] += Tangent ? dp : p;
      else mu_[symbol] = p, dmu_[symbol] = dp;
    });
    if (n_ == 1) return;
    for (int64_t j = n_ - 1; j >= 0; --j) {
      for (int64_t i = 0; i < j; ++i) spread(i, j);
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (cfg_.terms(b_, j)[p] > kNegInf<T>) out.terms[j * cfg_.P + p] += take(j, j, cfg_.NT + p).second;
    }
  }

  int64_t words() const { return n_; }
  // For drawing: calls f(rule, weight) for the rules that make symbol over i..j, in their order, then
  // f(k, weight) for the cuts of a rule; weights are relative to a common factor.
  template <class F>
  void ways(int64_t i, int64_t j, int64_t symbol, F&& f) {
    Cuts c;
    const Entry* made = entry(i, j, symbol);
    for (int64_t t = cfg_.args.parent_start[symbol]; t < cfg_.args.parent_start[symbol + 1]; ++t) {
      const int64_t r = cfg_.args.parent_rules[t];
      if (!chart_.cuts(i, j, cfg_.left(r), cfg_.right(r), &c)) continue;
      const Sum x = sum_cuts(c);
      const Scaled<T> w = Scaled<T>::exp(cfg_.rules(b_)[r]);
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
  template <class F>
  void roots(F&& f) {  // f(symbol, inside, slope) over the symbols that cover the sentence
    if (n_ == 1) {
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (const T x = cfg_.terms(b_, 0)[p]; x > kNegInf<T> && cfg_.root(b_, cfg_.NT + p) > kNegInf<T>)
          f(cfg_.NT + p, Scaled<T>::exp(x), Tangent ? v_terms(0)[p] : T(0));
      return;
    }
    const auto [begin, end] = cells_[n_ - 1];
    for (int64_t t = begin; t < end; ++t)
      if (const Entry& x = entries_[t]; cfg_.root(b_, x.symbol) > kNegInf<T>) {
        const Scaled<T> whole = with_span(x, 0, n_ - 1);
        if (whole.m > 0) f(x.symbol, whole, x.slope + (Tangent ? v_span(0, n_ - 1, x.symbol) : T(0)));
      }
  }

 private:
  static constexpr int kFields = Tangent ? 5 : 3;  // m, e, P, (log I)', P'
  T kEmpty[kFields] = {T(0), kZeroExponent<T>};
  using Chart = SparseChart<T, kFields>;
  using Cuts = typename Chart::Cuts;
  using Sum = ScaledSum<T, Tangent ? 1 : 0>;

  struct Weighted {
    int32_t parent, rule;
    T m, e, slope;
  };
  struct Entry {  // raw, before spans
    int32_t symbol;
    T m, e, slope;
  };

  void pack() {
    packed_for_ = b_;
    packed_.resize(cfg_.R);
    for (int64_t t = 0; t < cfg_.R; ++t) {
      const int32_t r = cfg_.args.pair_rules[t];
      const Scaled<T> w = Scaled<T>::exp(cfg_.rules(b_)[r]);
      packed_[t] = {cfg_.args.pair_parents[t], r, w.m, w.e, Tangent ? v_.rules[(cfg_.args.rules_b ? b_ * cfg_.R : 0) + r] : T(0)};
    }
  }
  const T* v_terms(int64_t i) const { return v_.terms + (b_ * cfg_.N + i) * cfg_.P; }
  T v_root(int64_t symbol) const { return v_.roots[(cfg_.args.roots_b ? b_ * cfg_.args.root_count : 0) + symbol]; }
  T v_span(int64_t i, int64_t j, int64_t symbol) const {
    return v_.spans ? v_.spans[((b_ * cfg_.N + i) * cfg_.N + j) * cfg_.NT + symbol] : T(0);
  }
  Scaled<T> with_span(const Entry& x, int64_t i, int64_t j) const {
    const T* spans = cfg_.spans(b_, i, j);
    if (!spans) return {x.m, x.e};
    const Scaled<T> w = Scaled<T>::exp(spans[x.symbol]);
    return w.m > 0 ? Scaled<T>{x.m * w.m, x.e + w.e} : Scaled<T>{};
  }
  void set(int64_t i, int64_t j, int64_t symbol, const Scaled<T>& x, T slope) {
    const auto places = chart_.insert(cfg_, i, j, symbol);
    for (T* to : {places.left, places.right}) {
      if (!to) continue;
      to[0] = x.m, to[chart_.stride()] = x.e;
      if (Tangent) to[3 * chart_.stride()] = slope;
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
      for_cuts(c, [&](int64_t k) {
        const T t = term(c, k, x.e);
        x.m += t;
        if (Tangent) x.mean[0] += t * (c.left[k + 3 * s] + c.right[k + 3 * s]);
      });
      return x;
    }
    const int64_t from = c.first / kLanes<T> * kLanes<T>;
    Vec<T> top = splat<T>(2 * kZeroExponent<T>), sum{}, mean{};
    for (int64_t k = from; k <= c.last; k += kLanes<T>) top = vmax(load(c.left + k + s) + load(c.right + k + s), top);
    x.e = hmax(top);
    for (int64_t k = from; k <= c.last; k += kLanes<T>) {
      const Vec<T> t = scale2(load(c.left + k) * load(c.right + k), load(c.left + k + s) + load(c.right + k + s) - x.e);
      sum += t;
      if (Tangent) mean += t * (load(c.left + k + 3 * s) + load(c.right + k + 3 * s));
    }
    x.m = hsum(sum);
    if (Tangent) x.mean[0] = hsum(mean);
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
          const T slope = Tangent ? x.mean[0] / x.m + w.slope : T(0);
          made.add(x.m * w.m, x.e + w.e, &slope);
        }
      }
    const int64_t begin = int64_t(entries_.size());
    for (const int32_t a : touched_) {
      Sum& made = made_[a];
      // As summed: shares of it are then relative to the very exponents that were added up, rounded or not.
      const Entry x{a, made.m, made.e, Tangent ? made.mean[0] / made.m : T(0)};
      made = Sum();
      entries_.push_back(x);
      const Scaled<T> whole = with_span(x, i, j);
      if (whole.m > 0) set(i, j, a, normal(whole.m, whole.e), x.slope + (Tangent ? v_span(i, j, a) : T(0)));
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

  // P of a constituent, gathered from its places, and what belongs into the gradient.
  std::pair<T, T> take(int64_t i, int64_t j, int64_t symbol) {
    T p = 0, dp = 0;
    const auto places = chart_.find(i, j, symbol);
    for (const T* from : {places.left, places.right})
      if (from) {
        p += from[2 * chart_.stride()];
        if (Tangent) dp += from[4 * chart_.stride()];
      }
    taken_slope_ = dp;
    return {p, Tangent ? dp : p};
  }

  // From P of the constituents i..j to their rules and children.
  void spread(int64_t i, int64_t j) {
    const bool whole = i == 0 && j == n_ - 1;
    const auto [begin, end] = cells_[i * n_ + j];
    for (int64_t t = begin; t < end; ++t) {
      const Entry& x = entries_[t];
      if (!whole) {
        mu_[x.symbol] = take(i, j, x.symbol).first;
        dmu_[x.symbol] = taken_slope_;
      }
      if (out_.spans) out_.spans[(i * cfg_.N + j) * cfg_.NT + x.symbol] += Tangent ? dmu_[x.symbol] : mu_[x.symbol];
      raw_[x.symbol] = t;
    }
    Cuts c;
    for (const int32_t left : chart_.present(i))
      for (int64_t q = cfg_.args.left_start[left]; q < cfg_.args.left_start[left + 1]; ++q) {
        bool wanted = false;
        for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t)
          wanted |= mu_[packed_[t].parent] != 0 || (Tangent && dmu_[packed_[t].parent] != 0);
        if (wanted && chart_.cuts(i, j, left, cfg_.args.pair_right[q], &c)) spread_pair(q, c);
      }
    for (int64_t t = begin; t < end; ++t) mu_[entries_[t].symbol] = dmu_[entries_[t].symbol] = 0;
  }
  void spread_pair(int64_t q, const Cuts& c) {
    const Sum x = sum_cuts(c);
    const T slope = Tangent ? x.mean[0] / x.m : T(0);
    T pair = 0, dpair = 0;
    for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t) {
      const Weighted& w = packed_[t];
      const T p = mu_[w.parent], dp = dmu_[w.parent];
      if (w.m == 0 || (p == 0 && dp == 0)) continue;
      const Entry& raw = entries_[raw_[w.parent]];
      const T share = x.m * w.m / raw.m * power2(std::min(x.e + w.e - raw.e, T(2)));
      const T used = p * share, dused = Tangent ? dp * share + used * (slope + w.slope - raw.slope) : T(0);
      out_.rules[w.rule] += Tangent ? dused : used;
      pair += used, dpair += dused;
    }
    const int64_t s = chart_.stride();
    for_cuts(c, [&](int64_t k) {
      const T share = term(c, k, x.e) / x.m, part = pair * share;
      c.left[k + 2 * s] += part, c.right[k + 2 * s] += part;
      if (Tangent) {
        const T dpart = dpair * share + part * (c.left[k + 3 * s] + c.right[k + 3 * s] - slope);
        c.left[k + 4 * s] += dpart, c.right[k + 4 * s] += dpart;
      }
    });
  }

  const CFG<T>& cfg_;
  const GrammarDirection<T> v_;
  GrammarGradient<T> out_;
  int64_t b_ = 0, n_ = 0, packed_for_ = -1;
  T taken_slope_ = 0;
  Chart chart_;
  std::vector<Weighted> packed_;
  std::vector<Sum> made_;
  std::vector<int32_t> touched_;
  std::vector<Entry> entries_;
  std::vector<std::pair<int64_t, int64_t>> cells_;  // [i n + j]: range of entries
  std::vector<T> mu_, dmu_;
  std::vector<int64_t> raw_;  // entry of each symbol of the cell at hand
};

}  // namespace sl
