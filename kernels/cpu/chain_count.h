// Count-augmented Viterbi: the best labelling for every value g of some statistics, and the one that
// maximises offset[g] + slope[g] * score (structures/chain_count.py states the recurrence).
//
// A chart row holds all S values of the statistics for one (label, state), so that a step is
//   out[c][q'][g + step] = max(out, in[p][q][g] + T[p][c]) + u[c],
// a shifted vector operation over g. Without an automaton the step depends on the label alone, and
// the maximum over p is the register-blocked (max, +) product of rows.h with the roles turned: T^T by
// the chart. Limited by add/max throughput there, by loads and stores of the chart with an automaton.
// Only values of g that labellings of t + 1 positions can reach are touched. Scores of a row whose sums could leave the
// range of T are scaled by a power of two, so that -inf in the chart always means that there is no such labelling.
#pragma once
#include "chain.h"
#include "counted.h"

namespace sl {

// Field order and null rules as in structlearn/ops/chain_count.py.
template <class T>
struct CountArgs {
  const int32_t *classes, *following, *step, *last;
  int64_t kinds, states, size;
  const T *offset, *slope;
  int64_t *labels, *index;
  T *value, *table;
  int64_t most_unary_step;  // no label adds more
};

template <class T>
class CountedRow {
 public:
  CountedRow(const Chain<T>& chain, const CountArgs<T>& args) : chain_(chain), args_(args), C_(chain.C), Q_(args.states), S_(args.size) {
    jump_ = args.most_unary_step;
    if (args.kinds) jump_ += *std::max_element(args.step, args.step + args.kinds * Q_ * (C_ + 1) * C_);
    // Stores may run past g = S - 1 by one jump and one vector.
    width_ = padded<T>(S_ + jump_ + kLanes<T>);
  }

  // unary_step: (N, C) of this row, or null.
  void run(int64_t b, const int32_t* unary_step) {
    b_ = b;
    unary_step_ = unary_step;
    const int64_t n = chain_.length(b), N = chain_.N;
    int64_t* y = args_.labels + b * N;
    T* table = args_.table + b * S_;
    std::fill_n(y, N, kPadLabel);
    std::fill_n(table, S_, kNegInf<T>);
    if (n == 0) {
      table[0] = 0;
    } else {
      choose_unit(n);
      chart_.resize(n * C_ * Q_ * width_);
      reach_ = 0;
      for (int64_t t = 0; t < n; ++t) advance(t);
      for (int64_t c = 0; c < C_; ++c)
        for (int64_t q = 0; q < Q_; ++q) {
          const T* from = row(n - 1, c, q);
          const int64_t shift = last(q, c);
          for (int64_t g = 0; g + shift < S_; ++g) table[g + shift] = std::max(table[g + shift], from[g] + end(c));
        }
      constexpr T most = std::numeric_limits<T>::max();
      for (int64_t g = 0; unit_ < 1 && g < S_; ++g)
        if (table[g] > kNegInf<T>) table[g] = std::max(-most * unit_, std::min(most * unit_, table[g])) / unit_;
    }
    args_.index[b] = pick(table, args_.offset + b * S_, args_.slope + b * S_, S_, args_.value + b);
    if (n && args_.value[b] > kNegInf<T>) trace(n, args_.index[b], y);
  }

 private:
  T* row(int64_t t, int64_t c, int64_t q) { return chart_.data + ((t * C_ + c) * Q_ + q) * width_; }
  T start(int64_t c) const { return chain_.start ? chain_.start[c] * unit_ : T(0); }
  T end(int64_t c) const { return chain_.end ? chain_.end[c] * unit_ : T(0); }
  T unary(int64_t t, int64_t c) const { return chain_.unary(b_, t)[c] * unit_; }
  T transition(int64_t t, int64_t p, int64_t c) const { return chain_.transition(b_, t)[p * C_ + c] * unit_; }

  void choose_unit(int64_t n) {
    Vec<T> top{};
    const auto look = [&](const T* x, int64_t size) {
      for (int64_t i = 0; x && i < size; i += kLanes<T>) {
        const Vec<T> v = load_row(x, i, size, T(0)), positive = vmax(v, -v);
        top = vmax(positive < std::numeric_limits<T>::infinity() ? positive : Vec<T>{}, top);
      }
    };
    look(chain_.start, C_), look(chain_.end, C_);
    for (int64_t t = 0; t < n; ++t) look(chain_.unary(b_, t), C_);
    for (int64_t t = 0; t + 1 < (chain_.shared() ? std::min<int64_t>(n, 2) : n); ++t) look(chain_.transition(b_, t), C_ * C_);
    unit_ = hmax(top) < std::numeric_limits<T>::max() / T(4 * n + 4) ? T(1) : T(0x1p-40);
  }
  int64_t last(int64_t q, int64_t c) const { return args_.last ? args_.last[q * C_ + c] : 0; }
  int64_t unary_step(int64_t t, int64_t c) const { return unary_step_ ? unary_step_[t * C_ + c] : 0; }
  // Index of (kind of t, q, p, c) in following and step; p = C before the first label.
  int64_t cell(int64_t t, int64_t q, int64_t p, int64_t c) const {
    const int64_t k = args_.classes ? args_.classes[b_ * chain_.N + t] : 0;
    return ((k * Q_ + q) * (C_ + 1) + p) * C_ + c;
  }
  int64_t following(int64_t t, int64_t q, int64_t p, int64_t c) const { return args_.kinds ? args_.following[cell(t, q, p, c)] : 0; }
  int64_t step(int64_t t, int64_t q, int64_t p, int64_t c) const { return unary_step(t, c) + (args_.kinds ? args_.step[cell(t, q, p, c)] : 0); }

