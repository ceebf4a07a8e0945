// Inside and outside sums by matrix products (grammar_dense.h) in scaled probability space: a cell is a
// vector times a power of two. With q[A] = P[A] / raw[A] the outside pass is the products' transposes,
//   dX = W q,   P[i][k][l] += a[i][k][l] sum_r dX[l][r] a[k+1][j][r]   and so on,
// where X is formed again. All factors are at most 2, so what underflows is below the smallest normal
// number; a sentence in which some sum comes out below kSafe might have lost something, or have
// constituents that do not exist, and is left to grammar_sum.h, which is slower there and always right.
#pragma once
#include "grammar_dense_words.h"
#include "grammar_sum.h"

namespace sl {

template <class T>
class DenseSum {
 public:
  DenseSum(const CFG<T>& cfg, const DenseSumRules<T>& rules, DenseWords<T>& words) : cfg_(cfg), rules_(rules), words_(words), w_(rules.w) {}

  double log_z = 0;

  // Numbers that one sentence keeps for the outside pass: cells, and their exponents.
  static int64_t kept(const GrammarArgs& a) { return a.N * a.N * (dense_width(a.NT) + 2) + 1; }

  // Takes the words of sentence b into the group; false: leave the sentence to SparseSum. kept: memory for what
  // outside needs, which says too whether it does.
  static bool add(const CFG<T>& cfg, int64_t b, DenseWords<T>& words, T* kept) {
    const int64_t n = cfg.length(b);
    if (n < 2) return false;
    for (int64_t i = 0; i < n; ++i) {
      const T K = words.add(cfg.terms(b, i));
      if (K != K) return words.drop(i + 1), false;
      kept[1 + n * n * dense_width(cfg.NT) + i * n + i] = K;
    }
    return true;
  }

  // first: the place of the sentence's first word in the group. False as above.
  bool inside(int64_t b, int64_t first, T* kept) {
    start(b, first, kept);
    const int64_t NT = w_.NT;
    X_.resize(kRows * NT * NT + 16);
    for (int64_t w = 2; w <= n_; ++w)
      for (int64_t i = 0; i + w <= n_; i += kRows)
        if (!block(w, i, int(std::min<int64_t>(kRows, n_ - w + 1 - i)))) return false;
    if (!roots()) return false;
    log_z = std::log(double(total_)) + (double(exponent(0, n_ - 1)) + double(root_shift_)) * 0.693147180559945309417;
    return std::isfinite(log_z);
  }

  // weight P is added to out, but for words and rules: those of words are left to the group, those between larger
  // constituents are added to d.
  void outside(int64_t b, int64_t first, T* kept, T weight, const GrammarGradient<T>& out, DenseTable<T>& d) {
    start(b, first, kept);
    roots();
    const int64_t NT = w_.NT, C = w_.C, n = n_;
    adjoint_.resize(n * n * C), std::fill_n(adjoint_.data, n * n * C, T(0));
    left_flat_.resize(n * NT * C), right_flat_.resize(n * NT * C);
    for (int64_t i = 0; i < n; ++i) {
      transpose(NT, NT, word_left(i), C, left_flat_.data + i * NT * C, C);
      transpose(NT, NT, word_right(i), C, right_flat_.data + i * NT * C, C);
    }
    const T scale = weight / total_;
    for (int64_t a = 0; a < NT; ++a) {
      adjoint(0, n - 1)[a] = scale * root_[a];
      if (a < cfg_.args.root_count) out.roots[a] += scale * root_[a] * cell(0, n - 1)[a];
    }
    X_.resize(kDepth * pitch()), dX_.resize(kRows * pitch()), turned_.resize(NT * C + 16), Q_.resize(kDepth * C);
    for (int64_t w = n; w >= 2; --w)
      for (int64_t i = 0; i + w <= n; i += kRows) spread(w, i, int(std::min<int64_t>(kRows, n - w + 1 - i)), out, d);
    flush_inner(d);
  }

 private:
  // Cells whose products with q are added to the gradient of W at once, so that it is read and written less often.
  static constexpr int kDepth = 32;

  T* cell(int64_t i, int64_t j) { return cells_ + (i * n_ + j) * w_.C; }
  T& exponent(int64_t i, int64_t j) { return exponents_[i * n_ + j]; }  // of the cell; of the weights if i == j
  T& scaling(int64_t i, int64_t j) { return scalings_[i * n_ + j]; }    // cell = raw exp(spans) 2^scaling
  T* adjoint(int64_t i, int64_t j) { return adjoint_.data + (i * n_ + j) * w_.C; }
  const T* word_left(int64_t i) const { return words_.left(first_ + i); }
  const T* word_right(int64_t j) const { return words_.right(first_ + j); }
  int64_t pitch() const { return w_.NT * w_.NT + 16; }

  void start(int64_t b, int64_t first, T* kept) {
    b_ = b, first_ = first, n_ = cfg_.length(b);
    cells_ = kept + 1, exponents_ = cells_ + n_ * n_ * dense_width(cfg_.NT), scalings_ = exponents_ + n_ * n_;
  }

