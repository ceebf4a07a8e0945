// Gradients of a shared matrix: a sum over rows and positions of outer products of two vectors, which
// is a matrix product. Pairs of vectors are collected and added as updates of rank kDepth.
#pragma once
#include "rows.h"

namespace sl {

// sum[p][c] += sum_k left[k][p] right[k][c] for C rows of Cp columns, `depth` pairs at a time. Where only a few
// columns are past the last whole vector, those are summed with p along the vectors instead.
template <class T>
class OuterSum {
 public:
  void reset(int64_t C, int64_t Cp) {
    C_ = C, Cp_ = Cp, used_ = 0;
    const int64_t rest = C % kLanes<T>;
    whole_ = C > kLanes<T> && rest <= kTail ? C - rest : Cp;
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
    for (; p + 2 <= C_; p += 2) rows<2>(p);
    if (p < C_) rows<1>(p);
    const int64_t tail = std::max<int64_t>(0, C_ - whole_);
    if (tail == 1) columns<1>();
    if constexpr (kTail >= 2)
      if (tail == 2) columns<2>();
    if constexpr (kTail >= 4) {
      if (tail == 3) columns<3>();
      if (tail == 4) columns<4>();
    }
    used_ = 0;
  }
  RawBuffer<T> sum;

 private:
  static constexpr int kDepth = 64;
  static constexpr int kTail = kLanes<T> / 4;  // at most so many columns go the other way

  template <int R>
  void rows(int64_t p) {
    int64_t c = 0;
    for (; c + kPanel * kLanes<T> <= whole_; c += kPanel * kLanes<T>) block<R, kPanel>(p, c);
    for (; c < whole_; c += kLanes<T>) block<R, 1>(p, c);
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

  // The last K columns, kLanes rows of the sum in each vector.
  template <int K>
  void columns() {
    int64_t p = 0;
    for (; p + kLanes<T> < C_; p += 2 * kLanes<T>) columns<K, 2>(p);
    if (p < C_) columns<K, 1>(p);
  }
  template <int K, int NV>
  void columns(int64_t p) {
    Vec<T> acc[K][NV] = {};
    for (int k = 0; k < used_; ++k) {
      const T* right = right_.data + k * Cp_ + whole_;
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) {
        const Vec<T> x = load_row(left_[k], p + v * kLanes<T>, C_, T(0));
#pragma GCC unroll 4
        for (int j = 0; j < K; ++j) acc[j][v] += x * right[j];
      }
    }
    alignas(kBytes) T rows[NV * kLanes<T>];
#pragma GCC unroll 4
    for (int j = 0; j < K; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) store(rows + v * kLanes<T>, acc[j][v]);
      for (int64_t i = 0; i < std::min<int64_t>(NV * kLanes<T>, C_ - p); ++i) sum.data[(p + i) * Cp_ + whole_ + j] += rows[i];
    }
  }

  int64_t C_ = 0, Cp_ = 0, whole_ = 0;  // whole_: columns summed by block
  int depth_ = 0, used_ = 0;
  const T* left_[kDepth];
  RawBuffer<T> right_;
};

}  // namespace sl
