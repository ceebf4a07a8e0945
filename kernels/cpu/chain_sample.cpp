// Draws from p(y): forward filtering in log space once a sequence, then for every draw backwards
//   P(y_t = p | y_{t+1} = c) ~ exp(a_t[p] + T[p][c])
// by inverse CDF: the lowest p whose cumulative probability exceeds the given uniform number.
#include "chain_log.h"

namespace sl {
namespace {

template <class T, class F>
int64_t draw(int64_t C, T uniform, std::vector<T>& weight, F&& score) {
  T top = kNegInf<T>, sum = 0, below = 0;
  for (int64_t c = 0; c < C; ++c) top = std::max(top, weight[c] = score(c));
  for (int64_t c = 0; c < C; ++c) sum += weight[c] = std::exp(weight[c] - top);
  int64_t last = 0;
  for (int64_t c = 0; c < C; ++c) {
    if (weight[c] == 0) continue;
    last = c;
    below += weight[c];
    if (below > uniform * sum) return c;
  }
  return last;
}

template <class T>
int64_t sample(const ChainArgs* args, const T* uniform, int64_t S, int64_t* labels) {
  const Chain<T> chain(*args, 1);
  const int64_t B = chain.B, N = chain.N, C = chain.C, chunks = chain.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    LogRow<T, false> row;
    std::vector<T> weight(C);
    for (int64_t i = chunk; i < B; i += chunks) {
      const int64_t b = chain.order[i], n = chain.length(b);
      row.forward(chain, b);
      for (int64_t s = 0; s < S; ++s) {
        int64_t* y = labels + (s * B + b) * N;
        const T* r = uniform + (s * B + b) * N;
        std::fill_n(y, N, kPadLabel);
        if (n == 0 || row.log_z == kNegInf<double>) continue;
        y[n - 1] = draw(C, r[n - 1], weight, [&](int64_t c) { return row.alpha(n - 1)[c] + (chain.end ? chain.end[c] : T(0)); });
        for (int64_t t = n - 2; t >= 0; --t)
          y[t] = draw(C, r[t], weight, [&](int64_t p) { return row.alpha(t)[p] + chain.transition(b, t)[p * C + y[t + 1]]; });
      }
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_chain_sample_f32(const sl::ChainArgs* a, const float* uniform, int64_t S, int64_t* labels) { return sl::sample(a, uniform, S, labels); }
int64_t sl_chain_sample_f64(const sl::ChainArgs* a, const double* uniform, int64_t S, int64_t* labels) { return sl::sample(a, uniform, S, labels); }
}
