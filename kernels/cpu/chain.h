// What every chain kernel is given, and how it cuts a ragged batch into groups of sequences.
//
//   s(y) = start[y_0] + sum_t unary[t][y_t] + sum_{t>0} transition[t-1][y_{t-1}][y_t] + end[y_last]
#pragma once
#include "batch.h"
#include "exact.h"
#include "parallel.h"
#include "rows.h"

namespace sl {

constexpr int64_t kPadLabel = -100;

// Plain data, filled by structlearn/ops/chain.py and python.cpp: the field order there must match.
struct ChainArgs {
  const void *unary, *transition, *start, *end;  // start and end may be null
  const int64_t* lengths;                        // null: every sequence has N positions
  int64_t B, N, C;
  int64_t unary_b, unary_n;            // strides in elements; states are contiguous
  int64_t transition_b, transition_n;  // strides in elements; each (C, C) matrix is contiguous
  int64_t shared;                      // 1: one matrix for all positions of all sequences
  int64_t threads;
};

template <class T>
struct ChainScores {
  const ChainArgs& args;
  int64_t B, N, C;
  const T *start, *end;

  explicit ChainScores(const ChainArgs& a)
      : args(a), B(a.B), N(a.N), C(a.C), start(static_cast<const T*>(a.start)), end(static_cast<const T*>(a.end)) {}

  bool shared() const { return args.shared; }
  int64_t length(int64_t b) const { return args.lengths ? args.lengths[b] : N; }
  const T* unary(int64_t b, int64_t t) const { return static_cast<const T*>(args.unary) + b * args.unary_b + t * args.unary_n; }
  const T* transition(int64_t b, int64_t t) const {  // from position t to t + 1
    return static_cast<const T*>(args.transition) + b * args.transition_b + t * args.transition_n;
  }
  // s(y) in units for labels of sequence b.
  double score(int64_t b, const int64_t* y) const {
    const int64_t n = length(b);
    double sum = 0, steps = 0;  // apart, so that an addition need not wait for the other
    for (int64_t t = 0; t < n; ++t) {
      sum += in_units(unary(b, t)[y[t]]);
      if (t) steps += in_units(transition(b, t - 1)[y[t - 1] * C + y[t]]);
    }
    if (n && start) sum += in_units(start[y[0]]);
    if (n && end) sum += in_units(end[y[n - 1]]);
    return sum + steps;
  }
  // s(y) - s(z) in units, for a y that is not forbidden.
  double difference(int64_t b, const int64_t* y, const int64_t* z) const {
    const int64_t n = length(b);
    double sum = 0;
    for (int64_t t = 0; t < n; ++t) {
      if (y[t] != z[t]) sum += in_units(unary(b, t)[y[t]]) - in_units(unary(b, t)[z[t]]);
      if (t && (y[t] != z[t] || y[t - 1] != z[t - 1])) {
        const T* m = transition(b, t - 1);
        sum += in_units(m[y[t - 1] * C + y[t]]) - in_units(m[z[t - 1] * C + z[t]]);
      }
    }
    if (n && start && y[0] != z[0]) sum += in_units(start[y[0]]) - in_units(start[z[0]]);
    if (n && end && y[n - 1] != z[n - 1]) sum += in_units(end[y[n - 1]]) - in_units(end[z[n - 1]]);
    return sum;
  }
};

template <class T>
struct Chain : ChainScores<T> {
  using ChainScores<T>::args, ChainScores<T>::B, ChainScores<T>::N, ChainScores<T>::C;
  int64_t Cp;
  std::vector<int64_t> order;  // rows by falling length, so a group's active rows are its first ones
  int64_t group_size = 1, groups = 0, work = 0;

  // Groups hold at most `most` sequences, one where each has matrices of its own.
  explicit Chain(const ChainArgs& a, int64_t most = kRows) : ChainScores<T>(a), Cp(padded<T>(a.C)), order(by_falling_length(a.lengths, a.B, a.N)) {
    int64_t total = 0;
    for (int64_t b = 0; b < B; ++b) total += this->length(b);
    work = total * C * C;
    if (this->shared()) {
      const int64_t each = (B + workers() - 1) / workers(), rounds = (each + most - 1) / most;
      group_size = std::max<int64_t>(1, rounds ? (each + rounds - 1) / rounds : 1);
    }
    groups = (B + group_size - 1) / group_size;
  }

  // Whether rows of unary and of its gradient come from memory. The processor then foresees only part of them: each of
  // a group's rows is a stream of its own and soon crosses a page. Asked for a step ahead, log Z with its gradient takes
  // a sixth less for (64,2000,64), and no longer more for each position than (64,250,64); in the cache 4 % more.
  bool far() const { return B * N * C * int64_t(sizeof(T)) > int64_t(4) << 20; }
  // Rows next to each other have cache lines in common, and rows of like length go together, so neighbours often belong
  // to different threads: below kWorthWaking one thread is as quick as two even if the other is awake ((64,25,9) log Z
  // with gradient 13.7 us against 15.8, labels 5.8 against 8.6; (32,50,10) 15.3 against 17.2, 6.5 against 7.7).
  int workers() const { return workers_for(work, args.threads, B); }
};

}  // namespace sl
