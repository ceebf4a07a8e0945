// Tables of the best score for each value of one or two statistics, g = g1 * S2 + g2, and their
// (max, +) convolution: what two parts of an output contribute together.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "rows.h"
#include "saturate.h"

namespace sl {

// The values that can occur form a box of `rows` by `cols` from (first1, first2); entries lie in an
// arena, in rows of whole vectors whose padding is -inf. rows == 0: no output at all.
struct CountBox {
  int64_t first1 = 0, rows = 0, first2 = 0, cols = 0, offset = 0, pitch = 0;
  int64_t last1() const { return first1 + rows - 1; }
  int64_t last2() const { return first2 + cols - 1; }

  // Grows to hold the box from (low1, low2) to (high1, high2).
  void cover(int64_t low1, int64_t high1, int64_t low2, int64_t high2) {
    if (!rows) {
      *this = {low1, high1 - low1 + 1, low2, high2 - low2 + 1, 0, 0};
      return;
    }
    const int64_t top1 = std::max(last1(), high1), top2 = std::max(last2(), high2);
    first1 = std::min(first1, low1), first2 = std::min(first2, low2);
    rows = top1 - first1 + 1, cols = top2 - first2 + 1;
  }
  void cover(const CountBox& a, const CountBox& b) {  // every sum of a value of a and one of b
    cover(a.first1 + b.first1, a.last1() + b.last1(), a.first2 + b.first2, a.last2() + b.last2());
  }
  void cover(const CountBox& a, int64_t step1, int64_t step2) {
    cover(a.first1 + step1, a.last1() + step1, a.first2 + step2, a.last2() + step2);
  }
  bool holds(int64_t g1, int64_t g2) const { return g1 >= first1 && g1 <= last1() && g2 >= first2 && g2 <= last2(); }
};

template <class T>
class CountTables {
 public:
  // Statistics at or beyond the sizes are dropped; no whole output has them.
  CountTables(int64_t size1, int64_t size2) : size1_(size1), size2_(size2) {}

  void clear() { used_ = 0; }
  int64_t mark() const { return used_; }
  void release(int64_t mark) { used_ = mark; }

  // Cuts the box to the sizes and gives it -inf entries; pointers from at() and row() become stale.
  void place(CountBox& box) {
    cut(box);
    box.offset = used_, box.pitch = padded<T>(box.cols);
    const int64_t size = box.rows * box.pitch;
    used_ += size;
    // A vector stored at the last entry of the last row reaches one vector further.
    if (int64_t(store_.size()) < used_ + kLanes<T>) store_.resize(2 * used_ + kLanes<T>);
    std::fill_n(store_.data() + box.offset, size + kLanes<T>, kNegInf<T>);
  }
  void cut(CountBox& box) const {
    box.rows = std::min(box.rows, size1_ - box.first1), box.cols = std::min(box.cols, size2_ - box.first2);
    if (box.rows <= 0 || box.cols <= 0) box.rows = 0;
  }
  // Every entry moved by the step and raised by w.
  void move(CountBox& box, int64_t step1, int64_t step2, T w) {
    for (int64_t g1 = box.first1; g1 <= box.last1(); ++g1)
      for (int64_t j = 0; j < box.cols; ++j) row(box, g1)[j] += w;
    box.first1 += step1, box.first2 += step2;
    const int64_t cols = box.cols;
    cut(box);
    // What the cut leaves behind must read as -inf, like any padding.
    for (int64_t g1 = box.first1; box.rows && g1 <= box.last1(); ++g1) std::fill(row(box, g1) + box.cols, row(box, g1) + cols, kNegInf<T>);
  }
  T* row(const CountBox& box, int64_t g1) { return store_.data() + box.offset + (g1 - box.first1) * box.pitch; }
  T at(const CountBox& box, int64_t g1, int64_t g2) {
    return box.rows && box.holds(g1, g2) ? row(box, g1)[g2 - box.first2] : kNegInf<T>;
  }
  // out[g] = max(out[g], max_h a[h] + b[g - h] + w); out must cover every sum.
  void convolve(const CountBox& a, const CountBox& b, T w, const CountBox& out) {
    if (!a.rows || !b.rows) return;
    for (int64_t a1 = a.first1; a1 <= a.last1(); ++a1)
      for (int64_t b1 = b.first1; b1 <= b.last1() && a1 + b1 <= out.last1(); ++b1) {
        const T *left = row(a, a1), *right = row(b, b1);
        T* to = row(out, a1 + b1) + a.first2 + b.first2 - out.first2;
        for (int64_t i = 0; i < a.cols; ++i) {
          if (left[i] == kNegInf<T>) continue;
          const int64_t n = std::min(b.cols, out.last2() - a.first2 - b.first2 - i + 1);
          const T x = left[i] + w;
          int64_t j = 0;
          // Past the last column the right row holds -inf, which leaves whatever stands there.
          const int64_t whole = n == b.cols ? n : n - kLanes<T> + 1;
          for (; j < whole; j += kLanes<T>) store(to + i + j, vmax(load(right + j) + x, load(to + i + j)));
          if (j < n) store_part(to + i + j, vmax(load(right + j) + x, load_part(to + i + j, int(n - j), kNegInf<T>)), int(n - j));
        }
      }
  }
  // out[g + (step1, step2)] = max(out, a[g] + w).
  void shift(const CountBox& a, int64_t step1, int64_t step2, T w, const CountBox& out) {
    if (!a.rows) return;
    for (int64_t a1 = a.first1; a1 <= a.last1() && a1 + step1 <= out.last1(); ++a1) {
      const T* from = row(a, a1);
      T* to = row(out, a1 + step1) + a.first2 + step2 - out.first2;
      const int64_t n = std::min(a.cols, out.last2() - a.first2 - step2 + 1);
      for (int64_t j = 0; j < n; ++j) to[j] = std::max(to[j], from[j] + w);
    }
  }

 private:
  const int64_t size1_, size2_;
  int64_t used_ = 0;
  std::vector<T> store_;
};

// Index and value of the largest offset + slope * unit * table where neither offset nor table is -inf; the lowest of
// equals. Finite addends never make an infinite value.
template <class T>
inline int64_t pick(const T* table, const T* offset, const T* slope, int64_t size, T* value, T unit = T(1)) {
  constexpr T most = std::numeric_limits<T>::max();
  const T share = 1 / unit;  // a power of two
  int64_t best = 0;
  *value = kNegInf<T>;
  for (int64_t g = 0; g < size; ++g) {
    if (table[g] == kNegInf<T> || offset[g] == kNegInf<T>) continue;
    const T x = std::max(-most, std::min(most, offset[g] * share + slope[g] * table[g]));
    if (x > *value) *value = x, best = g;
  }
  *value = saturated(*value, unit);
  return best;
}

}  // namespace sl
