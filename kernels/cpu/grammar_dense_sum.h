// Inside and outside sums by matrix products (grammar_dense.h) in scaled probability space: a cell is a
// vector times a power of two. With q[A] = P[A] / raw[A] the outside pass is the products' transposes,
//   dX = W q,   P[i][k][l] += a[i][k][l] sum_r dX[l][r] a[k+1][j][r]   and so on,
// where X is formed again. All factors are at most 2, so what underflows is below the smallest normal
// number; a sentence in which some sum comes out below kSafe might have lost something, or have
// constituents that do not exist, and is left to grammar_sum.h, which is slower there and always right.
#pragma once
#include "grammar_dense.h"
#include "grammar_sum.h"

namespace sl {

template <class T>
struct DenseSumRules {
  DenseRules<T> w;        // exp(rules) 2^-shift
  T shift = 0;
  bool usable = true;     // no allowed rule is lost in that scale
  Panels<T> inner, inner_transposed;
  std::vector<char> from_words, from_any;       // A can be over two words, over more

  int64_t Pp() const { return (w.P + 15) / 16 * 16; }

  void pack(const CFG<T>& cfg, int64_t b, bool backward) {
    w.shape(cfg.args);
    w.fill(T(0));
    const T* rules = cfg.rules(b);
    T top = kNegInf<T>;
    for (int64_t r = 0; r < cfg.R; ++r) top = std::max(top, rules[r]);
    from_words.assign(w.NT, 0), from_any.assign(w.NT, 0);
    usable = std::abs(top) < kWidest<T>;
    if (!usable) return;
    shift = std::rint(top * T(1.44269504088896340736));
    weights_.resize(cfg.R + kLanes<T>);
    for (int64_t r = 0; r < cfg.R; r += kLanes<T>) store(weights_.data + r, exp_scaled<T>(load_row(rules, r, cfg.R, kNegInf<T>), splat<T>(shift)));
    for (int64_t r = 0; r < cfg.R; ++r) usable &= rules[r] == kNegInf<T> || weights_.data[r] >= kSafe<T>;
    if (!usable) return;
    w.for_rules(cfg.args, [&](int64_t rule, int64_t l, int64_t r, int64_t a) { w.row(l, r)[a] = weights_.data[rule]; });
    const auto mark = [&](const T* rows, int64_t count, std::vector<char>& made) {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t a = 0; a < w.NT; ++a) made[a] |= rows[i * w.C + a] > 0;
    };
    mark(w.inner.data, w.NT * w.NT, from_any), mark(w.right.data, w.P * w.NT, from_any);
    for (int64_t t = 0; t < w.P; ++t) mark(w.row(w.NT + t, 0), w.NT, from_any), mark(w.row(w.NT + t, w.NT), w.P, from_words);
    inner.pack(w.NT * w.NT, w.NT, T(0), [&](int64_t p, int64_t a) { return w.inner.data[p * w.C + a]; });
    if (!backward) return;
    inner_transposed.pack(w.NT, w.NT * w.NT, T(0), [&](int64_t a, int64_t p) { return w.inner.data[p * w.C + a]; });
  }
 private:
  Buffer<T> weights_;
};

template <class T>
class DenseSum {
 public:
  DenseSum(const CFG<T>& cfg, DenseSumRules<T>& rules, bool backward) : cfg_(cfg), rules_(rules), w_(rules.w), backward_(backward) {}

  double log_z = 0;

  // Numbers that one sentence keeps for the outside pass: cells, and their exponents.
  static int64_t kept(const GrammarArgs& a) { return a.N * a.N * (dense_width(a.NT) + 2) + 1; }

  // False: leave the sentence to SparseSum. kept: memory for what outside needs, which says so too.
  bool inside(int64_t b, T* kept) {
    start(b, kept);
    kept[0] = 0;
    if (n_ < 2 || !rules_.usable || !words()) return false;
    const int64_t NT = w_.NT;
    X_.resize(kRows * NT * NT + 16);
    for (int64_t w = 2; w <= n_; ++w)
      for (int64_t i = 0; i + w <= n_; i += kRows)
        if (!block(w, i, int(std::min<int64_t>(kRows, n_ - w + 1 - i)))) return false;
    if (!roots()) return false;
    log_z = std::log(double(total_)) + (double(exponent(0, n_ - 1)) + double(root_shift_)) * 0.693147180559945309417;
    kept[0] = 1;
    return std::isfinite(log_z);
  }

