// The k best labellings: each cell keeps its k best prefixes in order,
//   A_t[c] = k largest of { A_{t-1}[p][i] + T[p][c] } + u_t[c],
// equal scores in the order of (p, i). Limited by the merge: C k compares a cell at worst, but a
// predecessor's list is left at its first entry that does not make it.
#include "chain.h"

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
    value_.assign(2 * C_ * k_, kNegInf<T>);
    from_.resize(n * C_ * k_);
    T *now = value_.data(), *before = now + C_ * k_;
    for (int64_t c = 0; c < C_; ++c) now[c * k_] = (chain_.start ? chain_.start[c] : T(0)) + chain_.unary(b, 0)[c];
    for (int64_t t = 1; t < n; ++t) {
      std::swap(now, before);
      const T* m = chain_.transition(b, t - 1);
      for (int64_t c = 0; c < C_; ++c) {
        T* list = now + c * k_;
        merge(before, [&](int64_t p) { return m[p * C_ + c]; }, list, from_.data() + (t * C_ + c) * k_);
        for (int64_t i = 0; i < k_; ++i) list[i] += chain_.unary(b, t)[c];
      }
    }
    std::vector<T> best(k_);
    std::vector<int32_t> at(k_);
    merge(now, [&](int64_t p) { return chain_.end ? chain_.end[p] : T(0); }, best.data(), at.data());
    for (int64_t i = 0; i < k_ && best[i] > kNegInf<T>; ++i) {
      scores[i * B + b] = best[i];
      int64_t cell = at[i];
      for (int64_t t = n - 1; t >= 0; --t) {
        labels[(i * B + b) * N + t] = cell / k_;
        if (t) cell = from_[t * C_ * k_ + cell];
      }
    }
  }

 private:
  template <class F>
  void merge(const T* lists, F&& step, T* best, int32_t* from) const {
    int64_t size = 0;
    for (int64_t p = 0; p < C_; ++p) {
      const T s = step(p);
      for (int64_t i = 0; i < k_; ++i) {
        const T x = lists[p * k_ + i] + s;
        if (x == kNegInf<T> || (size == k_ && !(x > best[k_ - 1]))) break;
        int64_t place = size < k_ ? size++ : k_ - 1;
        for (; place > 0 && x > best[place - 1]; --place) best[place] = best[place - 1], from[place] = from[place - 1];
        best[place] = x, from[place] = int32_t(p * k_ + i);
      }
    }
    std::fill(best + size, best + k_, kNegInf<T>);
    std::fill(from + size, from + k_, 0);
  }

  const Chain<T>& chain_;
  const int64_t k_, C_;
  std::vector<T> value_;
  std::vector<int32_t> from_;
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
