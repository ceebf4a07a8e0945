// Value and gradient of sum_b log Z_b in one pass over the groups of sequences: the values that forward
// leaves for backward stay in the cache of the core that needs them, and no exponential is taken twice.
#include "chain_backward.h"
#include "chain_lanes.h"
#include "pages.h"

namespace sl {
namespace {

template <class T>
int64_t value_and_gradient(const ChainArgs* args, T* log_z, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  on_large_pages(d_unary, args->B * args->N * args->C);
  if (args->shared && by_lanes<T>(args->B, args->C)) {
    with_lanes<T>(Chain<T>(*args, kLanes<T>), log_z, d_unary, d_transition, d_start, d_end);
    return 0;
  }
  const Forward<T> forward(*args, log_z);
  const Backward<T> backward(*args, nullptr, d_unary, d_transition);
  const Chain<T>& chain = forward.chain;
  const int64_t chunks = chain.workers(), step = chain.Cp;
  ChainSums<T> sums(chain, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    typename Forward<T>::Scratch onward;
    typename Backward<T>::Scratch back(chain);
    KeptBuffer<T, 0> alpha;
    KeptBuffer<T, 1> weight;
    for (int64_t g = chunk; g < chain.groups; g += chunks) {
      const int64_t longest = std::max<int64_t>(1, chain.length(chain.order[g * chain.group_size]));
      const int64_t size = chain.group_size * longest * step;
      back.tape = {alpha.resize(size), weight.resize(size), longest * step, step, true};
      forward.group(g, onward, back.tape);
      backward.group(g, back, sums, chunk);
    }
    backward.close(back, sums, chunk);
  }, chain.small());
  sums.write(chain, d_transition, d_start, d_end);
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_chain_value_and_gradient_f32(const sl::ChainArgs* a, float* log_z, float* d_unary, float* d_transition, float* d_start, float* d_end) {
  return sl::value_and_gradient(a, log_z, d_unary, d_transition, d_start, d_end);
}
int64_t sl_chain_value_and_gradient_f64(const sl::ChainArgs* a, double* log_z, double* d_unary, double* d_transition, double* d_start, double* d_end) {
  return sl::value_and_gradient(a, log_z, d_unary, d_transition, d_start, d_end);
}
}
