// What every grammar kernel is given, and a chart that holds only the constituents that exist.
//
//   a[i][i][p] = terms[i][p]
//   a[i][j][A] = spans[i][j][A] (x) (+)_{r: A -> B C} rules[r] (x) (+)_k a[i][k][B] (x) a[k+1][j][C]
//   total = (+)_A a[0][n-1][A] (x) roots[A]
#pragma once
#include <memory>

#include "batch.h"
#include "chain_scaled.h"
#include "parallel.h"
#include "rows.h"
#include "saturate.h"

namespace sl {

// Plain data, filled by structlearn/ops/grammar.py: the field order there must match.
struct GrammarArgs {
  const void *terms, *rules, *roots, *spans;  // spans may be null
  const int64_t* lengths;                     // null: every sentence has N words
  int64_t B, N, P, NT, R;
  int64_t terms_b, terms_n;             // strides in elements; preterminals are contiguous
  int64_t rules_b, roots_b, root_count; // strides are 0 where shared; NT roots, or NT + P
  int64_t spans_b, spans_i, spans_j;    // nonterminals are contiguous
  // RuleTables of structlearn/structures/rules.py
  const int32_t *table, *parent_start, *parent_rules, *left_start, *pair_right, *pair_start, *pair_rules, *pair_parents, *rule_pair;
  int64_t dense;  // 0: over the constituents that exist; 1: by matrix products; 2: so, and rule (A S + l) S + r is A -> l r
  int64_t threads;
};

// The largest size of a finite entry.
template <class T>
inline T largest_size(const T* x, int64_t size) {
  Vec<T> top{};
  for (int64_t k = 0; k < size; k += kLanes<T>) {
    const Vec<T> v = load_row(x, k, size, T(0)), least = v > kNegInf<T> ? v : Vec<T>{};
    top = vmax(vmax(least, -least), top);
  }
  return hmax(top);
}

template <class T>
struct CFG {
  const GrammarArgs& args;
  const int64_t B, N, P, NT, S, R;
  std::vector<int64_t> order;  // sentences by falling length, so that the last ones to finish are short

  explicit CFG(const GrammarArgs& a) : args(a), B(a.B), N(a.N), P(a.P), NT(a.NT), S(a.NT + a.P), R(a.R), order(by_falling_length(a.lengths, a.B, a.N)), is_right_(S, 0) {
    for (int64_t q = 0; q < pairs(); ++q) is_right_[a.pair_right[q]] = 1;
  }
  int64_t length(int64_t b) const { return args.lengths ? args.lengths[b] : N; }
  int64_t pairs() const { return args.left_start[S]; }
  const T* terms(int64_t b, int64_t i) const { return static_cast<const T*>(args.terms) + b * args.terms_b + i * args.terms_n; }
  const T* rules(int64_t b) const { return static_cast<const T*>(args.rules) + b * args.rules_b; }
  T root(int64_t b, int64_t symbol) const {
    return symbol < args.root_count ? static_cast<const T*>(args.roots)[b * args.roots_b + symbol] : kNegInf<T>;
  }
  const T* spans(int64_t b, int64_t i, int64_t j) const {  // null if there are none
    return args.spans ? static_cast<const T*>(args.spans) + b * args.spans_b + i * args.spans_i + j * args.spans_j : nullptr;
  }
  bool is_left(int64_t symbol) const { return args.left_start[symbol + 1] > args.left_start[symbol]; }
  bool is_right(int64_t symbol) const { return is_right_[symbol]; }
  int32_t parent(int64_t r) const { return args.table[3 * r]; }
  int32_t left(int64_t r) const { return args.table[3 * r + 1]; }
  int32_t right(int64_t r) const { return args.table[3 * r + 2]; }
  // The rule parent -> left right, or R.
  int64_t find(int64_t a, int64_t l, int64_t r) const {
    const int32_t *begin = args.pair_right + args.left_start[l], *end = args.pair_right + args.left_start[l + 1];
    const int32_t* at = std::lower_bound(begin, end, int32_t(r));
    if (at == end || *at != r) return R;
    const int64_t q = at - args.pair_right;
    for (int64_t t = args.pair_start[q]; t < args.pair_start[q + 1]; ++t)
      if (parent(args.pair_rules[t]) == a) return args.pair_rules[t];
    return R;
  }
  // Sums over derivations of scores up to this size have exponents that are whole numbers in T.
  T widest() const { return T((sizeof(T) == 4 ? 0x1p23 : 0x1p51) / double(3 * N + 2)); }
  // Sentences are dealt out in turn, by falling length; a batch of few short ones stays on one thread.
  int64_t chunks() const {
    double work = 0;
    for (int64_t b = 0; b < B; ++b) work += double(length(b)) * double(length(b)) * double(R + 16);
    return work < 100000 ? 1 : std::max<int64_t>(1, std::min(args.threads, B));
  }
  template <class F>
  void for_chunks(F&& f) const {  // f(chunk, sentences of this chunk)
    const int64_t count = chunks();
    parallel_for(count, int(count), [&](int64_t chunk, int) {
      std::vector<int64_t> mine;
      for (int64_t i = chunk; i < B; i += count) mine.push_back(order[i]);
      f(chunk, mine);
    });
  }

