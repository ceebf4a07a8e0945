// The k best labellings: each cell keeps its k best prefixes in order,
//   A_t[c] = k largest of { A_{t-1}[p][i] + T[p][c] } + u_t[c],
// equal scores in the order of (p, i). Sums are in double precision units (exact.h): no finite score is lost. Where the
// best of them is so large that it hides differences, every field is taken less its maximum. Limited by the merge: C k
// compares a cell at worst, but a predecessor's list is left at its first entry that does not make it.
#include "chain_viterbi_careful.h"
#include "kbest.h"

namespace sl {
namespace {

template <class T>
class KBest {
 public:
  KBest(const Chain<T>& chain, int64_t k) : chain_(chain), k_(k), C_(chain.C) {}

  void row(int64_t b, int64_t* labels, T* scores) {
    const int64_t n = chain_.length(b), N = chain_.N, B = chain_.B;
    for (int64_t i = 0; i < k_; ++i) std::fill_n(labels + (i * B + b) * N, N, kPadLabel), scores[i * B + b] = kNegInf<T>;
    if (n == 0) {
      scores[b] = 0;
      return;
    }
    const double* best = run(b, n, false);
    const bool large = is_large(from_units<T>(best[0]));
    if (large) run(b, n, true);
    for (int64_t i = 0; i < k_ && best[i] > kNegInf<double>; ++i) {
      int64_t cell = at_[i];
      int64_t* path = labels + (i * B + b) * N;
      for (int64_t t = n - 1; t >= 0; --t) {
        path[t] = cell / k_;
        if (t) cell = from_[t * C_ * k_ + cell];
      }
      scores[i * B + b] = from_units<T>(large ? chain_.score(b, path) : best[i]);
    }
  }

 private:
  // Sums of the k best, best first; `less`: every field less its maximum.
  const double* run(int64_t b, int64_t n, bool less) {
    const auto top = [&](const T* x, int64_t size) { return less && x ? top_in_units(x, size) : 0; };
    value_.assign(2 * C_ * k_, kNegInf<double>);
    from_.resize(n * C_ * k_), best_.resize(k_), at_.resize(k_);
    double *now = value_.data(), *before = now + C_ * k_;
    const double first = top(chain_.start, C_), last = top(chain_.end, C_);
    for (int64_t c = 0; c < C_; ++c) now[c * k_] = chain_.start ? in_units(chain_.start[c]) - first : 0;
    for (int64_t t = 0; t < n; ++t) {
      const T* u = chain_.unary(b, t);
      const double top_u = top(u, C_);
      if (t) {
        std::swap(now, before);
        const T* m = chain_.transition(b, t - 1);
        const double top_m = top(m, C_ * C_);
        for (int64_t c = 0; c < C_; ++c)
          merge_lists(C_, k_, now + c * k_, from_.data() + (t * C_ + c) * k_, [&](int64_t p, double* step) {
            *step = in_units(m[p * C_ + c]) - top_m;
            return before + p * k_;
          });
      }
      for (int64_t c = 0; c < C_; ++c)
        for (int64_t i = 0; i < k_; ++i) now[c * k_ + i] += in_units(u[c]) - top_u;
    }
    merge_lists(C_, k_, best_.data(), at_.data(), [&](int64_t p, double* step) {
      *step = chain_.end ? in_units(chain_.end[p]) - last : 0;
      return now + p * k_;
    });
    return best_.data();
  }

  const Chain<T>& chain_;
  const int64_t k_, C_;
  std::vector<double> value_, best_;
  std::vector<int32_t> from_, at_;
};

template <class T>
int64_t kbest(const ChainArgs* args, int64_t k, int64_t* labels, T* scores) {
  const Chain<T> chain(*args, 1);
  const int64_t chunks = chain.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    KBest<T> run(chain, k);
    for (int64_t i = chunk; i < chain.B; i += chunks) run.row(chain.order[i], labels, scores);
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_chain_kbest_f32(const sl::ChainArgs* a, int64_t k, int64_t* labels, float* scores) { return sl::kbest(a, k, labels, scores); }
int64_t sl_chain_kbest_f64(const sl::ChainArgs* a, int64_t k, int64_t* labels, double* scores) { return sl::kbest(a, k, labels, scores); }
}
