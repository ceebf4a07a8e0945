// A square of vectors turned by exchanging halves, without memory in between.
#pragma once
#include <type_traits>

#include "simd.h"

namespace sl {

// Transposes L vectors of L lanes: log2 L rounds, each exchanging halves of pairs.
#if defined(__AVX512F__)
// Within 128-bit quarters first, then between them: shuffles without an index register, which cost one
// operation where the two-source permutations that the general form compiles to cost two.
inline void transpose(Vec<float>* v) {
  __m512 a[16], b[16];
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) {
    a[2 * k] = _mm512_unpacklo_ps((__m512)v[2 * k], (__m512)v[2 * k + 1]);
    a[2 * k + 1] = _mm512_unpackhi_ps((__m512)v[2 * k], (__m512)v[2 * k + 1]);
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m512d lo = (__m512d)a[4 * k], hi = (__m512d)a[4 * k + 1], lo2 = (__m512d)a[4 * k + 2], hi2 = (__m512d)a[4 * k + 3];
    b[4 * k] = (__m512)_mm512_unpacklo_pd(lo, lo2);
    b[4 * k + 1] = (__m512)_mm512_unpackhi_pd(lo, lo2);
    b[4 * k + 2] = (__m512)_mm512_unpacklo_pd(hi, hi2);
    b[4 * k + 3] = (__m512)_mm512_unpackhi_pd(hi, hi2);
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    a[k] = _mm512_shuffle_f32x4(b[k], b[4 + k], 0x88);
    a[4 + k] = _mm512_shuffle_f32x4(b[k], b[4 + k], 0xdd);
    a[8 + k] = _mm512_shuffle_f32x4(b[8 + k], b[12 + k], 0x88);
    a[12 + k] = _mm512_shuffle_f32x4(b[8 + k], b[12 + k], 0xdd);
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    v[k] = (Vec<float>)_mm512_shuffle_f32x4(a[k], a[8 + k], 0x88);
    v[4 + k] = (Vec<float>)_mm512_shuffle_f32x4(a[4 + k], a[12 + k], 0x88);
    v[8 + k] = (Vec<float>)_mm512_shuffle_f32x4(a[k], a[8 + k], 0xdd);
    v[12 + k] = (Vec<float>)_mm512_shuffle_f32x4(a[4 + k], a[12 + k], 0xdd);
  }
}
#endif
template <class V>
inline void transpose(V* v) {
  using T = std::decay_t<decltype(v[0][0])>;
  constexpr int L = kLanes<T>;
#pragma GCC unroll 4
  for (int h = 1; h < L; h *= 2) {
    IVec<T> low, high;
    for (int r = 0; r < L; ++r) {
      low[r] = r & h ? L + r - h : r;
      high[r] = r & h ? L + r : r + h;
    }
#pragma GCC unroll 16
    for (int k = 0; k < L; ++k) {
      if (k & h) continue;
      const Vec<T> a = v[k], b = v[k + h];
      v[k] = __builtin_shuffle(a, b, low);
      v[k + h] = __builtin_shuffle(a, b, high);
    }
  }
}

// to[c][r] = from[r][c] for rows x cols entries, rows `from_step` and `to_step` apart; the rest of the last vectors of
// `to`, which must be writable, is 0.
template <class T>
inline void transpose(int64_t rows, int64_t cols, const T* from, int64_t from_step, T* to, int64_t to_step) {
  constexpr int L = kLanes<T>;
  for (int64_t c = 0; c < cols; c += L)
    for (int64_t r = 0; r < rows; r += L) {
      Vec<T> v[L];
      for (int k = 0; k < L; ++k) v[k] = r + k < rows ? load_row(from + (r + k) * from_step, c, cols, T(0)) : Vec<T>{};
      transpose(v);
      for (int k = 0; k < L && c + k < cols; ++k) store(to + (c + k) * to_step + r, v[k]);
    }
}

}  // namespace sl
