// Second derivatives of log Z: for a direction v, along_b = d log Z_b . v and, with weights g,
// sum_b g_b (d^2 log Z_b) v, from one forward and one backward pass that carry their own derivative
// (semimarkov_log.h). This is the gradient of the gradient. The entropy is -d log Z_b . v for v = log p, and its
// gradient -(d^2 log Z_b) v, since v and the scores differ by a constant of all outputs.
#include "semimarkov_log.h"

namespace sl {
namespace {

// Along v, or along log p; d_segments null: values alone.
template <class T, Along along>
int64_t second(const SemiArgs* args, const T* weight, const SemiDirection<T>& v, T* values, T* d_segments, T* d_transition) {
  constexpr double sign = along == Along::kLogProbability ? -1 : 1;
  const Semi<T> semi(*args, false);
  const int64_t chunks = semi.workers();
  SemiSums<T> sums(semi, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    SemiLogRow<T, along> row;
    for (int64_t i = chunk; i < semi.B; i += chunks) {
      const int64_t b = semi.order[i];
      row.forward(semi, b, v);
      if (values) values[b] = T(sign * row.slope + 0.0);
      if (d_segments) row.backward(semi, T(sign) * weight[b], sums.of(semi, chunk, b, d_segments, d_transition));
    }
  });
  if (d_transition) sums.write(semi, d_transition);  // without segments, too
  return 0;
}

}  // namespace
}  // namespace sl

#define SECOND(suffix, T)                                                                                            \
  extern "C" int64_t sl_semimarkov_second_##suffix(const sl::SemiArgs* a, const T* weight, const T* v_segments,      \
                                                   const T* v_transition, T* along, T* d_segments, T* d_transition) { \
    return sl::second<T, sl::Along::kDirection>(a, weight, {v_segments, v_transition}, along, d_segments, d_transition); \
  }                                                                                                                  \
  extern "C" int64_t sl_semimarkov_entropy_##suffix(const sl::SemiArgs* a, T* out) {                                 \
    return sl::second<T, sl::Along::kLogProbability>(a, nullptr, {}, out, nullptr, nullptr);                         \
  }                                                                                                                  \
  extern "C" int64_t sl_semimarkov_entropy_backward_##suffix(const sl::SemiArgs* a, const T* weight, T* d_segments,  \
                                                             T* d_transition) {                                      \
    return sl::second<T, sl::Along::kLogProbability>(a, weight, {}, nullptr, d_segments, d_transition);              \
  }
SECOND(f32, float)
SECOND(f64, double)
