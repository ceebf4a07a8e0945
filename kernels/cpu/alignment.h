// What every alignment kernel is given, and the geometry of the sweep that all of them make.
//
//   M[i][j] = max(M, X, Y)[i-1][j-1] + match[i-1][j-1]
//   X[i][j] = max(max(M, Y)[i-1][j] + open_x[i-1], X[i-1][j] + gap_x[i-1])
//   Y[i][j] = max(max(M, X)[i][j-1] + open_y[j-1], Y[i][j-1] + gap_y[j-1])
//
// over nodes (i, j) with i positions of x and j of y behind them (structlearn/structures/alignment.py),
// and the same with sums of products.
//
// The sweep takes blocks of rows of x, one or more (the stack) to each lane of a vector. Lane r is
// number l = L-1-r from the top, and at step t its rows are at column j = t - l, so a vector is a piece
// of an anti-diagonal and its entries do not depend on each other: the row above a lane's first is the
// last one of the next lane one step before, the row above any other is in the same lane. One row a
// lane would wait for that shift (5 cycles of 10) at every step; with two the second row's work fills
// the time. Lanes run against the rows so that columns run with them, y's gap scores load in order,
// and the block's last row sits in lane 0, where storing it costs no shuffle. No sum is reordered, so
// ties fall as in the reference.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "batch.h"
#include "parallel.h"
#include "rows.h"
#include "saturate.h"
#include "transpose.h"

namespace sl {

constexpr int64_t kPadOp = -100;
enum AlignmentMode : int64_t { kGlobal = 0, kLocal = 1, kSemiglobal = 2 };

// Plain data, filled by structlearn/ops/alignment.py: the field order there must match.
struct AlignmentArgs {
  const void *match, *gap_x, *gap_y, *open_x, *open_y;
  const int64_t *x_lengths, *y_lengths;                 // null: all N, all M
  int64_t B, N, M;
  int64_t match_b, match_n;  // strides in elements; columns are contiguous
  int64_t gap_x_b, gap_x_n, gap_y_b, gap_y_m, open_x_b, open_x_n, open_y_b, open_y_m;
  int64_t mode, band;  // band -1: none
  int64_t threads;
  int64_t affine;  // 0: open_x and open_y are not there. An empty one is a null pointer, too.
};

// One pair of the batch: its sizes and its gap scores in contiguous rows that vectors can read past.
template <class T>
struct Pair {
  static constexpr int L = kLanes<T>;
  const T* match = nullptr;
  int64_t b = 0, n = 0, m = 0, row = 0, mode = 0, N = 0, M = 0;
  int64_t low = 0, high = 0;  // cells with low <= j - i <= high are in the band
  Buffer<T> store;
  std::vector<T> small_match;
  T *gap_x = nullptr, *open_x = nullptr;  // n entries, then 2 L zeros
  T *gap_y = nullptr, *open_y = nullptr;  // L zeros in front of them too
  bool same_y = false;                    // y's gap scores are the same at every position
  bool affine = false;
  T unit = 1;  // what the scores here have been divided by

  void set(const AlignmentArgs& a, int64_t b_) {
    b = b_, N = a.N, M = a.M, mode = a.mode, row = a.match_n;
    n = a.x_lengths ? a.x_lengths[b] : a.N;
    m = a.y_lengths ? a.y_lengths[b] : a.M;
    match = static_cast<const T*>(a.match) + b * a.match_b;
    low = a.band < 0 ? -n - m : std::min<int64_t>(0, m - n) - a.band;
    high = a.band < 0 ? n + m : std::max<int64_t>(0, m - n) + a.band;
    affine = a.affine, unit = 1;
    same_y = a.gap_y_m == 0 && (!affine || a.open_y_m == 0);
    const int64_t each_x = n + 2 * L, each_y = m + 3 * L;
    store.resize(2 * (each_x + each_y));
    T* p = store.data;
    const auto fill = [&](const void* from, int64_t stride_b, int64_t stride, int64_t size, int64_t front, int64_t whole) {
      T* start = p + front;
      std::fill_n(p, whole, T(0));
      p += whole;
      const T* source = static_cast<const T*>(from) + b * stride_b;
      for (int64_t i = 0; i < size; ++i) start[i] = source[i * stride];
      return start;
    };
    gap_y = fill(a.gap_y, a.gap_y_b, a.gap_y_m, m, L, each_y);
    open_y = affine ? fill(a.open_y, a.open_y_b, a.open_y_m, m, L, each_y) : gap_y;
    gap_x = fill(a.gap_x, a.gap_x_b, a.gap_x_n, n, 0, each_x);
    open_x = affine ? fill(a.open_x, a.open_x_b, a.open_x_n, n, 0, each_x) : gap_x;
  }

