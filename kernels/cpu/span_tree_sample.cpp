// Draws from p(y): the inside pass once a group, then for every draw from the whole sentence down
//   P(k | i, j) = I[i][k] I[k+1][j] / S[i][j],   P(l | i, j) ~ exp(spans[i][j][l])
// by inverse CDF: the lowest k or l whose cumulative probability exceeds the given uniform number.
// The t-th span of a tree in preorder uses the t-th pair of numbers: label, split.
#include "draw.h"
#include "span_tree_sum.h"

namespace sl {
namespace {

template <class T>
class Sampler {
 public:
  explicit Sampler(const SpanTree<T>& trees) : trees_(trees), run_(trees) {}

  void group(const int64_t* rows, int64_t count, const T* uniform, int64_t S, int64_t* labels) {
    const int64_t B = trees_.B, N = trees_.N;
    run_.place(rows, count);
    own_.resize(SpanTreeChart<T>::kArrays * run_.diagonals.size());
    const SpanTreeChart<T> chart(own_.data, run_.diagonals.size());
    run_.inside(chart);
    weight_.resize(std::max(N, trees_.L));
    for (int64_t s = 0; s < S; ++s)
      for (int64_t r = 0; r < count; ++r) {
        int64_t* y = labels + (s * B + rows[r]) * N * N;
        std::fill_n(y, N * N, kPadLabel);
        if (trees_.length(rows[r]) && run_.log_total(chart, r) > kNegInf<T>) draw(chart, rows[r], r, uniform + (s * B + rows[r]) * (2 * N - 1) * 2, y);
      }
  }

 private:
  int64_t pick(int64_t n, T uniform) const { return sl::draw(weight_.data(), n, uniform); }

  void draw(const SpanTreeChart<T>& c, int64_t b, int64_t r, const T* uniform, int64_t* y) {
    const Diagonals& d = run_.diagonals;
    stack_.assign(1, {trees_.length(b), 0});
    while (!stack_.empty()) {
      const auto [w, i] = stack_.back();
      stack_.pop_back();
      const T* x = trees_.row(b, i) + (w - 1) * trees_.L;
      const T top = *std::max_element(x, x + trees_.L);
      for (int64_t l = 0; l < trees_.L; ++l) weight_[l] = std::exp(x[l] - top);
      y[i * trees_.N + i + w - 1] = pick(trees_.L, uniform[0]);
      if (w > 1) {
        const T power = c.power[d.at(w, i, r)];
        for (int64_t u = 1; u < w; ++u) {
          const int64_t left = d.at(u, i, r), right = d.at(w - u, i + u, r);
          const T e = std::max(c.e[left] + c.e[right] - power, T(-2000));
          weight_[u - 1] = std::ldexp(c.m[left] * c.m[right], int(e));
        }
        const int64_t u = 1 + pick(w - 1, uniform[1]);
        stack_.push_back({w - u, i + u});
        stack_.push_back({u, i});
      }
      uniform += 2;
    }
  }

  const SpanTree<T>& trees_;
  InsideOutside<T, false> run_;
  Buffer<T> own_;
  std::vector<T> weight_;
  std::vector<std::pair<int64_t, int64_t>> stack_;
};

template <class T>
int64_t sample(const SpanTreeArgs* args, const T* uniform, int64_t S, int64_t* labels) {
  const SpanTree<T> trees(*args);
  trees.for_groups([&](int64_t, const int64_t* rows, int64_t count) { Sampler<T>(trees).group(rows, count, uniform, S, labels); });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_span_tree_sample_f32(const sl::SpanTreeArgs* a, const float* uniform, int64_t S, int64_t* labels) { return sl::sample(a, uniform, S, labels); }
int64_t sl_span_tree_sample_f64(const sl::SpanTreeArgs* a, const double* uniform, int64_t S, int64_t* labels) { return sl::sample(a, uniform, S, labels); }
}
