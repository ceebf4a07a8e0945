// Inside and outside sums over the constituents that exist, with an exponent of its own for every number (wide.h), and
// optionally what totals carry beside themselves (Carry). With x the sum over cuts of a pair of children,
//   raw[A] = sum_r w_r x_pair(r),   I[A] = raw[A] exp(spans[A]),
// and probabilities from the whole sentence down, P(summand) = P(its sum) (its share of the sum). No vectors, some ten
// times the time of grammar_sum.h: for sentences that it cannot hold, second derivatives and entropies.
#pragma once
#include <memory>
#include <type_traits>

#include "grammar.h"
#include "wide.h"

namespace sl {

template <class T>
struct GrammarDirection {  // shapes of the potentials, contiguous; null where there are none
  const T *terms = nullptr, *rules = nullptr, *roots = nullptr, *spans = nullptr;
};

template <class T>
struct GrammarGradient {  // where one sentence's derivatives go; spans may be null
  T *terms = nullptr, *rules = nullptr, *roots = nullptr, *spans = nullptr;
};

template <class T, class N, Carry C>
class ExactDerivations {
 public:
  using Number = Dual<N, C>;
  explicit ExactDerivations(const CFG<T>& cfg) : cfg_(cfg), made_(cfg.NT), masses_(cfg.NT) {}

  Number z;  // Z, and what it carries

  // False if N cannot hold the weights of the derivations that count.
  bool inside(int64_t b, const GrammarDirection<T>& v) {
    b_ = b, n_ = cfg_.length(b), v_ = v;
    z = n_ == 0 ? Number::one() : Number{};
    if (n_ == 0) return true;
    const double parts = double(3 * cfg_.N + 2);  // the same for all sentences, which share the weights of rules
    lowest_ = std::is_same_v<N, Wide> ? -Wide::kLargest / parts : kNegInf<double>;
    least_ = most_ = 0;
    chart_.reset(cfg_, n_, {-1});
    cells_.assign(n_ * n_, {0, 0});
    items_.clear();
    if (packed_for_ < 0 || cfg_.args.rules_b) pack();
    least_ = std::min(least_, rules_least_), most_ = std::max(most_, rules_most_);
    for (int64_t j = 0; j < n_; ++j) {
      cells_[j * n_ + j].first = int64_t(items_.size());
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (const T x = cfg_.terms(b, j)[p]; x > kNegInf<T>) {
          const Number weight = weigh(x, v_.terms ? v_.terms[(b * cfg_.N + j) * cfg_.P + p] : T(0));
          add(j, j, cfg_.NT + p, weight, weight);
        }
      cells_[j * n_ + j].second = int64_t(items_.size());
      for (int64_t i = j - 1; i >= 0; --i) cell(i, j);
    }
    roots([&](int64_t, const Number& whole) { z = z + whole; });
    // Scores below lowest_ count as lowest_: that changes nothing where derivations without them are all that counts.
    if (most_ > -lowest_ / 2) return false;
    return least_ >= lowest_ || !z.w.positive() || z.w.log() > lowest_ + parts * most_ + 1000;
  }

  // After inside: adds weight times the marginals, or times the derivative of what totals carry, to out.
  void outside(T weight, const GrammarGradient<T>& out) {
    if (n_ == 0 || !z.w.positive()) return;
    weight_ = double(weight);
    d_rules_.assign(cfg_.R, 0);
    const Mass whole{1, 0};
    for_roots([&](Item& item, int64_t symbol, const Number& total) {
      const Mass mass = mass_part<C>(whole, z, total);
      item.mass += mass;
      if (symbol < cfg_.args.root_count) out.roots[symbol] += T(value(mass));
    });
    for (int64_t j = n_ - 1; j >= 0; --j) {
      for (int64_t i = 0; i < j; ++i) spread(i, j, out);
      const auto [begin, end] = cells_[j * n_ + j];
      for (int64_t t = begin; t < end; ++t) out.terms[j * cfg_.P + items_[t].symbol - cfg_.NT] += T(value(items_[t].mass));
    }
    for (int64_t r = 0; r < cfg_.R; ++r) out.rules[r] += T(d_rules_[r]);
  }

