// Best tree of each sentence:
//   a[i][j] = max_l spans[i][j][l] + max_k (a[i][k] + a[k+1][j]).
// Here, for long sentences and groups of few, only the maximum is kept; split and label are looked for
// again along the best tree, from the same two addends, which gives the lowest of equals. Limited by
// reading the potentials once (L > 3) and by two loads a split. Others go to span_tree_max_lanes.h.
#include <atomic>

#include "span_tree_kbest.h"
#include "span_tree_labels.h"
#include "span_tree_max_lanes.h"

namespace sl {
namespace {

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
      if (is_doubtful(best, trees_, rows[r])) {
        without += !kbest_in_double(trees_, rows[r], 1, labels_, scores_);
        continue;
      }
      if (end && best > kNegInf<T>) read(rows[r], r, end, y);
      without += best == kNegInf<T>;
    }
    return without;
  }

 private:
  // a = max_l of every span. What stands past a sentence's end takes no part in its tree.
  void label_maxima(T* a, const int64_t* rows) const {
    const int64_t g = diagonals_.g, L = trees_.L;
#if defined(__AVX2__)
    if constexpr (sizeof(T) == 4)
      if (g == 4) {
        for (int64_t i = 0, n = diagonals_.n; i < n; ++i) {
          const float* x[4];
          for (int r = 0; r < 4; ++r) x[r] = trees_.row(rows[r], i);
          const auto put = [&](int64_t j, __m256 top, bool both) {
            _mm_storeu_ps(a + diagonals_.at(j + 1, i, 0), _mm256_castps256_ps128(top));
            if (both) _mm_storeu_ps(a + diagonals_.at(j + 2, i, 0), _mm256_extractf128_ps(top, 1));
          };
          label_max_of<4>(x, n - i, L, put);
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

// Units of work, about eighty a nanosecond here: below the first another thread brings nothing even if it is awake, below
// the second waking it costs more than it saves. 16 sentences of 20 words with 30 labels took 8.6 us, shared with an
// alert worker 4.9.
constexpr double kAlone = 5e5, kWaking = 5e6;

// Best trees and, unless null, their scores; how many sentences have no tree.
template <class T>
int64_t best(const SpanTreeArgs* args, int64_t* labels, T* scores) {
  using Lanes = BestTreesByLanes<T>;
  const SpanTree<T> trees(*args);
  const int64_t B = args->B, N = args->N, G = Lanes::G;
  // Groups by lanes, the last with idle lanes unless these cost more than they save: with 10 to 40 words three sentences
  // of eight were as fast either way, with 64 five.
  const int64_t wide = N <= Lanes::kLongest ? (B + (N <= 40 ? 5 * G / 8 : 3 * G / 8)) / G : 0;
  const int64_t rest = std::max<int64_t>(0, B - wide * G), narrow = (rest + args->group - 1) / args->group;
  std::atomic<int64_t> without{0};
  auto run = [&](int64_t k, int) {
    const bool by_lanes = k < wide;
    const int64_t most = by_lanes ? G : args->group, begin = by_lanes ? k * G : wide * G + (k - wide) * most, count = std::min(most, B - begin);
    const int64_t* rows = trees.order.data() + begin;
    without += by_lanes ? Lanes(trees, labels, scores).group(rows, count) : BestTrees<T>(trees, labels, scores).group(rows, count);
  };
  parallel_for(wide + narrow, trees.workers(kAlone), run, trees.work < kWaking);
  return without;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_span_tree_best_f32(const sl::SpanTreeArgs* a, int64_t* labels, float* scores) { return sl::best(a, labels, scores); }
int64_t sl_span_tree_best_f64(const sl::SpanTreeArgs* a, int64_t* labels, double* scores) { return sl::best(a, labels, scores); }
}
