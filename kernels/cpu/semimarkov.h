// What every semi-Markov kernel is given, and how it cuts a ragged batch into groups of sequences.
//
//   s(y) = sum_i segments[t_i][w_i][c_i] + sum_{i>0} transition[t_i - 1][c_{i-1}][c_i]
// over segments i that start at t_i, are w_i + 1 positions wide and have label c_i. With a_t for what
// ends before position t and b_t for what goes on there,
//   b_0[c] = 1,  b_t[c] = (+)_p a_t[p] (x) transition[p][c],  a_t[c] = (+)_w b_{t-w-1}[c] (x) segments[t-w-1][w][c].
// A position costs C^2 + W C; the kernels differ in what (+) and (x) are.
#pragma once
#include "batch.h"
#include "parallel.h"
#include "rows.h"

namespace sl {

constexpr int64_t kPadCode = -100, kInsideCode = -1;

// Plain data, filled by structlearn/ops/semimarkov.py: the field order there must match.
struct SemiArgs {
  const void *segments, *transition;
  const int64_t* lengths;  // null: every sequence has N positions
  int64_t B, N, W, C;
  int64_t segments_b, segments_n, segments_w;  // strides in elements; labels are contiguous
  int64_t transition_b, transition_n;          // strides in elements; each (C, C) matrix is contiguous
  int64_t shared;                              // 1: one matrix for all positions of all sequences
  int64_t threads;
};

template <class T>
struct Semi {
  const SemiArgs& args;
  int64_t B, N, W, C, Cp;
  std::vector<int64_t> order;  // rows by falling length, so a group's active rows are its first ones
  int64_t group_size = 1, groups = 0, work = 0;

  explicit Semi(const SemiArgs& a, bool grouped = true)
      : args(a), B(a.B), N(a.N), W(a.W), C(a.C), Cp(padded<T>(a.C)), order(by_falling_length(a.lengths, a.B, a.N)) {
    int64_t total = 0;
    for (int64_t b = 0; b < B; ++b) total += length(b);
    work = total * C * (C + W);
    if (grouped && shared()) {
      const int64_t each = (B + workers() - 1) / workers(), rounds = (each + kRows - 1) / kRows;
      group_size = std::max<int64_t>(1, rounds ? (each + rounds - 1) / rounds : 1);
    }
    groups = (B + group_size - 1) / group_size;
  }

  bool shared() const { return args.shared; }
  int64_t length(int64_t b) const { return args.lengths ? args.lengths[b] : N; }
  // Number of widths of segments that start at t and end within n positions.
  int64_t widths(int64_t t, int64_t n) const { return std::min(W, n - t); }
  const T* segments(int64_t b, int64_t t, int64_t w) const {
    return static_cast<const T*>(args.segments) + b * args.segments_b + t * args.segments_n + w * args.segments_w;
  }
  const T* transition(int64_t b, int64_t t) const {  // into a segment that starts at t >= 1
    return static_cast<const T*>(args.transition) + b * args.transition_b + (t - 1) * args.transition_n;
  }
  int workers() const { return workers_for(work, args.threads, B); }
};

// Row b's segments into y: -1 throughout, starts to be filled in by the caller, padding after n.
inline void blank_code(int64_t* y, int64_t n, int64_t N) {
  std::fill_n(y, n, kInsideCode);
  std::fill(y + n, y + N, kPadCode);
}

}  // namespace sl
