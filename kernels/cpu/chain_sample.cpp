// Draws from p(y): forward filtering in log space once a sequence, then for every draw backwards
//   P(y_t = p | y_{t+1} = c) ~ exp(a_t[p] + T[p][c])
// by inverse CDF: the lowest p whose cumulative probability exceeds the given uniform number.
#include "chain_log.h"
#include "draw.h"

namespace sl {
namespace {

template <class T>
int64_t sample(const ChainArgs* args, const T* uniform, int64_t S, int64_t* labels) {
  const Chain<T> chain(*args, 1);
  const int64_t B = chain.B, N = chain.N, C = chain.C, chunks = chain.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    LogRow<T> row;
    for (int64_t i = chunk; i < B; i += chunks) {
      const int64_t b = chain.order[i], n = chain.length(b);
      row.forward(chain, b);
      for (int64_t s = 0; s < S; ++s) {
        int64_t* y = labels + (s * B + b) * N;
        const T* r = uniform + (s * B + b) * N;
        std::fill_n(y, N, kPadLabel);
        if (n == 0 || row.log_z == kNegInf<double>) continue;
        for (int64_t t = n - 1; t >= 0; --t) y[t] = draw(row.before(chain, t, t < n - 1 ? y[t + 1] : -1), C, double(r[t]));
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