  // The least and the largest finite potential, and 0.
  std::pair<T, T> extremes() const {
    T least = 0, most = 0;
    const auto see = [&](const T* from, int64_t size) {
      for (int64_t k = 0; k < size; ++k) {
        const T x = from[k] > kNegInf<T> ? from[k] : T(0);
        least = std::min(least, x), most = std::max(most, x);
      }
    };
    for (int64_t i = 0; i < n; ++i) see(match + i * row, m);
    see(gap_x, n), see(gap_y, m), see(open_x, n), see(open_y, m);
    return {least, most};
  }
  // Potentials of at most this size have sums within the range of T.
  T safe_size() const { return std::numeric_limits<T>::max() / T(4 * (n + m + 2)); }
  // Divides all potentials by a power of two if sums of them may be out of range; returns whether that was so.
  bool shrink() {
    const auto [least, most] = extremes();
    if (std::max(-least, most) <= safe_size()) return false;
    unit = std::ldexp(T(1), std::ilogb(T(4 * (n + m + 2))) + 1);
    small_match.resize(n * m);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j) small_match[i * m + j] = match[i * row + j] / unit;
    match = small_match.data(), row = m;
    const auto divide = [&](T* from, int64_t size) {
      for (int64_t k = 0; k < size; ++k) from[k] /= unit;
    };
    divide(gap_x, n), divide(gap_y, m);
    if (affine) divide(open_x, n), divide(open_y, m);
    return true;
  }
  // A sum of potentials as it was before shrink().
  T whole(T score) const { return saturated(score, unit); }

  int64_t blocks(int64_t rows) const { return (n + rows - 1) / rows; }
  bool all_in_band() const { return low <= 1 - n && high >= m - 1; }
  // Whether opening a gap scores less than extending one everywhere.
  bool opening_costs() const {
    const auto less = [](const T* open, const T* gap, int64_t size) {
      bool all = true;
      for (int64_t k = 0; k < size; ++k) all &= open[k] < gap[k];
      return all;
    };
    return less(open_x, gap_x, n) && less(open_y, gap_y, m);
  }
  bool node_in_band(int64_t i, int64_t j) const { return low <= j - i && j - i <= high; }
};

// The steps of one block of rows: all its cells are inside the matrix and the band in [inner_begin,
// inner_end), and every other step has to mask.
struct Steps {
  int64_t i0, rows, begin, end, inner_begin, inner_end;

  // Rows from `first` on, `stack` of them a lane; `idle`: lanes without a row need no mask.
  template <class T>
  Steps(const Pair<T>& p, int64_t first, int64_t stack, bool idle = false) {
    constexpr int64_t L = kLanes<T>;
    const int64_t all = stack * L;
    i0 = first, rows = std::min<int64_t>(all, p.n - i0);
    begin = std::max<int64_t>(0, i0 + p.low);
    end = std::min(p.m - 1, i0 + rows - 1 + p.high) + (rows - 1) / stack + 1;
    inner_begin = std::max(L - 1, i0 + all - 1 + p.low + L - 1);
    inner_end = rows < all && !idle ? 0 : std::min(p.m - 1, i0 + p.high) + 1;
    // Free ends: the last column and the last row have gap scores of their own.
    if (p.mode == kSemiglobal) inner_end = rows + i0 == p.n ? 0 : std::min(inner_end, p.m - 1);
  }
  int64_t count() const { return std::max<int64_t>(0, end - begin); }
};

// Pairs by falling cost, so that the last ones to run are short.
inline std::vector<int64_t> by_cost(const AlignmentArgs& a, int64_t* work) {
  std::vector<int64_t> order(a.B), cost(a.B);
  std::iota(order.begin(), order.end(), int64_t(0));
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t n = a.x_lengths ? a.x_lengths[b] : a.N, m = a.y_lengths ? a.y_lengths[b] : a.M;
    cost[b] = n * (a.band < 0 ? m : std::min(m, 2 * a.band + 1 + std::abs(m - n)));
  }
  *work = std::accumulate(cost.begin(), cost.end(), int64_t(0));
  std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return cost[i] > cost[j]; });
  return order;
}

