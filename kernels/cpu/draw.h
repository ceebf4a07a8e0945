// Draws by inverse CDF.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "simd.h"

namespace sl {

// The lowest of n indices whose cumulative share of the weights exceeds `uniform`; the last with a weight if rounding
// leaves none.
template <class T>
inline int64_t draw(const T* weight, int64_t n, T uniform) {
  T sum = 0, below = 0;
  for (int64_t i = 0; i < n; ++i) sum += weight[i];
  int64_t last = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (weight[i] == 0) continue;
    last = i;
    below += weight[i];
    if (below > uniform * sum) return i;
  }
  return last;
}

// The same for weights exp(score(i)); `weight` has room for n numbers.
template <class T, class F>
inline int64_t draw_by_score(T* weight, int64_t n, T uniform, F&& score) {
  T top = kNegInf<T>;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, weight[i] = score(i));
  for (int64_t i = 0; i < n; ++i) weight[i] = std::exp(weight[i] - top);
  return draw(weight, n, uniform);
}

}  // namespace sl
