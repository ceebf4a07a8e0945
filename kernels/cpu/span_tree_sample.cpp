// Draws from p(y): the inside pass once a sentence, then for every draw from the whole sentence down
//   P(k | i, j) = I[i][k] I[k+1][j] / S[i][j],   P(l | i, j) ~ exp(spans[i][j][l])
// by inverse CDF: the lowest k or l whose cumulative probability exceeds the given uniform number.
// The t-th span of a tree in preorder uses the t-th pair of numbers: label, split.
#include "span_tree_log.h"

namespace sl {
namespace {

template <class T>
int64_t sample(const SpanTreeArgs* args, const T* uniform, int64_t S, int64_t* labels) {
  const SpanTree<T> trees(*args);
  const int64_t B = trees.B, N = trees.N;
  trees.for_groups([&](int64_t, const int64_t* rows, int64_t count) {
    SpanTreeLog<T, Along::kNothing> run(trees);
    std::vector<std::pair<int64_t, int64_t>> stack;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t b = rows[r], n = trees.length(b);
      run.inside(b);
      for (int64_t s = 0; s < S; ++s) {
        int64_t* y = labels + (s * B + b) * N * N;
        const T* u = uniform + (s * B + b) * (2 * N - 1) * 2;
        std::fill_n(y, N * N, kPadLabel);
        if (n && run.feasible) stack.assign(1, {0, n - 1});
        for (; !stack.empty(); u += 2) {
          const auto [i, j] = stack.back();
          stack.pop_back();
          y[i * N + j] = run.draw_label(i, j, u[0]);
          if (i == j) continue;
          const int64_t k = i + run.draw_split(i, j, u[1]);
          stack.push_back({k, j});
          stack.push_back({i, k - 1});
        }
      }
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_span_tree_sample_f32(const sl::SpanTreeArgs* a, const float* uniform, int64_t S, int64_t* labels) { return sl::sample(a, uniform, S, labels); }
int64_t sl_span_tree_sample_f64(const sl::SpanTreeArgs* a, const double* uniform, int64_t S, int64_t* labels) { return sl::sample(a, uniform, S, labels); }
}
