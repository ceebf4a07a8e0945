// One sequence in log space, with every sum taken relative to its own maximum, and optionally the
// derivative of everything along a direction v in the space of potentials:
//   a_t[c] = u_t[c] + log sum_p exp(a_{t-1}[p] + T[p][c])
//   a'_t[c] = v_u[c] + sum_p q(p|c) (a'_{t-1}[p] + v_T[p][c]),   q(.|c) the normalised summands
// and likewise b, b' from the end. C^2 exponentials a position, about 20 times the scaled product.
//
// Both a_t and b_t are kept relative to their largest entry (and a'_t, b'_t to the entry there), with
// the constants added up in double, and probabilities are normalised at their own position: a sum of
// scores that grows with the length would cost every probability its last digits.
#pragma once
#include "chain.h"

namespace sl {

template <class T>
struct ChainDirection {  // shapes of the potentials, contiguous; null where the potential is null
  const T *unary = nullptr, *transition = nullptr, *start = nullptr, *end = nullptr;
};

template <class T>
struct ChainGradient {  // where a row's derivatives go
  T* unary = nullptr;       // (N, C) of this row
  T* transition = nullptr;  // (N-1, C, C) of this row, or the (C, C) sum over rows if shared
  T *start = nullptr, *end = nullptr;  // sums over rows, may be null
};

template <class T, bool Tangent>
class LogRow {
 public:
  double log_z = 0;
  double along = 0;  // d log_z along the direction

  // Forward pass; enough for log_z and along.
  void forward(const Chain<T>& chain, int64_t b, const ChainDirection<T>& v = {}) {
    C_ = chain.C, Cp_ = chain.Cp, n_ = chain.length(b), row_ = b, v_ = v;
    log_z = along = 0;
    if (n_ == 0) return;
    a_.resize(n_ * Cp_);
    da_.resize(Tangent ? n_ * Cp_ : 0);
    for (int64_t c = 0; c < Cp_; ++c) {
      a(0)[c] = c < C_ ? chain.unary(b, 0)[c] + (chain.start ? chain.start[c] : T(0)) : kNegInf<T>;
      if (Tangent) da(0)[c] = c < C_ ? v_unary(chain, 0)[c] + (v.start ? v.start[c] : T(0)) : T(0);
    }
    bool alive = center(a(0), da(0));
    for (int64_t t = 1; alive && t < n_; ++t) forward_step(chain, t), alive = center(a(t), da(t));
    T top = kNegInf<T>;
    for (int64_t c = 0; alive && c < C_; ++c) top = std::max(top, last(chain, c));
    if (top == kNegInf<T>) {
      log_z = kNegInf<double>, along = 0;
      return;
    }
    double sum = 0, mean = 0;
    for (int64_t c = 0; c < C_; ++c) {
      const T e = std::exp(last(chain, c) - top);
      sum += e;
      if (Tangent) mean += double(e) * (da(n_ - 1)[c] + (v.end ? v.end[c] : T(0)));
    }
    log_z += top + std::log(sum);
    along += mean / sum;
  }

  // Backward pass after forward: adds weight * P (or, with Tangent, weight * P') to the gradients of
  // shared potentials and overwrites those of this row, padding included.
  void backward(const Chain<T>& chain, T weight, const ChainGradient<T>& out) {
    const int64_t N = chain.N;
    const bool alive = n_ > 0 && log_z > kNegInf<double>;
    std::fill(out.unary + (alive ? n_ : 0) * C_, out.unary + N * C_, T(0));
    if (!chain.shared() && N > 1)
      std::fill(out.transition + (alive ? n_ - 1 : 0) * C_ * C_, out.transition + (N - 1) * C_ * C_, T(0));
    if (!alive) return;
    b_.resize(Cp_), db_.resize(Cp_), z_.resize(Cp_), dz_.resize(Cp_), p_.resize(Cp_), sums_.resize(Cp_), e_.resize(C_ * Cp_);
    for (int64_t c = 0; c < C_; ++c) {
      b_.data[c] = chain.end ? chain.end[c] : T(0);
      db_.data[c] = v_.end ? v_.end[c] : T(0);
    }
    posterior(n_ - 1, weight, out.unary);
    if (out.end)
      for (int64_t c = 0; c < C_; ++c) out.end[c] += out.unary[(n_ - 1) * C_ + c];
    for (int64_t t = n_ - 1; t > 0; --t) backward_step(chain, t, weight, out);
    if (out.start)
      for (int64_t c = 0; c < C_; ++c) out.start[c] += out.unary[c];
  }

