// Best derivation over the constituents that exist: for every pair of children that meet in i..j the
// best cut, then the rules of the pair. Only maxima are kept; rules and cuts are looked for again along
// the best derivation. Limited by one look-up of two bit masks for each pair of the grammar whose left
// child starts at i, and by the rules of those that meet.
#pragma once
#include "grammar.h"

namespace sl {

template <class T>
class SparseMax {
 public:
  explicit SparseMax(const CFG<T>& cfg) : cfg_(cfg), made_(cfg.NT, kNegInf<T>) {}

  // Score of the best derivation of sentence b; y: its chart (N, N), filled with kPadLabel before.
  T run(int64_t b, int64_t* y) {
    b_ = b, n_ = cfg_.length(b);
    if (n_ == 0) return 0;
    chart_.reset(cfg_, n_, {kNegInf<T>});
    if (packed_for_ < 0 || cfg_.args.rules_b) pack();
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (const T x = cfg_.terms(b, j)[p]; x > kNegInf<T>) set(j, j, cfg_.NT + p, x);
      for (int64_t i = j - 1; i >= 0; --i) {
        cell(i, j);
        if (i > 0 || j + 1 < n_) close(i, j);
      }
    }
    return root(y);
  }

 private:
  struct Weighted {
    int32_t parent;
    T score;
  };
  using Cuts = typename SparseChart<T, 1>::Cuts;

  void pack() {
    packed_for_ = b_;
    packed_.resize(cfg_.R);
    for (int64_t t = 0; t < cfg_.R; ++t) {
      const int32_t r = cfg_.args.pair_rules[t];
      packed_[t] = {cfg_.args.pair_parents[t], cfg_.rules(b_)[r]};
    }
  }
  void set(int64_t i, int64_t j, int64_t symbol, T x) {
    const auto places = chart_.insert(cfg_, i, j, symbol);
    if (places.left) *places.left = x;
    if (places.right) *places.right = x;
  }
  static T best_cut(const Cuts& c) {
    T best = kNegInf<T>;
    if (c.few) {
      for (uint64_t bits = c.few; bits; bits &= bits - 1) {
        const int64_t k = c.first + __builtin_ctzll(bits);
        best = std::max(best, c.left[k] + c.right[k]);
      }
      return best;
    }
    Vec<T> top = splat<T>(kNegInf<T>);
    for (int64_t k = c.first / kLanes<T> * kLanes<T>; k <= c.last; k += kLanes<T>) top = vmax(load(c.left + k) + load(c.right + k), top);
    return hmax(top);
  }
  void cell(int64_t i, int64_t j) {
    Cuts c;
    for (const int32_t left : chart_.present(i))
      for (int64_t q = cfg_.args.left_start[left]; q < cfg_.args.left_start[left + 1]; ++q) {
        if (!chart_.cuts(i, j, left, cfg_.args.pair_right[q], &c)) continue;
        const T x = best_cut(c);
        for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t) {
          const Weighted& w = packed_[t];
          const T made = x + w.score;
          if (made > made_[w.parent]) {
            if (made_[w.parent] == kNegInf<T>) touched_.push_back(w.parent);
            made_[w.parent] = made;
          }
        }
      }
  }
  T span(int64_t i, int64_t j, int64_t symbol) const {
    const T* x = cfg_.spans(b_, i, j);
    return x ? x[symbol] : T(0);
  }
  void close(int64_t i, int64_t j) {
    for (const int32_t a : touched_) {
      const T x = made_[a] + span(i, j, a);
      if (x > kNegInf<T>) set(i, j, a, x);
      made_[a] = kNegInf<T>;
    }
    touched_.clear();
  }
  T root(int64_t* y) {
    T best = kNegInf<T>;
    int64_t symbol = -1;
    const auto offer = [&](int64_t s, T x) {
      if (x > best || (x == best && x > kNegInf<T> && s < symbol)) best = x, symbol = s;
    };
    if (n_ == 1) {
      for (int64_t p = 0; p < cfg_.P; ++p) offer(cfg_.NT + p, cfg_.terms(b_, 0)[p] + cfg_.root(b_, cfg_.NT + p));
    } else {
      for (const int32_t a : touched_) offer(a, made_[a] + span(0, n_ - 1, a) + cfg_.root(b_, a)), made_[a] = kNegInf<T>;
      touched_.clear();
    }
    if (best > kNegInf<T>) trace(symbol, y);
    return best;
  }
  void trace(int64_t symbol, int64_t* y) {
    stack_.assign(1, {0, n_ - 1, symbol});
    while (!stack_.empty()) {
      const Frame f = stack_.back();
      stack_.pop_back();
      if (f.i == f.j) {
        y[f.i * cfg_.N + f.j] = f.symbol - cfg_.NT;
        continue;
      }
      T best = kNegInf<T>, value = kNegInf<T>;
      int64_t rule = -1;
      Cuts c;
      for (int64_t t = cfg_.args.parent_start[f.symbol]; t < cfg_.args.parent_start[f.symbol + 1]; ++t) {
        const int64_t r = cfg_.args.parent_rules[t];
        if (!chart_.cuts(f.i, f.j, cfg_.left(r), cfg_.right(r), &c)) continue;
        const T x = best_cut(c), made = x + cfg_.rules(b_)[r];
        if (made > best) best = made, value = x, rule = r;
      }
      y[f.i * cfg_.N + f.j] = rule;
      chart_.cuts(f.i, f.j, cfg_.left(rule), cfg_.right(rule), &c);
      int64_t k = c.first;
      while (c.left[k] + c.right[k] != value) ++k;
      stack_.push_back({k + 1, f.j, cfg_.right(rule)});
      stack_.push_back({f.i, k, cfg_.left(rule)});
    }
  }

  struct Frame {
    int64_t i, j, symbol;
  };
  const CFG<T>& cfg_;
  int64_t b_ = 0, n_ = 0, packed_for_ = -1;
  SparseChart<T, 1> chart_;
  std::vector<Weighted> packed_;
  std::vector<T> made_;
  std::vector<int32_t> touched_;
  std::vector<Frame> stack_;
};

}  // namespace sl
