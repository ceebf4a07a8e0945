// The rules of a dense grammar (grammar_dense.h) as matrices, for sums: of weights, and of their gradients.
// Rules come as numbers [A][l][r] in the best case, every triple in order, and then are turned a square of
// vectors at a time; otherwise each is looked up. Limited by memory.
#pragma once
#include "grammar_dense.h"
#include "scale.h"
#include "transpose.h"

namespace sl {

// A row over parents for every pair of children. Those with a word on one side or both are 2 NT + P matrices
// [t][A], t the preterminal that is summed over first: right child s < NT and left child t; left child s - NT and
// right child t; right child the preterminal s - 2 NT and left child t.
template <class T>
struct DenseTable {
  int64_t NT = 0, P = 0, S = 0, C = 0, Pp = 0;  // C, Pp: padded to whole vectors
  RawBuffer<T> inner, words;

  void shape(const GrammarArgs& a) {
    NT = a.NT, P = a.P, S = NT + P, C = dense_width(NT), Pp = dense_width(P);
    inner.resize(inner_size()), words.resize(words_size());
  }
  int64_t matrices() const { return 2 * NT + P; }
  int64_t inner_size() const { return NT * NT * C; }
  int64_t words_size() const { return matrices() * P * C; }
  T* matrix(int64_t s) const { return words.data + s * P * C; }
  T* row(int64_t l, int64_t r) const {
    if (l >= NT) return matrix(r < NT ? r : NT + r) + (l - NT) * C;
    return r >= NT ? matrix(NT + l) + (r - NT) * C : inner.data + (l * NT + r) * C;
  }
  // From row(l, r) to row(l, r + 1), both of the same kind.
  int64_t step(int64_t l) const { return l >= NT ? P * C : C; }
};

template <class T>
struct DenseSumRules {
  DenseTable<T> w;                         // exp(rules) 2^-shift
  RawBuffer<T> turned;                     // [s][A][t], Pp apart: the matrices of words by parent
  RawBuffer<T> inner_turned;               // [A][l][r], inner_step() apart
  T shift = 0, widest = 0;                 // scores up to `widest` have exponents that are whole numbers in T
  bool usable = true;                      // no rule that may count is lost in that scale
  std::vector<char> from_words, from_any;  // A can be over two words, over more

  int64_t inner_step() const { return w.NT * w.NT + 16; }

  void pack(const CFG<T>& cfg, int64_t b, bool backward, int64_t most_threads) {
    const int threads = workers(cfg, most_threads);
    w.shape(cfg.args);
    const T* rules = cfg.rules(b);
    top_ = largest(rules, cfg.R, threads);
    widest = cfg.widest();
    usable = std::abs(top_) < widest;
    if (!usable) return;
    weight_ = RelativeWeights<T>(top_);
    shift = weight_.shift;
    bool forbidden = false;
    if (complete(cfg)) {
      std::vector<Found> found(blocks());
      parallel_for(blocks(), threads, [&](int64_t block, int) { found[block] = place(rules, block); });
      for (const Found& x : found) usable &= !x.lost, forbidden |= x.forbidden;
    } else {
      forbidden = true;
      usable = look_up(cfg, rules);
    }
    if (!usable) return;
    from_words.assign(w.C, !forbidden), from_any.assign(w.C, !forbidden);
    if (forbidden)
      DenseRules<T>::for_rules(cfg.args, [&](int64_t rule, int64_t l, int64_t r, int64_t a) {
        (l >= w.NT && r >= w.NT ? from_words : from_any)[a] |= rules[rule] > kNegInf<T>;
      });
    if (!backward) return;
    turned.resize(w.matrices() * w.NT * w.Pp), inner_turned.resize(w.NT * inner_step());
    parallel_for(w.matrices() + 1, threads, [&](int64_t s, int) {
      if (s < w.matrices()) transpose(w.P, w.NT, w.matrix(s), w.C, turned.data + s * w.NT * w.Pp, w.Pp);
      else transpose(w.NT * w.NT, w.NT, w.inner.data, w.C, inner_turned.data, inner_step());
    });
  }

  // d_rules (+)= w times the sum of d, in that order.
  void gradient(const CFG<T>& cfg, const std::vector<const DenseTable<T>*>& d, bool add, int64_t most_threads, T* d_rules) const {
    if (complete(cfg)) {
      parallel_for(blocks(), workers(cfg, most_threads), [&](int64_t block, int) { collect(d, add, block, d_rules); });
      return;
    }
    DenseRules<T>::for_rules(cfg.args, [&](int64_t rule, int64_t l, int64_t r, int64_t a) {
      const int64_t at = w.row(l, r) + a - (l < w.NT && r < w.NT ? w.inner.data : w.words.data);
      T sum = 0;
      for (const DenseTable<T>* x : d) sum += (l < w.NT && r < w.NT ? x->inner.data : x->words.data)[at];
      d_rules[rule] = (add ? d_rules[rule] : T(0)) + sum * w.row(l, r)[a];
    });
  }

