// The forward pass over one pair: probability space with an exponent a row (alignment_sum.h), pairs that
// it cannot hold with an exponent a number (alignment_exact.h).
#pragma once
#include <vector>

#include "alignment_exact.h"
#include "alignment_sum.h"

namespace sl {

template <class T, bool Affine, bool Local>
struct Forward {
  Pair<T> pair;
  GapWeights<T> weights;
  SumSweep<T, Affine, Local> sweep;
  Exact<T, Carry::kNothing> exact;
  std::vector<T> rows;

  // Rows in front of blocks go to saved_row if given, the steps of block k to records[k].
  Wide fast(T* saved_row, StepRecord<T, Affine>* records = nullptr) {
    const int64_t M = pair.M, blocks = pair.blocks(kLanes<T>), width = Saved<T, Affine>::row_width(M);
    if (!saved_row) rows.resize(Saved<T, Affine>::kHeader + 2 * Saved<T, Affine>::kRows * width);
    const Saved<T, Affine> saved(saved_row ? saved_row : rows.data(), M);
    const auto at = [&](int64_t k) { return saved_row ? k : k & 1; };  // without a backward pass two rows will do
    if (!weights.set(pair, Affine) || !sweep.set(pair, weights) || !sweep.first_row(saved.my(0), saved.x(0), saved.e(0))) return {};
    for (int64_t k = 0; k < blocks; ++k) {
      const int64_t in = at(k), out = at(k + 1);
      if (!sweep.block(k, k + 1, saved.my(in), saved.x(in), saved.e(in), saved.my(out), saved.x(out), saved.e(out), records ? records + k : nullptr))
        return {};
    }
    return sweep.total();
  }

  T run(const AlignmentArgs& args, int64_t b, T* saved_row) {
    pair.set(args, b);
    Wide z;
    if (pair.n > 0 && pair.m > 0) {
      FlushSubnormals flush;
      z = fast(saved_row);
    }
    const bool good = z.m > 0 && std::isfinite(z.m);
    if (saved_row) {
      const Saved<T, Affine> saved(saved_row, pair.M);
      saved.succeeded() = good, saved.mantissa() = T(z.m), saved.exponent() = T(z.e);
      saved.data[3] = 0;
      // Nothing is left as it was allocated: rows behind a pair's last, and all of a pair that stopped halfway.
      std::fill(saved.my(good ? pair.blocks(kLanes<T>) + 1 : 0), saved_row + Saved<T, Affine>::size(pair.N, pair.M), T(0));
    }
    return good ? T(z.log()) : exact(pair, {}, [](auto&) {});
  }
};

}  // namespace sl
