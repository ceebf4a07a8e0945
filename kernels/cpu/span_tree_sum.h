// Inside and outside sums of a group of sentences, every cell a number m 2^e (scale.h). With x the sum over
// labels, S the sum over splits and P the probability of a span:
//   I[i][j] = x[i][j] S[i][j],   S[i][j] = sum_k I[i][k] I[k+1][j]
//   P(k | i, j) = I[i][k] I[k+1][j] / S[i][j],   P[i][k], P[k+1][j] += P[i][j] P(k | i, j).
// The outside pass forms P(k | i, j) again from I instead of keeping it: N^2 numbers, not N^3.
// Limited by two or three loads a split and by one exponential a label.
//
// Exactness: exponents are whole numbers, whose sums are exact below 2^24 in float. With no label above kMostTotal
// divided by the spans of a tree and a total above -kMostTotal, what has lost digits has no part in the total. Any other
// sentence is done again in double and in log space (span_tree_log.h).
#pragma once
#include "lanes.h"
#include "span_tree.h"
#include "span_tree_labels.h"
#include "wide.h"

namespace sl {

// What the inside pass leaves, one diagonal layout each; backward gets them as one (6, size) block.
template <class T>
struct SpanTreeChart {
  static constexpr int kArrays = 6;
  T *m, *e;         // I = m 2^e
  T *split, *power; // S = split 2^power
  T *sum, *shift;   // x = sum 2^shift
  SpanTreeChart(T* block, int64_t size)
      : m(block), e(block + size), split(block + 2 * size), power(block + 3 * size), sum(block + 4 * size), shift(block + 5 * size) {}
};

template <class T>
constexpr T kMostTotal = sizeof(T) == 4 ? T(0x1p20) : T(0x1p48);

// exp(x) 2^-K for whole K near the largest x / ln 2.
template <class T>
inline Vec<T> exp_below(Vec<T> x, T K) {
#if !defined(__FMA__)
  // exp_scaled takes whole multiples of ln 2 from x, which in float are not exact without a fused multiply-add; one of
  // them, in two parts, is enough.
  if constexpr (sizeof(T) == 4) {
    const double log = double(K) * kLn2;
    const T high = T(log), low = T(log - double(high));
    return vexp<T>((x - high) - low);
  }
#endif
  return exp_scaled<T>(x, splat<T>(K));
}

// Sums over labels as sum 2^K. K comes from the largest label of a whole row of spans, so that
// exponentials fill whole vectors; a span whose sum is too small for that K gets its own.
template <class T>
struct LabelSums {
  int64_t L;
  Buffer<T> buffer[2], sums;

  static constexpr T kLog2E = T(1.44269504088896340736);
  // Labels this large have spacings above 0.1, and exp_scaled cannot split them: exp(x - max) instead.
  static bool wide(T K) { return !(std::abs(K) < kLog2E * kWidest<T> * T(0.99)); }
  static T top(const T* x, int64_t n) {
    Vec<T> m = splat<T>(kNegInf<T>);
    for (int64_t l = 0; l < n; l += kLanes<T>) m = vmax(load_row(x, l, n, kNegInf<T>), m);
    return hmax(m);
  }
  // exp(x_l) 2^-K for l < L, or exp(x_l - max) where K is wide; f(l, vector).
  template <class F>
  void each(const T* x, T K, F&& f) const {
    const bool split = !wide(K);
    const T best = split ? T(0) : top(x, L);
    for (int64_t l = 0; l < L; l += kLanes<T>) {
      const Vec<T> label = load_row(x, l, L, kNegInf<T>);
      f(l, split ? exp_below<T>(label, K) : vexp<T>(label - best));
    }
  }
  void alone(const T* x, T* sum, T* shift) const {
    const T best = top(x, L);
    *sum = 0, *shift = 0;
    if (best == kNegInf<T>) return;
    *shift = std::rint(best * kLog2E);
    Vec<T> total{};
    each(x, *shift, [&](int64_t, Vec<T> p) { total += p; });
    *sum = hsum(total);
  }
  // A row of spans with its exponentials exp(x) 2^-K, unless K is wide.
  struct Row {
    const T* x;
    int64_t cells;
    T K;
    const T* kept;
  };
  // keep (cells, L) or, if null, a buffer of its own for even and for odd rows gets the exponentials.
  Row exponentials(const T* x, int64_t cells, T* keep, bool odd) {
    const int64_t size = cells * L;
    const T K = std::rint(top(x, size) * kLog2E);
    if (wide(K)) return {x, cells, K, nullptr};
    if (!keep) buffer[odd].resize(size), keep = buffer[odd].data;
    for (int64_t l = 0; l < size; l += kLanes<T>) store_row(keep, l, size, exp_below<T>(load_row(x, l, size, kNegInf<T>), K));
    return {x, cells, K, keep};
  }
  // out(j, sum, K) for every span of the row; whether all have one K that is not wide.
  template <class F>
  bool add(const Row& row, F&& out) {
    if (row.kept && L > 1) sums.resize(row.cells + kSlack), label_sums(row.kept, row.cells, L, sums.data);
    const T* total = L > 1 ? sums.data : row.kept;
    bool even = row.kept != nullptr;
    for (int64_t j = 0; j < row.cells; ++j) {
      T sum = row.kept ? total[j] : T(0), shift = row.K;
      if (!(sum >= kSafe<T>)) alone(row.x + j * L, &sum, &shift), even = even && shift == row.K;
      out(j, sum, shift);
    }
    return even;
  }
};

template <class T>
class InsideOutside {
 public:
  explicit InsideOutside(const SpanTree<T>& trees) : trees_(trees) { labels_.L = trees.L; }

