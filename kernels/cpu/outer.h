// Gradients of a shared matrix: a sum over rows and positions of outer products of two vectors, which
// is a matrix product. Pairs of vectors are collected and added as updates of rank kDepth.
#pragma once
#include "rows.h"

namespace sl {

// sum[p][c] += sum_k left[k][p] right[k][c] for C rows of Cp columns, `depth` pairs at a time.
template <class T>
class OuterSum {
 public:
  void reset(int64_t C, int64_t Cp) {
    C_ = C, Cp_ = Cp, used_ = 0;
    depth_ = int(std::min<int64_t>(kDepth, std::max<int64_t>(8, 16384 / (Cp * int64_t(sizeof(T))))));
    sum.resize(C * Cp);
    right_.resize(depth_ * Cp);
    std::fill_n(sum.data, C * Cp, T(0));
  }
  // The row to fill with a right vector; `left` must stay where it is until flush.
  T* push(const T* left) {
    if (used_ == depth_) flush();
    left_[used_] = left;
    return right_.data + used_++ * Cp_;
  }
  void flush() {
    int64_t p = 0;
    for (; p + kRows <= C_; p += kRows) rows<kRows>(p);
    for (; p < C_; ++p) rows<1>(p);
    used_ = 0;
  }
  RawBuffer<T> sum;

 private:
  static constexpr int kDepth = 64;

  template <int R>
  void rows(int64_t p) {
    int64_t c = 0;
    for (; c + kPanel * kLanes<T> <= Cp_; c += kPanel * kLanes<T>) block<R, kPanel>(p, c);
    for (; c < Cp_; c += kLanes<T>) block<R, 1>(p, c);
  }
  template <int R, int NV>
  void block(int64_t p, int64_t c) {
    Vec<T> acc[R][NV];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[r][v] = load(sum.data + (p + r) * Cp_ + c + v * kLanes<T>);
    for (int k = 0; k < used_; ++k) {
      Vec<T> x[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) x[v] = load(right_.data + k * Cp_ + c + v * kLanes<T>);
      const T* left = left_[k] + p;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[r][v] += x[v] * left[r];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) store(sum.data + (p + r) * Cp_ + c + v * kLanes<T>, acc[r][v]);
  }

  int64_t C_ = 0, Cp_ = 0;
  int depth_ = 0, used_ = 0;
  const T* left_[kDepth];
  RawBuffer<T> right_;
};

}  // namespace sl
