// Scores of given trees and their gradients: look-ups and counts, limited by reading the (N, N) labels
// and by writing the dense gradient once.
#include "careful.h"
#include "pages.h"
#include "span_tree.h"

namespace sl {
namespace {

// Walks the spans of the tree whose labels are y (N, N) over n words: f(i, j, label). Returns -1, or
// the place i N + j of a span that has no label in 0..L-1, or N N + i N + j of a span without a cut
// into two labelled ones, or 2 N N + the place of a labelled span that no cut leads to.
template <class F>
int64_t walk(const int64_t* y, int64_t n, int64_t N, int64_t L, std::vector<std::pair<int64_t, int64_t>>& stack, F&& f) {
  if (n == 0) return -1;
  int64_t labelled = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i; j < n; ++j) labelled += y[i * N + j] != kPadLabel;
  stack.assign(1, {0, n - 1});
  while (!stack.empty()) {
    const auto [i, j] = stack.back();
    stack.pop_back();
    const int64_t label = y[i * N + j];
    if (uint64_t(label) >= uint64_t(L)) return i * N + j;
    f(i, j, label);
    --labelled;
    if (i == j) continue;
    int64_t k = i;
    while (k < j && (y[i * N + k] == kPadLabel || y[(k + 1) * N + j] == kPadLabel)) ++k;
    if (k == j) return N * N + i * N + j;
    stack.push_back({k + 1, j});
    stack.push_back({i, k});
  }
  return labelled ? 2 * N * N : -1;
}

// Returns -1, or what walk found in tree number k B + b, plus 3 N N times that number.
template <class T>
int64_t score(const SpanTreeArgs* args, const int64_t* labels, int64_t K, T* out) {
  const SpanTree<T> trees(*args);
  std::vector<std::pair<int64_t, int64_t>> stack;
  for (int64_t at = 0; at < K * trees.B; ++at) {
    const int64_t b = at % trees.B, N = trees.N;
    Total<T> sum = 0;
    const int64_t wrong = walk(labels + at * N * N, trees.length(b), N, trees.L, stack, [&](int64_t i, int64_t j, int64_t l) { sum += trees.row(b, i)[(j - i) * trees.L + l]; });
    if (wrong >= 0) return at * 3 * N * N + wrong;
    out[at] = saturated<T>(sum);
  }
  return -1;
}

// Trees without a label on the whole sentence (no feasible output) contribute nothing.
template <class T>
int64_t score_backward(const SpanTreeArgs* args, const int64_t* labels, int64_t K, const T* grad, T* d_spans) {
  on_large_pages(d_spans, args->B * args->N * args->N * args->L);
  const SpanTree<T> trees(*args);
  const int64_t B = trees.B, N = trees.N, L = trees.L;
  trees.for_groups([&](int64_t, const int64_t* rows, int64_t count) {
    std::vector<std::pair<int64_t, int64_t>> stack;
    for (int64_t r = 0; r < count; ++r) {
      T* d = d_spans + rows[r] * N * N * L;
      std::fill_n(d, N * N * L, T(0));
      for (int64_t k = 0; k < K; ++k) {
        const T g = grad[k * B + rows[r]];
        walk(labels + (k * B + rows[r]) * N * N, trees.length(rows[r]), N, L, stack, [&](int64_t i, int64_t j, int64_t l) { d[(i * N + j) * L + l] += g; });
      }
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SCORE(suffix, T)                                                                                               \
  extern "C" int64_t sl_span_tree_score_##suffix(const sl::SpanTreeArgs* a, const int64_t* labels, int64_t K, T* out) { \
    return sl::score<T>(a, labels, K, out);                                                                            \
  }                                                                                                                    \
  extern "C" int64_t sl_span_tree_score_backward_##suffix(const sl::SpanTreeArgs* a, const int64_t* labels, int64_t K,  \
                                                          const T* grad, T* d_spans) {                                 \
    return sl::score_backward<T>(a, labels, K, grad, d_spans);                                                         \
  }
SCORE(f32, float)
SCORE(f64, double)