  // For drawing, shares of their total: f(symbol, share) over roots, f(rule, share) over the rules that make symbol over
  // i..j in their order, f(k, share) over the cuts of a rule.
  int64_t words() const { return n_; }
  bool feasible() const { return z.w.positive(); }
  template <class F>
  void root_shares(F&& f) {
    roots([&](int64_t symbol, const Number& whole) { f(symbol, T(whole.w.over(z.w))); });
  }
  template <class F>
  void ways(int64_t i, int64_t j, int64_t symbol, F&& f) {
    Cuts c;
    const auto [begin, end] = cells_[i * n_ + j];
    int64_t t = begin;
    while (t < end && items_[t].symbol != symbol) ++t;
    for (int64_t at = cfg_.args.parent_start[symbol]; at < cfg_.args.parent_start[symbol + 1]; ++at) {
      const int64_t r = cfg_.args.parent_rules[at];
      if (!chart_.cuts(i, j, cfg_.left(r), cfg_.right(r), &c)) continue;
      f(r, T((sum_cuts(c) * weigh(cfg_.rules(b_)[r], T(0))).w.over(items_[t].raw.w)));
    }
  }
  template <class F>
  void cuts_of(int64_t i, int64_t j, int64_t r, F&& f) {
    Cuts c;
    chart_.cuts(i, j, cfg_.left(r), cfg_.right(r), &c);
    const Number x = sum_cuts(c);
    for_cuts(c, [&](int64_t k, const Item& left, const Item& right) { f(k, T((left.whole * right.whole).w.over(x.w))); });
  }

 private:
  using Chart = SparseChart<int32_t, 1>;  // numbers of items
  using Cuts = typename Chart::Cuts;
  struct Item {
    int32_t symbol;
    Number raw, whole;  // before and after spans
    Mass mass;
  };

  double value(const Mass& mass) const { return weight_ * (C == Carry::kNothing ? mass.p : mass.d); }
  Number weigh(T score, T direction) {
    if (!(score > kNegInf<T>)) return {};
    least_ = std::min(least_, double(score)), most_ = std::max(most_, double(score));
    return Number::of(N::exp(std::min(std::max(double(score), lowest_), -lowest_)), double(direction));
  }
  void pack() {
    packed_for_ = b_;
    packed_.resize(cfg_.R);
    for (int64_t t = 0; t < cfg_.R; ++t) {
      const int32_t r = cfg_.args.pair_rules[t];
      packed_[t] = weigh(cfg_.rules(b_)[r], v_.rules ? v_.rules[(cfg_.args.rules_b ? b_ * cfg_.R : 0) + r] : T(0));
    }
    rules_least_ = least_, rules_most_ = most_;
  }
  void add(int64_t i, int64_t j, int64_t symbol, const Number& raw, const Number& whole) {
    const int32_t place = int32_t(items_.size());
    items_.push_back({int32_t(symbol), raw, whole, {}});
    if (!whole.w.positive()) return;
    const auto places = chart_.insert(cfg_, i, j, symbol);
    if (places.left) *places.left = place;
    if (places.right) *places.right = place;
  }
  template <class F>
  void for_cuts(const Cuts& c, F&& f) {
    for (int64_t k = c.first; k <= c.last; ++k)
      if (c.left[k] >= 0 && c.right[k] >= 0) f(k, items_[c.left[k]], items_[c.right[k]]);
  }
  Number sum_cuts(const Cuts& c) {
    Number x;
    for_cuts(c, [&](int64_t, const Item& left, const Item& right) { x = x + left.whole * right.whole; });
    return x;
  }
  // f(pair, cuts) for the pairs of children that meet in i..j.
  template <class F>
  void for_pairs(int64_t i, int64_t j, F&& f) {
    Cuts c;
    for (const int32_t left : chart_.present(i))
      for (int64_t q = cfg_.args.left_start[left]; q < cfg_.args.left_start[left + 1]; ++q)
        if (chart_.cuts(i, j, left, cfg_.args.pair_right[q], &c)) f(q, c);
  }
  void cell(int64_t i, int64_t j) {
    touched_.clear();
    for_pairs(i, j, [&](int64_t q, const Cuts& c) {
      const Number x = sum_cuts(c);
      for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t) {
        if (!packed_[t].w.positive()) continue;
        Number& made = made_[cfg_.args.pair_parents[t]];
        if (!made.w.positive()) touched_.push_back(cfg_.args.pair_parents[t]);
        made = made + x * packed_[t];
      }
    });
    std::sort(touched_.begin(), touched_.end());
    cells_[i * n_ + j].first = int64_t(items_.size());
    const T* spans = cfg_.spans(b_, i, j);
    for (const int32_t a : touched_) {
      const Number weight = spans ? weigh(spans[a], v_.spans ? v_.spans[((b_ * cfg_.N + i) * cfg_.N + j) * cfg_.NT + a] : T(0)) : Number::one();
      add(i, j, a, made_[a], made_[a] * weight);
      made_[a] = {};
    }
    cells_[i * n_ + j].second = int64_t(items_.size());
  }
  // f(item, symbol, its total with the root's score) for the symbols over the whole sentence, lowest first.
  template <class F>
  void for_roots(F&& f) {
    const auto [begin, end] = cells_[n_ - 1];
    for (int64_t t = begin; t < end; ++t) {
      const int64_t symbol = items_[t].symbol;
      const T direction = v_.roots && symbol < cfg_.args.root_count ? v_.roots[(cfg_.args.roots_b ? b_ * cfg_.args.root_count : 0) + symbol] : T(0);
      const Number total = items_[t].whole * weigh(cfg_.root(b_, symbol), direction);
      if (total.w.positive()) f(items_[t], symbol, total);
    }
  }
  template <class F>
  void roots(F&& f) {
    for_roots([&](Item&, int64_t symbol, const Number& total) { f(symbol, total); });
  }