// Runs body(b, worker) for every pair. Waking a worker costs about as much as this many cells.
template <class F>
inline void for_pairs(const AlignmentArgs& a, int64_t cells_worth_a_thread, F&& body) {
  int64_t work = 0;
  const std::vector<int64_t> order = by_cost(a, &work);
  const int threads = workers_for(work, a.threads, a.B, cells_worth_a_thread);
  parallel_for(a.B, threads, [&](int64_t i, int worker) { body(order[i], worker); });
}

// v[1], ..., v[L-1], *in: every lane takes the value of the lane above it.
template <class T>
inline Vec<T> from_above(Vec<T> v, const T* in) {
#if defined(__AVX512F__)
  // The form with a full mask: GCC 12 warns of an undefined register in the plain one.
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm512_maskz_alignr_epi32(0xffff, (__m512i)_mm512_castps128_ps512(_mm_load_ss(in)), (__m512i)v, 1);
  else
    return (Vec<T>)_mm512_maskz_alignr_epi64(0xff, (__m512i)_mm512_castpd128_pd512(_mm_load_sd(in)), (__m512i)v, 1);
#else
  IVec<T> pick;
  for (int r = 0; r < kLanes<T>; ++r) pick[r] = r + 1;
  return __builtin_shuffle(v, splat(*in), pick);
#endif
}

// Bit r is set where a[r] >= b[r] (or >).
#if defined(__AVX512F__)
inline unsigned bits_ge(Vec<float> a, Vec<float> b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
inline unsigned bits_gt(Vec<float> a, Vec<float> b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }
inline unsigned bits_ge(Vec<double> a, Vec<double> b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GE_OQ); }
inline unsigned bits_gt(Vec<double> a, Vec<double> b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GT_OQ); }
#else
inline unsigned sign_bits(IVec<float> x) {
#if defined(__AVX2__)
  return _mm256_movemask_ps((__m256)x);
#elif defined(__x86_64__)
  return _mm_movemask_ps((__m128)x);
#else
  unsigned bits = 0;
  for (int r = 0; r < kLanes<float>; ++r) bits |= unsigned(x[r] < 0) << r;
  return bits;
#endif
}
inline unsigned sign_bits(IVec<double> x) {
#if defined(__AVX2__)
  return _mm256_movemask_pd((__m256d)x);
#elif defined(__x86_64__)
  return _mm_movemask_pd((__m128d)x);
#else
  unsigned bits = 0;
  for (int r = 0; r < kLanes<double>; ++r) bits |= unsigned(x[r] < 0) << r;
  return bits;
#endif
}
template <class V>
inline unsigned bits_ge(V a, V b) { return sign_bits(a >= b); }
template <class V>
inline unsigned bits_gt(V a, V b) { return sign_bits(a > b); }
#endif

// Number of each lane from the top, L-1, ..., 0; a lane's column at step t is t minus that.
template <class T>
inline IVec<T> lane_numbers() {
  IVec<T> l;
  for (int r = 0; r < kLanes<T>; ++r) l[r] = kLanes<T> - 1 - r;
  return l;
}

// L windows on rows of `size` entries, the r-th from entry first + r on: reads and writes leave out, or read as 0, what
// is beyond a row's ends.
template <class T>
class Windows {
  static constexpr int64_t L = kLanes<T>;
  int64_t first_, size_;
#if defined(__AVX512F__)
  uint64_t inside_;  // bit k is set where entry first + k is in the row
#endif

