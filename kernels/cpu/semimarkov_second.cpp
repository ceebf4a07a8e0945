// Second derivatives of log Z: for a direction v, along_b = d log Z_b . v and, with weights g,
// sum_b g_b (d^2 log Z_b) v, from one forward and one backward pass that carry their own derivative
// (semimarkov_log.h). This is the gradient of the gradient, and the gradient of the entropy. The
// entropy itself, log Z_b - d log Z_b . s with the potentials s as direction, is the difference of two
// large numbers: it is taken in double, before either is rounded.
#include "semimarkov_log.h"

namespace sl {
namespace {

template <class T>
int64_t second(const SemiArgs* args, const T* weight, const SemiDirection<T>& v, T* along, T* d_segments, T* d_transition) {
  const Semi<T> semi(*args, false);
  const int64_t chunks = semi.workers();
  SemiSums<T> sums(semi, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    SemiLogRow<T, true> row;
    for (int64_t i = chunk; i < semi.B; i += chunks) {
      const int64_t b = semi.order[i];
      row.forward(semi, b, v);
      along[b] = T(row.along);
      row.backward(semi, weight[b], sums.of(semi, chunk, b, d_segments, d_transition));
    }
  });
  sums.write(semi, d_transition);
  return 0;
}

template <class T>
int64_t entropy(const SemiArgs* args, const SemiDirection<T>& scores, T* out) {
  const Semi<T> semi(*args, false);
  const int64_t chunks = semi.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    SemiLogRow<T, true> row;
    for (int64_t i = chunk; i < semi.B; i += chunks) {
      const int64_t b = semi.order[i];
      row.forward(semi, b, scores);
      out[b] = row.log_z > kNegInf<double> ? T(row.log_z - row.along) : T(0);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SECOND(suffix, T)                                                                                            \
  extern "C" int64_t sl_semimarkov_second_##suffix(const sl::SemiArgs* a, const T* weight, const T* v_segments,      \
                                                   const T* v_transition, T* along, T* d_segments, T* d_transition) { \
    return sl::second<T>(a, weight, {v_segments, v_transition}, along, d_segments, d_transition);                    \
  }                                                                                                                  \
  extern "C" int64_t sl_semimarkov_entropy_##suffix(const sl::SemiArgs* a, const T* segments, const T* transition,   \
                                                    T* out) {                                                        \
    return sl::entropy<T>(a, {segments, transition}, out);                                                           \
  }
SECOND(f32, float)
SECOND(f64, double)
