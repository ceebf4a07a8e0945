// One sequence of a semi-Markov batch in double, as a batch of one.
#pragma once
#include <optional>

#include "careful.h"
#include "semimarkov.h"

namespace sl {

// The largest finite potential of row b in size.
template <class T>
inline T largest_potential(const Semi<T>& semi, int64_t b) {
  const int64_t n = semi.length(b), C = semi.C;
  T most = 0;
  for (int64_t t = 0; t < n; ++t) {
    const int64_t widths = semi.widths(t, n), together = semi.args.segments_w == C ? widths : 1;
    for (int64_t w = 0; w < widths; w += together) most = std::max(most, largest_finite(semi.segments(b, t, w), together * C));
  }
  for (int64_t t = 1; t < (semi.shared() ? std::min<int64_t>(n, 2) : n); ++t) most = std::max(most, largest_finite(semi.transition(b, t), C * C));
  return most;
}

// Whether row b's best score, as found in T, may be wrong: out of range, rounded hard, or -inf because sums left the range.
template <class T>
bool is_doubtful(T score, const Semi<T>& semi, int64_t b) {
  if (is_moderate(score)) return false;
  return score != kNegInf<T> || may_overflow(largest_potential(semi, b), 2 * semi.length(b));
}

class CarefulSemi {
 public:
  double unit = 1;  // potentials are what stands here times this

  template <class T>
  void set(const Semi<T>& of, int64_t b) {
    const int64_t n = length_ = of.length(b), W = of.W, C = of.C, steps = std::max<int64_t>(n - 1, 0);
    unit = sizeof(T) == 8 ? unit_of(largest_potential(of, b), 2 * n) : 1.0;
    const double share = 1 / unit;
    segments_.resize(n * W * C), transition_.resize(of.shared() ? C * C : steps * C * C);
    const auto copy = [share](const T* from, int64_t size, double* to) {
      for (int64_t i = 0; i < size; ++i) to[i] = double(from[i]) * share;
    };
    for (int64_t t = 0; t < n; ++t)
      for (int64_t w = 0; w < of.widths(t, n); ++w) copy(of.segments(b, t, w), C, segments_.data() + (t * W + w) * C);
    for (int64_t t = 1; t < (of.shared() ? std::min<int64_t>(n, 2) : n); ++t) copy(of.transition(b, t), C * C, transition_.data() + (t - 1) * C * C);
    args_ = {segments_.data(), transition_.data(), &length_, 1, of.N, W, C, n * W * C, W * C, C, 0, of.shared() ? 0 : C * C, of.shared(), 1};
    semi_.emplace(args_, false);
  }
  const Semi<double>& semi() const { return *semi_; }

 private:
  int64_t length_ = 0;
  SemiArgs args_{};
  std::optional<Semi<double>> semi_;
  std::vector<double> segments_, transition_;
};

}  // namespace sl
