// Best labelling of each chain:
//   a_0[c] = start[c] + u_0[c],   a_t[c] = max_p(a_{t-1}[p] + T[p][c]) + u_t[c]
//
// Only the maximum is kept in the inner loop; the best predecessor is recomputed along the best path
// from the same two addends, which gives the same bits and the lowest index on ties, at C additions
// a position instead of C^2 compares. Limited by add/max throughput for C >= 50 and by the latency
// of one step for small C.
//
// With gold labels, u_t[gold_t] is lowered by scale_b * discount_t: since Hamming costs add the same
// amount to every label but gold's, this is the cost-augmented argmax at one subtraction a position.
#pragma once
#include <mutex>
#include <optional>

#include "chain_viterbi_careful.h"
#include "chain_viterbi_lanes.h"
#include "transpose.h"

namespace sl {

template <class T>
struct Viterbi {
  const Chain<T> chain;
  const int64_t N, C, Cp;
  int64_t* labels;
  T* scores;
  Panels<T> forward;      // T packed for steps
  RawBuffer<T> into;      // into[c][p] = T[p][c]
  std::mutex packing;  // not std::call_once, which makes a system call when it is done: a third of a short decode
  bool packed = false;
  std::optional<ViterbiLanes<T>> lanes;
  const int64_t* gold = nullptr;  // (B, N), checked by the caller
  const T* discount = nullptr;    // (B, N); null: 1
  const T* scale = nullptr;       // (B,); null: 1

  Viterbi(const ChainArgs& args, int64_t* labels_, T* scores_)
      : chain(args, most_rows(args)), N(args.N), C(args.C), Cp(chain.Cp), labels(labels_), scores(scores_) {
    if (!chain.shared()) return;
    if (by_lanes<T>(args.B, C)) lanes.emplace(chain);
    else pack();
  }

  // The forms of a shared matrix that rows side by side need; lanes have their own, and need these for a last group of
  // few rows alone. Before the threads start where all need them: one that waits for a lock falls asleep.
  void pack() {
    const std::lock_guard<std::mutex> lock(packing);
    if (packed) return;
    packed = true;
    const T* t = chain.transition(0, 0);
    forward.pack(C, C, kNegInf<T>, t, C);
    into.resize(C * Cp);
    transpose(C, C, t, C, into.data, Cp);
  }

  // How many rows one call of decode takes.
  static int64_t most_rows(const ChainArgs& args) {
    if (!args.shared) return 1;
    return by_lanes<T>(args.B, args.C) ? kLanes<T> : kRows;
  }

  void first(int64_t b, T* a) const {
    const T* u = chain.unary(b, 0);
    for (int64_t c = 0; c < Cp; c += kLanes<T>) {
      Vec<T> x = load_row(u, c, C, kNegInf<T>);
      if (chain.start) x = load_row(chain.start, c, C, T(0)) + x;
      store(a + c, x);
    }
  }

  int64_t last(const T* a, T* best) const {
    alignas(kBytes) T zero[kLanes<T>] = {};
    *best = kNegInf<T>;
    int64_t arg = 0;
    for (int64_t c = 0; c < C; c += kLanes<T>) {
      alignas(kBytes) T e[kLanes<T>];
      store(e, chain.end ? load_row(chain.end, c, C, T(0)) : load(zero));
      T here;
      const int64_t at = argmax_sum(a + c, e, 1, &here);
      if (here > *best) *best = here, arg = c + at;
    }
    return arg;
  }

  int64_t before(int64_t b, int64_t t, const T* a, int64_t c) const {
    T best;
    return chain.shared() ? argmax_sum(a, into.data + c * Cp, C, &best) : argmax_column(a, chain.transition(b, t), C, c);
  }

  T cost(int64_t b, int64_t t) const { return (discount ? discount[b * N + t] : T(1)) * (scale ? scale[b] : T(1)); }
  void lower(int64_t b, int64_t t, T* a, int64_t stride = 1) const {
    if (gold) a[gold[b * N + t] * stride] -= cost(b, t);
  }
  // Rows whose score is no number that sums of T can be trusted with, again.
  void careful(const int64_t* rows, int count) const {
    for (int r = 0; r < count; ++r) {
      const int64_t b = rows[r];
      if (!is_large(scores[b])) continue;
      scores[b] = careful_best(chain, b, labels + b * N, [&](int64_t t, double* a) {
        if (gold) a[gold[b * N + t]] -= in_units(cost(b, t));
      });
    }
  }

  void group(int64_t g) {
    const int64_t begin = g * chain.group_size;
    decode(chain.order.data() + begin, int(std::min(chain.B, begin + chain.group_size) - begin));
  }

  // At most most_rows rows, by falling length.
  void decode(const int64_t* rows, int active) {
    for (int r = 0; r < active; ++r) {
      for (int64_t t = chain.length(rows[r]); t < N; ++t) labels[rows[r] * N + t] = kPadLabel;
      if (chain.length(rows[r]) == 0) scores[rows[r]] = 0;
    }
    while (active && chain.length(rows[active - 1]) == 0) --active;
    if (!active) return;
    if (lanes && by_lanes<T>(active, C)) {
      lanes->decode(rows, active, labels, scores, [&](int64_t b, int64_t t, T* a, int64_t stride) { lower(b, t, a, stride); });
      careful(rows, active);
      return;
    }
    if (chain.shared()) pack();
    const int64_t longest = chain.length(rows[0]);
    KeptBuffer<T, 2> alphas;  // group x longest x Cp
    T* const alpha = alphas.resize(active * longest * Cp);
    const auto at = [&](int r, int64_t t) { return alpha + (r * longest + t) * Cp; };

    for (int r = 0; r < active; ++r) first(rows[r], at(r, 0)), lower(rows[r], 0, at(r, 0));
    const int all = active;
    const bool far = chain.far();
    for (int64_t t = 1; t < longest; ++t) {
      while (chain.length(rows[active - 1]) <= t) --active;
      const T *a[kRows], *u[kRows];
      T* out[kRows];
      for (int r = 0; r < active; ++r) {
        a[r] = at(r, t - 1), u[r] = chain.unary(rows[r], t), out[r] = at(r, t);
        if (far && t + 1 < longest) fetch_row<false>(u[r] + chain.args.unary_n, C), fetch_row<true>(out[r] + Cp, C);
      }
      const auto finish = [&](int r, int64_t c, Vec<T> best) { store(out[r] + c, best + load_row(u[r], c, C, kNegInf<T>)); };
      if (chain.shared()) step<MaxPlus, T>(active, a, forward, finish);
      else step_once<MaxPlus, T>(a[0], chain.transition(rows[0], t - 1), C, [&](int64_t c, Vec<T> best) { finish(0, c, best); });
      for (int r = 0; gold && r < active; ++r) lower(rows[r], t, out[r]);
    }

    int64_t at_label[kRows];
    for (int r = 0; r < all; ++r) {
      const int64_t n = chain.length(rows[r]);
      at_label[r] = last(at(r, n - 1), scores + rows[r]);
      labels[rows[r] * N + n - 1] = at_label[r];
    }
    // Rows side by side: each path is a chain of dependent look-ups, and several overlap.
    for (int64_t t = longest - 2; t >= 0; --t)
      for (int r = 0; r < all && t < chain.length(rows[r]) - 1; ++r)
        labels[rows[r] * N + t] = at_label[r] = before(rows[r], t, at(r, t), at_label[r]);
    careful(rows, all);
  }
};

}  // namespace sl