  bool roots() {
    root_.resize(w_.C);
    std::vector<T> scores(w_.NT);
    for (int64_t a = 0; a < w_.NT; ++a) scores[a] = cfg_.root(b_, a);
    root_shift_ = scaled_weights<T>(scores.data(), w_.NT, w_.C, rules_.widest, root_.data());
    if (root_shift_ != root_shift_) return false;
    total_ = 0;
    for (int64_t a = 0; a < w_.NT; ++a) total_ += root_[a] * cell(0, n_ - 1)[a];
    return total_ >= kSafe<T>;
  }

  // The two parts at every cut of i..j between larger constituents, scaled to the exponent E of the cell,
  // and the factors of the cuts beside single words.
  struct Scales {
    T E, left, right;
  };
  Scales parts(int64_t i, int64_t j) {
    const int64_t cuts = std::max<int64_t>(j - i - 3 + 1, 0);
    Scales s{exponent(i, i) + exponent(i + 1, j), 1, 1};
    if (j == i + 1) return s;
    const T beside_left = s.E, beside_right = exponent(i, j - 1) + exponent(j, j);
    s.E = std::max(beside_left, beside_right);
    for (int64_t k = i + 1; k + 2 <= j; ++k) s.E = std::max(s.E, exponent(i, k) + exponent(k + 1, j));
    s.left = power2(beside_left - s.E), s.right = power2(beside_right - s.E);
    parts_[0].resize(cuts), parts_[1].resize(cuts), factors_.resize(cuts);
    scaled_.resize(cuts * w_.C);
    for (int64_t m = 0; m < cuts; ++m) {
      const int64_t k = i + 1 + m;
      factors_[m] = power2(exponent(i, k) + exponent(k + 1, j) - s.E);
      for (int64_t c = 0; c < w_.C; c += kLanes<T>) store(scaled_.data + m * w_.C + c, load(cell(i, k) + c) * factors_[m]);
      parts_[0][m] = scaled_.data + m * w_.C, parts_[1][m] = cell(k + 1, j);
    }
    return s;
  }

  bool block(int64_t w, int64_t i0, int rows) {
    const int64_t NT = w_.NT, C = w_.C;
    Scales scales[kRows];
    const T* X[kRows];
    T* out[kRows];
    for (int r = 0; r < rows; ++r) {
      const int64_t i = i0 + r, j = i + w - 1;
      out[r] = cell(i, j), X[r] = X_.data + r * NT * NT;
      scales[r] = parts(i, j);
      if (w == 2) {
        std::copy_n(words_.pair(first_ + i), C, out[r]);
      } else {
        std::fill_n(out[r], C, T(0));
        add_product<SumProduct>(NT, cell(i + 1, j), scales[r].left, word_left(i), C, out[r]);
        add_product<SumProduct>(NT, cell(i, j - 1), scales[r].right, word_right(j), C, out[r]);
        outer<SumProduct, T>(NT, int64_t(parts_[0].size()), parts_[0].data(), parts_[1].data(), X_.data + r * NT * NT);
      }
    }
    if (w >= 4) step_strided<SumProduct, T>(rows, X, w_.inner.data, NT * NT, C, C, [&](int r, int64_t c, Vec<T> x) { store(out[r] + c, x + load(out[r] + c)); });
    for (int r = 0; r < rows; ++r)
      if (!close(i0 + r, i0 + r + w - 1, scales[r].E)) return false;
    return true;
  }

  // From raw sums to the cell: spans, and the largest entry into [1, 2).
  bool close(int64_t i, int64_t j, T E) {
    const std::vector<char>& possible = j == i + 1 ? rules_.from_words : rules_.from_any;
    T* out = cell(i, j);
    bool safe = true;
    for (int64_t a = 0; a < w_.NT; ++a) safe &= out[a] >= kSafe<T> || !possible[a];
    if (!safe) return false;
    T K = 0;
    if (const T* spans = cfg_.spans(b_, i, j)) {
      span_.resize(w_.C);
      K = scaled_weights<T>(spans, w_.NT, w_.C, rules_.widest, span_.data());
      if (K != K) return false;
      for (int64_t c = 0; c < w_.C; c += kLanes<T>) store(out + c, load(out + c) * load(span_.data() + c));
    }
    Vec<T> top{};
    for (int64_t c = 0; c < w_.C; c += kLanes<T>) top = vmax(load(out + c), top);
    const T best = hmax(top);
    if (!(best >= kSafe<T>)) return false;
    int64_t power = 0;
    const T down = take_exponent(best, &power);
    for (int64_t c = 0; c < w_.C; c += kLanes<T>) store(out + c, load(out + c) * down);
    scaling(i, j) = T(-power);
    exponent(i, j) = E + rules_.shift + K + T(power);
    return true;
  }

