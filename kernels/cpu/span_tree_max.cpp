// Best tree of each sentence:
//   a[i][j] = max_l spans[i][j][l] + max_k (a[i][k] + a[k+1][j]).
// Only the maximum is kept; split and label are looked for again along the best tree, from the same
// two addends, which gives the lowest of equals. Limited by reading the potentials once (L > 3) and
// by two loads a split.
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

template <class T>
class BestTrees {
 public:
  BestTrees(const SpanTree<T>& trees, int64_t* labels, T* scores) : trees_(trees), labels_(labels), scores_(scores) {}

  void group(const int64_t* rows, int64_t count) {
    const int64_t n = trees_.length(rows[0]), N = trees_.N;
    diagonals_.set(n, count);
    chart_.resize(diagonals_.size());
    T* a = chart_.data;
    std::fill_n(a, diagonals_.size(), kNegInf<T>);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t i = 0, end = trees_.length(rows[r]); i < end; ++i)
        label_max(trees_.row(rows[r], i), end - i, trees_.L, [&](int64_t j, T x) { a[diagonals_.at(j + 1, i, r)] = x; });
    for (int64_t w = 2; w <= n; ++w) diagonal(a, w);
    for (int64_t r = 0; r < count; ++r) {
      int64_t* y = labels_ + rows[r] * N * N;
      std::fill_n(y, N * N, kPadLabel);
      const int64_t end = trees_.length(rows[r]);
      const T best = end ? a[diagonals_.at(end, 0, r)] : T(0);
      scores_[rows[r]] = best;
      if (end && best > kNegInf<T>) read(rows[r], r, end, y);
    }
  }

 private:
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

  void read(int64_t b, int64_t r, int64_t n, int64_t* y) {
    const T* a = chart_.data;
    stack_.assign(1, {n, 0});
    while (!stack_.empty()) {
      const auto [w, i] = stack_.back();
      stack_.pop_back();
      const T* x = trees_.row(b, i) + (w - 1) * trees_.L;
      y[i * trees_.N + i + w - 1] = std::max_element(x, x + trees_.L) - x;
      if (w == 1) continue;
      T best = kNegInf<T>;
      int64_t split = 1;
      for (int64_t u = 1; u < w; ++u) {
        const T here = a[diagonals_.at(u, i, r)] + a[diagonals_.at(w - u, i + u, r)];
        if (here > best) best = here, split = u;
      }
      stack_.push_back({w - split, i + split});
      stack_.push_back({split, i});
    }
  }

  const SpanTree<T>& trees_;
  int64_t* labels_;
  T* scores_;
  Diagonals diagonals_;
  Buffer<T> chart_;
  std::vector<std::pair<int64_t, int64_t>> stack_;
};

template <class T>
int64_t best(const SpanTreeArgs* args, int64_t* labels, T* scores) {
  const SpanTree<T> trees(*args);
  trees.for_groups([&](int64_t, const int64_t* rows, int64_t count) { BestTrees<T>(trees, labels, scores).group(rows, count); });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_span_tree_best_f32(const sl::SpanTreeArgs* a, int64_t* labels, float* scores) { return sl::best(a, labels, scores); }
int64_t sl_span_tree_best_f64(const sl::SpanTreeArgs* a, int64_t* labels, double* scores) { return sl::best(a, labels, scores); }
}
