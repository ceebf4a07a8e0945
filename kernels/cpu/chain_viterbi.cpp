// Viterbi decoding, plain and augmented with a Hamming cost (chain_viterbi.h).
#include "chain_viterbi.h"

namespace sl {
namespace {

template <class T>
int64_t viterbi(const ChainArgs* args, int64_t* labels, T* scores) {
  Viterbi<T> run(*args, labels, scores);
  parallel_for(run.chain.groups, run.chain.workers(), [&](int64_t g, int worker) { run.group(g, worker); });
  return 0;
}

// labels (2, B, N): room for the most violated output, then gold. value_b = max_y [cost + s(y)] - s(gold).
// Returns the place of the first gold label out of range, or -1.
template <class T>
int64_t margin(const ChainArgs* args, int64_t* labels, const T* discount, T* value) {
  Viterbi<T> run(*args, labels, value);
  const Chain<T>& chain = run.chain;
  const int64_t B = chain.B, N = chain.N, C = chain.C;
  const int64_t* gold = labels + B * N;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < chain.length(b); ++t)
      if (uint64_t(gold[b * N + t]) >= uint64_t(C)) return b * N + t;
  run.gold = gold;
  run.discount = discount;
  parallel_for(chain.groups, chain.workers(), [&](int64_t g, int worker) { run.group(g, worker); });
  for (int64_t b = 0; b < B; ++b) {
    const int64_t n = chain.length(b), *y = labels + b * N, *z = gold + b * N;
    if (value[b] == kNegInf<T>) y = z;
    T sum = chain.difference(b, y, z);
    for (int64_t t = 0; t < n; ++t)
      if (y[t] != z[t]) sum += discount ? discount[b * N + t] : T(1);
    value[b] = sum;
  }
  return -1;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_chain_viterbi_f32(const sl::ChainArgs* a, int64_t* labels, float* scores) { return sl::viterbi(a, labels, scores); }
int64_t sl_chain_viterbi_f64(const sl::ChainArgs* a, int64_t* labels, double* scores) { return sl::viterbi(a, labels, scores); }
int64_t sl_chain_margin_f32(const sl::ChainArgs* a, int64_t* labels, const float* discount, float* value) { return sl::margin(a, labels, discount, value); }
int64_t sl_chain_margin_f64(const sl::ChainArgs* a, int64_t* labels, const double* discount, double* value) { return sl::margin(a, labels, discount, value); }
}