  Diagonals diagonals;

  void place(const int64_t* rows, int64_t count) {
    rows_ = rows;
    diagonals.set(trees_.length(rows[0]), count);
  }

  // keep: null, or (B, N, N, L), which gets the exponentials of the labels for `outside` to turn into the gradient.
  void inside(const SpanTreeChart<T>& c, T* keep = nullptr) {
    kept_ = keep != nullptr;
    if (keep) even_.resize(diagonals.g * diagonals.n);
    const int64_t n = diagonals.n, size = diagonals.size();
    if (trees_.length(rows_[diagonals.g - 1]) < n) std::fill_n(c.sum, size, T(0)), std::fill_n(c.shift, size, T(0));
    highest_.assign(diagonals.g, kNegInf<T>);
    const int64_t N = trees_.N, L = trees_.L;
    for (int64_t r = 0; r < diagonals.g; ++r) {
      // The sums of a row come behind the exponentials of the next: a load that straddles two fresh stores waits for both.
      typename LabelSums<T>::Row row{};
      for (int64_t i = 0, end = trees_.length(rows_[r]); i <= end && end; ++i) {
        const auto last = row;
        if (i < end)
          row = labels_.exponentials(trees_.row(rows_[r], i), end - i, keep ? keep + ((rows_[r] * N + i) * N + i) * L : nullptr, i & 1), highest_[r] = std::max(highest_[r], row.K);
        if (i == 0) continue;
        const bool even = labels_.add(last, [&](int64_t j, T sum, T shift) {
          const int64_t at = diagonals.at(j + 1, i - 1, r);
          c.sum[at] = sum, c.shift[at] = shift;
        });
        if (keep) even_[r * n + i - 1] = even;
      }
    }
    for (int64_t w = 1; w <= n; ++w) {
      const int64_t at = diagonals.base[w], length = diagonals.length(w);
      for_lanes<T>(length, [&](int64_t v, auto vectors) { inside_block<vectors>(c, w, v); });
      store(c.m + at + length, Vec<T>{});
      store(c.e + at + length, splat<T>(kZeroExponent<T>));
    }
  }

  // log Z of sentence r of the group, after inside; NaN, here and for its probability, if that must be found in double.
  T log_total(const SpanTreeChart<T>& c, int64_t r) const {
    const int64_t n = trees_.length(rows_[r]);
    if (n == 0) return 0;
    T &m = c.m[root(r)], e = c.e[root(r)];
    if (!(m > 0 && std::abs(e) < kMostTotal<T> && highest_[r] * T(2 * n) < kMostTotal<T>)) return m = std::numeric_limits<T>::quiet_NaN();
    return T(std::log(double(m)) + double(e) * kLn2);
  }
  // Whether log_total was NaN.
  bool is_lost(const SpanTreeChart<T>& c, int64_t r) const { return trees_.length(rows_[r]) && std::isnan(c.m[root(r)]); }

