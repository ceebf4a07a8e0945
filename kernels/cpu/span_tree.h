// What every span tree kernel is given, and where it keeps the cells of a group of sentences.
//
//   s(y) = sum over the spans i..j of the tree of spans[i][j][label]
//   a[i][j] = (+)_l spans[i][j][l] (x) (+)_k a[i][k] (x) a[k+1][j]
#pragma once
#include "batch.h"
#include "chain_scaled.h"
#include "parallel.h"
#include "rows.h"
#include "scale.h"

namespace sl {

// Plain data, filled by structlearn/ops/span_tree.py and python.cpp: the field order there must match.
struct SpanTreeArgs {
  const void* spans;
  const int64_t* lengths;  // null: every sentence has N words
  int64_t B, N, L;
  int64_t stride_b, stride_i;  // in elements; (j, l) are contiguous
  int64_t group;               // sentences that share a chart
  int64_t threads;
};

// Sentences that share a chart, as _group in structlearn/ops/span_tree.py: 4 fill the vectors of its short diagonals,
// fewer keep a long one in the cache.
inline int64_t sentences_together(int64_t B, int64_t N) { return std::max<int64_t>(1, std::min<int64_t>(B, N <= 128 ? 4 : N <= 256 ? 2 : 1)); }

// Room after each diagonal, for vectors that reach past its end; the widest vector has 16 lanes.
constexpr int64_t kSlack = 16;

// The spans of one width lie together, by first word and then by sentence. A split into u and w - u
// words pairs diagonal u with diagonal w - u moved by u words, entry by entry, so that one vector
// instruction works on neighbouring spans of all sentences of the group, whatever their number.
struct Diagonals {
  int64_t n = 0, g = 0;
  std::vector<int64_t> base;  // of widths 1..n, then the end

  void set(int64_t words, int64_t sentences) {
    n = words, g = sentences;
    base.reserve(n + 2);
    base.assign(2, 0);
    for (int64_t w = 1; w <= n; ++w) base.push_back(base.back() + length(w) + kSlack);
  }
  int64_t size() const { return base.back(); }
  int64_t length(int64_t w) const { return (n - w + 1) * g; }
  int64_t at(int64_t w, int64_t i, int64_t r) const { return base[w] + i * g + r; }
};

template <class T>
struct SpanTree {
  const SpanTreeArgs& args;
  const int64_t B, N, L;
  std::vector<int64_t> order;  // sentences by falling length, so a group's lengths are close
  double work = 0;

  explicit SpanTree(const SpanTreeArgs& a) : args(a), B(a.B), N(a.N), L(a.L), order(by_falling_length(a.lengths, a.B, a.N)) {
    for (int64_t b = 0; b < B; ++b) work += double(length(b)) * double(length(b)) * double(length(b) + 3 * L);
  }
  int64_t length(int64_t b) const { return args.lengths ? args.lengths[b] : N; }
  // The labels of span i..i; those of i..j follow (j - i) L further on.
  const T* row(int64_t b, int64_t i) const { return static_cast<const T*>(args.spans) + b * args.stride_b + i * (args.stride_i + L); }
  // One below `least` units of work. Ten units make a nanosecond or so of the slower kernels, and a sleeping worker took
  // about 50 us to start, as long as a batch of 16 sentences of 20 words with 30 labels.
  int workers(double least = 1e6) const { return work < least ? 1 : int(std::max<int64_t>(1, args.threads)); }

  // f(k, rows, count) for every group of sentences, here of args.group, below of `size`. Below `least` units of work on
  // the caller's thread, below `waking` with workers that are alert already.
  template <class F>
  void for_groups(F&& f) const { for_groups(args.group, 1e6, 1e6, f); }
  template <class F>
  void for_groups(int64_t size, double least, double waking, F&& f) const {
    parallel_for((B + size - 1) / size, workers(least), [&](int64_t k, int) {
      const int64_t begin = k * size;
      f(k, order.data() + begin, std::min(B, begin + size) - begin);
    }, work < waking);
  }
};

// Calls f(v, vectors) over the lanes of a diagonal, in blocks of kBlock vectors and then one by one.
#if defined(__AVX512F__)
constexpr int kBlock = 4;
#else
constexpr int kBlock = 2;
#endif
template <class T, class F>
inline void for_lanes(int64_t length, F&& f) {
  int64_t v = 0;
  for (; v + kBlock * kLanes<T> <= length; v += kBlock * kLanes<T>) f(v, std::integral_constant<int, kBlock>{});
  for (; v < length; v += kLanes<T>) f(v, std::integral_constant<int, 1>{});
}

}  // namespace sl
