// Second derivatives of log Z: for a direction v, along_b = d log Z_b . v and, with weights g,
// sum_b g_b (d^2 log Z_b) v, from one forward and one backward pass that carry their own derivative
// (chain_log.h). This is the gradient of the gradient, and the gradient of the entropy. The entropy
// itself, log Z_b - d log Z_b . s with the potentials s as direction, is the difference of two large
// numbers: it is taken in double, before either is rounded.
#include "chain_log.h"

namespace sl {
namespace {

template <class T>
int64_t second(const ChainArgs* args, const T* weight, const ChainDirection<T>& v, T* along, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  const Chain<T> chain(*args, 1);
  const int64_t chunks = chain.workers();
  ChainSums<T> sums(chain, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    LogRow<T, true> row;
    for (int64_t i = chunk; i < chain.B; i += chunks) {
      const int64_t b = chain.order[i];
      row.forward(chain, b, v);
      along[b] = T(row.along);
      row.backward(chain, weight[b], sums.of(chain, chunk, b, d_unary, d_transition));
    }
  });
  sums.write(chain, d_transition, d_start, d_end);
  return 0;
}

template <class T>
int64_t entropy(const ChainArgs* args, const ChainDirection<T>& scores, T* out) {
  const Chain<T> chain(*args, 1);
  const int64_t chunks = chain.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    LogRow<T, true> row;
    for (int64_t i = chunk; i < chain.B; i += chunks) {
      const int64_t b = chain.order[i];
      row.forward(chain, b, scores);
      out[b] = row.log_z > kNegInf<double> ? T(row.log_z - row.along) : T(0);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SECOND(suffix, T)                                                                                              \
  extern "C" int64_t sl_chain_second_##suffix(const sl::ChainArgs* a, const T* weight, const T* v_unary,               \
                                              const T* v_transition, const T* v_start, const T* v_end, T* along,       \
                                              T* d_unary, T* d_transition, T* d_start, T* d_end) {                     \
    return sl::second<T>(a, weight, {v_unary, v_transition, v_start, v_end}, along, d_unary, d_transition, d_start, d_end); \
  }
#define ENTROPY(suffix, T)                                                                                             \
  extern "C" int64_t sl_chain_entropy_##suffix(const sl::ChainArgs* a, const T* unary, const T* transition,            \
                                               const T* start, const T* end, T* out) {                                 \
    return sl::entropy<T>(a, {unary, transition, start, end}, out);                                                    \
  }
SECOND(f32, float)
SECOND(f64, double)
ENTROPY(f32, float)
ENTROPY(f64, double)
