// Numbers m 2^e with the exponent kept apart, so that sums of products neither overflow nor vanish:
//   sum_k a_k b_k = 2^E sum_k m_a m_b 2^(e_a + e_b - E),   E = max_k (e_a + e_b).
// What underflows in the last factor is below the precision of the sum, so nothing is ever redone.
// Exponents are whole numbers held in the same type as the mantissas; beyond 2^24 in float they round
// to within the precision of float, as the logarithm they stand for would. Zero is (0, kZeroExponent).
#pragma once
#include "simd.h"

namespace sl {

template <class T>
constexpr T kZeroExponent = T(-1e30);

// m * 2^e for whole e <= 100; 0 where the result would be subnormal or smaller.
template <class V>
inline V scale2(V m, V e) {
#if defined(__AVX512F__)
  return scalef(m, e);
#else
  using T = std::decay_t<decltype(m[0])>;
  using K = ExpConst<T>;
  const V shifted = vmax(e, splat<T>(T(-K::bias))) + kRounding<T>;
  IVec<T> bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + K::bias) << K::shift;
  V power;
  std::memcpy(&power, &bits, sizeof power);
  return m * power;
#endif
}

// (m, e) with m >= 0 a normal number or 0: m into [1, 2), or (0, kZeroExponent).
template <class T>
inline void normalise(Vec<T>& m, Vec<T>& e) {
  const IVec<T> dead = m == T(0);
#if defined(__AVX512F__)
  Vec<T> power;
  if constexpr (sizeof(T) == 4) {
    power = (Vec<T>)_mm512_getexp_ps((__m512)m);
    m = (Vec<T>)_mm512_getmant_ps((__m512)m, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
  } else {
    power = (Vec<T>)_mm512_getexp_pd((__m512d)m);
    m = (Vec<T>)_mm512_getmant_pd((__m512d)m, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
  }
#else
  using K = ExpConst<T>;
  IVec<T> bits;
  std::memcpy(&bits, &m, sizeof bits);
  const Vec<T> power = __builtin_convertvector((bits >> K::shift) - K::bias, Vec<T>);
  bits = (bits & ((decltype(bits[0] + 0)(1) << K::shift) - 1)) | (decltype(bits[0] + 0)(K::bias) << K::shift);
  std::memcpy(&m, &bits, sizeof bits);
#endif
  e = dead ? splat<T>(kZeroExponent<T>) : e + power;
  m = dead ? Vec<T>{} : m;
}

// x as r + k ln 2 with whole k, |r| <= ln2/2; then exp(x) = exp(r) 2^k. Needs |x| below this bound.
template <class T>
constexpr T kWidest = sizeof(T) == 4 ? T(2.5e6) : T(1e15);

// exp(x) 2^-K for whole K not below the largest exponent of the sum by more than 100; 0 for x far below -kWidest.
// Scaling by a power of two after the reduction costs no precision, unlike exp(x - max).
template <class T>
inline Vec<T> exp_scaled(Vec<T> x, Vec<T> K) {
  // So far below kWidest that 2^-K cannot lift it into view, and still within what kRounding rounds.
  constexpr T lowest = T(-1.15) * kWidest<T>;
  const Vec<T> clamped = vmax(x, splat<T>(lowest));
  const Vec<T> k = (clamped * T(1.44269504088896340736) + kRounding<T>) - kRounding<T>;
  return scale2(exp_fraction<T>(clamped, k), k - K);
}

// Weights exp(x) 2^-shift for scores up to `top`. Splitting a large x by multiples of ln 2 costs digits where a product
// is rounded before it is subtracted, but then x - top is exact wherever its weight can be seen.
template <class T>
struct RelativeWeights {
  T shift = 0, base = 0, split = 0, factor = 1;

  RelativeWeights() = default;
  explicit RelativeWeights(T top) : shift(std::rint(top * T(1.44269504088896340736))), split(shift) {
    if (std::abs(top) < T(sizeof(T) == 4 ? 256 : 1 << 19)) return;
    base = top, split = 0, factor = T(std::exp(double(top) - double(shift) * 0.693147180559945309417));
  }
  Vec<T> operator()(Vec<T> x) const { return exp_scaled<T>(x - base, splat<T>(split)) * factor; }
};

// The same numbers one at a time.
template <class T>
struct Scaled {
  T m = 0, e = kZeroExponent<T>;

  // exp(x), with x in double: its fraction of a power of two must not be lost in a large x.
  static Scaled exp(double x) {
    if (x == kNegInf<double>) return {};
    const double k = std::rint(x * 1.44269504088896340736);
    return {T(std::exp(x - k * 0.693147180559945309417)), T(k)};
  }
  double log() const { return m == 0 ? kNegInf<double> : std::log(double(m)) + double(e) * 0.693147180559945309417; }
};

// 2^e for whole e, 0 below the normal numbers; e <= 100.
inline float power2(float e) {
  if (!(e >= -126)) return 0;
  const uint32_t bits = uint32_t(int(e) + 127) << 23;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline double power2(double e) {
  if (!(e >= -1022)) return 0;
  const uint64_t bits = uint64_t(int64_t(e) + 1023) << 52;
  double x;
  std::memcpy(&x, &bits, 8);
  return x;
}

// A running sum whose exponent is that of its largest term so far, with `Means` weighted means beside it.
template <class T, int Means>
struct ScaledSum {
  T m = 0, e = kZeroExponent<T>, mean[Means ? Means : 1] = {};

  void add(T tm, T te, const T* tmean = nullptr) {
    if (te > e) {
      const T down = power2(e - te);
      m *= down;
      for (int i = 0; i < Means; ++i) mean[i] *= down;
      e = te;
    }
    const T term = tm * power2(te - e);
    m += term;
    for (int i = 0; i < Means; ++i) mean[i] += term * tmean[i];
  }
};

}  // namespace sl
