// One sequence in log space, with every sum taken relative to its own maximum, and optionally the
// derivative of everything along a direction v in the space of potentials:
//   b_t[c] = log sum_p exp(a_t[p] + T[p][c]),          b'_t[c] = sum_p q(p|c) (a'_t[p] + v_T[p][c])
//   a_t[c] = log sum_w exp(b_{t-w-1}[c] + s[w][c]),    a'_t[c] = sum_w q(w|c) (b'_{t-w-1}[c] + v_s[w][c])
// with q the normalised summands. Backwards, for the probabilities P of segments and D_t[c] that one
// labelled c ends before t,
//   P[t][w][c] = D_{t+w+1}[c] exp(b_t[c] + s[t][w][c] - a_{t+w+1}[c]),   G_t[c] = sum_w P[t][w][c]
//   P[t][p][c] = G_t[c] exp(a_t[p] + T[p][c] - b_t[c]),                  D_t[p] = sum_c P[t][p][c]
// and the same with the product rule for P'. The exponentials are at most 1 and sum to 1, so nothing
// drifts with the length. a_t and b_t are kept relative to the largest a_t (a', b' to the entry
// there), the constants apart, in double. C^2 exponentials a position, about 20 times the scaled product.
#pragma once
#include "semimarkov.h"

namespace sl {

template <class T>
struct SemiDirection {  // shapes of the potentials, contiguous
  const T *segments = nullptr, *transition = nullptr;
};

template <class T>
struct SemiGradient {      // where a row's derivatives go
  T* segments = nullptr;    // (N, W, C) of this row
  T* transition = nullptr;  // (N-1, C, C) of this row, or the (C, C) sum over rows if shared
};

template <class T, bool Tangent>
class SemiLogRow {
 public:
  double log_z = 0;
  double along = 0;  // d log_z along the direction

  // Forward pass; enough for log_z and along.
  void forward(const Semi<T>& semi, int64_t b, const SemiDirection<T>& v = {}) {
    C_ = semi.C, Cp_ = semi.Cp, W_ = semi.W, n_ = semi.length(b), row_ = b, v_ = v;
    log_z = along = 0;
    if (n_ == 0) return;
    for (Buffer<T>* x : {&a_, &b_}) x->resize((n_ + 1) * Cp_);
    for (Buffer<T>* x : {&da_, &db_}) x->resize(Tangent ? (n_ + 1) * Cp_ : 0);
    constant_.assign(n_ + 1, kNegInf<double>), dconstant_.assign(n_ + 1, 0.0);
    constant_[0] = 0;
    for (int64_t c = 0; c < Cp_; ++c) {
      at(b_, 0)[c] = c < C_ ? T(0) : kNegInf<T>;
      if (Tangent) at(db_, 0)[c] = 0;
    }
    for (int64_t t = 1; t <= n_; ++t) {
      if (end_step(semi, t) && t < n_) label_step(semi, t);
    }
    log_z = constant_[n_], along = dconstant_[n_];
    if (log_z == kNegInf<double>) return;
    double sum = 0, mean = 0;
    for (int64_t c = 0; c < C_; ++c) {
      const double e = std::exp(double(at(a_, n_)[c]));
      sum += e;
      if (Tangent) mean += e > 0 ? e * at(da_, n_)[c] : 0;
    }
    log_z += std::log(sum), along += mean / sum;
  }

  // Backward pass after forward: adds weight * P (or, with Tangent, weight * P') to the gradient of a
  // shared transition and overwrites those of this row, padding included.
  void backward(const Semi<T>& semi, T weight, const SemiGradient<T>& out) {
    const int64_t N = semi.N, steps = std::max<int64_t>(N - 1, 0);
    const bool alive = n_ > 0 && log_z > kNegInf<double>;
    std::fill(out.segments + (alive ? n_ : 0) * W_ * C_, out.segments + N * W_ * C_, T(0));
    if (!semi.shared()) std::fill(out.transition + (alive ? n_ - 1 : 0) * C_ * C_, out.transition + steps * C_ * C_, T(0));
    if (!alive) return;
    d_.resize((n_ + 1) * Cp_), dd_.resize((n_ + 1) * Cp_), g_.resize(Cp_), dg_.resize(Cp_);
    std::fill_n(d_.data, (n_ + 1) * Cp_, T(0));
    std::fill_n(dd_.data, (n_ + 1) * Cp_, T(0));
    const double top = log_z - constant_[n_], dtop = along - dconstant_[n_];
    for (int64_t c = 0; c < C_; ++c) {
      const double p = std::exp(at(a_, n_)[c] - top);
      at(d_, n_)[c] = T(p);
      if (Tangent) at(dd_, n_)[c] = p > 0 ? T(p * (at(da_, n_)[c] - dtop)) : T(0);
    }
    for (int64_t t = n_ - 1; t >= 0; --t) {
      start_gradient(semi, t, weight, out.segments + t * W_ * C_);
      if (t) label_gradient(semi, t, weight, semi.shared() ? out.transition : out.transition + (t - 1) * C_ * C_);
    }
  }

