// One sequence a lane instead of one label a lane, for few labels: with C <= 16 a vector of labels is
// mostly padding, and every maximum or sum over labels is a chain of shuffles. Lane i of every vector
// belongs to sequence i of a group and labels are a loop, at the price of a transposition on the way
// in and out.
#pragma once
#include "rows.h"

namespace sl {

constexpr int64_t kMostLaneLabels = 16;

// Whether sequences go by lanes: below half a vector of them, the idle lanes cost more than the padding.
template <class T>
inline bool by_lanes(int64_t sequences, int64_t labels) {
  return labels > 0 && labels <= kMostLaneLabels && sequences * 2 > kLanes<T>;
}

// out[c * lanes + i] = rows[i][c] for c < C; all kLanes rows must be readable.
template <class T>
inline void to_lanes(const T* const* rows, int64_t C, T* out) {
  for (int i = 0; i < kLanes<T>; ++i)
    for (int64_t c = 0; c < C; ++c) out[c * kLanes<T> + i] = rows[i][c];
}

// rows[i][c] = in[c * lanes + i] for c < C; all kLanes rows must be writable.
template <class T>
inline void from_lanes(const T* in, int64_t C, T* const* rows) {
  for (int i = 0; i < kLanes<T>; ++i)
    for (int64_t c = 0; c < C; ++c) rows[i][c] = in[c * kLanes<T> + i];
}

// v[i] = row[index[i]] for a row of kMostLaneLabels entries.
template <class T>
inline Vec<T> look_up(const T* row, IVec<T> index) {
  Vec<T> v;
  for (int i = 0; i < kLanes<T>; ++i) v[i] = row[index[i]];
  return v;
}

// f(std::integral_constant<int, w>, c) for consecutive blocks of w labels starting at c; the sums of a
// block stay in registers together.
constexpr int kLaneBlock = 6;
template <class F>
inline void in_blocks(int64_t C, F&& f) {
  const int64_t blocks = (C + kLaneBlock - 1) / kLaneBlock;
  for (int64_t i = 0, c = 0; i < blocks; ++i) {
    const int64_t width = C / blocks + (i < C % blocks);
    switch (width) {
      case 1: f(std::integral_constant<int, 1>(), c); break;
      case 2: f(std::integral_constant<int, 2>(), c); break;
      case 3: f(std::integral_constant<int, 3>(), c); break;
      case 4: f(std::integral_constant<int, 4>(), c); break;
      case 5: f(std::integral_constant<int, 5>(), c); break;
      default: f(std::integral_constant<int, kLaneBlock>(), c); break;
    }
    c += width;
  }
}

// finish(c, (+)_p a[p] (x) matrix[p][c]) for every label c; a holds C vectors, matrix rows of
// kMostLaneLabels entries.
template <class Op, class T, class F>
inline void lane_step(const T* a, const T* matrix, int64_t C, F&& finish) {
  in_blocks(C, [&](auto width, int64_t c) {
    constexpr int W = decltype(width)::value;
    Vec<T> acc[W];
#pragma GCC unroll 6
    for (int j = 0; j < W; ++j) acc[j] = Op::template zero<T>();
    for (int64_t p = 0; p < C; ++p) {
      const Vec<T> x = load(a + p * kLanes<T>);
#pragma GCC unroll 6
      for (int j = 0; j < W; ++j) acc[j] = Op::template accumulate<T>(acc[j], matrix[p * kMostLaneLabels + c + j], x);
    }
#pragma GCC unroll 6
    for (int j = 0; j < W; ++j) finish(c + j, acc[j]);
  });
}

#if defined(__AVX512F__)
template <>
inline Vec<float> look_up(const float* row, IVec<float> index) {
  return (Vec<float>)_mm512_permutexvar_ps((__m512i)index, _mm512_loadu_ps(row));
}
template <>
inline Vec<double> look_up(const double* row, IVec<double> index) {
  return (Vec<double>)_mm512_permutex2var_pd(_mm512_loadu_pd(row), (__m512i)index, _mm512_loadu_pd(row + 8));
}

// The 4 x 4 blocks in the 128-bit parts of four vectors, transposed.
inline void transpose_blocks(__m512 v[4]) {
  const __m512 a = _mm512_unpacklo_ps(v[0], v[1]), b = _mm512_unpackhi_ps(v[0], v[1]);
  const __m512 c = _mm512_unpacklo_ps(v[2], v[3]), d = _mm512_unpackhi_ps(v[2], v[3]);
  const auto low = [](__m512 x, __m512 y) { return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y))); };
  const auto high = [](__m512 x, __m512 y) { return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y))); };
  v[0] = low(a, c), v[1] = high(a, c), v[2] = low(b, d), v[3] = high(b, d);
}

template <>
inline void to_lanes(const float* const* rows, int64_t C, float* out) {
  for (int64_t c = 0; c < C; c += 4) {
    const int64_t n = C - c < 4 ? C - c : 4;
    const __mmask8 part = __mmask8((1u << n) - 1);
    __m512 v[4];
    for (int r = 0; r < 4; ++r) {
      const auto quarter = [&](int k) { return n == 4 ? _mm_loadu_ps(rows[4 * k + r] + c) : _mm_maskz_loadu_ps(part, rows[4 * k + r] + c); };
      const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(quarter(0)), quarter(1), 1);
      const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(quarter(2)), quarter(3), 1);
      v[r] = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
    }
    transpose_blocks(v);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      if (j < n) _mm512_storeu_ps(out + (c + j) * 16, v[j]);
  }
}

template <>
inline void from_lanes(const float* in, int64_t C, float* const* rows) {
  for (int64_t c = 0; c < C; c += 4) {
    const int64_t n = C - c < 4 ? C - c : 4;
    const __mmask8 part = __mmask8((1u << n) - 1);
    __m512 v[4] = {};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      if (j < n) v[j] = _mm512_loadu_ps(in + (c + j) * 16);
    transpose_blocks(v);
    for (int r = 0; r < 4; ++r) {
      const auto put = [&](int k, __m128 x) { n == 4 ? _mm_storeu_ps(rows[4 * k + r] + c, x) : _mm_mask_storeu_ps(rows[4 * k + r] + c, part, x); };
      put(0, _mm512_extractf32x4_ps(v[r], 0)), put(1, _mm512_extractf32x4_ps(v[r], 1));
      put(2, _mm512_extractf32x4_ps(v[r], 2)), put(3, _mm512_extractf32x4_ps(v[r], 3));
    }
  }
}
#endif

}  // namespace sl
