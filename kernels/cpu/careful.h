// What kernels share that do a row of potentials again in double: in units of a power of two where sums of double
// potentials could overflow, which rounds nothing that matters, and with results brought back into their type.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.h"

namespace sl {

// A best score this large has lost digits that double still has, or is about to overflow: it is found again.
template <class T>
constexpr T kHugeScore = sizeof(T) == 4 ? T(1 << 17) : T(1e300);

// False for infinities and NaN, too.
template <class T>
inline bool is_moderate(T score) { return std::abs(score) < kHugeScore<T>; }

// Whether sums of up to `parts` potentials of up to this size may leave the type's range.
template <class T>
inline bool may_overflow(T largest, int64_t parts) { return !(largest < std::numeric_limits<T>::max() / T(4 * parts + 4)); }

// The type's extremes for what lies beyond them: -inf stands for "no output" alone.
template <class T>
inline T saturated(long double x) {
  constexpr T most = std::numeric_limits<T>::max();
  if (x == -std::numeric_limits<long double>::infinity()) return kNegInf<T>;
  return x > most ? most : x < -most ? -most : T(x);
}

// The power of two that potentials of up to this size are divided by, so that sums of `parts` of them stay in range.
inline double unit_of(double largest, int64_t parts) { return may_overflow(largest, parts) ? std::ldexp(1.0, std::ilogb(double(parts)) + 6) : 1.0; }

// The type in which scores of T add up: nothing overflows, and rounding stays below T's.
template <class T>
using Total = std::conditional_t<sizeof(T) == 4, double, long double>;

// The largest size of a finite number among n.
template <class T>
inline T largest_finite(const T* x, int64_t n) {
  Vec<T> most{};
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    const Vec<T> v = load_row(x, i, n, T(0)), size = vmax(v, -v);
    most = size <= std::numeric_limits<T>::max() ? vmax(size, most) : most;
  }
  return hmax(most);
}

// Lanes c.. of a row of `size` numbers in double, 0 past the end.
template <class T>
inline Vec<double> load_double(const T* row, int64_t c, int64_t size) {
  Vec<double> v{};
  for (int i = 0; i < kLanes<double> && c + i < size; ++i) v[i] = double(row[c + i]);
  return v;
}
template <class T>
inline void store_double(T* row, int64_t c, int64_t size, Vec<double> v) {
  for (int i = 0; i < kLanes<double> && c + i < size; ++i) row[c + i] = T(v[i]);
}

// What second derivatives go along: nothing (none are wanted), a direction given in the potentials' shapes, or
// log p itself, part by part, whose mean is minus the entropy: a sum of terms of one sign, however large the scores are.
enum class Along { kNothing, kDirection, kLogProbability };

}  // namespace sl
