// Sums of finite scores that a type cannot hold.
#pragma once
#include <algorithm>
#include <limits>

namespace sl {

// x * unit, which is the largest or the lowest finite number where it is beyond them: -inf stays what is forbidden.
template <class T>
inline T saturated(T x, T unit = T(1)) {
  constexpr T most = std::numeric_limits<T>::max();
  return x < -most ? x : std::clamp(x * unit, -most, most);
}

}  // namespace sl
