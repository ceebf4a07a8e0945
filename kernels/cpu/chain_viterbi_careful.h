// The recurrence of chain_viterbi.h for one sequence whose scores are too large for it: sums in double precision units
// (exact.h), every field less its own maximum, so that a score that all labels have in common hides no difference.
#pragma once
#include "chain.h"

namespace sl {

// Beyond this size sums of T keep too few digits behind the point, or leave its range.
template <class T>
constexpr T kLargeScore = sizeof(T) == 4 ? T(0x1p17) : T(0x1p46);

template <class T>
inline bool is_large(T score) {
  return !(std::abs(score) <= kLargeScore<T>);
}

// Largest of `size` scores in units, 0 where all are -inf.
template <class T>
inline double top_in_units(const T* x, int64_t size) {
  const T top = *std::max_element(x, x + size);
  return top > kNegInf<T> ? in_units(top) : 0;
}

// Labels of sequence b, which has some positions, and their score. `lower(t, a)` takes the cost off gold's entry of a.
template <class T, class F>
T careful_best(const ChainScores<T>& chain, int64_t b, int64_t* labels, F&& lower) {
  const int64_t n = chain.length(b), C = chain.C;
  std::vector<double> now(C), from(C);
  std::vector<int64_t> before(n * C);
  const auto add = [&](const T* x) {
    if (!x) return;
    const double top = top_in_units(x, C);
    for (int64_t c = 0; c < C; ++c) now[c] += in_units(x[c]) - top;
  };
  add(chain.start);
  for (int64_t t = 0;; ++t) {
    add(chain.unary(b, t));
    lower(t, now.data());
    if (t + 1 == n) break;
    const T* m = chain.transition(b, t);
    const double top = top_in_units(m, C * C);
    from = now;
    std::fill(now.begin(), now.end(), kNegInf<double>);
    for (int64_t p = 0; p < C; ++p)
      for (int64_t c = 0; c < C; ++c) {
        const double x = from[p] + (in_units(m[p * C + c]) - top);
        if (x > now[c]) now[c] = x, before[(t + 1) * C + c] = p;
      }
  }
  add(chain.end);
  int64_t y = std::max_element(now.begin(), now.end()) - now.begin();
  if (now[y] == kNegInf<double>) {
    std::fill_n(labels, n, kPadLabel);
    return kNegInf<T>;
  }
  for (int64_t t = n - 1; t >= 0; --t) {
    labels[t] = y;
    y = before[t * C + y];
  }
  return from_units<T>(chain.score(b, labels));
}

}  // namespace sl
