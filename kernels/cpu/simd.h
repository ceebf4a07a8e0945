// One vector type per instruction set, the few operations the recurrences need, and exp.
//
// The library is built once per instruction set (see CMakeLists.txt), so this header picks its width
// at compile time and the loader (structlearn/ops/_library.py) picks the file at run time. Arithmetic uses the compiler's vector extension; intrinsics appear only where the
// extension has no word for the operation: max/min with a fixed operand order and partial loads.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sl {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

template <class T>
struct VecOf;
template <>
struct VecOf<float> {
  typedef float V __attribute__((vector_size(kBytes)));
  typedef float U __attribute__((vector_size(kBytes), aligned(4), may_alias));
  typedef int32_t I __attribute__((vector_size(kBytes)));
  typedef double D __attribute__((vector_size(2 * kBytes)));
};
template <>
struct VecOf<double> {
  typedef double V __attribute__((vector_size(kBytes)));
  typedef double U __attribute__((vector_size(kBytes), aligned(8), may_alias));
  typedef int64_t I __attribute__((vector_size(kBytes)));
  typedef double D __attribute__((vector_size(kBytes)));
};
template <class T>
using Vec = typename VecOf<T>::V;
template <class T>
using IVec = typename VecOf<T>::I;
template <class T>
using DoubleVec = typename VecOf<T>::D;  // the lanes of a Vec<T> in double precision
template <class T>
constexpr int kLanes = kBytes / int(sizeof(T));
template <class T>
constexpr T kNegInf = -std::numeric_limits<T>::infinity();

template <class T>
constexpr int64_t padded(int64_t n) {
  return (n + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

template <class T>
inline Vec<T> splat(T x) {
  return x - Vec<T>{};
}
template <class T>
inline Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename VecOf<T>::U*>(p);
}
template <class T>
inline void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename VecOf<T>::U*>(p) = v;
}

// max(a, b) returns b where either operand is NaN, on every instruction set.
#if defined(__AVX512F__)
inline Vec<float> vmax(Vec<float> a, Vec<float> b) { return (Vec<float>)_mm512_max_ps((__m512)a, (__m512)b); }
inline Vec<float> vmin(Vec<float> a, Vec<float> b) { return (Vec<float>)_mm512_min_ps((__m512)a, (__m512)b); }
inline Vec<double> vmax(Vec<double> a, Vec<double> b) { return (Vec<double>)_mm512_max_pd((__m512d)a, (__m512d)b); }
inline Vec<double> vmin(Vec<double> a, Vec<double> b) { return (Vec<double>)_mm512_min_pd((__m512d)a, (__m512d)b); }
// Only the first n lanes are touched in memory; the others read as `fill`.
inline Vec<float> load_part(const float* p, int n, float fill) {
  return (Vec<float>)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), __mmask16((1u << n) - 1), p);
}
inline Vec<double> load_part(const double* p, int n, double fill) {
  return (Vec<double>)_mm512_mask_loadu_pd(_mm512_set1_pd(fill), __mmask8((1u << n) - 1), p);
}
inline void store_part(float* p, Vec<float> v, int n) {
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), (__m512)v);
}
inline void store_part(double* p, Vec<double> v, int n) {
  _mm512_mask_storeu_pd(p, __mmask8((1u << n) - 1), (__m512d)v);
}
#else
#if defined(__AVX2__)
inline Vec<float> vmax(Vec<float> a, Vec<float> b) { return (Vec<float>)_mm256_max_ps((__m256)a, (__m256)b); }
inline Vec<float> vmin(Vec<float> a, Vec<float> b) { return (Vec<float>)_mm256_min_ps((__m256)a, (__m256)b); }
inline Vec<double> vmax(Vec<double> a, Vec<double> b) { return (Vec<double>)_mm256_max_pd((__m256d)a, (__m256d)b); }
inline Vec<double> vmin(Vec<double> a, Vec<double> b) { return (Vec<double>)_mm256_min_pd((__m256d)a, (__m256d)b); }
#else
template <class V>
inline V vmax(V a, V b) { return a > b ? a : b; }
template <class V>
inline V vmin(V a, V b) { return a < b ? a : b; }
#endif
template <class T>
inline Vec<T> load_part(const T* p, int n, T fill) {
  alignas(kBytes) T lanes[kLanes<T>];
  for (int i = 0; i < kLanes<T>; ++i) lanes[i] = i < n ? p[i] : fill;
  return load(lanes);
}
template <class T>
inline void store_part(T* p, Vec<T> v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}
#endif