 private:
  std::vector<char> is_right_;
};

// Whether sums of the scores of a sentence may be out of range; for one thread.
template <class T>
class RangeCheck {
  const CFG<T>& cfg_;
  bool measured_ = false;
  T rules_size_ = 0;

 public:
  explicit RangeCheck(const CFG<T>& cfg) : cfg_(cfg) {}
  bool may_overflow(int64_t b) {
    const int64_t n = cfg_.length(b);
    if (!measured_ || cfg_.args.rules_b) measured_ = true, rules_size_ = largest_size(cfg_.rules(b), cfg_.R);
    T size = std::max(rules_size_, largest_size(static_cast<const T*>(cfg_.args.roots) + b * cfg_.args.roots_b, cfg_.args.root_count));
    for (int64_t i = 0; i < n; ++i) {
      size = std::max(size, largest_size(cfg_.terms(b, i), cfg_.P));
      for (int64_t j = i + 1; cfg_.args.spans && j < n; ++j) size = std::max(size, largest_size(cfg_.spans(b, i, j), cfg_.NT));
    }
    return size > std::numeric_limits<T>::max() / T(4 * (3 * n + 2));
  }
};

// A grammar and one sentence with all scores divided by a power of two, so that no sum of them is out of range.
template <class T>
class ShrunkSentence {
  const CFG<T>& cfg_;
  GrammarArgs args_;
  std::vector<T> terms_, rules_, roots_, spans_;
  std::unique_ptr<CFG<T>> shrunk_;

 public:
  T unit;

  ShrunkSentence(const CFG<T>& cfg, int64_t b) : cfg_(cfg), args_(cfg.args), unit(std::ldexp(T(1), std::ilogb(T(4 * (3 * cfg.N + 2))) + 1)) {
    const int64_t n = cfg.length(b);
    const auto divided = [&](std::vector<T>& to, const T* from, int64_t size) {
      for (int64_t k = 0; k < size; ++k) to.push_back(from[k] / unit);
    };
    divided(rules_, cfg.rules(b), cfg.R);
    divided(roots_, static_cast<const T*>(args_.roots) + b * args_.roots_b, args_.root_count);
    for (int64_t i = 0; i < n; ++i) divided(terms_, cfg.terms(b, i), cfg.P);
    args_.terms = terms_.data(), args_.rules = rules_.data(), args_.roots = roots_.data();
    args_.terms_b = args_.rules_b = args_.roots_b = args_.spans_b = 0;
    args_.terms_n = cfg.P;
    if (args_.spans) {
      spans_.assign(n * n * cfg.NT, T(0));
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i + 1; j < n; ++j)
          for (int64_t a = 0; a < cfg.NT; ++a) spans_[(i * n + j) * cfg.NT + a] = cfg.spans(b, i, j)[a] / unit;
      args_.spans = spans_.data(), args_.spans_i = n * cfg.NT, args_.spans_j = cfg.NT;
    }
    shrunk_ = std::make_unique<CFG<T>>(args_);
  }
  const CFG<T>& cfg() const { return *shrunk_; }
};

// The constituents found so far, twice: with the same first word in rows over the last word, for left
// children, and with the same last word in rows over the first word, for right children. The cuts of
// i..j that a pair of children can have are then the places where two rows are both filled, known from
// two bit masks, and their values stand side by side. Only symbols that are children have rows.
template <class T, int Fields>
class SparseChart {
 public:
  template <class Grammar>
  void reset(const Grammar& cfg, int64_t n, const T (&empty)[Fields]) {
    S_ = cfg.S, n_ = n, words_ = (n + 63) / 64, stride_ = (n + 15) / 16 * 16, rows_ = 0;
    for (int side = 0; side < 2; ++side) slot_[side].assign(n * S_, -1), mask_[side].assign(n * S_ * words_, 0);
    std::copy(empty, empty + Fields, empty_);
    present_.resize(n);
    for (auto& list : present_) list.clear();
  }
  int64_t stride() const { return stride_; }