  // weight[b] P (null: all 1) into d (B, N, N, L), every entry of these sentences, 0 for those that are lost.
  void outside(const SpanTreeChart<T>& c, const T* weight, T* d) {
    const int64_t n = diagonals.n, size = diagonals.size();
    p_.resize(size + kLanes<T>), std::fill_n(p_.data, size, T(0));
    for (int64_t w = n; w >= 1; --w) {
      for (int64_t r = 0; r < diagonals.g && trees_.length(rows_[r]) >= w; ++r)
        if (const int64_t root = diagonals.at(w, 0, r); trees_.length(rows_[r]) == w && c.m[root] > 0) p_.data[root] = weight ? weight[rows_[r]] : T(1);
      if (w > 1) for_lanes<T>(diagonals.length(w), [&](int64_t v, auto vectors) { outside_block<vectors>(c, w, v); });
    }
    // From here on the share of a span's labels in its probability, a vector of divisions at a time.
    for (int64_t v = 0; v < size; v += kLanes<T>) {
      const Vec<T> sum = load(c.sum + v);
      store(p_.data + v, sum > T(0) ? load(p_.data + v) / sum : Vec<T>{});
    }
    for (int64_t r = 0; r < diagonals.g; ++r) write(c, r, d + rows_[r] * trees_.N * trees_.N * trees_.L);
  }

 private:
  int64_t root(int64_t r) const { return diagonals.at(trees_.length(rows_[r]), 0, r); }

