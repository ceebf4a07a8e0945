// Gradient of sum_b g_b log Z_b from the forward values in alpha (B, N, C) (chain_backward.h).
#include "chain_backward.h"
#include "pages.h"

namespace sl {
namespace {

template <class T>
int64_t backward(const ChainArgs* args, const T* alpha, const T* grad, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  on_large_pages(d_unary, args->B * args->N * args->C);
  const Backward<T> run(*args, grad, d_unary, d_transition);
  const Chain<T>& chain = run.chain;
  const int64_t chunks = chain.workers();
  ChainSums<T> sums(chain, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    typename Backward<T>::Scratch s(chain);
    s.tape.alpha = const_cast<T*>(alpha), s.tape.row = chain.N * chain.C, s.tape.step = chain.C;
    for (int64_t g = chunk; g < chain.groups; g += chunks) run.group(g, s, sums, chunk);
    run.close(s, sums, chunk);
  }, chain.small());
  sums.write(chain, d_transition, d_start, d_end);
  return 0;
}

}  // namespace
}  // namespace sl

#define BACKWARD(suffix, T)                                                                                            \
  extern "C" int64_t sl_chain_backward_##suffix(const sl::ChainArgs* a, const T* alpha, const T* /* log_z */, const T* grad, \
                                                T* d_unary, T* d_transition, T* d_start, T* d_end) {                   \
    return sl::backward<T>(a, alpha, grad, d_unary, d_transition, d_start, d_end);                              \
  }
BACKWARD(f32, float)
BACKWARD(f64, double)