 public:
  Windows(int64_t first, int64_t size) : first_(first), size_(size) {
#if defined(__AVX512F__)
    const auto below = [](int64_t k) { return (uint64_t(1) << std::clamp<int64_t>(k, 0, 2 * L)) - 1; };
    inside_ = below(size - first) & ~below(-first);
#endif
  }
  bool all_inside() const { return first_ >= 0 && first_ + 2 * L - 1 <= size_; }
  Vec<T> read(const T* row, int64_t r) const {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_loadu_ps(__mmask16(inside_ >> r), row + first_ + r);
    else return (Vec<T>)_mm512_maskz_loadu_pd(__mmask8(inside_ >> r), row + first_ + r);
#else
    const int64_t first = first_ + r;
    if (first >= 0 && first + L <= size_) return load(row + first);
    Vec<T> v{};
    for (int64_t k = std::max<int64_t>(0, -first); k < L && first + k < size_; ++k) v[k] = row[first + k];
    return v;
#endif
  }
  void write(T* row, int64_t r, Vec<T> v) const {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(row + first_ + r, __mmask16(inside_ >> r), (__m512)v);
    else _mm512_mask_storeu_pd(row + first_ + r, __mmask8(inside_ >> r), (__m512d)v);
#else
    const int64_t first = first_ + r;
    if (first >= 0 && first + L <= size_) return store(row + first, v);
    for (int64_t k = std::max<int64_t>(0, -first); k < L && first + k < size_; ++k) row[first + k] = v[k];
#endif
  }
};

// Fetches a block of rows into the cache a line at a time, in the order of memory, to be read or written:
// the sweep takes a little of each of many rows at a time, more streams than the hardware follows.
template <class T, bool Write = false>
struct Ahead {
  const char *at, *row_end, *end;
  int64_t used, stride;  // bytes of a row that are used, and from row to row

  // Rows first.. of `matrix`, n x m, `row` entries from row to row.
  Ahead(const T* matrix, int64_t row, int64_t n, int64_t m, int64_t first, int64_t rows) {
    used = m * sizeof(T), stride = row * sizeof(T);
    at = reinterpret_cast<const char*>(matrix + first * row), row_end = at + used;
    end = at + (first < 0 ? 0 : std::max<int64_t>(0, std::min(rows, n - first))) * stride;
  }
  void next() {
    if (at >= end) return;
    __builtin_prefetch(at, Write, 2);
    at += 64;
    if (at >= row_end) row_end += stride, at = row_end - used;
  }
  void next(int64_t lines) {
    for (; lines > 0 && at < end; --lines) next();
  }
};

// Fetches the ends of a tile's rows, those of L steps from t0 on, from wherever Ahead has brought them into the nearest
// cache: the hardware does not see that they are next.
template <class T>
class NextTile {
  const char* at_;
  int64_t stride_;

 public:
  NextTile(const T* matrix, int64_t row, int64_t i0, int64_t t0)
      : at_(reinterpret_cast<const char*>(matrix) + (i0 * row + t0 + kLanes<T> - 1) * int64_t(sizeof(T))), stride_(row * int64_t(sizeof(T))) {}
  void row() {
    __builtin_prefetch(at_, 0, 3);
    at_ += stride_;
  }
  // The lanes' windows begin one column earlier from lane to lane.
  void lane() { at_ -= sizeof(T); }
};

// The match scores of L steps from t0 on, one vector a step, for row q of every lane's `Stack` rows.
template <int Stack, class T>
inline void read_tile(const Pair<T>& p, int64_t i0, int q, int64_t t0, Vec<T>* v) {
  constexpr int64_t L = kLanes<T>;
  const auto row = [&](int r) { return i0 + Stack * (L - 1 - r) + q; };
  const Windows<T> windows(t0 - (L - 1), p.m);
  if (row(0) < p.n && windows.all_inside()) {
#pragma GCC unroll 16
    for (int r = 0; r < L; ++r) v[r] = load(p.match + row(r) * p.row + t0 - (L - 1) + r);
  } else {
    for (int r = 0; r < L; ++r) v[r] = windows.read(p.match + std::min(row(r), p.n - 1) * p.row, r);
  }
  transpose(v);
}

// The same in memory; `top` takes the largest of them.
template <int Stack, class T>
inline void load_tile(const Pair<T>& p, int64_t i0, int q, int64_t t0, T* tile, Vec<T>& top) {
  constexpr int64_t L = kLanes<T>;
  Vec<T> v[L];
  read_tile<Stack>(p, i0, q, t0, v);
#pragma GCC unroll 16
  for (int k = 0; k < L; ++k) {
    top = vmax(top, v[k]);
    store(tile + k * L, v[k]);
  }
}

}  // namespace sl
