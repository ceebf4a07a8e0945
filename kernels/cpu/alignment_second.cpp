// Second derivatives of log Z: for a direction v, along_b = d log Z_b . v and, with weights g,
// sum_b g_b (d^2 log Z_b) v, from one forward and one backward pass that carry their own derivative
// (alignment_exact.h). This is the gradient of the gradient. Entropies and their gradients likewise.
#include <memory>

#include "alignment_exact.h"

namespace sl {
namespace {

// Calls use(b, exact, pair) for every pair.
template <class T, Carry C, class F>
void for_exact_pairs(const AlignmentArgs& args, F&& use) {
  struct Scratch {
    Pair<T> pair;
    Exact<T, C> exact;
  };
  std::vector<std::unique_ptr<Scratch>> scratch(std::max<int64_t>(1, args.threads));
  for_pairs(args, 200, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Scratch>();
    scratch[worker]->pair.set(args, b);
    use(b, scratch[worker]->exact, scratch[worker]->pair);
  });
}

template <class T>
int64_t second(const AlignmentArgs& args, const T* weight, const AlignmentDirection<T>& v, T* along, T* d_match, T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) {
  for_exact_pairs<T, Carry::kTangent>(args, [&](int64_t b, auto& exact, const Pair<T>& pair) {
    exact(pair, v, [&](auto& sums) {
      along[b] = T(sums.z.r);
      sums.backward(weight[b], {args, b, d_match, d_gap_x, d_gap_y, d_open_x, d_open_y});
    });
  });
  return 0;
}

template <class T>
int64_t entropy(const AlignmentArgs& args, T* out) {
  for_exact_pairs<T, Carry::kShares>(args, [&](int64_t b, auto& exact, const Pair<T>& pair) {
    exact(pair, {}, [&](auto& sums) { out[b] = T(std::max(0.0, -sums.z.r)); });
  });
  return 0;
}

// Gradient of sum_b g_b H_b.
template <class T>
int64_t entropy_backward(const AlignmentArgs& args, const T* weight, T* d_match, T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) {
  for_exact_pairs<T, Carry::kShares>(args, [&](int64_t b, auto& exact, const Pair<T>& pair) {
    exact(pair, {}, [&](auto& sums) { sums.backward(-weight[b], {args, b, d_match, d_gap_x, d_gap_y, d_open_x, d_open_y}); });
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SECOND(suffix, T)                                                                                                 \
  extern "C" int64_t sl_alignment_second_##suffix(const sl::AlignmentArgs* a, const T* weight, const T* v_match,          \
                                                  const T* v_gap_x, const T* v_gap_y, const T* v_open_x, const T* v_open_y, \
                                                  T* along, T* d_match, T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) { \
    return sl::second<T>(*a, weight, {v_match, v_gap_x, v_gap_y, v_open_x, v_open_y}, along, d_match, d_gap_x, d_gap_y,   \
                         d_open_x, d_open_y);                                                                             \
  }                                                                                                                       \
  extern "C" int64_t sl_alignment_entropy_##suffix(const sl::AlignmentArgs* a, T* out) { return sl::entropy<T>(*a, out); }  \
  extern "C" int64_t sl_alignment_entropy_backward_##suffix(const sl::AlignmentArgs* a, const T* weight, T* d_match,      \
                                                            T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) {           \
    return sl::entropy_backward<T>(*a, weight, d_match, d_gap_x, d_gap_y, d_open_x, d_open_y);                            \
  }
SECOND(f32, float)
SECOND(f64, double)