  const T* alpha(int64_t t) const { return a_.data + t * Cp_; }

 private:
  T* a(int64_t t) { return a_.data + t * Cp_; }
  T* da(int64_t t) { return da_.data + t * Cp_; }
  const T* v_unary(const Chain<T>& chain, int64_t t) const { return v_.unary + (row_ * chain.N + t) * C_; }
  const T* v_matrix(const Chain<T>& chain, int64_t t) const {
    return chain.shared() ? v_.transition : v_.transition + (row_ * (chain.N - 1) + t) * C_ * C_;
  }
  T last(const Chain<T>& chain, int64_t c) { return a(n_ - 1)[c] + (chain.end ? chain.end[c] : T(0)); }

  // Makes the largest of x 0 and moves the constant to log_z and along; false if there is none.
  bool center(T* x, T* dx) {
    const int64_t at = std::max_element(x, x + C_) - x;
    const T top = x[at], dtop = Tangent ? dx[at] : T(0);
    if (top == kNegInf<T>) return false;
    for (int64_t c = 0; c < C_; ++c) x[c] -= top;
    for (int64_t c = 0; Tangent && c < C_; ++c) dx[c] -= dtop;
    log_z += top, along += dtop;
    return true;
  }

  void forward_step(const Chain<T>& chain, int64_t t) {
    const T* m = chain.transition(row_, t - 1);
    const T* vm = Tangent ? v_matrix(chain, t - 1) : nullptr;
    const T *before = a(t - 1), *dbefore = Tangent ? da(t - 1) : nullptr;
    for (int64_t c = 0; c < Cp_; c += kLanes<T>) {
      Vec<T> top = splat<T>(kNegInf<T>), sum{}, mean{};
      for (int64_t p = 0; p < C_; ++p) top = vmax(load_row(m + p * C_, c, C_, kNegInf<T>) + before[p], top);
      const Vec<T> shift = top > kNegInf<T> ? top : Vec<T>{};
      for (int64_t p = 0; p < C_; ++p) {
        const Vec<T> e = vexp<T>(load_row(m + p * C_, c, C_, kNegInf<T>) + before[p] - shift);
        sum += e;
        if (Tangent) mean += e > T(0) ? e * (load_row(vm + p * C_, c, C_, T(0)) + dbefore[p]) : Vec<T>{};
      }
      for (int64_t i = 0; i < kLanes<T>; ++i) {
        const bool alive = c + i < C_ && sum[i] > 0;
        a(t)[c + i] = alive ? shift[i] + std::log(sum[i]) + chain.unary(row_, t)[c + i] : kNegInf<T>;
        if (Tangent) da(t)[c + i] = alive ? mean[i] / sum[i] + v_unary(chain, t)[c + i] : T(0);
      }
    }
  }

  // From a_t and b_t: weight * P(y_t) into p_ and its gradient into d_unary; returns E[a'_t + b'_t].
  T posterior(int64_t t, T weight, T* d_unary) {
    T top = kNegInf<T>, sum = 0, mean = 0;
    for (int64_t c = 0; c < C_; ++c) top = std::max(top, p_.data[c] = a(t)[c] + b_.data[c]);
    for (int64_t c = 0; c < C_; ++c) {
      sum += p_.data[c] = std::exp(p_.data[c] - top);
      if (Tangent) mean += p_.data[c] * (da(t)[c] + db_.data[c]);
    }
    mean /= sum;
    for (int64_t c = 0; c < C_; ++c) {
      p_.data[c] *= weight / sum;
      d_unary[t * C_ + c] = Tangent ? p_.data[c] * (da(t)[c] + db_.data[c] - mean) : p_.data[c];
    }
    return mean;
  }

