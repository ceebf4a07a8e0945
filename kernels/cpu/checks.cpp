// Checks of arguments that would cost more in Python than the work they guard.
#include <cstdint>

// 1 if every one of `count` values lies in 0..most, else 0.
extern "C" int sl_within(const int64_t* values, int64_t count, int64_t most) {
  int64_t outside = 0;
  for (int64_t i = 0; i < count; ++i) outside |= values[i] | (most - values[i]);
  return outside >= 0;
}
