// Numbers with a 64-bit exponent, for totals that no floating point type holds, and the same with a
// derivative.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace sl {

constexpr double kLn2 = 0.693147180559945309417;

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
  // exp(x) for any x.
  static Wide exp(double x) {
    if (x == -std::numeric_limits<double>::infinity()) return {};
    const double k = std::floor(x / kLn2);
    return of(std::exp(x - k * kLn2), int64_t(k));
  }
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
  Wide operator*(Wide b) const { return m > 0 && b.m > 0 ? of(m * b.m, e + b.e) : Wide{}; }
  Wide operator+(Wide b) const {
    if (!(m > 0)) return b;
    if (!(b.m > 0)) return *this;
    return e >= b.e ? of(m + b.at(e), e) : of(b.m + at(b.e), b.e);
  }
};

// A number and, with Tangent, the derivative r of its logarithm along some direction.
template <bool Tangent>
struct Dual;
template <>
struct Dual<false> {
  Wide w;
  static constexpr double r = 0;
  static Dual one() { return {Wide::of(1)}; }
  static Dual of(Wide w, double) { return {w}; }
  Dual operator+(Dual b) const { return {w + b.w}; }
  Dual operator*(Dual b) const { return {w * b.w}; }
};
template <>
struct Dual<true> {
  Wide w;
  double r = 0;
  static Dual one() { return {Wide::of(1), 0}; }
  static Dual of(Wide w, double r) { return {w, w.m > 0 ? r : 0}; }
  Dual operator+(Dual b) const {
    const Wide sum = w + b.w;
    return of(sum, sum.m > 0 ? (w.at(sum.e) * r + b.w.at(sum.e) * b.r) / sum.m : 0);
  }
  Dual operator*(Dual b) const { return of(w * b.w, r + b.r); }
};

}  // namespace sl
