// Scores of given labellings and their gradients: look-ups and counts, limited by memory latency and
// by writing the dense (B, N, C) gradient once.
#include "chain.h"
#include "pages.h"

namespace sl {
namespace {

// Returns the flat place k * B * N + b * N + t of the first label out of range, or -1.
template <class T>
int64_t score(const ChainArgs* args, const int64_t* labels, int64_t K, T* out) {
  const Chain<T> chain(*args, 1);
  const int64_t N = chain.N, C = chain.C;
  for (int64_t k = 0; k < K; ++k)
    for (int64_t b = 0; b < chain.B; ++b) {
      const int64_t n = chain.length(b), at = (k * chain.B + b) * N;
      const int64_t* y = labels + at;
      uint64_t most = 0;
      for (int64_t t = 0; t < n; ++t) most = std::max(most, uint64_t(y[t]));
      for (int64_t t = 0; t < n && most >= uint64_t(C); ++t)
        if (uint64_t(y[t]) >= uint64_t(C)) return at + t;
      out[k * chain.B + b] = from_units<T>(chain.score(b, y));
    }
  return -1;
}

// Adds g for every part of the labelling y of sequence b.
template <class T>
void add_counts(const Chain<T>& chain, int64_t b, const int64_t* y, T g, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  const int64_t n = chain.length(b), N = chain.N, C = chain.C;
  T* pairs = chain.shared() ? d_transition : d_transition + b * std::max<int64_t>(N - 1, 0) * C * C;
  for (int64_t t = 0; t < n; ++t) d_unary[(b * N + t) * C + y[t]] += g;
  for (int64_t t = 1; t < n; ++t) pairs[(chain.shared() ? 0 : (t - 1) * C * C) + y[t - 1] * C + y[t]] += g;
  if (n && chain.start) d_start[y[0]] += g;
  if (n && chain.end) d_end[y[n - 1]] += g;
}

template <class T>
void clear_counts(const Chain<T>& chain, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  const int64_t B = chain.B, N = chain.N, C = chain.C;
  std::fill_n(d_unary, B * N * C, T(0));
  std::fill_n(d_transition, chain.shared() ? C * C : B * std::max<int64_t>(N - 1, 0) * C * C, T(0));
  if (chain.start) std::fill_n(d_start, C, T(0));
  if (chain.end) std::fill_n(d_end, C, T(0));
}

// Rows whose first label is negative (no feasible output) contribute nothing.
template <class T>
int64_t score_backward(const ChainArgs* args, const int64_t* labels, int64_t K, const T* grad, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  on_large_pages(d_unary, args->B * args->N * args->C);
  const Chain<T> chain(*args, 1);
  clear_counts(chain, d_unary, d_transition, d_start, d_end);
  for (int64_t k = 0; k < K; ++k)
    for (int64_t b = 0; b < chain.B; ++b) {
      const int64_t* y = labels + (k * chain.B + b) * chain.N;
      if (chain.length(b) && y[0] >= 0) add_counts(chain, b, y, grad[k * chain.B + b], d_unary, d_transition, d_start, d_end);
    }
  return 0;
}

// grad_b times the parts of y minus the parts of z.
template <class T>
int64_t difference_backward(const ChainArgs* args, const int64_t* y, const int64_t* z, const T* grad, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  on_large_pages(d_unary, args->B * args->N * args->C);
  const Chain<T> chain(*args, 1);
  clear_counts(chain, d_unary, d_transition, d_start, d_end);
  for (int64_t b = 0; b < chain.B; ++b) {
    add_counts(chain, b, y + b * chain.N, grad[b], d_unary, d_transition, d_start, d_end);
    add_counts(chain, b, z + b * chain.N, -grad[b], d_unary, d_transition, d_start, d_end);
  }
  return 0;
}

}  // namespace
}  // namespace sl

#define SCORE(suffix, T)                                                                                               \
  extern "C" int64_t sl_chain_score_##suffix(const sl::ChainArgs* a, const int64_t* labels, int64_t K, T* out) {       \
    return sl::score<T>(a, labels, K, out);                                                                            \
  }                                                                                                                    \
  extern "C" int64_t sl_chain_score_backward_##suffix(const sl::ChainArgs* a, const int64_t* labels, int64_t K,        \
                                                      const T* grad, T* d_unary, T* d_transition, T* d_start, T* d_end) { \
    return sl::score_backward<T>(a, labels, K, grad, d_unary, d_transition, d_start, d_end);                           \
  }                                                                                                                    \
  extern "C" int64_t sl_chain_difference_backward_##suffix(const sl::ChainArgs* a, const int64_t* y, const int64_t* z, \
                                                           const T* grad, T* d_unary, T* d_transition, T* d_start,     \
                                                           T* d_end) {                                                 \
    return sl::difference_backward<T>(a, y, z, grad, d_unary, d_transition, d_start, d_end);                           \
  }
SCORE(f32, float)
SCORE(f64, double)
