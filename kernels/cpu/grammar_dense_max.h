// Best derivation by products over (max, +) (grammar_dense.h). Only maxima are kept; along the best
// derivation X is formed again and rules and cuts are found as the lowest that give the same bits.
#pragma once
#include "grammar_dense.h"

namespace sl {

template <class T>
struct DenseMaxRules {
  DenseRules<T> w;
  Panels<T> panels;  // w.inner for steps

  void pack(const CFG<T>& cfg, int64_t b) {
    w.shape(cfg.args);
    w.fill(kNegInf<T>);
    const T* rules = cfg.rules(b);
    w.for_rules(cfg.args, [&](int64_t rule, int64_t l, int64_t r, int64_t a) { w.row(l, r)[a] = rules[rule]; });
    panels.pack(w.NT * w.NT, w.NT, kNegInf<T>, w.inner.data, w.C);
  }
};

template <class T>
class DenseMax {
 public:
  // rules: packed already if all sentences share them.
  DenseMax(const CFG<T>& cfg, DenseMaxRules<T>& rules) : cfg_(cfg), rules_(rules), w_(rules.w), panels_(rules.panels) {}

  T run(int64_t b, int64_t* y) {
    b_ = b, n_ = cfg_.length(b);
    if (n_ == 0) return 0;
    if (cfg_.args.rules_b) rules_.pack(cfg_, b);
    const int64_t C = w_.C, n = n_;
    chart_.resize(n * n * C), X_.resize(kRows * w_.NT * w_.NT + 16);
    left_.resize(n * w_.S * C), right_.resize(n * w_.NT * C);
    weights_.resize(n);
    for (int64_t i = 0; i < n; ++i) weights_[i] = cfg_.terms(b, i);
    word_matrices<MaxPlus>(w_, n, weights_.data(), left_.data, right_.data);
    for (int64_t w = 2; w <= n; ++w)
      for (int64_t i = 0; i + w <= n; i += kRows) block(w, i, int(std::min<int64_t>(kRows, n - w + 1 - i)));
    return root(y);
  }

 private:
  T* cell(int64_t i, int64_t j) { return chart_.data + (i * n_ + j) * w_.C; }
  T* word_left(int64_t i) { return left_.data + i * w_.S * w_.C; }
  T* word_right(int64_t j) { return right_.data + j * w_.NT * w_.C; }

  void parts(int64_t i, int64_t j) {  // of the cuts between two larger constituents
    parts_[0].clear(), parts_[1].clear();
    for (int64_t k = i + 1; k + 2 <= j; ++k) parts_[0].push_back(cell(i, k)), parts_[1].push_back(cell(k + 1, j));
  }
  void cut_max(int64_t i, int64_t j, T* X) {
    parts(i, j);
    outer<MaxPlus, T>(w_.NT, int64_t(parts_[0].size()), parts_[0].data(), parts_[1].data(), X);
  }

  void block(int64_t w, int64_t i0, int rows) {
    const int64_t NT = w_.NT, C = w_.C;
    for (int r = 0; r < rows; ++r) {
      const int64_t i = i0 + r, j = i + w - 1;
      T* out = cell(i, j);
      std::fill_n(out, C, kNegInf<T>);
      if (w == 2) {
        add_product<MaxPlus>(w_.P, cfg_.terms(b_, j), T(0), word_left(i) + NT * C, C, out);
      } else {
        add_product<MaxPlus>(NT, cell(i + 1, j), T(0), word_left(i), C, out);
        add_product<MaxPlus>(NT, cell(i, j - 1), T(0), word_right(j), C, out);
      }
    }
    if (w >= 4) {
      const T* X[kRows];
      T* out[kRows];
      for (int r = 0; r < rows; ++r) {
        X[r] = X_.data + r * NT * NT, out[r] = cell(i0 + r, i0 + r + w - 1);
        cut_max(i0 + r, i0 + r + w - 1, X_.data + r * NT * NT);
      }
      step<MaxPlus, T>(rows, X, panels_, [&](int r, int64_t c, Vec<T> best) { store(out[r] + c, vmax(best, load(out[r] + c))); });
    }
    for (int r = 0; r < rows; ++r)
      if (const T* spans = cfg_.spans(b_, i0 + r, i0 + r + w - 1))
        for (int64_t a = 0; a < NT; ++a) cell(i0 + r, i0 + r + w - 1)[a] += spans[a];
  }

