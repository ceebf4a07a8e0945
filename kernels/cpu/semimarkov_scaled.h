// The semi-Markov recurrence in scaled probability space: the sum over labels is a matrix product
// instead of C^2 exponentials, and each segment is exponentiated once.
//
// With E[p][c] = exp(T[p][c] - m[c]), m[c] = max_p T[p][c], M a whole number near max_c m[c], position t has a scale
// k_t and
//   v_t[c] = sum_p a_t[p] E[p][c] = 2^e f_t[c], f_t in [1, 2),   h_t[c] = m[c] - M + e ln 2   (v_0 = 1, h_0 = 0)
//   a_t[c] = sum_w f_s[c] x_w[c],   x_w[c] = exp(segments[s][w][c] + (k_s + M - k_t) + h_s[c]),   s = t - w - 1,
// where k_t brings the largest x near 1: true forward values are e^{k_t} a_t. Backwards, q_n = 1 / sum_c a_n[c] and
//   P[t][w][c] = f_t[c] x_w[c] q_{t+w+1}[c],   r_t[c] = (sum_w P[t][w][c]) / v_t[c],   q_t[p] = sum_c E[p][c] r_t[c]
// give the probabilities of segments, and those of pairs are a_t[p] E[p][c] r_t[c]. Taking the exponent
// of v into h keeps every summand of a_t relative to the largest one, whatever the labels' range.
//
// Exactness: M and k are whole numbers, so their sums are exact, and a segment's score plus such a number is exact where
// the two cancel: what is added to all scores of a position, a width or a matrix leaves no trace. x of an allowed
// segment is never below e^kFloor, so a_t[c] > 0 exactly where some output
// leads there, and a_t is off by at most 2 W e^kFloor; E loses numbers below the smallest normal one.
// A sum v of at least kWellAbove >> C W e^kFloor has lost nothing that its precision could show, and a
// v of 0 is right where no pair of allowed numbers meets in it. A row with any other v is done again
// in log space (semimarkov_log.h): rare, slower, always right. So is one in which an x that counts has an h above
// kSteep, whose last digits x has lost, or whose scales leave the whole numbers that T holds.
#pragma once
#include "chain_scaled.h"
#include "semimarkov.h"

namespace sl {

template <class T>
constexpr T kFloor = sizeof(T) == 4 ? T(-87) : T(-708);
template <class T>
constexpr T kWellAbove = sizeof(T) == 4 ? T(1e-26) : T(1e-290);

template <class T>
constexpr T kSteep = T(256);  // in float, half a unit in the last place is 1.5e-5
template <class T>
constexpr double kMostWhole = sizeof(T) == 4 ? 0x1p22 : 0x1p51;  // well inside the whole numbers without gaps

// The transitions of one position.
template <class T>
struct SemiMatrix : ScaledMatrix<T> {
  RawBuffer<T> height;  // m - M, not below -1e6: where that counts, it is steep; -inf for a label that may not follow
  double whole = 0;     // M
  bool steep = false;   // whether any height is
  bool safe = true;

  void set(const T* t, int64_t C) {
    ScaledMatrix<T>::set(t, C);
    const T *m = this->column_max.data, best = *std::max_element(m, m + C);
    whole = best > kNegInf<T> ? std::rint(double(best)) : 0;
    safe = std::abs(whole) <= kMostWhole<T>;
    if (!safe) whole = 0;
    height.resize(padded<T>(C));
    steep = false;
    for (int64_t c = 0; c < padded<T>(C); ++c) {
      height.data[c] = m[c] > kNegInf<T> ? std::max(m[c] - T(whole), T(-1e6)) : m[c];
      steep |= c < C && m[c] > kNegInf<T> && !(std::abs(height.data[c]) <= kSteep<T> / 2);
    }
  }
};

// exp(x), 0 for -inf alone.
template <class T>
inline Vec<T> exp_allowed(Vec<T> x) {
  return x > kNegInf<T> ? vexp<T>(vmax(x, splat<T>(kFloor<T>))) : Vec<T>{};
}

// v = 2^e f with f in [1, 2); returns h = m + e ln 2. Where v is 0, f = 0 and h = -inf.
template <class T>
inline Vec<T> take_exponents(Vec<T> v, Vec<T> m, Vec<T>* f) {
  using K = ExpConst<T>;
  using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  IVec<T> bits;
  std::memcpy(&bits, &v, sizeof bits);
  const Vec<T> e = __builtin_convertvector((bits >> K::shift) - Int(K::bias), Vec<T>);
  const IVec<T> fraction = (bits & ((Int(1) << K::shift) - 1)) | (Int(K::bias) << K::shift);
  std::memcpy(f, &fraction, sizeof bits);
  const auto some = v > T(0);
  *f = some ? *f : Vec<T>{};
  return some ? m + e * T(0.693147180559945309417) : splat<T>(kNegInf<T>);
}

// What forward leaves for backward: for every position a_t and v_t, the scales k_0..k_n, and behind those of all
// positions q_n. NaN at 0 means that the row has no scaled form.
template <class T>
struct SemiState {
  T* values;      // (B, N, 2, C)
  double* scales;  // (B, N + 2)
  int64_t N, C;

  T* a(int64_t b, int64_t t) const { return values + (b * N + t) * 2 * C; }
  T* v(int64_t b, int64_t t) const { return a(b, t) + C; }
  double* scale(int64_t b) const { return scales + b * (N + 2); }
};

// A power of two >= n, so that a ring of that many slots is addressed by a mask.
inline int64_t ring_size(int64_t n) {
  int64_t size = 1;
  while (size < n) size *= 2;
  return size;
}

}  // namespace sl