  void advance(int64_t t) {
    std::fill_n(row(t, 0, 0), C_ * Q_ * width_, kNegInf<T>);
    if (t == 0) {
      for (int64_t c = 0; c < C_; ++c) {
        const int64_t g = step(0, 0, C_, c);
        if (g < S_) row(0, c, following(0, 0, C_, c))[g] = start(c) + unary(0, c);
      }
    } else if (args_.kinds) {
      automaton_step(t);
    } else {
      plain_step(t);
    }
    reach_ = std::min(S_ - 1, reach_ + jump_);
  }

  void plain_step(int64_t t) {
    if (into_unit_ != unit_ || !chain_.shared()) {
      into_unit_ = unit_;
      into_.resize(C_ * C_);
      for (int64_t c = 0; c < C_; ++c)
        for (int64_t p = 0; p < C_; ++p) into_.data[c * C_ + p] = transition(t - 1, p, c);
    }
    for (int64_t c0 = 0; c0 < C_; c0 += kRows) {
      const int rows = int(std::min<int64_t>(kRows, C_ - c0));
      const T* weights[kRows];
      T *out[kRows], u[kRows];
      for (int r = 0; r < rows; ++r) {
        weights[r] = into_.data + (c0 + r) * C_, u[r] = unary(t, c0 + r);
        out[r] = row(t, c0 + r, 0) + unary_step(t, c0 + r);
      }
      step_strided<MaxPlus, T>(rows, weights, row(t - 1, 0, 0), C_, width_, reach_ + 1,
                               [&](int r, int64_t g, Vec<T> best) { store(out[r] + g, best + u[r]); });
    }
    trim(t);
  }

  void automaton_step(int64_t t) {
    for (int64_t c = 0; c < C_; ++c)
      for (int64_t p = 0; p < C_; ++p) {
        const T m = transition(t - 1, p, c) + unary(t, c);
        if (m == kNegInf<T>) continue;
        for (int64_t q = 0; q < Q_; ++q) {
          const T* from = row(t - 1, p, q);
          T* to = row(t, c, following(t, q, p, c)) + step(t, q, p, c);
          for (int64_t g = 0; g <= reach_; g += kLanes<T>) store(to + g, vmax(load(from + g) + m, load(to + g)));
        }
      }
    trim(t);
  }

  // Values past the table cannot occur in a whole output; they must not come back by later steps.
  void trim(int64_t t) {
    for (int64_t i = 0; i < C_ * Q_; ++i) std::fill_n(row(t, 0, 0) + i * width_ + S_, width_ - S_, kNegInf<T>);
  }

  void trace(int64_t n, int64_t g, int64_t* y) {
    int64_t c = 0, q = 0;
    T best = kNegInf<T>;
    for (int64_t i = 0; i < C_ * Q_; ++i) {
      const int64_t before = g - last(i % Q_, i / Q_);
      const T x = before < 0 ? kNegInf<T> : row(n - 1, i / Q_, i % Q_)[before] + end(i / Q_);
      if (x > best) best = x, c = i / Q_, q = i % Q_;
    }
    g -= last(q, c);
    y[n - 1] = c;
    for (int64_t t = n - 1; t > 0; --t) {
      const T u = unary(t, c);
      best = kNegInf<T>;
      int64_t p_best = 0, q_best = 0;
      for (int64_t p = 0; p < C_; ++p)
        for (int64_t r = 0; r < Q_; ++r) {
          const int64_t before = g - step(t, r, p, c);
          if (before < 0 || following(t, r, p, c) != q) continue;
          const T m = transition(t - 1, p, c), x = row(t - 1, p, r)[before] + (args_.kinds ? m + u : m);
          if (x > best) best = x, p_best = p, q_best = r;
        }
      g -= step(t, q_best, p_best, c);
      y[t - 1] = c = p_best, q = q_best;
    }
  }

  const Chain<T>& chain_;
  const CountArgs<T>& args_;
  const int64_t C_, Q_, S_;
  const int32_t* unary_step_ = nullptr;
  int64_t b_ = 0, jump_ = 0, width_ = 0, reach_ = 0;
  T unit_ = 1, into_unit_ = 0;  // of the scores in the chart, and in into_
  Buffer<T> chart_, into_;
};

}  // namespace sl
