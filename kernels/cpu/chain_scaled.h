// The chain in scaled probability space: a step is a matrix product instead of C^2 exponentials.
//
// With E[p][c] = exp(T[p][c] - m[c]), m[c] = max_p T[p][c], M = max_c m[c], and
// w_t[c] = exp(u_t[c] - k_t + (m[c] - M)), k_t the largest exponent of the row, the forward recurrence is
//   v_t[c] = 2^-e sum_p a_{t-1}[p] E[p][c],   a_t[c] = v_t[c] w_t[c],
// where 2^e brings the largest a_{t-1} into [1, 2), exactly. Taking the maximum out of every column
// keeps labels that may never follow anything (a START label at -10000 or -inf) from mattering.
//
// Precision: potentials may stand on large offsets. The difference of two nearby numbers is exact, the sum of two
// large ones is not, so M and k_t are taken off before anything is added. Where m[c] - M is large all the same and
// u_t[c] makes up for it, the digits are lost: a row with such a weight is done again in log space, too.
//
// Exactness: products below the smallest normal number are lost. Each loses less than kTiny, so a
// sum that came out above kSafe >> C kTiny has lost nothing that its precision could show; what
// counts is the sum before 2^-e, which would lift a sum of lost products too. A row with any sum
// below kSafe is done again in log space (chain_log.h): rare, slower, always right.
#pragma once
#include "chain.h"

namespace sl {

template <class T>
constexpr T kSafe = sizeof(T) == 4 ? T(1e-28) : T(1e-280);

// Flushing subnormal numbers to zero for the life of the object: they are lost by the rule above and
// would cost a hundred cycles each.
class FlushSubnormals {
#if defined(__x86_64__)
  unsigned saved_ = _mm_getcsr();

 public:
  FlushSubnormals() { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
#endif
};

// sum += x; where T is as precise as the sum, what is rounded off goes into rest.
template <class T, class V>
inline void add_to(V& sum, V& rest, V x) {
  if constexpr (sizeof(T) == 4) {
    sum += x;
  } else {
    V lost;
    sum = sum_and_rest(sum, x, &lost);
    rest += lost;
  }
}

// x = 2^e f with f in [1, 2): returns 2^-e and adds e to the count. x must be a normal number.
inline float take_exponent(float x, int64_t* count) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const int e = int(bits >> 23) - 127;
  *count += e;
  const uint32_t inverse = uint32_t(std::min(127 - e, 254)) << 23;
  std::memcpy(&x, &inverse, 4);
  return x;
}
inline double take_exponent(double x, int64_t* count) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  const int e = int(bits >> 52) - 1023;
  *count += e;
  const uint64_t inverse = uint64_t(std::min(1023 - e, 2046)) << 52;
  std::memcpy(&x, &inverse, 8);
  return x;
}

// Addends of a row's exponents, relative to the largest of them.
template <class T>
struct Shift {
  RawBuffer<T> rest;  // in whole vectors; what stands past the end is of no account
  T top = 0;
  bool wide = false;  // some entry lies so far below that a sum it matters in would lose digits
  static constexpr T kFar = -32;

  void set(const T* x, int64_t size) {
    rest.resize(padded<T>(size));
    Vec<T> most = splat<T>(kNegInf<T>), least{};
    for (int64_t c = 0; c < size; c += kLanes<T>) most = vmax(load_row(x, c, size, kNegInf<T>), most);
    const T largest = hmax(most);
    top = largest > kNegInf<T> ? largest : T(0);
    for (int64_t c = 0; c < size; c += kLanes<T>) {
      const Vec<T> moved = load_row(x, c, size, top) - top;
      store(rest.data + c, moved);
      least = vmin(moved > kNegInf<T> ? moved : Vec<T>{}, least);
    }
    wide = hmin<T>(least) < kFar;
  }
};

// w[c] = exp(u[c] + m[c] - k) for c < size, 0 in the padding; returns k, which is -inf or NaN where
// the row has no finite entry. m may be null. Lanes of `low` become 0 where a weight has too few digits.
template <class T>
inline T weights(const T* u, const Shift<T>* m, int64_t size, T* w, Vec<T>* low) {
  const T* moved = m ? m->rest.data : nullptr;  // a store of a vector may alias members
  Vec<T> top = splat<T>(kNegInf<T>);
  for (int64_t c = 0; c < size; c += kLanes<T>) {
    const Vec<T> x = load_row(u, c, size, kNegInf<T>);
    store(w + c, x);
    top = vmax(moved ? x + load(moved + c) : x, top);
  }
  const T k = hmax(top);
  if (m && m->wide)
    for (int64_t c = 0; c < size; c += kLanes<T>) {
      const Vec<T> shift = load(moved + c), x = load(w + c) - k + shift;
      *low = (shift < Shift<T>::kFar) & (x >= ExpConst<T>::lowest) ? Vec<T>{} : *low;
    }
  for (int64_t c = 0; c < size; c += kLanes<T>) {
    const Vec<T> x = load(w + c) - k;
    store(w + c, vexp<T>(moved ? x + load(moved + c) : x));
  }
  return k;
}

template <class T>
struct ScaledMatrix {
  RawBuffer<T> column_max;  // m, padded with 0
  RawBuffer<T> entries;     // E, (C, Cp), 0 in the padding

  void set(const T* t, int64_t C) {
    const int64_t Cp = padded<T>(C);
    column_max.resize(Cp);
    entries.resize(C * Cp);
    for (int64_t c = 0; c < Cp; c += kLanes<T>) {
      Vec<T> top = splat<T>(kNegInf<T>);
      for (int64_t p = 0; p < C; ++p) top = vmax(load_row(t + p * C, c, C, T(0)), top);
      store(column_max.data + c, top);
      const Vec<T> finite = top > kNegInf<T> ? top : Vec<T>{};
      for (int64_t p = 0; p < C; ++p) store(entries.data + p * Cp + c, vexp<T>(load_row(t + p * C, c, C, kNegInf<T>) - finite));
    }
    // A column that is -inf throughout has m = -inf, hence weight 0; any positive E keeps its sum safe.
    for (int64_t c = 0; c < C; ++c)
      if (column_max.data[c] == kNegInf<T>)
        for (int64_t p = 0; p < C; ++p) entries.data[p * Cp + c] = 1;
  }
  const T* row(int64_t p, int64_t Cp) const { return entries.data + p * Cp; }
};

}  // namespace sl