  template <int V>
  void inside_block(const SpanTreeChart<T>& c, int64_t w, int64_t v) {
    const int64_t at = diagonals.base[w] + v, g = diagonals.g;
    Vec<T> E[V], S[V];
#pragma GCC unroll 4
    for (int i = 0; i < V; ++i) E[i] = splat<T>(w > 1 ? 2 * kZeroExponent<T> : T(0)), S[i] = splat<T>(w > 1 ? T(0) : T(1));
    for (int64_t u = 1; u < w; ++u) {
      const int64_t left = diagonals.base[u] + v, right = diagonals.base[w - u] + u * g + v;
#pragma GCC unroll 4
      for (int i = 0; i < V; ++i) E[i] = vmax(load(c.e + left + i * kLanes<T>) + load(c.e + right + i * kLanes<T>), E[i]);
    }
    for (int64_t u = 1; u < w; ++u) {
      const int64_t left = diagonals.base[u] + v, right = diagonals.base[w - u] + u * g + v;
#pragma GCC unroll 4
      for (int i = 0; i < V; ++i) {
        const int64_t lo = left + i * kLanes<T>, hi = right + i * kLanes<T>;
        const Vec<T> term = scale2(load(c.m + lo) * load(c.m + hi), load(c.e + lo) + load(c.e + hi) - E[i]);
        S[i] += term;
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < V; ++i) {
      const int64_t to = at + i * kLanes<T>;
      Vec<T> m = S[i] * load(c.sum + to), e = E[i] + load(c.shift + to);
      normalise<T>(m, e);
      store(c.split + to, S[i]), store(c.power + to, E[i]);
      store(c.m + to, m), store(c.e + to, e);
    }
  }

  template <int V>
  void outside_block(const SpanTreeChart<T>& c, int64_t w, int64_t v) {
    const int64_t at = diagonals.base[w] + v, g = diagonals.g;
    Vec<T> E[V], q[V];
#pragma GCC unroll 4
    for (int i = 0; i < V; ++i) {
      const int64_t to = at + i * kLanes<T>;
      const Vec<T> S = load(c.split + to), m = load(c.m + to);
      E[i] = load(c.power + to);
      q[i] = m > T(0) ? load(p_.data + to) / S : Vec<T>{};
    }
    for (int64_t u = 1; u < w; ++u) {
      const int64_t left = diagonals.base[u] + v, right = diagonals.base[w - u] + u * g + v;
      Vec<T> part[V];
#pragma GCC unroll 4
      for (int i = 0; i < V; ++i) {
        const int64_t lo = left + i * kLanes<T>, hi = right + i * kLanes<T>;
        const Vec<T> term = scale2(load(c.m + lo) * load(c.m + hi), load(c.e + lo) + load(c.e + hi) - E[i]);
        part[i] = q[i] * term;
      }
      // The left children first, all of them: where both children have the same width they overlap.
      add<V>(p_.data + left, part), add<V>(p_.data + right, part);
    }
  }
  template <int V>
  static void add(T* to, const Vec<T>* part) {
#pragma GCC unroll 4
    for (int i = 0; i < V; ++i) store(to + i * kLanes<T>, load(to + i * kLanes<T>) + part[i]);
  }

  void write(const SpanTreeChart<T>& c, int64_t r, T* d) {
    const int64_t n = trees_.length(rows_[r]), N = trees_.N, L = trees_.L;
    if (n) shares(r, 0, n);
    for (int64_t i = 0; i < n; ++i) {
      T* out = d + i * N * L;
      std::fill_n(out, i * L, T(0));
      std::fill_n(out + n * L, (N - n) * L, T(0));
      const int64_t cells = n - i;
      const T K = c.shift[diagonals.at(1, i, r)];
      bool even = !kept_ || even_[r * diagonals.n + i];
      for (int64_t j = 0; !kept_ && j < cells && even; ++j) even = c.shift[diagonals.at(j + 1, i, r)] == K;
      if (i + 1 < n) shares(r, i + 1, n);
      if (!even || LabelSums<T>::wide(K)) careful_row(c, r, i, cells, out + i * L);
      else quick_row(r, i, cells, K, out + i * L);
    }
    std::fill_n(d + n * N * L, (N - n) * N * L, T(0));
  }

  // The shares of a row side by side, one row ahead of their use, for the reason given in `inside`.
  void shares(int64_t r, int64_t i, int64_t n) {
    share_[i & 1].resize(n + kSlack);
    for (int64_t j = 0; j < n - i; ++j) share_[i & 1].data[j] = p_.data[diagonals.at(j + 1, i, r)];
  }

  void careful_row(const SpanTreeChart<T>& c, int64_t r, int64_t i, int64_t cells, T* out) {
    const int64_t L = trees_.L;
    for (int64_t j = 0; j < cells; ++j, out += L) {
      const int64_t at = diagonals.at(j + 1, i, r);
      labels_.each(trees_.row(rows_[r], i) + j * L, c.shift[at], [&](int64_t l, Vec<T> x) { store_row(out, l, L, x > T(0) ? x * p_.data[at] : Vec<T>{}); });
    }
  }

  // All spans of the row share K, so exponentials fill whole vectors across spans; `out` has them if inside kept them.
  void quick_row(int64_t r, int64_t i, int64_t cells, T K, T* out) {
    const int64_t L = trees_.L, size = cells * L;
    const T *x = trees_.row(rows_[r], i), *share = share_[i & 1].data;
    const auto put = [&](int64_t l, Vec<T> scale) {
      const Vec<T> p = kept_ ? load_row(out, l, size, T(0)) : exp_below<T>(load_row(x, l, size, kNegInf<T>), K);
      store_row(out, l, size, p * scale);
    };
#if defined(__AVX512F__)
    // Lane k of a vector that begins with label o of a span belongs to the (o + k) / L -th span from there.
    if (L <= 1024) {
      Vec<T> iota;
      for (int k = 0; k < kLanes<T>; ++k) iota[k] = T(k) + T(0.5);
      const T inverse = T(1) / T(L);
      const int64_t spans = kLanes<T> / L, labels = kLanes<T> % L;
      for (int64_t l = 0, o = 0; l < size; l += kLanes<T>) {
        put(l, look_up(share, __builtin_convertvector((iota + T(o)) * inverse, IVec<T>)));
        share += spans, o += labels;
        if (o >= L) o -= L, ++share;
      }
      return;
    }
#endif
    labels_.buffer[0].resize(size + kSlack + L);
    T* scale = labels_.buffer[0].data;
    for (int64_t j = 0; j < cells; ++j)
      for (int64_t l = 0; l < L; l += kLanes<T>) store(scale + j * L + l, splat<T>(share[j]));
    for (int64_t l = 0; l < size; l += kLanes<T>) put(l, load(scale + l));
  }

  const SpanTree<T>& trees_;
  const int64_t* rows_ = nullptr;
  bool kept_ = false;
  LabelSums<T> labels_;
  std::vector<char> even_;  // whether row i of sentence r may be a quick one, if the exponentials are kept
  std::vector<T> highest_;  // of every sentence the largest K
  Buffer<T> p_, share_[2];
};

}  // namespace sl
