// Maxima and sums over the labels of every span.
#pragma once
#include "rows.h"

namespace sl {

// out(j, max_l x[j][l]) for `cells` rows of L labels.
template <class T, class F>
inline void label_max(const T* x, int64_t cells, int64_t L, F&& out) {
  if (L == 1) {
    for (int64_t j = 0; j < cells; ++j) out(j, x[j]);
    return;
  }
  for (int64_t j = 0; j < cells; ++j, x += L) {
    Vec<T> top = load_row(x, 0, L, kNegInf<T>);
    for (int64_t l = kLanes<T>; l < L; l += kLanes<T>) top = vmax(load_row(x, l, L, kNegInf<T>), top);
    out(j, hmax(top));
  }
}

#if defined(__AVX2__)
// Eight numbers whose maximum is that of the L labels at x. Loads that overlap need no mask; Vectors of eight lanes
// cover the labels, 0: any number.
template <int Vectors>
inline __m256 fold_labels(const float* x, int64_t L, __m256i first) {
  if constexpr (Vectors == 1) return _mm256_blendv_ps(_mm256_set1_ps(kNegInf<float>), _mm256_maskload_ps(x, first), _mm256_castsi256_ps(first));
  __m256 top = _mm256_max_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + L - 8));
  if constexpr (Vectors == 4) return _mm256_max_ps(top, _mm256_max_ps(_mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + L - 16)));
  for (int64_t l = 8; Vectors == 0 && l < L - 8; l += 8) top = _mm256_max_ps(_mm256_loadu_ps(x + l), top);
  return top;
}

// Lane k of the result is op over the lanes of v[k].
template <class Op>
inline __m256 reduce_each(const __m256* v, Op&& op) {
  __m256 half[2];
#pragma GCC unroll 2
  for (int k = 0; k < 2; ++k) {
    const __m256* four = v + 4 * k;
    const __m256d a = _mm256_castps_pd(op(_mm256_unpacklo_ps(four[0], four[1]), _mm256_unpackhi_ps(four[0], four[1])));
    const __m256d b = _mm256_castps_pd(op(_mm256_unpacklo_ps(four[2], four[3]), _mm256_unpackhi_ps(four[2], four[3])));
    half[k] = op(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  }
  return op(_mm256_permute2f128_ps(half[0], half[1], 0x20), _mm256_permute2f128_ps(half[0], half[1], 0x31));
}
inline __m256 hmax_each(const __m256* v) {
  return reduce_each(v, [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); });
}
inline __m256 hsum_each(const __m256* v) {
  return reduce_each(v, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
}

// The first n lanes, n <= 8.
inline __m256i first_lanes(int64_t n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }

// out(j, maxima of x[0..G-1][j][l] over l, true) for `cells` rows of L labels and G = 8 sentences, or for two rows of
// G = 4 one behind the other, false where there is no second one.
template <int G, int Vectors, class F>
inline void label_max_of(const float* const* x, int64_t cells, int64_t L, F&& out) {
  const __m256i first = first_lanes(std::min<int64_t>(L, 8));
  for (int64_t j = 0; j < cells; j += 8 / G) {
    const int64_t next = (G == 8 || j + 1 < cells ? j + 1 : j) * L;
    __m256 top[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) top[r] = fold_labels<Vectors>(x[r % G] + (r < G ? j * L : next), L, first);
    out(j, hmax_each(top), j + 1 < cells);
  }
}
template <int G, class F>
inline void label_max_of(const float* const* x, int64_t cells, int64_t L, F&& out) {
  if (L < 8) label_max_of<G, 1>(x, cells, L, out);
  else if (L <= 16) label_max_of<G, 2>(x, cells, L, out);
  else if (L <= 32) label_max_of<G, 4>(x, cells, L, out);
  else label_max_of<G, 0>(x, cells, L, out);
}

// sums[j] = sum_l x[j][l] for `cells` rows of L labels, up to the next multiple of eight rows, whose sums mean nothing.
inline void label_sums(const float* x, int64_t cells, int64_t L, float* sums) {
  const int64_t whole = (L - 1) / 8 * 8;
  const __m256i rest = first_lanes(L - whole);
  for (int64_t j0 = 0; j0 < cells; j0 += 8) {
    __m256 total[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const float* row = x + std::min(j0 + j, cells - 1) * L;
      total[j] = _mm256_maskload_ps(row + whole, rest);
      for (int64_t l = 0; l < whole; l += 8) total[j] = _mm256_add_ps(total[j], _mm256_loadu_ps(row + l));
    }
    _mm256_storeu_ps(sums + j0, hsum_each(total));
  }
}
#endif
template <class T>
inline void label_sums(const T* x, int64_t cells, int64_t L, T* sums) {
  for (int64_t j = 0; j < cells; ++j, x += L) {
    Vec<T> total = load_row(x, 0, L, T(0));
    for (int64_t l = kLanes<T>; l < L; l += kLanes<T>) total += load_row(x, l, L, T(0));
    sums[j] = hsum(total);
  }
}

}  // namespace sl