  // From b_t to b_{t-1}, the pairs (t-1, t), and the labels at t-1:
  //   P(y_{t-1} = p, y_t = c) = P(y_{t-1} = p) exp(T[p][c] + u_t[c] + b_t[c]) / exp(b_{t-1}[p]).
  void backward_step(const Chain<T>& chain, int64_t t, T weight, const ChainGradient<T>& out) {
    const T* m = chain.transition(row_, t - 1);
    const T* vm = Tangent ? v_matrix(chain, t - 1) : nullptr;
    for (int64_t c = 0; c < Cp_; ++c) {
      z_.data[c] = c < C_ ? chain.unary(row_, t)[c] + b_.data[c] : kNegInf<T>;
      dz_.data[c] = Tangent && c < C_ ? v_unary(chain, t)[c] + db_.data[c] : T(0);
    }
    for (int64_t p = 0; p < C_; ++p) {
      const T* row = m + p * C_;
      T* e = e_.data + p * Cp_;
      Vec<T> top = splat<T>(kNegInf<T>), sum{}, mean{};
      for (int64_t c = 0; c < C_; c += kLanes<T>) top = vmax(load_row(row, c, C_, kNegInf<T>) + load(z_.data + c), top);
      const T best = hmax(top), shift = best > kNegInf<T> ? best : T(0);
      for (int64_t c = 0; c < C_; c += kLanes<T>) {
        const Vec<T> x = vexp<T>(load_row(row, c, C_, kNegInf<T>) + load(z_.data + c) - shift);
        store(e + c, x);
        sum += x;
        if (Tangent) mean += x > T(0) ? x * (load_row(vm + p * C_, c, C_, T(0)) + load(dz_.data + c)) : Vec<T>{};
      }
      const T s = sums_.data[p] = hsum(sum);
      b_.data[p] = s > 0 ? shift + std::log(s) : kNegInf<T>;
      if (Tangent) db_.data[p] = s > 0 ? hsum(mean) / s : T(0);
    }
    const T mean = posterior(t - 1, weight, out.unary);
    T* pairs = chain.shared() ? out.transition : out.transition + (t - 1) * C_ * C_;
    for (int64_t p = 0; p < C_; ++p) {
      const T share = p_.data[p] != T(0) ? p_.data[p] / sums_.data[p] : T(0);
      for (int64_t c = 0; c < C_; c += kLanes<T>) {
        Vec<T> pair = load(e_.data + p * Cp_ + c) * share;
        if (Tangent) {
          const Vec<T> d = load_row(vm + p * C_, c, C_, T(0)) + load(dz_.data + c) + (da(t - 1)[p] - mean);
          pair = pair != T(0) ? pair * d : Vec<T>{};
        }
        if (chain.shared()) pair += load_row(pairs + p * C_, c, C_, T(0));
        store_row(pairs + p * C_, c, C_, pair);
      }
    }
    const int64_t at = std::max_element(b_.data, b_.data + C_) - b_.data;
    const T top = b_.data[at], dtop = db_.data[at];
    for (int64_t c = 0; c < C_; ++c) b_.data[c] -= top;
    for (int64_t c = 0; Tangent && c < C_; ++c) db_.data[c] -= dtop;
  }

  int64_t C_ = 0, Cp_ = 0, n_ = 0, row_ = 0;
  ChainDirection<T> v_;
  Buffer<T> a_, da_, b_, db_, z_, dz_, p_, sums_, e_;
};

// Sums of shared potentials' gradients, one set a chunk of rows, added up in a fixed order so that
// the result does not depend on which thread ran when.
template <class T>
class ChainSums {
 public:
  ChainSums(const Chain<T>& chain, int64_t chunks)
      : C_(chain.C), chunks_(chunks), transition_(chain.shared() ? chunks * (C_ * C_ + kApart) : 0), start_(chunks * (C_ + kApart)), end_(chunks * (C_ + kApart)) {}

  ChainGradient<T> of(const Chain<T>& chain, int64_t chunk, int64_t b, T* d_unary, T* d_transition) {
    return {d_unary + b * chain.N * C_,
            chain.shared() ? transition(chunk) : d_transition + b * std::max<int64_t>(chain.N - 1, 0) * C_ * C_,
            start_.data() + chunk * (C_ + kApart), end_.data() + chunk * (C_ + kApart)};
  }
  T* transition(int64_t chunk) { return transition_.data() + chunk * (C_ * C_ + kApart); }  // of a shared one

  void write(const Chain<T>& chain, T* d_transition, T* d_start, T* d_end) const {
    const auto add_up = [&](const std::vector<T>& from, int64_t size, T* to) {
      if (!to) return;
      std::fill_n(to, size, T(0));
      for (int64_t k = 0; k < chunks_; ++k)
        for (int64_t i = 0; i < size; ++i) to[i] += from[k * (size + kApart) + i];
    };
    if (chain.shared()) add_up(transition_, C_ * C_, d_transition);
    if (chain.start) add_up(start_, C_, d_start);
    if (chain.end) add_up(end_, C_, d_end);
  }

 private:
  // Threads that add to one cache line, or to two that the processor fetches together, wait for each other at every row.
  static constexpr int64_t kApart = 128 / sizeof(T);
  int64_t C_, chunks_;
  std::vector<T> transition_, start_, end_;
};

}  // namespace sl