  bool alive(int64_t t) const { return constant_[t] > kNegInf<double>; }
  const T* ending(int64_t t) const { return a_.data + t * Cp_; }
  // b_t + s - a_end up to the constants: what a segment [t, end) of label c weighs among those that end there.
  T weight(const Semi<T>& semi, int64_t t, int64_t end, int64_t c) const {
    return b_.data[t * Cp_ + c] + T(double(semi.segments(row_, t, end - t - 1)[c]) + constant_[t] - constant_[end]);
  }

 private:
  T* at(Buffer<T>& x, int64_t t) const { return x.data + t * Cp_; }
  const T* v_segments(const Semi<T>& semi, int64_t t, int64_t w) const { return v_.segments + ((row_ * semi.N + t) * W_ + w) * C_; }
  const T* v_matrix(const Semi<T>& semi, int64_t t) const {
    return semi.shared() ? v_.transition : v_.transition + (row_ * (semi.N - 1) + t - 1) * C_ * C_;
  }

  // a_t from b before it; false if nothing can end before t.
  bool end_step(const Semi<T>& semi, int64_t t) {
    int64_t near = t - 1;  // the constant that the sums are relative to
    while (near >= 0 && t - near <= W_ && !alive(near)) --near;
    T best = kNegInf<T>;
    if (near >= 0 && t - near <= W_)
      for (int64_t c = 0; c < C_; c += kLanes<T>) {
        Vec<T> top = splat<T>(kNegInf<T>), sum{}, mean{};
        each_start(t, [&](int64_t s, int64_t w) { top = vmax(summand(semi, s, w, c, near), top); });
        const Vec<T> shift = top > kNegInf<T> ? top : Vec<T>{};
        each_start(t, [&](int64_t s, int64_t w) {
          const Vec<T> e = vexp<T>(summand(semi, s, w, c, near) - shift);
          sum += e;
          if (Tangent) {
            const Vec<T> d = load_row(v_segments(semi, s, w), c, C_, T(0)) + load(at(db_, s) + c) + T(dconstant_[s] - dconstant_[near]);
            mean += e > T(0) ? e * d : Vec<T>{};
          }
        });
        for (int64_t i = 0; i < kLanes<T>; ++i) {
          const bool lives = c + i < C_ && sum[i] > 0;
          at(a_, t)[c + i] = lives ? shift[i] + std::log(sum[i]) : kNegInf<T>;
          if (Tangent) at(da_, t)[c + i] = lives ? mean[i] / sum[i] : T(0);
        }
        best = std::max(best, *std::max_element(at(a_, t) + c, at(a_, t) + c + kLanes<T>));
      }
    if (!(best > kNegInf<T>)) {
      for (Buffer<T>* x : {&a_, &b_}) std::fill_n(at(*x, t), Cp_, kNegInf<T>);
      if (Tangent)
        for (Buffer<T>* x : {&da_, &db_}) std::fill_n(at(*x, t), Cp_, T(0));
      return false;
    }
    const int64_t arg = std::max_element(at(a_, t), at(a_, t) + C_) - at(a_, t);
    const T dbest = Tangent ? at(da_, t)[arg] : T(0);
    for (int64_t c = 0; c < C_; ++c) {
      at(a_, t)[c] -= best;
      if (Tangent) at(da_, t)[c] -= dbest;
    }
    constant_[t] = constant_[near] + best, dconstant_[t] = dconstant_[near] + dbest;
    return true;
  }

  template <class F>
  void each_start(int64_t t, F&& f) const {
    for (int64_t w = 0; w < std::min(W_, t); ++w)
      if (alive(t - w - 1)) f(t - w - 1, w);
  }

  Vec<T> summand(const Semi<T>& semi, int64_t s, int64_t w, int64_t c, int64_t near) {
    return load_row(semi.segments(row_, s, w), c, C_, kNegInf<T>) + T(constant_[s] - constant_[near]) + load(at(b_, s) + c);
  }

  // b_t from a_t.
  void label_step(const Semi<T>& semi, int64_t t) {
    const T* m = semi.transition(row_, t);
    const T* vm = Tangent ? v_matrix(semi, t) : nullptr;
    for (int64_t c = 0; c < C_; c += kLanes<T>) {
      Vec<T> top = splat<T>(kNegInf<T>), sum{}, mean{};
      for (int64_t p = 0; p < C_; ++p) top = vmax(load_row(m + p * C_, c, C_, kNegInf<T>) + at(a_, t)[p], top);
      const Vec<T> shift = top > kNegInf<T> ? top : Vec<T>{};
      for (int64_t p = 0; p < C_; ++p) {
        const Vec<T> e = vexp<T>(load_row(m + p * C_, c, C_, kNegInf<T>) + at(a_, t)[p] - shift);
        sum += e;
        if (Tangent) mean += e > T(0) ? e * (load_row(vm + p * C_, c, C_, T(0)) + at(da_, t)[p]) : Vec<T>{};
      }
      for (int64_t i = 0; i < kLanes<T>; ++i) {
        const bool lives = c + i < C_ && sum[i] > 0;
        at(b_, t)[c + i] = lives ? shift[i] + std::log(sum[i]) : kNegInf<T>;
        if (Tangent) at(db_, t)[c + i] = lives ? mean[i] / sum[i] : T(0);
      }
    }
  }

