// Second derivatives of log Z: for a direction v, along_b = d log Z_b . v and, with weights g,
// sum_b g_b (d^2 log Z_b) v, from one forward and one backward pass that carry their own derivative
// (chain_log.h). This is the gradient of the gradient; with the potentials themselves as direction and the
// sign turned, it is the gradient of the entropy.
#include "chain_log.h"

namespace sl {
namespace {

// f(row, b) for every sequence, and a chunk's own sums of gradients.
template <class Row, class T, class F>
void each_row(const Chain<T>& chain, int64_t chunks, F&& f) {
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    Row row;
    for (int64_t i = chunk; i < chain.B; i += chunks) f(row, chain.order[i], chunk);
  });
}

// along may be null, and is for kScores.
template <Beside beside, class T>
int64_t second(const ChainArgs* args, const T* weight, const ChainDirection<T>& v, T* along, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  const Chain<T> chain(*args, 1);
  const int64_t chunks = chain.workers();
  ChainSums<T> sums(chain, chunks);
  each_row<LogRow<T, beside>>(chain, chunks, [&](auto& row, int64_t b, int64_t chunk) {
    row.forward(chain, b, v);
    if (along) along[b] = from_units<T>(row.mean);
    row.backward(chain, weight[b], sums.of(chain, chunk, b, d_unary, d_transition));
  });
  sums.write(chain, d_transition, d_start, d_end);
  return 0;
}

template <class T>
int64_t entropy(const ChainArgs* args, T* out) {
  const Chain<T> chain(*args, 1);
  each_row<LogRow<T, Beside::kEntropy>>(chain, chain.workers(), [&](auto& row, int64_t b, int64_t) {
    row.forward(chain, b);
    out[b] = T(row.mean);
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SECOND(suffix, T)                                                                                              \
  extern "C" int64_t sl_chain_second_##suffix(const sl::ChainArgs* a, const T* weight, const T* v_unary,               \
                                              const T* v_transition, const T* v_start, const T* v_end, T* along,       \
                                              T* d_unary, T* d_transition, T* d_start, T* d_end) {                     \
    return sl::second<sl::Beside::kDirection, T>(a, weight, {v_unary, v_transition, v_start, v_end}, along, d_unary, d_transition, d_start, d_end); \
  }
// Along the potentials: the gradient of -sum_b weight_b entropy_b.
#define ENTROPY(suffix, T)                                                                                             \
  extern "C" int64_t sl_chain_entropy_##suffix(const sl::ChainArgs* a, T* out) { return sl::entropy<T>(a, out); }      \
  extern "C" int64_t sl_chain_entropy_backward_##suffix(const sl::ChainArgs* a, const T* weight, T* d_unary,           \
                                                        T* d_transition, T* d_start, T* d_end) {                       \
    return sl::second<sl::Beside::kScores, T>(a, weight, {}, nullptr, d_unary, d_transition, d_start, d_end);          \
  }
SECOND(f32, float)
SECOND(f64, double)
ENTROPY(f32, float)
ENTROPY(f64, double)