  // From P of the cells i..i+w-1 to rules and parts.
  void spread(int64_t w, int64_t i0, int rows, const GrammarGradient<T>& out, DenseTable<T>& d) {
    const int64_t NT = w_.NT, C = w_.C;
    if (used_ + rows > kDepth) flush_inner(d);
    const T* q[kRows];
    for (int r = 0; r < rows; ++r) {
      const int64_t i = i0 + r, j = i + w - 1;
      T* mine = Q_.data + (used_ + r) * C;
      const T *a = adjoint(i, j), *x = cell(i, j);
      if (out.spans)
        for (int64_t s = 0; s < NT; ++s) out.spans[(i * cfg_.N + j) * NT + s] += a[s] * x[s];
      const T scale = power2(scaling(i, j));
      if (const T* spans = cfg_.spans(b_, i, j)) {
        span_.resize(C);
        scaled_weights<T>(spans, NT, C, rules_.widest, span_.data());
        // In this order, since what a span forbids may be out of range before.
        for (int64_t c = 0; c < C; c += kLanes<T>) store(mine + c, load(a + c) * load(span_.data() + c) * scale);
      } else {
        for (int64_t c = 0; c < C; c += kLanes<T>) store(mine + c, load(a + c) * scale);
      }
      q[r] = mine;
    }
    if (w >= 4)
      step_strided<SumProduct, T>(rows, q, rules_.inner_turned.data, NT, rules_.inner_step(), NT * NT, [&](int r, int64_t c, Vec<T> x) { store(dX_.data + r * pitch() + c, x); });
    for (int r = 0; r < rows; ++r) spread_cell(i0 + r, i0 + r + w - 1, q[r], dX_.data + r * pitch(), X_.data + (used_ + r) * pitch());
    if (w >= 4) used_ += rows;
  }

  void spread_cell(int64_t i, int64_t j, const T* q, const T* dX, T* X) {
    const int64_t NT = w_.NT, C = w_.C;
    const Scales s = parts(i, j);
    if (j == i + 1) {
      std::copy_n(q, C, words_.d_pair(first_ + i));
      return;
    }
    beside(cell(i + 1, j), s.left, left_flat_.data + i * NT * C, q, adjoint(i + 1, j), words_.d_left(first_ + i));
    beside(cell(i, j - 1), s.right, right_flat_.data + j * NT * C, q, adjoint(i, j - 1), words_.d_right(first_ + j));
    if (j < i + 3) return;
    const int64_t cuts = int64_t(parts_[0].size());
    outer<SumProduct, T>(NT, cuts, parts_[0].data(), parts_[1].data(), X);
    transpose(NT, NT, dX, NT, turned_.data, C);
    for (int64_t m = 0; m < cuts; m += kRows) {
      const int some = int(std::min<int64_t>(kRows, cuts - m));
      step_strided<SumProduct, T>(some, parts_[0].data() + m, dX, NT, NT, NT, [&](int r, int64_t c, Vec<T> x) {
        T* to = adjoint(i + 2 + m + r, j);
        store_row(to, c, NT, load_row(to, c, NT, T(0)) + x);
      });
      step_strided<SumProduct, T>(some, parts_[1].data() + m, turned_.data, NT, C, NT, [&](int r, int64_t c, Vec<T> x) {
        T* to = adjoint(i, i + 1 + m + r);
        store_row(to, c, NT, load_row(to, c, NT, T(0)) + x * factors_[m + r]);
      });
    }
  }
  // A part beside a word: x its cell, flat the word's matrix with rows for parents.
  void beside(const T* x, T factor, const T* flat, const T* q, T* adjoint, T* d) {
    const int64_t NT = w_.NT, C = w_.C;
    add_product<SumProduct>(NT, q, factor, flat, C, adjoint);
    for (int64_t r = 0; r < NT; ++r) {
      const T weight = factor * x[r];
      for (int64_t c = 0; c < C; c += kLanes<T>) store(d + r * C + c, load(d + r * C + c) + load(q + c) * weight);
    }
  }

  // d inner[p][A] += sum over collected cells of X[p] q[A].
  void flush_inner(DenseTable<T>& d) {
    multiply_columns<T>({w_.NT * w_.NT, w_.C, used_, X_.data, pitch(), Q_.data, w_.C, d.inner.data, w_.C, true});
    used_ = 0;
  }

  const CFG<T>& cfg_;
  const DenseSumRules<T>& rules_;
  DenseWords<T>& words_;
  const DenseTable<T>& w_;
  int64_t b_ = 0, first_ = 0, n_ = 0;
  T *cells_ = nullptr, *exponents_ = nullptr, *scalings_ = nullptr;
  T total_ = 0, root_shift_ = 0;
  std::vector<T> root_, span_, factors_;
  std::vector<const T*> parts_[2];
  Buffer<T> X_, scaled_;
  // outside
  int used_ = 0;
  Buffer<T> adjoint_, left_flat_, right_flat_, dX_, turned_, Q_;
};

}  // namespace sl
