// log Z of each chain (chain_forward.h); alpha is null, or (B, N, C) to keep for backward.
#include "chain_forward.h"

namespace sl {
namespace {

template <class T>
int64_t forward(const ChainArgs* args, T* log_z, T* alpha) {
  const Forward<T> run(*args, log_z);
  Tape<T> tape;
  tape.alpha = alpha, tape.row = args->N * args->C, tape.step = args->C;
  const int64_t chunks = run.chain.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    typename Forward<T>::Scratch scratch;
    for (int64_t g = chunk; g < run.chain.groups; g += chunks) run.group(g, scratch, tape);
  }, run.chain.small());
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_chain_forward_f32(const sl::ChainArgs* a, float* log_z, float* alpha) { return sl::forward(a, log_z, alpha); }
int64_t sl_chain_forward_f64(const sl::ChainArgs* a, double* log_z, double* alpha) { return sl::forward(a, log_z, alpha); }
}