template <class T>
inline Vec<T> load_row(const T* row, int64_t c, int64_t size, T fill) {
  const int64_t left = size - c;
  return left >= kLanes<T> ? load(row + c) : load_part(row + c, int(left), fill);
}
template <class T>
inline void store_row(T* row, int64_t c, int64_t size, Vec<T> v) {
  const int64_t left = size - c;
  if (left >= kLanes<T>) store(row + c, v);
  else store_part(row + c, v, int(left));
}

#if defined(__AVX512F__)
inline float hmax(Vec<float> v) { return _mm512_reduce_max_ps((__m512)v); }
inline double hmax(Vec<double> v) { return _mm512_reduce_max_pd((__m512d)v); }
inline float hsum(Vec<float> v) { return _mm512_reduce_add_ps((__m512)v); }
inline double hsum(Vec<double> v) { return _mm512_reduce_add_pd((__m512d)v); }
#else
template <class V>
inline auto hmax(V v) {
  auto m = v[0];
  for (unsigned i = 1; i < sizeof(V) / sizeof(m); ++i) m = v[i] > m ? v[i] : m;
  return m;
}
template <class V>
inline auto hsum(V v) {
  auto s = v[0];
  for (unsigned i = 1; i < sizeof(V) / sizeof(s); ++i) s += v[i];
  return s;
}
#endif
template <class T>
inline T hmin(Vec<T> v) { return -hmax(-v); }

// exp(x) = 2^k exp(r), r = x - k ln 2 in [-ln2/2, ln2/2].
template <class T>
struct ExpConst;
template <>
struct ExpConst<float> {
  static constexpr float lowest = -87.33f, ln2_hi = 0.693145751953125f, ln2_lo = 1.42860677e-6f;
  static constexpr int bias = 127, shift = 23;
  // Of least largest error, 3e-9: below half an ulp, for which Taylor's take one degree more.
  static constexpr float coefficients[] = {1.0f, 1.0f, 0.49999994f, 0.166665211f, 0.041668389f, 0.00836874545f, 0.00138145394f};
};
template <>
struct ExpConst<double> {
  static constexpr double lowest = -708.39, ln2_hi = 6.93147180369123816490e-1, ln2_lo = 1.90821492927058770002e-10;
  static constexpr int bias = 1023, shift = 52;
  // Taylor's, whose remainder at the ends is below half an ulp.
  static constexpr double coefficients[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
                                            1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800,
                                            1.0 / 479001600, 1.0 / 6227020800};
};
// Adding and subtracting 1.5 * 2^mantissa rounds to the nearest whole number and leaves it in the low bits.
template <class T>
constexpr T kRounding = T(3) * T(int64_t(1) << (ExpConst<T>::shift - 1));

// exp(x - k ln 2) where k is the whole number nearest to x / ln 2.
template <class T>
inline Vec<T> exp_fraction(Vec<T> x, Vec<T> k) {
  using K = ExpConst<T>;
  constexpr int degree = sizeof K::coefficients / sizeof(T) - 1;
  const Vec<T> r = (x - k * K::ln2_hi) - k * K::ln2_lo;
  Vec<T> p = splat<T>(K::coefficients[degree]);
#pragma GCC unroll 16
  for (int i = degree - 1; i >= 0; --i) p = p * r + K::coefficients[i];
  return p;
}

#if defined(__AVX512F__)
inline Vec<float> scalef(Vec<float> m, Vec<float> e) { return (Vec<float>)_mm512_scalef_ps((__m512)m, (__m512)e); }
inline Vec<double> scalef(Vec<double> m, Vec<double> e) { return (Vec<double>)_mm512_scalef_pd((__m512d)m, (__m512d)e); }
#endif

// Results below the smallest normal number are 0, so exp(-inf) is 0, and so is exp(NaN); arguments are expected to be
// <= 88.
template <class T>
inline Vec<T> vexp(Vec<T> x) {
  using K = ExpConst<T>;
  const Vec<T> shifted = x * T(1.44269504088896340736) + kRounding<T>, k = shifted - kRounding<T>;
  const Vec<T> p = exp_fraction<T>(x, k);
#if defined(__AVX512F__)
  const Vec<T> scaled = scalef(p, k);
#else
  IVec<T> bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + K::bias) << K::shift;
  Vec<T> power;
  std::memcpy(&power, &bits, sizeof power);
  const Vec<T> scaled = p * power;
#endif
  return x >= T(K::lowest) ? scaled : Vec<T>{};
}

}  // namespace sl
