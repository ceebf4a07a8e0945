// One sentence of a batch of span trees in double, as a batch of one.
#pragma once
#include <optional>

#include "careful.h"
#include "span_tree.h"

namespace sl {

// The largest finite potential of sentence b in size.
template <class T>
inline T largest_potential(const SpanTree<T>& trees, int64_t b) {
  T most = 0;
  for (int64_t i = 0, n = trees.length(b); i < n; ++i) most = std::max(most, largest_finite(trees.row(b, i), (n - i) * trees.L));
  return most;
}

// Whether sentence b's best score, as found in T, may be wrong: out of range, rounded hard, or -inf because sums left the
// range.
template <class T>
bool is_doubtful(T score, const SpanTree<T>& trees, int64_t b) {
  if (is_moderate(score)) return false;
  return score != kNegInf<T> || may_overflow(largest_potential(trees, b), 2 * trees.length(b));
}

class CarefulTrees {
 public:
  double unit = 1;  // potentials are what stands here times this

  template <class T>
  void set(const SpanTree<T>& of, int64_t b) {
    const int64_t n = length_ = of.length(b), N = of.N, L = of.L;
    unit = sizeof(T) == 8 ? unit_of(largest_potential(of, b), 2 * n) : 1.0;
    const double share = 1 / unit;
    spans_.resize(N * N * L);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t k = 0; k < (n - i) * L; ++k) spans_[(i * N + i) * L + k] = double(of.row(b, i)[k]) * share;
    args_ = {spans_.data(), &length_, 1, N, L, N * N * L, N * L, 1, 1};
    trees_.emplace(args_);
  }
  const SpanTree<double>& trees() const { return *trees_; }

 private:
  int64_t length_ = 0;
  SpanTreeArgs args_{};
  std::optional<SpanTree<double>> trees_;
  std::vector<double> spans_;
};

}  // namespace sl