  // From the mass of the constituents i..j to their spans, rules and children.
  void spread(int64_t i, int64_t j, const GrammarGradient<T>& out) {
    const auto [begin, end] = cells_[i * n_ + j];
    bool any = false;
    for (int64_t t = begin; t < end; ++t) {
      const Item& item = items_[t];
      masses_[item.symbol] = {&item, item.mass.p > 0};
      any |= item.mass.p > 0;
      if (out.spans) out.spans[(i * cfg_.N + j) * cfg_.NT + item.symbol] += T(value(item.mass));
    }
    if (any) for_pairs(i, j, [&](int64_t q, const Cuts& c) { spread_pair(q, c); });
  }
  void spread_pair(int64_t q, const Cuts& c) {
    bool wanted = false;
    for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t)
      wanted |= packed_[t].w.positive() && masses_[cfg_.args.pair_parents[t]].second;
    if (!wanted) return;
    const Number x = sum_cuts(c);
    Mass pair;
    for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t) {
      const auto& [parent, used] = masses_[cfg_.args.pair_parents[t]];
      if (!packed_[t].w.positive() || !used) continue;
      const Mass mass = mass_part<C>(parent->mass, parent->raw, x * packed_[t]);
      d_rules_[cfg_.args.pair_rules[t]] += value(mass);
      pair += mass;
    }
    for_cuts(c, [&](int64_t, Item& left, Item& right) {
      const Mass mass = mass_part<C>(pair, x, left.whole * right.whole);
      left.mass += mass, right.mass += mass;
    });
  }

  const CFG<T>& cfg_;
  GrammarDirection<T> v_;
  int64_t b_ = 0, n_ = 0, packed_for_ = -1;
  double lowest_ = 0, least_ = 0, most_ = 0, rules_least_ = 0, rules_most_ = 0, weight_ = 1;
  Chart chart_;
  std::vector<Number> packed_;  // weights of rules, pair by pair
  std::vector<Number> made_;
  std::vector<int32_t> touched_;
  std::vector<Item> items_;
  std::vector<std::pair<int64_t, int64_t>> cells_;  // [i n + j]: range of items
  std::vector<std::pair<const Item*, bool>> masses_;  // of each symbol of the cell at hand: its item, whether it has any
  std::vector<double> d_rules_;
};

// The sums over a sentence's derivations in whatever numbers hold them.
template <class T, Carry C>
class ExactSums {
  const CFG<T>& cfg_;
  std::unique_ptr<ExactDerivations<T, Wide, C>> wide_;
  std::unique_ptr<ExactDerivations<T, Huge, C>> huge_;

 public:
  explicit ExactSums(const CFG<T>& cfg) : cfg_(cfg) {}
  // Calls use(sums), an ExactDerivations after inside, and returns log Z.
  template <class F>
  T operator()(int64_t b, const GrammarDirection<T>& v, F&& use) {
    const auto with = [&](auto& sums) {
      use(sums);
      return log_of<T>(sums.z.w);
    };
    if (!wide_) wide_ = std::make_unique<ExactDerivations<T, Wide, C>>(cfg_);
    if (wide_->inside(b, v)) return with(*wide_);
    if (!huge_) huge_ = std::make_unique<ExactDerivations<T, Huge, C>>(cfg_);
    huge_->inside(b, v);
    return with(*huge_);
  }
};

}  // namespace sl
