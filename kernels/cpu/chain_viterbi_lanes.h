// The recurrence of chain_viterbi.h for at most kLanes sequences that share a matrix of few labels,
// one sequence a lane (lanes.h). The additions and maxima are the same, so are the bits. The best
// predecessors are recomputed along the paths of all lanes at once: a row of the matrix fits a
// register, and looking up one entry of it in each lane is a permutation. Limited by the transposition
// of the potentials and by add/max throughput, about equally.
#pragma once
#include "chain.h"
#include "lanes.h"

namespace sl {

template <class T>
class ViterbiLanes {
  using V = Vec<T>;
  static constexpr int L = kLanes<T>;

 public:
  explicit ViterbiLanes(const Chain<T>& chain) : chain_(chain), N_(chain.N), C_(chain.C) {
    const T* t = chain.transition(0, 0);
    matrix_.resize(C_ * kMostLaneLabels);
    for (int64_t p = 0; p < C_; ++p)
      for (int64_t c = 0; c < kMostLaneLabels; ++c) matrix_.data[p * kMostLaneLabels + c] = c < C_ ? t[p * C_ + c] : T(0);
  }

  // Rows by falling length, none of length 0. Labels mean nothing where a score is -inf. `lower(b, t, a, stride)` takes the cost off gold's score.
  template <class F>
  void decode(const int64_t* rows, int count, int64_t* labels, T* scores, F&& lower) const {
    const int64_t longest = chain_.length(rows[0]), step = C_ * L;
    KeptBuffer<T, 2> alphas;                                          // longest x C x lanes
    KeptBuffer<std::remove_reference_t<decltype(IVec<T>{}[0])>, 2> paths;  // longest x lanes
    T* const alpha = alphas.resize(longest * step);
    auto* const path = paths.resize(longest * L);
    alignas(kBytes) static const T zeros[kMostLaneLabels] = {};
    IVec<T> lengths{};
    for (int i = 0; i < count; ++i) lengths[i] = chain_.length(rows[i]);
    V best = splat<T>(kNegInf<T>);
    IVec<T> last{};
    const T* from[L];
    for (int i = 0; i < L; ++i) from[i] = zeros;
    int active = count;
    for (int64_t t = 0; t < longest; ++t) {
      T* now = alpha + t * step;
      for (; chain_.length(rows[active - 1]) <= t; --active) from[active - 1] = zeros;
      for (int i = 0; i < active; ++i) from[i] = chain_.unary(rows[i], t);
      to_lanes<T>(from, C_, now);
      if (t) lane_step<MaxPlus, T>(now - step, matrix_.data, C_, [&](int64_t c, V best) { store(now + c * L, best + load(now + c * L)); });
      else if (chain_.start)
        for (int64_t c = 0; c < C_; ++c) store(now + c * L, chain_.start[c] + load(now + c * L));
      for (int i = 0; i < active; ++i) lower(rows[i], t, now + i, L);
      if (t + 1 == chain_.length(rows[active - 1])) close(now, lengths == int(t + 1), &best, &last);
    }

    IVec<T> y{};
    for (int64_t t = longest - 1; t >= 0; --t) {
      const IVec<T> ends = lengths == int(t + 1), inside = lengths > int(t + 1);
      y = ends ? last : (inside ? before(alpha + t * step, y) : y);
      std::memcpy(path + t * L, &y, sizeof y);
    }
    alignas(kBytes) T value[L];
    store(value, best);
    for (int i = 0; i < count; ++i) {
      const int64_t n = chain_.length(rows[i]);
      scores[rows[i]] = value[i];
      int64_t* out = labels + rows[i] * N_;
      for (int64_t t = 0; t < n; ++t) out[t] = path[t * L + i];
    }
  }

 private:
  const T* row(int64_t p) const { return matrix_.data + p * kMostLaneLabels; }

  // The largest of C sums score(c) and, in *arg, the lowest label that has it; 0 if all are -inf.
  template <class F>
  V largest(F&& score, IVec<T>* arg) const {
    V sums[kMostLaneLabels], top = splat<T>(kNegInf<T>);
    for (int64_t c = 0; c < C_; ++c) sums[c] = score(c), top = vmax(sums[c], top);
    // From the highest label down, so that nothing waits for a comparison before it.
    *arg = IVec<T>{};
    IVec<T> label = IVec<T>{} + int(C_ - 1);
    for (int64_t c = C_ - 1; c >= 0; --c, label -= 1) *arg = sums[c] == top ? label : *arg;
    return top;
  }

  void close(const T* a, IVec<T> ends, V* best, IVec<T>* last) const {
    IVec<T> arg;
    const V top = largest([&](int64_t c) { return load(a + c * L) + (chain_.end ? chain_.end[c] : T(0)); }, &arg);
    *best = ends ? top : *best, *last = ends ? arg : *last;
  }

  IVec<T> before(const T* a, IVec<T> y) const {
    IVec<T> arg;
    largest([&](int64_t p) { return load(a + p * L) + look_up<T>(row(p), y); }, &arg);
    return arg;
  }

  const Chain<T>& chain_;
  const int64_t N_, C_;
  Buffer<T> matrix_;  // (C, kMostLaneLabels)
};

}  // namespace sl