  T root(int64_t* y) {
    T best = kNegInf<T>;
    int64_t symbol = -1;
    const int64_t first = n_ == 1 ? w_.NT : 0, last = n_ == 1 ? w_.S : w_.NT;
    for (int64_t s = first; s < last; ++s) {
      const T x = (n_ == 1 ? cfg_.terms(b_, 0)[s - w_.NT] : cell(0, n_ - 1)[s]) + cfg_.root(b_, s);
      if (x > best) best = x, symbol = s;
    }
    if (symbol >= 0) trace(symbol, y);
    return best;
  }

  void trace(int64_t symbol, int64_t* y) {
    const int64_t NT = w_.NT, C = w_.C, S = w_.S;
    stack_.assign(1, {0, n_ - 1, symbol});
    while (!stack_.empty()) {
      const auto [i, j, a] = stack_.back();
      stack_.pop_back();
      if (i == j) {
        y[i * cfg_.N + j] = a - NT;
        continue;
      }
      // Every way that gives the most, by the sums that the products formed; the lowest rule of them.
      best_ = kNegInf<T>, rule_ = cfg_.R;
      if (j == i + 1) {
        for (int64_t t = 0; t < w_.P; ++t) word_ways(a, cfg_.terms(b_, j)[t], word_left(i)[(NT + t) * C + a], i, NT + t, w_.left.data + (NT + t) * C, S * C, true);
      } else {
        for (int64_t r = 0; r < NT; ++r) word_ways(a, cell(i + 1, j)[r], word_left(i)[r * C + a], i, r, w_.left.data + r * C, S * C, true);
        for (int64_t l = 0; l < NT; ++l) word_ways(a, cell(i, j - 1)[l], word_right(j)[l * C + a], j, l, w_.right.data + l * C, NT * C, false);
        cut_max(i, j, X_.data);
        for (int64_t p = 0; j > i + 2 && p < NT * NT; ++p) {
          const T x = X_.data[p] + w_.inner.data[p * C + a];
          if (x >= best_ && x > kNegInf<T>) offer(x, cfg_.find(a, p / NT, p % NT));
        }
      }
      y[i * cfg_.N + j] = rule_;
      const int64_t l = cfg_.left(rule_), r = cfg_.right(rule_);
      int64_t k = l >= NT ? i : j - 1;
      if (l < NT && r < NT) {
        const T x = X_.data[l * NT + r];
        for (k = i + 1; cell(i, k)[l] + cell(k + 1, j)[r] != x;) ++k;
      }
      stack_.push_back({k + 1, j, r});
      stack_.push_back({i, k, l});
    }
  }
  void offer(T x, int64_t rule) {
    if (x > best_) best_ = x, rule_ = rule;
    else rule_ = std::min(rule_, rule);
  }
  // The preterminals over `word` that make the entry `made` of its matrix.
  void word_ways(int64_t a, T other, T made, int64_t word, int64_t symbol, const T* weights, int64_t stride, bool left) {
    const T x = other + made;
    if (!(x >= best_) || x == kNegInf<T>) return;
    for (int64_t t = 0; t < w_.P; ++t)
      if (cfg_.terms(b_, word)[t] + weights[t * stride + a] == made)
        offer(x, left ? cfg_.find(a, w_.NT + t, symbol) : cfg_.find(a, symbol, w_.NT + t));
  }

  struct Frame {
    int64_t i, j, symbol;
  };
  const CFG<T>& cfg_;
  DenseMaxRules<T>& rules_;
  const DenseRules<T>& w_;
  const Panels<T>& panels_;
  int64_t b_ = 0, n_ = 0;
  Buffer<T> chart_, X_, left_, right_;
  std::vector<const T*> weights_, parts_[2];
  std::vector<Frame> stack_;
  T best_ = 0;
  int64_t rule_ = 0;
};

}  // namespace sl
