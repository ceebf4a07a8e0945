// Best tree of each sentence:
//   a[i][j] = max_l spans[i][j][l] + max_k (a[i][k] + a[k+1][j]).
// Only the maximum is kept; split and label are looked for again along the best tree, from the same
// two addends, which gives the lowest of equals. Limited by reading the potentials once (L > 3) and
// by two loads a split.
#include <atomic>

#include "span_tree.h"

namespace sl {
namespace {

// out(j, max_l x[j][l]) for `cells` rows of L labels.
template <class T, class F>
inline void label_max(const T* x, int64_t cells, int64_t L, F&& out) {
  if (L == 1) {
    for (int64_t j = 0; j < cells; ++j) out(j, x[j]);
    return;
  }
  for (int64_t j = 0; j < cells; ++j, x += L) {
    Vec<T> top = load_row(x, 0, L, kNegInf<T>);
    for (int64_t l = kLanes<T>; l < L; l += kLanes<T>) top = vmax(load_row(x, l, L, kNegInf<T>), top);
    out(j, hmax(top));
  }
}

#if defined(__AVX512F__)
// Lane k of the result is the maximum of v[k]: sixteen in one tree of 30 shuffles and 15 maxima.
inline Vec<float> hmax_each(const Vec<float>* v) {
  Vec<float> quarter[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    Vec<float> half[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512 a = (__m512)v[4 * k + 2 * h], b = (__m512)v[4 * k + 2 * h + 1];
      half[h] = vmax((Vec<float>)_mm512_unpacklo_ps(a, b), (Vec<float>)_mm512_unpackhi_ps(a, b));
    }
    const __m512d a = (__m512d)half[0], b = (__m512d)half[1];
    quarter[k] = vmax((Vec<float>)_mm512_unpacklo_pd(a, b), (Vec<float>)_mm512_unpackhi_pd(a, b));
  }
  const auto parts = [](Vec<float> a, Vec<float> b) {
    return vmax((Vec<float>)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x88), (Vec<float>)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xdd));
  };
  return parts(parts(quarter[0], quarter[1]), parts(quarter[2], quarter[3]));
}

// out(j, maxima of x[0..3][j][l] over l) for `cells` rows of L labels, four of them and four sentences at a time; labels
// in Vectors vectors, 0: any number.
template <int Vectors, class F>
inline void label_max_of_4(const float* const* x, int64_t cells, int64_t L, F&& out) {
  constexpr int64_t kWhole = (Vectors ? Vectors - 1 : 0) * 16;
  for (int64_t j0 = 0; j0 < cells; j0 += 4) {
    const int64_t count = std::min<int64_t>(4, cells - j0);
    Vec<float> top[16];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int64_t at = (j0 + std::min<int64_t>(j, count - 1)) * L;
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const float* labels = x[r] + at;
        Vec<float> most = load_row(labels, kWhole, L, kNegInf<float>);
        if (Vectors == 2) most = vmax(load(labels), most);
        for (int64_t l = 16; Vectors == 0 && l < L; l += 16) most = vmax(load_row(labels, l, L, kNegInf<float>), most);
        top[4 * j + r] = most;
      }
    }
    const __m512 found = (__m512)hmax_each(top);
    out(j0, _mm512_extractf32x4_ps(found, 0));
    if (count > 1) out(j0 + 1, _mm512_extractf32x4_ps(found, 1));
    if (count > 2) out(j0 + 2, _mm512_extractf32x4_ps(found, 2));
    if (count > 3) out(j0 + 3, _mm512_extractf32x4_ps(found, 3));
  }
}
#endif

template <class T>
class BestTrees {
 public:
  BestTrees(const SpanTree<T>& trees, int64_t* labels, T* scores) : trees_(trees), labels_(labels), scores_(scores) {}

  // How many of these sentences have no tree.
  int64_t group(const int64_t* rows, int64_t count) {
    const int64_t n = trees_.length(rows[0]), N = trees_.N;
    diagonals_.set(n, count);
    chart_.resize(diagonals_.size());
    T* a = chart_.data;
    std::fill_n(a, diagonals_.size(), kNegInf<T>);
    label_maxima(a, rows);
    for (int64_t w = 2; w <= n; ++w) diagonal(a, w);
    int64_t without = 0;
    for (int64_t r = 0; r < count; ++r) {
      int64_t* y = labels_ + rows[r] * N * N;
      std::fill_n(y, N * N, kPadLabel);
      const int64_t end = trees_.length(rows[r]);
      const T best = end ? a[diagonals_.at(end, 0, r)] : T(0);
      if (scores_) scores_[rows[r]] = best;
      if (end && best > kNegInf<T>) read(rows[r], r, end, y);
      without += best == kNegInf<T>;
    }
    return without;
  }

