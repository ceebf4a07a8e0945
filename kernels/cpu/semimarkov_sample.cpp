// Draws from p(y): forward filtering in log space once a sequence, then for every draw backwards from
// the end, a label and a width for each segment,
//   P(c ends before t | c' starts at t) ~ exp(a_t[c] + T[c][c']),   P(w | c, t) ~ exp(b_{t-w-1}[c] + s[t-w-1][w][c])
// by inverse CDF: the lowest index whose cumulative probability exceeds the given uniform number.
#include "semimarkov_log.h"

namespace sl {
namespace {

// uniform (S, B, N, 2): for the segment that ends at position t - 1, its label and its width.
template <class T>
int64_t sample(const SemiArgs* args, const T* uniform, int64_t S, int64_t* codes) {
  const Semi<T> semi(*args, false);
  const int64_t B = semi.B, N = semi.N, C = semi.C, chunks = semi.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    SemiLogRow<T, Along::kNothing> row;
    for (int64_t i = chunk; i < B; i += chunks) {
      const int64_t b = semi.order[i], n = semi.length(b);
      row.forward(semi, b);
      for (int64_t s = 0; s < S; ++s) {
        int64_t* y = codes + (s * B + b) * N;
        const T* r = uniform + (s * B + b) * N * 2;
        std::fill_n(y, N, kPadCode);
        if (n == 0 || !row.feasible) continue;
        blank_code(y, n, N);
        for (int64_t t = n, next = -1; t > 0;) {
          const int64_t c = row.draw_label(t, next, r[2 * t - 2]), w = row.draw_width(t, c, r[2 * t - 1]);
          t -= w + 1;
          y[t] = w * C + c;
          next = c;
        }
      }
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_semimarkov_sample_f32(const sl::SemiArgs* a, const float* uniform, int64_t S, int64_t* codes) { return sl::sample(a, uniform, S, codes); }
int64_t sl_semimarkov_sample_f64(const sl::SemiArgs* a, const double* uniform, int64_t S, int64_t* codes) { return sl::sample(a, uniform, S, codes); }
}
