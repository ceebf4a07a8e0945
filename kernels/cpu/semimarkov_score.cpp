// Scores of given segmentations and their gradients: look-ups and counts, limited by memory latency
// and by writing the dense (B, N, W, C) gradient once.
#include "careful.h"
#include "pages.h"
#include "semimarkov.h"

namespace sl {
namespace {

// Calls part(t, w, c, p) for each segment of y, p the label before or -1. Returns the first position
// where y is not a segmentation of n positions, or -1.
template <class T, class F>
inline int64_t walk(const Semi<T>& semi, const int64_t* y, int64_t n, F&& part) {
  for (int64_t t = 0, p = -1; t < n;) {
    if (uint64_t(y[t]) >= uint64_t(semi.W * semi.C)) return t;
    const int64_t w = y[t] / semi.C, c = y[t] % semi.C;
    if (t + w >= n) return t;
    for (int64_t i = 1; i <= w; ++i)
      if (y[t + i] != kInsideCode) return t + i;
    part(t, w, c, p);
    p = c;
    t += w + 1;
  }
  return -1;
}

// Returns the flat place k * B * N + b * N + t of the first fault, or -1.
template <class T>
int64_t score(const SemiArgs* args, const int64_t* codes, int64_t K, T* out) {
  const Semi<T> semi(*args, false);
  for (int64_t k = 0; k < K; ++k)
    for (int64_t b = 0; b < semi.B; ++b) {
      const int64_t at = (k * semi.B + b) * semi.N;
      Total<T> sum = 0;
      const int64_t fault = walk(semi, codes + at, semi.length(b), [&](int64_t t, int64_t w, int64_t c, int64_t p) {
        sum += semi.segments(b, t, w)[c];
        if (p >= 0) sum += semi.transition(b, t)[p * semi.C + c];
      });
      if (fault >= 0) return at + fault;
      out[k * semi.B + b] = saturated<T>(sum);
    }
  return -1;
}

// Rows that hold no segmentation (no feasible output) contribute nothing.
template <class T>
int64_t score_backward(const SemiArgs* args, const int64_t* codes, int64_t K, const T* grad, T* d_segments, T* d_transition) {
  on_large_pages(d_segments, args->B * args->N * args->W * args->C);
  const Semi<T> semi(*args, false);
  const int64_t B = semi.B, N = semi.N, W = semi.W, C = semi.C, steps = std::max<int64_t>(N - 1, 0);
  std::fill_n(d_segments, B * N * W * C, T(0));
  std::fill_n(d_transition, semi.shared() ? C * C : B * steps * C * C, T(0));
  for (int64_t k = 0; k < K; ++k)
    for (int64_t b = 0; b < B; ++b) {
      const T g = grad[k * B + b];
      walk(semi, codes + (k * B + b) * N, semi.length(b), [&](int64_t t, int64_t w, int64_t c, int64_t p) {
        d_segments[((b * N + t) * W + w) * C + c] += g;
        if (p >= 0) d_transition[(semi.shared() ? 0 : (b * steps + t - 1) * C * C) + p * C + c] += g;
      });
    }
  return 0;
}

}  // namespace
}  // namespace sl

#define SCORE(suffix, T)                                                                                             \
  extern "C" int64_t sl_semimarkov_score_##suffix(const sl::SemiArgs* a, const int64_t* codes, int64_t K, T* out) {  \
    return sl::score<T>(a, codes, K, out);                                                                           \
  }                                                                                                                  \
  extern "C" int64_t sl_semimarkov_score_backward_##suffix(const sl::SemiArgs* a, const int64_t* codes, int64_t K,   \
                                                           const T* grad, T* d_segments, T* d_transition) {          \
    return sl::score_backward<T>(a, codes, K, grad, d_segments, d_transition);                                       \
  }
SCORE(f32, float)
SCORE(f64, double)