 private:
  // a = max_l of every span. What stands past a sentence's end takes no part in its tree.
  void label_maxima(T* a, const int64_t* rows) const {
    const int64_t n = diagonals_.n, g = diagonals_.g, L = trees_.L;
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
      if (g == 4) {
        for (int64_t i = 0; i < n; ++i) {
          const float* x[4];
          for (int r = 0; r < 4; ++r) x[r] = trees_.row(rows[r], i);
          const auto put = [&](int64_t j, __m128 top) { _mm_storeu_ps(a + diagonals_.at(j + 1, i, 0), top); };
          if (L <= 16) label_max_of_4<1>(x, n - i, L, put);
          else if (L <= 32) label_max_of_4<2>(x, n - i, L, put);
          else label_max_of_4<0>(x, n - i, L, put);
        }
        return;
      }
#endif
    for (int64_t r = 0; r < g; ++r)
      for (int64_t i = 0, end = trees_.length(rows[r]); i < end; ++i)
        label_max(trees_.row(rows[r], i), end - i, L, [&](int64_t j, T x) { a[diagonals_.at(j + 1, i, r)] = x; });
  }

  void diagonal(T* a, int64_t w) const {
    const int64_t g = diagonals_.g;
    T* out = a + diagonals_.base[w];
    for_lanes<T>(diagonals_.length(w), [&](int64_t v, auto vectors) {
      constexpr int V = vectors;
      Vec<T> top[V];
#pragma GCC unroll 4
      for (int i = 0; i < V; ++i) top[i] = splat<T>(kNegInf<T>);
      for (int64_t u = 1; u < w; ++u) {
        const T *left = a + diagonals_.base[u] + v, *right = a + diagonals_.base[w - u] + u * g + v;
#pragma GCC unroll 4
        for (int i = 0; i < V; ++i) top[i] = vmax(load(left + i * kLanes<T>) + load(right + i * kLanes<T>), top[i]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < V; ++i) store(out + v + i * kLanes<T>, top[i] + load(out + v + i * kLanes<T>));
    });
  }

  // First all spans of the tree, each behind its parent, then their labels: none of these waits for another.
  void read(int64_t b, int64_t r, int64_t n, int64_t* y) {
    const T* a = chart_.data + r;
    const int64_t* base = diagonals_.base.data();
    const int64_t g = diagonals_.g, L = trees_.L;
    spans_.resize(2 * n - 1);
    spans_[0] = {0, n};
    int64_t found = 1;
    for (int64_t k = 0; k < found; ++k) {
      const auto [i, w] = spans_[k];
      if (w == 1) continue;
      T best = kNegInf<T>;
      int64_t split = 1;
      const T* const left = a + i * g;
      for (int64_t u = 1; u < w; ++u) {
        const T here = left[base[u]] + left[base[w - u] + u * g];
        // Without a branch: which split is the better one cannot be foretold.
        const bool better = here > best;
        best = better ? here : best, split += (u - split) & -int64_t(better);
      }
      spans_[found++] = {i, split};
      spans_[found++] = {i + split, w - split};
    }
    for (const auto [i, w] : spans_) y[i * trees_.N + i + w - 1] = argmax_row(trees_.row(b, i) + (w - 1) * L, L);
  }

  const SpanTree<T>& trees_;
  int64_t* labels_;
  T* scores_;
  Diagonals diagonals_;
  Buffer<T> chart_;
  struct Span {
    int64_t first, words;
  };
  std::vector<Span> spans_;
};

// Best trees and, unless null, their scores; how many sentences have no tree.
template <class T>
int64_t best(const SpanTreeArgs* args, int64_t* labels, T* scores) {
  const SpanTree<T> trees(*args);
  std::atomic<int64_t> without{0};
  trees.for_groups([&](int64_t, const int64_t* rows, int64_t count) { without += BestTrees<T>(trees, labels, scores).group(rows, count); });
  return without;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_span_tree_best_f32(const sl::SpanTreeArgs* a, int64_t* labels, float* scores) { return sl::best(a, labels, scores); }
int64_t sl_span_tree_best_f64(const sl::SpanTreeArgs* a, int64_t* labels, double* scores) { return sl::best(a, labels, scores); }
}