 private:
  // One thread turns about a rule a nanosecond (profile, NT=30, P=60); below 0.1 ms others are not asked. The bound
  // itself is a guess.
  static int workers(const CFG<T>& cfg, int64_t threads) { return cfg.R < 100000 ? 1 : int(threads); }
  static bool complete(const CFG<T>& cfg) { return cfg.args.dense == 2; }

  static T largest(const T* x, int64_t size, int threads) {
    const int64_t parts = threads, step = padded<T>((size + parts - 1) / parts);
    std::vector<T> tops(parts);
    parallel_for(parts, threads, [&](int64_t part, int) {
      Vec<T> high = splat<T>(kNegInf<T>);
      const int64_t end = std::min(size, (part + 1) * step);
      for (int64_t i = part * step; i < end; i += kLanes<T>) high = vmax(load_row(x, i, end, kNegInf<T>), high);
      tops[part] = hmax(high);
    });
    return *std::max_element(tops.begin(), tops.end());
  }

  // Left children that are done together, since their rows lie side by side in a matrix.
  static constexpr int64_t kBlock = 6;
  int64_t blocks() const { return (w.S + kBlock - 1) / kBlock; }
  // f(l, r0, r, count) for the left children of a block and L right children from r on, of `count` of a kind from r0.
  template <class F>
  void for_squares(int64_t block, F&& f) const {
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, w.NT}, {w.NT, w.P}})
      for (int64_t r = 0; r < count; r += kLanes<T>)
        for (int64_t l = block * kBlock; l < std::min(w.S, (block + 1) * kBlock); ++l) f(l, first, r, count);
  }

  // Rules far below the largest one count as forbidden here: where they are all that a symbol has, its sums are not safe.
  IVec<T> counts_or_not(Vec<T> x, Vec<T> weight) const {
    constexpr T far = T(3) * ExpConst<T>::lowest;
    return (weight >= kSafe<T>) | (x < top_ + far);
  }
  struct Found {
    bool lost = false, forbidden = false;  // some rule is
  };
  Found place(const T* rules, int64_t block) {
    constexpr int L = kLanes<T>;
    IVec<T> fine = Vec<T>{} == Vec<T>{}, allowed = fine;
    for_squares(block, [&](int64_t l, int64_t first, int64_t r, int64_t count) {
      for (int64_t A = 0; A < w.C; A += L) {
        Vec<T> v[L];
        for (int k = 0; k < L; ++k) {
          v[k] = Vec<T>{};
          if (A + k >= w.NT) continue;
          const Vec<T> x = load_row(rules + ((A + k) * w.S + l) * w.S + first, r, count, top_);
          v[k] = weight_(x);
          fine &= counts_or_not(x, v[k]), allowed &= x > kNegInf<T>;
        }
        transpose(v);
        T* to = w.row(l, first) + r * w.step(l) + A;
        for (int k = 0; k < L && r + k < count; ++k) store(to + k * w.step(l), v[k]);
      }
    });
    return {first_set<T>(~fine) >= 0, first_set<T>(~allowed) >= 0};
  }
  void collect(const std::vector<const DenseTable<T>*>& d, bool add, int64_t block, T* d_rules) const {
    constexpr int L = kLanes<T>;
    for_squares(block, [&](int64_t l, int64_t first, int64_t r, int64_t count) {
      for (int64_t A = 0; A < w.NT; A += L) {
        const int64_t at = r * w.step(l) + A;
        Vec<T> v[L];
        for (int k = 0; k < L; ++k) {
          v[k] = Vec<T>{};
          if (r + k >= count) continue;
          for (const DenseTable<T>* x : d) v[k] += load(x->row(l, first) + at + k * w.step(l));
          v[k] *= load(w.row(l, first) + at + k * w.step(l));
        }
        transpose(v);
        for (int k = 0; k < L && A + k < w.NT; ++k) {
          T* to = d_rules + ((A + k) * w.S + l) * w.S + first;
          store_row(to, r, count, add ? v[k] + load_row(to, r, count, T(0)) : v[k]);
        }
      }
    });
  }
  bool look_up(const CFG<T>& cfg, const T* rules) {
    std::fill_n(w.inner.data, w.inner_size(), T(0)), std::fill_n(w.words.data, w.words_size(), T(0));
    RawBuffer<T> weights;
    weights.resize(cfg.R + kLanes<T>);
    IVec<T> fine = Vec<T>{} == Vec<T>{};
    for (int64_t r = 0; r < cfg.R; r += kLanes<T>) {
      const Vec<T> x = load_row(rules, r, cfg.R, kNegInf<T>), weight = weight_(x);
      store(weights.data + r, weight);
      fine &= counts_or_not(x, weight);
    }
    DenseRules<T>::for_rules(cfg.args, [&](int64_t rule, int64_t l, int64_t r, int64_t a) { w.row(l, r)[a] = weights.data[rule]; });
    return first_set<T>(~fine) < 0;
  }

  T top_ = 0;
  RelativeWeights<T> weight_;
};

}  // namespace sl
