// log Z of each pair: probability space with an exponent a row (alignment_sum.h), pairs that it cannot
// hold with an exponent a number (alignment_exact.h). Limited by the exponential of each match score.
#include <memory>

#include "alignment_exact.h"
#include "alignment_sum.h"

namespace sl {
namespace {

template <class T, bool Affine, bool Local>
struct Forward {
  Pair<T> pair;
  GapWeights<T> weights;
  SumSweep<T, Affine, Local> sweep;
  ExactPair<T, false> exact;
  std::vector<T> rows;

  Wide fast(T* saved_row) {
    const int64_t M = pair.M, blocks = pair.blocks(kLanes<T>), width = Saved<T, Affine>::row_width(M);
    if (!saved_row) rows.resize(Saved<T, Affine>::kHeader + 2 * Saved<T, Affine>::kRows * width);
    const Saved<T, Affine> saved(saved_row ? saved_row : rows.data(), M);
    const auto at = [&](int64_t k) { return saved_row ? k : k & 1; };  // without a backward pass two rows will do
    weights.set(pair, Affine);
    sweep.set(pair, weights);
    sweep.first_row(saved.my(0), saved.x(0), saved.e(0));
    for (int64_t k = 0; k < blocks; ++k) {
      const int64_t in = at(k), out = at(k + 1);
      if (!sweep.block(k, saved.my(in), saved.x(in), saved.e(in), saved.my(out), saved.x(out), saved.e(out), nullptr)) return {};
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
    return T(good ? z.log() : exact.forward(pair, Affine).log());
  }
};

template <class T, bool Affine, bool Local>
void run(const AlignmentArgs& args, T* log_z, T* saved) {
  const int64_t size = Saved<T, Affine>::size(args.N, args.M);
  std::vector<std::unique_ptr<Forward<T, Affine, Local>>> scratch(std::max<int64_t>(1, args.threads));
  for_pairs(args, 20000, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Forward<T, Affine, Local>>();
    log_z[b] = scratch[worker]->run(args, b, saved ? saved + b * size : nullptr);
  });
}

template <class T>
int64_t forward(const AlignmentArgs* a, T* log_z, T* saved) {
  const bool local = a->mode == kLocal;
  if (a->open_x) local ? run<T, true, true>(*a, log_z, saved) : run<T, true, false>(*a, log_z, saved);
  else local ? run<T, false, true>(*a, log_z, saved) : run<T, false, false>(*a, log_z, saved);
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_alignment_forward_f32(const sl::AlignmentArgs* a, float* log_z, float* saved) { return sl::forward(a, log_z, saved); }
int64_t sl_alignment_forward_f64(const sl::AlignmentArgs* a, double* log_z, double* saved) { return sl::forward(a, log_z, saved); }
// Lanes of a vector, from which the size of `saved` follows.
int64_t sl_alignment_lanes_f32(const sl::AlignmentArgs*) { return sl::kLanes<float>; }
int64_t sl_alignment_lanes_f64(const sl::AlignmentArgs*) { return sl::kLanes<double>; }
}
