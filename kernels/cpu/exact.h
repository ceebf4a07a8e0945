// Sums of scores in double precision that neither overflow nor lose what the scores' type can show.
//
// Scores are added in units of kUnit: float scores as they are, double ones scaled by a power of two, which is exact,
// so that sums of any of them are finite. An infinite sum then means one thing: a part that is -inf.
#pragma once
#include <limits>

#include "simd.h"

namespace sl {

template <class T>
constexpr double kUnit = sizeof(T) == 4 ? 1.0 : 0x1p-40;

template <class T>
inline double in_units(T x) {
  return double(x) * kUnit<T>;
}

// A finite x beyond the range of T becomes T's largest or smallest number; infinite ones stay.
template <class T>
inline T saturated(double x) {
  constexpr double most = std::numeric_limits<T>::max();
  if (std::isinf(x)) return T(x);
  return T(x > most ? most : x < -most ? -most : x);
}
template <class T>
inline T from_units(double x) {
  constexpr double most = double(std::numeric_limits<T>::max()) * kUnit<T>;
  if (std::isinf(x)) return T(x);
  return T((x > most ? most : x < -most ? -most : x) / kUnit<T>);
}

// a + b as the nearest number and the rest, exactly; the rest is NaN where the sum is infinite.
template <class V>
inline V sum_and_rest(V a, V b, V* rest) {
  const V sum = a + b, added = sum - a;
  *rest = (a - (sum - added)) + (b - added);
  return sum;
}

}  // namespace sl
