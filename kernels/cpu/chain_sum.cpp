// log Z of each chain (chain_forward.h), its gradient from the values that forward keeps (chain_backward.h), and both
// in one pass: in one file, since all are built from the same steps and would be compiled again in each.
#include "chain_backward.h"
#include "chain_lanes.h"
#include "pages.h"

namespace sl {
namespace {

// alpha is null, or (B, N, C) to keep for backward.
template <class T>
int64_t forward(const ChainArgs* args, T* log_z, T* alpha) {
  const Forward<T> run(*args, log_z);
  Tape<T> tape;
  tape.alpha = alpha, tape.row = args->N * args->C, tape.step = args->C;
  const int64_t chunks = run.chain.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    typename Forward<T>::Scratch scratch;
    for_groups_of(chunk, chunks, run.chain.groups, [&](int64_t g) { run.group(g, scratch, tape); });
  });
  return 0;
}

// Gradient of sum_b g_b log Z_b from the forward values in alpha (B, N, C).
template <class T>
int64_t backward(const ChainArgs* args, const T* alpha, const T* grad, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  on_large_pages(d_unary, args->B * args->N * args->C);
  const Chain<T> chain(*args);
  ScaledMatrix<T> matrix;
  Shift<T> columns;
  if (chain.shared()) matrix.set(chain.transition(0, 0), chain.C), columns.set(matrix.column_max.data, chain.C);
  const Backward<T> run(chain, matrix, columns, grad, d_unary, d_transition);
  const int64_t chunks = chain.workers();
  ChainSums<T> sums(chain, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    typename Backward<T>::Scratch s(chain);
    s.tape.alpha = const_cast<T*>(alpha), s.tape.row = chain.N * chain.C, s.tape.step = chain.C;
    for_groups_of(chunk, chunks, chain.groups, [&](int64_t g) { run.group(g, s, sums, chunk); });
    run.close(s, sums, chunk);
  });
  sums.write(chain, d_transition, d_start, d_end);
  return 0;
}

// Value and gradient of sum_b log Z_b in one pass over the groups of sequences: the values that forward leaves for
// backward stay in the cache of the core that needs them, and no exponential is taken twice.
template <class T>
int64_t value_and_gradient(const ChainArgs* args, T* log_z, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  on_large_pages(d_unary, args->B * args->N * args->C);
  if (args->shared && by_lanes<T>(args->B, args->C)) {
    with_lanes<T>(Chain<T>(*args, kLanes<T>), log_z, d_unary, d_transition, d_start, d_end);
    return 0;
  }
  const Forward<T> forward(*args, log_z);
  const Chain<T>& chain = forward.chain;
  const Backward<T> backward(chain, forward.matrix, forward.columns, nullptr, d_unary, d_transition);
  const int64_t chunks = chain.workers(), step = chain.Cp;
  ChainSums<T> sums(chain, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    typename Forward<T>::Scratch onward;
    typename Backward<T>::Scratch back(chain);
    KeptBuffer<T, 0> alpha;
    KeptBuffer<T, 1> weight;
    for_groups_of(chunk, chunks, chain.groups, [&](int64_t g) {
      const int64_t longest = std::max<int64_t>(1, chain.length(chain.order[g * chain.group_size]));
      const int64_t size = chain.group_size * longest * step;
      back.tape = {alpha.resize(size), weight.resize(size), longest * step, step, true};
      forward.group(g, onward, back.tape);
      backward.group(g, back, sums, chunk);
    });
    backward.close(back, sums, chunk);
  });
  sums.write(chain, d_transition, d_start, d_end);
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_chain_forward_f32(const sl::ChainArgs* a, float* log_z, float* alpha) { return sl::forward(a, log_z, alpha); }
int64_t sl_chain_forward_f64(const sl::ChainArgs* a, double* log_z, double* alpha) { return sl::forward(a, log_z, alpha); }
}

#define BACKWARD(suffix, T)                                                                                            \
  extern "C" int64_t sl_chain_backward_##suffix(const sl::ChainArgs* a, const T* alpha, const T* /* log_z */, const T* grad, \
                                                T* d_unary, T* d_transition, T* d_start, T* d_end) {                   \
    return sl::backward<T>(a, alpha, grad, d_unary, d_transition, d_start, d_end);                              \
  }
BACKWARD(f32, float)
BACKWARD(f64, double)

extern "C" {
int64_t sl_chain_value_and_gradient_f32(const sl::ChainArgs* a, float* log_z, float* d_unary, float* d_transition, float* d_start, float* d_end) {
  return sl::value_and_gradient(a, log_z, d_unary, d_transition, d_start, d_end);
}
int64_t sl_chain_value_and_gradient_f64(const sl::ChainArgs* a, double* log_z, double* d_unary, double* d_transition, double* d_start, double* d_end) {
  return sl::value_and_gradient(a, log_z, d_unary, d_transition, d_start, d_end);
}
}