  // weight P is added to out. Sums of W-shaped gradients are collected until flush.
  void outside(int64_t b, T* kept, T weight, const GrammarGradient<T>& out) {
    start(b, kept);
    words();
    roots();
    const int64_t NT = w_.NT, C = w_.C, n = n_;
    if (!collected_) clear();
    collected_ = true;
    adjoint_.resize(n * n * C), std::fill_n(adjoint_.data, n * n * C, T(0));
    d_left_.resize(n * w_.S * C), std::fill_n(d_left_.data, n * w_.S * C, T(0));
    d_right_.resize(n * NT * C), std::fill_n(d_right_.data, n * NT * C, T(0));
    d_terms_.resize(n * rules_.Pp()), std::fill_n(d_terms_.data, n * rules_.Pp(), T(0));
    left_flat_.resize(n * NT * C), right_flat_.resize(n * NT * C);
    std::fill_n(left_flat_.data, n * NT * C, T(0)), std::fill_n(right_flat_.data, n * NT * C, T(0));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t r = 0; r < NT; ++r)
        for (int64_t a = 0; a < NT; ++a) {
          left_flat_.data[(i * NT + a) * C + r] = word_left(i)[r * C + a];
          right_flat_.data[(i * NT + a) * C + r] = word_right(i)[r * C + a];
        }
    const T scale = weight / total_;
    for (int64_t a = 0; a < NT; ++a) {
      adjoint(0, n - 1)[a] = scale * root_[a];
      if (a < cfg_.args.root_count) out.roots[a] += scale * root_[a] * cell(0, n - 1)[a];
    }
    X_.resize(kDepth * (NT * NT + 16)), dX_.resize(kRows * (NT * NT + 16)), turned_.resize(NT * C + 16), Q_.resize(kDepth * C);
    for (int64_t w = n; w >= 2; --w)
      for (int64_t i = 0; i + w <= n; i += kRows) spread(w, i, int(std::min<int64_t>(kRows, n - w + 1 - i)), out);
    flush_inner();
    finish_words(out);
  }

  // Adds what outside collected to the gradient of the rules (of all sentences since the last flush).
  void flush(T* d_rules) {
    if (!collected_) return;
    collected_ = false;
    d_.for_rules(cfg_.args, [&](int64_t rule, int64_t l, int64_t r, int64_t a) { d_rules[rule] += w_.row(l, r)[a] * d_.row(l, r)[a]; });
  }

 private:
  // Cells whose products with q are added to the gradient of W at once, so that it is read and written less often.
  static constexpr int kDepth = 2 * kRows;

  T* cell(int64_t i, int64_t j) { return cells_ + (i * n_ + j) * w_.C; }
  T& exponent(int64_t i, int64_t j) { return exponents_[i * n_ + j]; }  // of the cell; of the weights if i == j
  T& scaling(int64_t i, int64_t j) { return scalings_[i * n_ + j]; }    // cell = raw exp(spans) 2^scaling
  T* adjoint(int64_t i, int64_t j) { return adjoint_.data + (i * n_ + j) * w_.C; }
  T* word_left(int64_t i) { return left_.data + i * w_.S * w_.C; }
  T* word_right(int64_t j) { return right_.data + j * w_.NT * w_.C; }

  void start(int64_t b, T* kept) {
    b_ = b, n_ = cfg_.length(b);
    if (cfg_.args.rules_b && packed_for_ != b) rules_.pack(cfg_, b, backward_), packed_for_ = b;
    cells_ = kept + 1, exponents_ = cells_ + n_ * n_ * dense_width(cfg_.NT), scalings_ = exponents_ + n_ * n_;
  }
  void clear() {
    d_.shape(cfg_.args);
    d_.fill(T(0));
  }

  // exp(x_c) 2^-K into to[c], columns beyond `size` 0; returns K, or NaN if nothing is allowed or the numbers are too wide.
  static T weights(const T* x, int64_t size, int64_t width, T* to) {
    Vec<T> top = splat<T>(kNegInf<T>);
    for (int64_t c = 0; c < size; c += kLanes<T>) top = vmax(load_row(x, c, size, kNegInf<T>), top);
    const T best = hmax(top);
    if (!(std::abs(best) < kWidest<T>)) return std::numeric_limits<T>::quiet_NaN();
    const T K = std::rint(best * T(1.44269504088896340736));
    std::fill_n(to, width, T(0));
    for (int64_t c = 0; c < size; c += kLanes<T>) store(to + c, exp_scaled<T>(load_row(x, c, size, kNegInf<T>), splat<T>(K)));
    return K;
  }

  bool words() {
    const int64_t n = n_, Pp = rules_.Pp();
    terms_.resize(n * Pp), left_.resize(n * w_.S * w_.C), right_.resize(n * w_.NT * w_.C);
    rows_.resize(n);
    for (int64_t i = 0; i < n; ++i) {
      rows_[i] = terms_.data + i * Pp;
      const T K = weights(cfg_.terms(b_, i), w_.P, Pp, terms_.data + i * Pp);
      if (K != K) return false;
      exponent(i, i) = K;
    }
    word_matrices<DenseSumProduct>(w_, n, rows_.data(), left_.data, right_.data);
    return true;
  }

  bool roots() {
    root_.resize(w_.C);
    std::vector<T> scores(w_.NT);
    for (int64_t a = 0; a < w_.NT; ++a) scores[a] = cfg_.root(b_, a);
    root_shift_ = weights(scores.data(), w_.NT, w_.C, root_.data());
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
      std::fill_n(out[r], C, T(0));
      scales[r] = parts(i, j);
      if (w == 2) {
        add_product<DenseSumProduct>(w_.P, rows_[j], T(1), word_left(i) + NT * C, C, out[r]);
      } else {
        add_product<DenseSumProduct>(NT, cell(i + 1, j), scales[r].left, word_left(i), C, out[r]);
        add_product<DenseSumProduct>(NT, cell(i, j - 1), scales[r].right, word_right(j), C, out[r]);
        outer<DenseSumProduct, T>(NT, int64_t(parts_[0].size()), parts_[0].data(), parts_[1].data(), X_.data + r * NT * NT);
      }
    }
    if (w >= 4) step<DenseSumProduct, T>(rows, X, rules_.inner, [&](int r, int64_t c, Vec<T> x) { store(out[r] + c, x + load(out[r] + c)); });
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
      K = weights(spans, w_.NT, w_.C, span_.data());
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
  void spread(int64_t w, int64_t i0, int rows, const GrammarGradient<T>& out) {
    const int64_t NT = w_.NT, C = w_.C;
    if (used_ + rows > kDepth) flush_inner();
    const T* q[kRows];
    for (int r = 0; r < rows; ++r) {
      const int64_t i = i0 + r, j = i + w - 1;
      T* mine = Q_.data + (used_ + r) * C;
      const T *a = adjoint(i, j), *x = cell(i, j);
      if (out.spans)
        for (int64_t s = 0; s < NT; ++s) out.spans[(i * cfg_.N + j) * NT + s] += a[s] * x[s];
      const T scale = power2(scaling(i, j));
      for (int64_t c = 0; c < C; c += kLanes<T>) store(mine + c, load(a + c) * scale);
      if (const T* spans = cfg_.spans(b_, i, j)) {
        span_.resize(C);
        weights(spans, NT, C, span_.data());
        for (int64_t c = 0; c < C; c += kLanes<T>) store(mine + c, load(mine + c) * load(span_.data() + c));
      }
      q[r] = mine;
    }
    const int64_t pitch = NT * NT + 16;
    if (w >= 4)
      step<DenseSumProduct, T>(rows, q, rules_.inner_transposed, [&](int r, int64_t c, Vec<T> x) { store_row(dX_.data + r * pitch, c, NT * NT, x); });
    for (int r = 0; r < rows; ++r) spread_cell(i0 + r, i0 + r + w - 1, q[r], dX_.data + r * pitch, X_.data + (used_ + r) * pitch);
    if (w >= 4) used_ += rows;
  }

  void spread_cell(int64_t i, int64_t j, const T* q, const T* dX, T* X) {
    const int64_t NT = w_.NT, C = w_.C;
    const Scales s = parts(i, j);
    if (j == i + 1) {
      // L_i[t] is summed over the preterminals of i; what remains is linear in those of j.
      T* d = d_left_.data + i * w_.S * C + NT * C;
      for (int64_t t = 0; t < w_.P; ++t) {
        Vec<T> sum{};
        const T x = rows_[j][t];
        for (int64_t c = 0; c < C; c += kLanes<T>) {
          sum += load(word_left(i) + (NT + t) * C + c) * load(q + c);
          store(d + t * C + c, load(d + t * C + c) + load(q + c) * x);
        }
        d_terms_.data[j * rules_.Pp() + t] += hsum(sum);
      }
      return;
    }
    beside(cell(i + 1, j), s.left, left_flat_.data + i * NT * C, q, adjoint(i + 1, j), d_left_.data + i * w_.S * C);
    beside(cell(i, j - 1), s.right, right_flat_.data + j * NT * C, q, adjoint(i, j - 1), d_right_.data + j * NT * C);
    if (j < i + 3) return;
    const int64_t cuts = int64_t(parts_[0].size());
    outer<DenseSumProduct, T>(NT, cuts, parts_[0].data(), parts_[1].data(), X);
    for (int64_t l = 0; l < NT; ++l)
      for (int64_t r = 0; r < NT; ++r) turned_.data[r * C + l] = dX[l * NT + r];
    for (int64_t m = 0; m < cuts; m += kRows) {
      const int some = int(std::min<int64_t>(kRows, cuts - m));
      step_strided<DenseSumProduct, T>(some, parts_[0].data() + m, dX, NT, NT, NT, [&](int r, int64_t c, Vec<T> x) {
        T* to = adjoint(i + 2 + m + r, j);
        store_row(to, c, NT, load_row(to, c, NT, T(0)) + x);
      });
      step_strided<DenseSumProduct, T>(some, parts_[1].data() + m, turned_.data, NT, C, NT, [&](int r, int64_t c, Vec<T> x) {
        T* to = adjoint(i, i + 1 + m + r);
        store_row(to, c, NT, load_row(to, c, NT, T(0)) + x * factors_[m + r]);
      });
    }
  }
  // A part beside a word: x its cell, flat the word's matrix with rows for parents.
  void beside(const T* x, T factor, const T* flat, const T* q, T* adjoint, T* d) {
    const int64_t NT = w_.NT, C = w_.C;
    add_product<DenseSumProduct>(NT, q, factor, flat, C, adjoint);
    for (int64_t r = 0; r < NT; ++r) {
      const T weight = factor * x[r];
      for (int64_t c = 0; c < C; c += kLanes<T>) store(d + r * C + c, load(d + r * C + c) + load(q + c) * weight);
    }
  }

  // d inner[p][A] += sum over collected cells of X[p] q[A].
  void flush_inner() {
    const int64_t NT = w_.NT, C = w_.C, pitch = NT * NT + 16;
    for (int64_t p = 0; used_ && p < NT * NT; p += kRows)
      with_rows(int(std::min<int64_t>(kRows, NT * NT - p)), [&](auto rows) {
        constexpr int R = decltype(rows)::value;
        for (int64_t c = 0; c < C; c += kLanes<T>) {
          Vec<T> acc[R];
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) acc[r] = load(d_.inner.data + (p + r) * C + c);
          for (int u = 0; u < used_; ++u) {
            const Vec<T> q = load(Q_.data + u * C + c);
            const T* X = X_.data + u * pitch + p;
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) acc[r] += q * X[r];
          }
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) store(d_.inner.data + (p + r) * C + c, acc[r]);
        }
      });
    used_ = 0;
  }

  // From the gradients of L_i and R_i to those of preterminals and rules.
  void finish_words(const GrammarGradient<T>& out) {
    const int64_t n = n_, P = w_.P, Pp = rules_.Pp();
    const int64_t columns[2] = {w_.S * w_.C, w_.NT * w_.C};
    const T* d[2] = {d_left_.data, d_right_.data};
    const T* weights[2] = {w_.left.data, w_.right.data};
    T* d_rules[2] = {d_.left.data, d_.right.data};
    turned_terms_.resize(P * n);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t t = 0; t < P; ++t) turned_terms_.data[t * n + i] = rows_[i][t];
    const T* rows[kRows];
    for (int side = 0; side < 2; ++side) {
      add_dots(n, P, columns[side], d[side], weights[side], d_terms_.data, Pp);
      for (int64_t t = 0; t < P; t += kRows) {
        const int some = int(std::min<int64_t>(kRows, P - t));
        for (int r = 0; r < some; ++r) rows[r] = turned_terms_.data + (t + r) * n;
        step_strided<DenseSumProduct, T>(some, rows, d[side], n, columns[side], columns[side], [&](int r, int64_t c, Vec<T> x) {
          T* to = d_rules[side] + (t + r) * columns[side] + c;
          store(to, load(to) + x);
        });
      }
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t t = 0; t < P; ++t) out.terms[i * P + t] += d_terms_.data[i * Pp + t] * rows_[i][t];
  }

  const CFG<T>& cfg_;
  DenseSumRules<T>& rules_;
  const DenseRules<T>& w_;
  const bool backward_;
  int64_t b_ = 0, n_ = 0, packed_for_ = -1;
  T *cells_ = nullptr, *exponents_ = nullptr, *scalings_ = nullptr;
  T total_ = 0, root_shift_ = 0;
  std::vector<T> root_, span_, factors_;
  std::vector<const T*> rows_, parts_[2];
  Buffer<T> terms_, left_, right_, X_, scaled_;
  // outside
  bool collected_ = false;
  int used_ = 0;
  DenseRules<T> d_;
  Buffer<T> adjoint_, d_left_, d_right_, d_terms_, left_flat_, right_flat_, dX_, turned_, Q_, turned_terms_;
};

}  // namespace sl