  // The places of constituent i..j as a left child and as a right one; null where it cannot be one.
  struct Places {
    T *left, *right;  // first field; field f is f * stride() further on
  };
  template <class Grammar>
  Places insert(const Grammar& cfg, int64_t i, int64_t j, int64_t symbol) {
    const bool as_left = cfg.is_left(symbol) && j + 1 < n_, as_right = cfg.is_right(symbol) && i > 0;
    const int64_t a = as_left ? row(0, i, symbol, j) : -1, b = as_right ? row(1, j, symbol, i - 1) : -1;
    return {a < 0 ? nullptr : at(a) + j, b < 0 ? nullptr : at(b) + i - 1};
  }
  Places find(int64_t i, int64_t j, int64_t symbol) {
    const int64_t a = slot_[0][i * S_ + symbol], b = slot_[1][j * S_ + symbol];
    const bool as_left = a >= 0 && bit(0, i, symbol, j), as_right = b >= 0 && i > 0 && bit(1, j, symbol, i - 1);
    return {as_left ? at(a) + j : nullptr, as_right ? at(b) + i - 1 : nullptr};
  }
  // Left children that start at i.
  const std::vector<int32_t>& present(int64_t i) const { return present_[i]; }

  // The cuts k of i..j with `left` over i..k and `right` over k+1..j.
  struct Cuts {
    T *left = nullptr, *right = nullptr;  // rows; entry k belongs to cut k
    int64_t first = 0, last = -1;         // none if last < first
    uint64_t few = 0;                     // the cuts, as bits from `first`, if there are at most kFew, else 0
  };
  static constexpr int kFew = 4;
  bool cuts(int64_t i, int64_t j, int64_t left, int64_t right, Cuts* out) {
    const uint64_t *a = mask_[0].data() + (i * S_ + left) * words_, *b = mask_[1].data() + (j * S_ + right) * words_;
    if (words_ == 1) {
      const uint64_t both = *a & *b;
      if (!both) return false;
      out->first = __builtin_ctzll(both), out->last = 63 - __builtin_clzll(both);
      out->few = __builtin_popcountll(both) <= kFew ? both >> out->first : 0;
    } else {
      out->first = -1;
      for (int64_t w = 0; w < words_; ++w) {
        const uint64_t both = a[w] & b[w];
        if (!both) continue;
        if (out->first < 0) out->first = w * 64 + __builtin_ctzll(both);
        out->last = w * 64 + 63 - __builtin_clzll(both);
      }
      if (out->first < 0) return false;
      out->few = 0;
    }
    out->left = at(slot_[0][i * S_ + left]);
    out->right = at(slot_[1][j * S_ + right]);
    return true;
  }

 private:
  T* at(int64_t row) { return store_.data() + row * Fields * stride_; }
  bool bit(int side, int64_t word, int64_t symbol, int64_t k) const {
    return mask_[side][(word * S_ + symbol) * words_ + k / 64] >> (k % 64) & 1;
  }
  int64_t row(int side, int64_t word, int64_t symbol, int64_t k) {
    int32_t& slot = slot_[side][word * S_ + symbol];
    if (slot < 0) {
      slot = int32_t(rows_++);
      if (int64_t(store_.size()) < rows_ * Fields * stride_) store_.resize(2 * rows_ * Fields * stride_);
      for (int f = 0; f < Fields; ++f) std::fill_n(at(slot) + f * stride_, stride_, empty_[f]);
      if (side == 0) present_[word].push_back(int32_t(symbol));
    }
    mask_[side][(word * S_ + symbol) * words_ + k / 64] |= uint64_t(1) << (k % 64);
    return slot;
  }

  int64_t S_ = 0, n_ = 0, words_ = 0, stride_ = 0, rows_ = 0;
  T empty_[Fields] = {};
  std::vector<T> store_;
  std::vector<int32_t> slot_[2];
  std::vector<uint64_t> mask_[2];
  std::vector<std::vector<int32_t>> present_;
};

}  // namespace sl
