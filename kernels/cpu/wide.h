// Numbers with exponents of their own, for totals that no floating point type holds, and the same with a derivative.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace sl {

constexpr double kLn2 = 0.693147180559945309417, kLn2Rest = 2.319046813846299558e-17;  // and what its rounding leaves out

// A positive number m * 2^e with m in [1, 2), or 0.
struct Wide {
  double m = 0;
  int64_t e = 0;

  static Wide of(double x, int64_t e = 0) {
    if (!(x >= std::numeric_limits<double>::min())) return x > 0 ? of(x * 0x1p200, e - 200) : Wide{};
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const int64_t own = int64_t(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
    if (own < 1024) std::memcpy(&x, &bits, sizeof x);  // an infinite x stays so
    return {x, e + own};
  }
  static Wide one() { return {1, 0}; }
  // exp(x) for x up to kLargest in size, and 0 below it.
  static constexpr double kLargest = 0x1p52;
  static Wide exp(double x) {
    if (x < -kLargest) return {};
    const double k = std::floor(x / kLn2);
    return of(std::exp(std::fma(-k, kLn2Rest, std::fma(-k, kLn2, x))), int64_t(k));
  }
  bool positive() const { return m > 0; }
  double log() const { return m > 0 ? std::log(m) + double(e) * kLn2 : -std::numeric_limits<double>::infinity(); }
  // This number times 2^-to, 0 or infinite where a double cannot hold it.
  double at(int64_t to) const {
    const int64_t shift = e - to;
    if (shift < -1022) return 0;
    if (shift > 1023) return m > 0 ? std::numeric_limits<double>::infinity() : 0;
    const uint64_t bits = uint64_t(shift + 1023) << 52;
    double power;
    std::memcpy(&power, &bits, sizeof power);
    return m * power;
  }
  // The ratio of this number to a positive one.
  double over(Wide b) const { return at(b.e) / b.m; }
  Wide operator*(Wide b) const { return m > 0 && b.m > 0 ? of(m * b.m, e + b.e) : Wide{}; }
  Wide operator+(Wide b) const {
    if (!(m > 0)) return b;
    if (!(b.m > 0)) return *this;
    return e >= b.e ? of(m + b.at(e), e) : of(b.m + at(b.e), b.e);
  }
};

// A positive number w exp(2^64 c), or 0: for scores so large that a binary exponent is not a 64-bit integer. The unit of
// c keeps sums of double scores in range.
struct Huge {
  static constexpr double kUnit = 0x1p64;
  Wide w;  // at least 1
  double c = 0;

  static Huge one() { return {Wide::one()}; }
  static Huge exp(double x) { return x < -std::numeric_limits<double>::max() ? Huge{} : Huge{Wide::one(), x / kUnit}; }
  bool positive() const { return w.positive(); }
  double log() const { return positive() ? w.log() + c * kUnit : -std::numeric_limits<double>::infinity(); }
  double over(Huge b) const { return c < b.c ? (w * Wide::exp((c - b.c) * kUnit)).over(b.w) : w.over(b.w); }
  Huge operator*(Huge b) const { return positive() && b.positive() ? Huge{w * b.w, c + b.c} : Huge{}; }
  Huge operator+(Huge b) const {
    if (!positive()) return b;
    if (!b.positive()) return *this;
    return c >= b.c ? Huge{w + b.w * Wide::exp((b.c - c) * kUnit), c} : b + *this;
  }
};

// What a total carries beside itself: nothing, the derivative of its logarithm along a direction, or the mean over
// its derivations of the logarithm of their share, which is minus their entropy.
enum class Carry { kNothing, kTangent, kShares };

template <class N, Carry C>
struct Dual {
  N w;
  double r = 0;

  static Dual one() { return {N::one(), 0}; }
  static Dual of(N w, double r) { return {w, w.positive() ? r : 0}; }
  Dual operator+(const Dual& b) const {
    if (!w.positive()) return b;
    if (!b.w.positive()) return *this;
    const N sum = w + b.w;
    const auto term = [&](const Dual& x) {
      const double p = x.w.over(sum);
      if (!(p > 0)) return 0.0;  // not 0 times infinity
      return p * (C == Carry::kShares ? x.r + std::log(p) : x.r);
    };
    return {sum, term(*this) + term(b)};
  }
  Dual operator*(const Dual& b) const { return of(w * b.w, r + b.r); }
};
template <class N>
struct Dual<N, Carry::kNothing> {
  N w;
  static constexpr double r = 0;
  static Dual one() { return {N::one()}; }
  static Dual of(N w, double) { return {w}; }
  Dual operator+(const Dual& b) const { return {w + b.w}; }
  Dual operator*(const Dual& b) const { return {w * b.w}; }
};

// Probability of a total, and the derivative of that or of what it carries.
struct Mass {
  double p = 0, d = 0;
  void operator+=(const Mass& b) { p += b.p, d += b.d; }
};

// What a mass gives to one summand of its total. Masses go from the whole to its parts, so that they add up to 1
// whatever the rounding of scores.
template <Carry C, class N>
inline Mass mass_part(const Mass& mass, const Dual<N, C>& total, const Dual<N, C>& summand) {
  if (!(mass.p > 0) || !summand.w.positive()) return {};
  const double q = summand.w.over(total.w);
  if (!(q > 0)) return {};
  const double carried = C == Carry::kShares ? summand.r + std::log(q) : summand.r;
  return {mass.p * q, C == Carry::kNothing ? 0 : q * (mass.d + mass.p * (carried - total.r))};
}

// The logarithm in T, -inf for 0 alone.
template <class T, class N>
inline T log_of(const N& x) {
  constexpr double most = std::numeric_limits<T>::max();
  return T(x.positive() ? std::clamp(x.log(), -most, most) : x.log());
}

}  // namespace sl
