// log Z of each pair: probability space with an exponent a row (alignment_sum.h), pairs that it cannot
// hold with an exponent a number (alignment_exact.h). Limited by the exponential of each match score.
#include <memory>

#include "alignment_forward.h"

namespace sl {
namespace {

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