  // P[t] (or P'[t]) from D; leaves G_t in g_ (and its derivative in dg_).
  void start_gradient(const Semi<T>& semi, int64_t t, T weight, T* out) {
    const int64_t widths = alive(t) ? semi.widths(t, n_) : 0;
    std::fill_n(g_.data, Cp_, T(0));
    std::fill_n(dg_.data, Cp_, T(0));
    std::fill(out + widths * C_, out + W_ * C_, T(0));
    for (int64_t w = 0; w < widths; ++w) {
      const int64_t end = t + w + 1;
      if (!alive(end)) {
        std::fill_n(out + w * C_, C_, T(0));
        continue;
      }
      const T offset = T(constant_[t] - constant_[end]), doffset = T(dconstant_[t] - dconstant_[end]);
      for (int64_t c = 0; c < C_; c += kLanes<T>) {
        const Vec<T> ends = load(at(a_, end) + c);
        const Vec<T> x = load_row(semi.segments(row_, t, w), c, C_, kNegInf<T>) + offset + load(at(b_, t) + c);
        const Vec<T> q = ends > kNegInf<T> ? vexp<T>(x - ends) : Vec<T>{};
        Vec<T> p = q * load(at(d_, end) + c);
        store(g_.data + c, load(g_.data + c) + p);
        if (Tangent) {
          const Vec<T> d = load_row(v_segments(semi, t, w), c, C_, T(0)) + doffset + load(at(db_, t) + c) - load(at(da_, end) + c);
          p = q > T(0) ? q * load(at(dd_, end) + c) + p * d : Vec<T>{};
          store(dg_.data + c, load(dg_.data + c) + p);
        }
        store_row(out + w * C_, c, C_, p * weight);
      }
    }
  }

  // D_t and the pairs (or their derivatives) from G_t.
  void label_gradient(const Semi<T>& semi, int64_t t, T weight, T* pairs) {
    if (!alive(t)) {
      if (!semi.shared()) std::fill_n(pairs, C_ * C_, T(0));
      return;
    }
    const T* m = semi.transition(row_, t);
    const T* vm = Tangent ? v_matrix(semi, t) : nullptr;
    for (int64_t p = 0; p < C_; ++p) {
      const T ap = at(a_, t)[p], dap = Tangent ? at(da_, t)[p] : T(0);
      Vec<T> sum{}, dsum{};
      for (int64_t c = 0; c < C_; c += kLanes<T>) {
        const Vec<T> starts = load(at(b_, t) + c);
        const Vec<T> q = starts > kNegInf<T> ? vexp<T>(load_row(m + p * C_, c, C_, kNegInf<T>) + ap - starts) : Vec<T>{};
        Vec<T> pair = q * load(g_.data + c);
        sum += pair;
        if (Tangent) {
          const Vec<T> d = load_row(vm + p * C_, c, C_, T(0)) + dap - load(at(db_, t) + c);
          pair = q > T(0) ? q * load(dg_.data + c) + pair * d : Vec<T>{};
          dsum += pair;
        }
        pair *= weight;
        if (semi.shared()) pair += load_row(pairs + p * C_, c, C_, T(0));
        store_row(pairs + p * C_, c, C_, pair);
      }
      at(d_, t)[p] = hsum(sum);
      at(dd_, t)[p] = hsum(dsum);
    }
  }

  int64_t C_ = 0, Cp_ = 0, W_ = 0, n_ = 0, row_ = 0;
  SemiDirection<T> v_;
  std::vector<double> constant_, dconstant_;
  Buffer<T> a_, da_, b_, db_, d_, dd_, g_, dg_;
};

// Sums of a shared transition's gradient, one a chunk of rows, added up in a fixed order so that the
// result does not depend on which thread ran when.
template <class T>
struct SemiSums {
  int64_t chunks, size;
  std::vector<T> transition;

  SemiSums(const Semi<T>& semi, int64_t chunks_) : chunks(chunks_), size(semi.C * semi.C), transition(semi.shared() ? chunks * size : 0) {}

  SemiGradient<T> of(const Semi<T>& semi, int64_t chunk, int64_t b, T* d_segments, T* d_transition) {
    return {d_segments + b * semi.N * semi.W * semi.C,
            semi.shared() ? transition.data() + chunk * size : d_transition + b * std::max<int64_t>(semi.N - 1, 0) * size};
  }

  void write(const Semi<T>& semi, T* d_transition) const {
    if (!semi.shared()) return;
    std::fill_n(d_transition, size, T(0));
    for (int64_t k = 0; k < chunks; ++k)
      for (int64_t i = 0; i < size; ++i) d_transition[i] += transition[k * size + i];
  }
};

}  // namespace sl
