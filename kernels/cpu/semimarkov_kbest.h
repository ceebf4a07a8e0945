// The k best segmentations: each cell keeps its k best prefixes in order,
//   B_t[c] = k largest of { A_t[p][i] + T[p][c] },  A_t[c] = k largest of { B_{t-w-1}[c][i] + s[t-w-1][w][c] },
// equal scores in the order of (p, i) and (w, i). Limited by the merges: (C + W) k compares a cell at
// worst, but a list is left at its first entry that does not make it.
#pragma once
#include "kbest.h"
#include "semimarkov_careful.h"

namespace sl {

template <class T>
class KBest {
 public:
  KBest(const Semi<T>& semi, int64_t k) : semi_(semi), k_(k), C_(semi.C) {}

  void row(int64_t b, int64_t* codes, T* scores) {
    const int64_t n = semi_.length(b), N = semi_.N, B = semi_.B;
    for (int64_t i = 0; i < k_; ++i) std::fill_n(codes + (i * B + b) * N, N, kPadCode), scores[i * B + b] = kNegInf<T>;
    if (n == 0) {
      scores[b] = 0;
      return;
    }
    const int64_t cells = (n + 1) * C_ * k_;
    ending_.resize(cells), starting_.resize(cells), width_.resize(cells), label_.resize(cells);
    for (int64_t c = 0; c < C_; ++c)
      for (int64_t i = 0; i < k_; ++i) starting_[c * k_ + i] = i ? kNegInf<T> : T(0);
    for (int64_t t = 1; t <= n; ++t) {
      for (int64_t c = 0; c < C_; ++c)
        merge_lists(std::min(semi_.W, t), k_, ending_.data() + at(t, c), width_.data() + at(t, c), [&](int64_t w, T* step) {
          *step = semi_.segments(b, t - w - 1, w)[c];
          return starting_.data() + at(t - w - 1, c);
        });
      if (t == n) break;
      const T* m = semi_.transition(b, t);
      for (int64_t c = 0; c < C_; ++c)
        merge_lists(C_, k_, starting_.data() + at(t, c), label_.data() + at(t, c), [&](int64_t p, T* step) {
          *step = m[p * C_ + c];
          return ending_.data() + at(t, p);
        });
    }
    std::vector<T> best(k_);
    std::vector<int32_t> from(k_);
    merge_lists(C_, k_, best.data(), from.data(), [&](int64_t p, T* step) {
      *step = 0;
      return ending_.data() + at(n, p);
    });
    for (int64_t i = 0; i < k_ && best[i] > kNegInf<T>; ++i) {
      scores[i * B + b] = best[i];
      trace(n, from[i], codes + (i * B + b) * N);
    }
  }

 private:
  int64_t at(int64_t t, int64_t c) const { return (t * C_ + c) * k_; }

  void trace(int64_t n, int64_t cell, int64_t* y) const {
    std::fill_n(y, n, kInsideCode);
    for (int64_t t = n; t > 0;) {
      const int64_t c = cell / k_, from = width_[t * C_ * k_ + cell], w = from / k_;
      t -= w + 1;
      y[t] = w * C_ + c;
      if (t) cell = label_[at(t, c) + from % k_];
    }
  }

  const Semi<T>& semi_;
  const int64_t k_, C_;
  std::vector<T> ending_, starting_;      // A and B
  std::vector<int32_t> width_, label_;    // where their entries came from
};

// The k best of row b in double, for scores that T cannot hold or tell apart.
template <class T>
void kbest_in_double(const Semi<T>& semi, int64_t b, int64_t k, int64_t* codes, T* scores) {
  CarefulSemi careful;
  careful.set(semi, b);
  std::vector<int64_t> y(k * semi.N);
  std::vector<double> found(k);
  KBest<double>(careful.semi(), k).row(0, y.data(), found.data());
  for (int64_t i = 0; i < k; ++i) {
    scores[i * semi.B + b] = saturated<T>((long double)(found[i]) * careful.unit);
    std::copy_n(y.data() + i * semi.N, semi.N, codes + (i * semi.B + b) * semi.N);
  }
}

}  // namespace sl
