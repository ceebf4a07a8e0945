// The recurrence of chain_viterbi.h for sequences that share a matrix whose rows fit a vector and that are too few for
// lanes (chain_viterbi_lanes.h), one after the other. Scores and matrix stay in registers; the additions and maxima are the
// same, so are the bits and the ties. A step waits for a permutation, an addition and the maxima by halves; finding the
// best predecessors of all labels fills that time, if no label is padding: hence the code for each number of labels.
#pragma once
#include "chain_viterbi_careful.h"
#include "lanes.h"

namespace sl {

template <class T>
class ViterbiRow {
  using V = Vec<T>;
  using Label = std::remove_reference_t<decltype(IVec<T>{}[0])>;
  static constexpr int L = kLanes<T>;

 public:
  // From five on, steps of several sequences at once take less time: (8,500,9) 22 us against 25, (4,500,9) 16 against 13.
  static bool fits(const ChainArgs& args) { return args.shared && args.B <= 4 && args.C <= L && !by_lanes<T>(args.B, args.C); }

  // Labels (N,) of sequence b and their score, which is -inf if it has none.
  static T decode(const ChainScores<T>& chain, int64_t b, int64_t* labels) {
    const int64_t n = chain.length(b);
    std::fill_n(labels + n, chain.N - n, kPadLabel);
    return n ? decode_with<L>(chain, b, n, labels) : T(0);
  }

 private:
  template <int C>
  static T decode_with(const ChainScores<T>& chain, int64_t b, int64_t n, int64_t* labels) {
    if constexpr (C > 1)
      if (chain.C < C) return decode_with<C - 1>(chain, b, n, labels);
    KeptBuffer<Label, 2> kept;
    Label* const before = kept.resize(n * L);  // best predecessors of all labels
    V row[C];
#pragma GCC unroll 16
    for (int p = 0; p < C; ++p) row[p] = load_row(chain.transition(0, 0) + p * C, 0, C, kNegInf<T>);
    V a = load_row(chain.unary(b, 0), 0, C, kNegInf<T>);
    if (chain.start) a = load_row(chain.start, 0, C, T(0)) + a;
    for (int64_t t = 1; t < n; ++t) {
      V sum[C], best[C];
#pragma GCC unroll 16
      for (int p = 0; p < C; ++p) best[p] = sum[p] = __builtin_shuffle(a, IVec<T>{} + p) + row[p];
#pragma GCC unroll 4
      for (int h = 1; h < C; h *= 2)
#pragma GCC unroll 16
        for (int p = 0; p + h < C; p += 2 * h) best[p] = vmax(best[p], best[p + h]);
      a = best[0] + load_row(chain.unary(b, t), 0, C, kNegInf<T>);
      IVec<T> from{};
#pragma GCC unroll 16
      for (int p = C - 1; p >= 0; --p) from = sum[p] == best[0] ? IVec<T>{} + p : from;
      std::memcpy(before + t * L, &from, sizeof from);
    }
    if (chain.end) a = a + load_row(chain.end, 0, C, T(0));
    const T score = hmax(a);
    if (is_large(score)) return careful_best(chain, b, labels, [](int64_t, double*) {});
    int64_t y = std::max(0, first_equal<T>(a, score));
    for (int64_t t = n - 1; t > 0; --t) {
      labels[t] = y;
      y = before[t * L + y];
    }
    labels[0] = y;
    return score;
  }
};

}  // namespace sl
