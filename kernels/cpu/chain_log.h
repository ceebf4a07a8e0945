// One sequence in log space, with every sum taken relative to its own maximum, and optionally the
// derivative of everything along a direction v in the space of potentials, or the entropy:
//   a_t[c]  = u_t[c] + log sum_p exp(a_{t-1}[p] + T[p][c])
//   a'_t[c] = v_u[c] + sum_p q(p|c) (a'_{t-1}[p] + v_T[p][c]),   q(.|c) the normalised summands
//   h_t[c]  = sum_p q(p|c) (h_{t-1}[p] - log q(p|c)),            terms of one sign
// and likewise b, b' from the end. C^2 exponentials a position, about 20 times the scaled product.
//
// a_t and b_t are sums of two doubles (exact.h): scores of any size add up without losing what small differences
// between them decide. Probabilities are normalised at their own position. a'_t and b'_t are kept relative to the entry
// where a_t, b_t is largest, with the constants added up apart: they would grow with the length and cost their own digits.
#pragma once
#include "chain.h"
#include "exact.h"

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

// What is computed beside the sums. kScores: the derivative along the finite potentials themselves, each field less its
// maximum, which changes no second derivative.
enum class Beside { kNothing, kDirection, kScores, kEntropy };

template <class T, Beside beside = Beside::kNothing>
class LogRow {
  using V = Vec<double>;
  static constexpr int L = kLanes<double>;
  static constexpr bool kTangent = beside == Beside::kDirection || beside == Beside::kScores;
  static constexpr bool kMean = beside != Beside::kNothing;
  static constexpr double kPerUnit = 1 / kUnit<T>;

 public:
  double log_z = 0;  // in units
  double mean = 0;   // d log_z along the direction in units, or the entropy

  T value() const { return from_units<T>(log_z); }

  // Forward pass; enough for log_z and mean.
  void forward(const Chain<T>& chain, int64_t b, const ChainDirection<T>& v = {}) {
    C_ = chain.C, Cp_ = padded<double>(C_), n_ = chain.length(b), row_ = b, v_ = v;
    log_z = mean = offset_ = offset_rest_ = 0;
    if (n_ == 0) return;
    high_.resize(n_ * Cp_), low_.resize(n_ * Cp_), mean_.resize(kMean ? n_ * Cp_ : 0);
    for (Buffer<double>* x : {&u_, &x_low_, &p_}) x->resize(Cp_);
    matrix_.resize(C_ * Cp_), x_.resize(std::max(C_ * L, Cp_));
    if (kTangent) v_unary_.resize(Cp_), v_matrix_.resize(C_ * Cp_);
    if (chain.shared()) read_matrix(chain, 0);
    read(chain.start, u_.data);
    std::copy_n(u_.data, Cp_, high(0));
    if (kTangent) read_direction(v.start, chain.start, 0, mean_.data);
    else if (kMean) std::fill_n(mean_.data, Cp_, 0.0);
    add_unary(chain, 0);
    for (int64_t t = 1; t < n_; ++t) {
      if (!chain.shared()) read_matrix(chain, t - 1);
      take_off(matrix_offset_);
      forward_step(t);
      add_unary(chain, t);
    }
    read(chain.end, u_.data);
    const Sum all = weigh(high(n_ - 1), low(n_ - 1), u_.data, nullptr, p_.data);
    log_z = all.value(offset_, offset_rest_);
    if (log_z == kNegInf<double>) mean = 0;
    if (!kMean || log_z == kNegInf<double>) return;
    if (kTangent) read_direction(v.end, chain.end, 0, v_unary_.data);
    double sum = 0;
    for (int64_t c = 0; c < C_; ++c) {
      const double e = p_.data[c];
      if (e > 0) sum += e * (means(n_ - 1)[c] + (kTangent ? v_unary_.data[c] : -std::log(e)));
    }
    mean += sum / all.sum + (kTangent ? 0 : std::log(all.sum));
  }

  // Backward pass after forward: adds weight * P (or, with a direction, weight * P') to the gradients of
  // shared potentials and overwrites those of this row, padding included.
  void backward(const Chain<T>& chain, T weight, const ChainGradient<T>& out) {
    const int64_t N = chain.N;
    const bool alive = n_ > 0 && log_z > kNegInf<double>;
    std::fill(out.unary + (alive ? n_ : 0) * C_, out.unary + N * C_, T(0));
    if (!chain.shared() && N > 1)
      std::fill(out.transition + (alive ? n_ - 1 : 0) * C_ * C_, out.transition + (N - 1) * C_ * C_, T(0));
    if (!alive) return;
    for (Buffer<double>* x : {&b_, &b_low_, &b_mean_, &sums_}) x->resize(Cp_);
    e_.resize(C_ * Cp_), pairs_.resize(C_ * Cp_);
    std::fill_n(pairs_.data, C_ * Cp_, 0.0);
    read(chain.end, b_.data);
    std::fill_n(b_low_.data, Cp_, 0.0);
    if (kTangent) read_direction(v_.end, chain.end, 0, b_mean_.data);
    posterior(n_ - 1, double(weight), out.unary);
    if (out.end)
      for (int64_t c = 0; c < C_; ++c) out.end[c] += out.unary[(n_ - 1) * C_ + c];
    for (int64_t t = n_ - 1; t > 0; --t) backward_step(chain, t, double(weight), out);
    if (out.start)
      for (int64_t c = 0; c < C_; ++c) out.start[c] += out.unary[c];
    if (chain.shared())
      for (int64_t p = 0; p < C_; ++p)
        for (int64_t c = 0; c < C_; ++c) out.transition[p * C_ + c] += T(pairs_.data[p * Cp_ + c]);
  }

  // After forward: weights in proportion to P(y_t = p | y_{t+1} = next), next < 0 at the last position; one for each label.
  const double* before(const Chain<T>& chain, int64_t t, int64_t next) {
    if (next < 0) read(chain.end, u_.data);
    else
      for (int64_t p = 0; p < C_; ++p) u_.data[p] = in_units(chain.transition(row_, t)[p * C_ + next]);
    weigh(high(t), low(t), u_.data, nullptr, p_.data);
    return p_.data;
  }

 private:
  // sum exp(x): x = high + low + log(sum) in units, the three of them far apart in size.
  struct Sum {
    double high, low, sum;
    double value(double offset, double rest) const {
      return sum > 0 ? (high + offset) + (low + rest + std::log(sum) * kUnit<T>) : kNegInf<double>;
    }
  };

  double* high(int64_t t) { return high_.data + t * Cp_; }
  double* low(int64_t t) { return low_.data + t * Cp_; }
  double* means(int64_t t) { return mean_.data + t * Cp_; }

  // A row of scores in units less `offset`, 0 where there is none, and -inf in the padding.
  void read(const T* from, double* to, double offset = 0) const {
    for (int64_t c = 0; c < C_; ++c) to[c] = from ? in_units(from[c]) - offset : 0;
    std::fill(to + C_, to + Cp_, kNegInf<double>);
  }
  // What to take off scores that all lie beyond kHuge, masked or raised together: two of very different size would leave
  // no room in a pair of doubles for what tells outputs apart. Nothing where some do not: the best output may use those.
  double offset_of(const T* scores, int64_t size) const {
    constexpr double kHuge = 0x1p40 * kUnit<T>;
    const double top = largest(scores, size);
    if (std::abs(top) <= kHuge || std::isinf(top)) return 0;
    const bool all = std::none_of(scores, scores + size, [](T x) { return std::abs(in_units(x)) <= kHuge; });
    return all ? top : 0;
  }
  void take_off(double offset) {
    double rest;
    offset_ = sum_and_rest(offset_, offset, &rest);
    offset_rest_ += rest;
  }
  void read_matrix(const Chain<T>& chain, int64_t t) {
    const T* m = chain.transition(row_, t);
    matrix_offset_ = offset_of(m, C_ * C_);
    for (int64_t p = 0; p < C_; ++p) read(m + p * C_, matrix_.data + p * Cp_, matrix_offset_);
    if (!kTangent) return;
    const T* v = !v_.transition || chain.shared() ? v_.transition : v_.transition + (row_ * (chain.N - 1) + t) * C_ * C_;
    const double top = beside == Beside::kScores ? largest(m, C_ * C_) : 0;
    for (int64_t p = 0; p < C_; ++p) read_direction(v ? v + p * C_ : nullptr, m + p * C_, top, v_matrix_.data + p * Cp_);
  }
  static double largest(const T* x, int64_t size) {
    T top = kNegInf<T>;
    for (int64_t i = 0; i < size; ++i) top = std::max(top, x[i]);
    return in_units(top);
  }
  // The direction in units beside a row of scores, 0 in the padding and where a score is -inf.
  void read_direction(const T* v, const T* scores, double top, double* to) const {
    const T* from = beside == Beside::kScores ? scores : v;
    for (int64_t c = 0; c < C_; ++c) to[c] = from && from[c] > kNegInf<T> ? in_units(from[c]) - top : 0;
    std::fill(to + C_, to + Cp_, 0.0);
  }
  void read_unary_direction(const Chain<T>& chain, int64_t t) {
    const T* u = chain.unary(row_, t);
    const double top = beside == Beside::kScores ? largest(u, C_) : 0;
    read_direction(v_.unary ? v_.unary + (row_ * chain.N + t) * C_ : nullptr, u, top, v_unary_.data);
  }

  // a_t += u_t, where high(t), low(t) and means(t) hold the rest of it.
  void add_unary(const Chain<T>& chain, int64_t t) {
    double *h = high(t), *l = low(t);
    const T* u = chain.unary(row_, t);
    const double offset = offset_of(u, C_);
    read(u, u_.data, offset);
    take_off(offset);
    if (t == 0) std::fill_n(l, Cp_, 0.0);
    for (int64_t c = 0; c < Cp_; c += L) add(h + c, l + c, load(u_.data + c), V{});
    if constexpr (kTangent) {
      read_unary_direction(chain, t);
      for (int64_t c = 0; c < C_; ++c) means(t)[c] += v_unary_.data[c];
      mean += center(h, means(t));
    }
  }
  // (high, low) += (x, rest), as the nearest number and what is left; low is 0 where high is -inf.
  static void add(double* high, double* low, V x, V rest) {
    V error, left;
    const V sum = sum_and_rest(load(high), x, &error);
    const V whole = sum_and_rest(sum, error + (load(low) + rest), &left);
    const auto finite = sum > kNegInf<double>;
    store(high, finite ? whole : sum);
    store(low, finite ? left : V{});
  }
  // Takes the mean where x is largest off all of them, and returns it.
  double center(const double* x, double* means) const {
    const double top = means[std::max_element(x, x + C_) - x];
    for (int64_t c = 0; c < C_; ++c) means[c] -= top;
    return top;
  }

  // e[c] = exp(h[c] + l[c] + x[c] + y[c] - the largest of them) for padded rows; y may be null.
  Sum weigh(const double* h, const double* l, const double* x, const double* y, double* e) const {
    V top = splat<double>(kNegInf<double>), best = top, sum{}, rest;
    for (int64_t c = 0; c < Cp_; c += L) top = vmax(load(h + c) + load(x + c), top);
    const double shift = hmax(top) > kNegInf<double> ? hmax(top) : 0;
    for (int64_t c = 0; c < Cp_; c += L) {
      const V s = sum_and_rest(load(h + c), load(x + c), &rest);
      const V left = (s - shift) + (rest + (y ? load(l + c) + load(y + c) : load(l + c)));
      store(e + c, left);
      best = vmax(left, best);
    }
    const double most = hmax(best);
    for (int64_t c = 0; c < Cp_; c += L) {
      const V w = vexp<double>((load(e + c) - most) * kPerUnit);
      store(e + c, w);
      sum += w;
    }
    return {shift, most, hsum(sum)};
  }

  // a_t without u_t.
  void forward_step(int64_t t) {
    const double *before = high(t - 1), *below = low(t - 1), *m = matrix_.data, *mean_before = kMean ? means(t - 1) : nullptr;
    for (int64_t c = 0; c < Cp_; c += L) {
      V top = splat<double>(kNegInf<double>), best = top, sum{}, mean{}, rest;
      for (int64_t p = 0; p < C_; ++p) top = vmax(load(m + p * Cp_ + c) + before[p], top);
      const V shift = top > kNegInf<double> ? top : V{};
      for (int64_t p = 0; p < C_; ++p) {
        const V s = sum_and_rest(load(m + p * Cp_ + c), splat(before[p]), &rest), left = (s - shift) + (rest + below[p]);
        store(x_.data + p * L, left);
        best = vmax(left, best);
      }
      for (int64_t p = 0; p < C_; ++p) {
        const V x = (load(x_.data + p * L) - best) * kPerUnit, e = vexp<double>(x);
        sum += e;
        if (kTangent) mean += e > 0 ? e * (load(v_matrix_.data + p * Cp_ + c) + mean_before[p]) : V{};
        if (beside == Beside::kEntropy) mean += e > 0 ? e * (mean_before[p] - x) : V{};
      }
      for (int64_t i = 0; i < L; ++i) {
        const bool alive = sum[i] > 0;
        const double log_sum = alive ? std::log(sum[i]) : 0;
        high(t)[c + i] = alive ? shift[i] : kNegInf<double>;
        low(t)[c + i] = alive ? best[i] + log_sum * kUnit<T> : 0;
        if (kMean) means(t)[c + i] = alive ? mean[i] / sum[i] + (kTangent ? 0 : log_sum) : 0;
      }
    }
  }

  // From a_t and b_t: weight * P(y_t) into p_ and its gradient into d_unary; returns E[a'_t + b'_t].
  double posterior(int64_t t, double weight, T* d_unary) {
    const double sum = weigh(high(t), low(t), b_.data, b_low_.data, p_.data).sum;
    double mean = 0;
    const auto along = [&](int64_t c) { return means(t)[c] + b_mean_.data[c]; };
    for (int64_t c = 0; kTangent && c < C_; ++c)
      if (p_.data[c] > 0) mean += p_.data[c] * along(c);
    mean /= sum;
    for (int64_t c = 0; c < C_; ++c) {
      const double p = p_.data[c] *= weight / sum;
      d_unary[t * C_ + c] = T(kTangent && p != 0 ? p * (along(c) - mean) * kPerUnit : p);
    }
    return mean;
  }

  // From b_t to b_{t-1}, the pairs (t-1, t), and the labels at t-1:
  //   P(y_{t-1} = p, y_t = c) = P(y_{t-1} = p) exp(T[p][c] + u_t[c] + b_t[c]) / exp(b_{t-1}[p]).
  void backward_step(const Chain<T>& chain, int64_t t, double weight, const ChainGradient<T>& out) {
    if (!chain.shared()) read_matrix(chain, t - 1);
    double *z = u_.data, *z_low = x_low_.data, *z_mean = v_unary_.data;
    read(chain.unary(row_, t), z, offset_of(chain.unary(row_, t), C_));
    std::fill_n(z_low, Cp_, 0.0);
    for (int64_t c = 0; c < Cp_; c += L) add(z + c, z_low + c, load(b_.data + c), load(b_low_.data + c));
    if constexpr (kTangent) {
      read_unary_direction(chain, t);
      for (int64_t c = 0; c < C_; ++c) z_mean[c] += b_mean_.data[c];
    }
    for (int64_t p = 0; p < C_; ++p) {
      double* e = e_.data + p * Cp_;
      const Sum all = weigh(z, z_low, matrix_.data + p * Cp_, nullptr, e);
      sums_.data[p] = all.sum;
      b_.data[p] = all.sum > 0 ? all.high : kNegInf<double>;
      b_low_.data[p] = all.sum > 0 ? all.low + std::log(all.sum) * kUnit<T> : 0;
      double mean = 0;
      for (int64_t c = 0; kTangent && c < C_; ++c)
        if (e[c] > 0) mean += e[c] * (v_matrix_.data[p * Cp_ + c] + z_mean[c]);
      if (kTangent) b_mean_.data[p] = all.sum > 0 ? mean / all.sum : 0;
    }
    for (int64_t c = 0; c < Cp_; c += L) add(b_.data + c, b_low_.data + c, V{}, V{});
    const double mean = posterior(t - 1, weight, out.unary);
    for (int64_t p = 0; p < C_; ++p) {
      const double share = p_.data[p] != 0 ? p_.data[p] / sums_.data[p] : 0;
      double *e = e_.data + p * Cp_, *sum = pairs_.data + p * Cp_;
      for (int64_t c = 0; c < C_; ++c) {
        e[c] *= share;
        if (kTangent && e[c] != 0) e[c] *= (v_matrix_.data[p * Cp_ + c] + z_mean[c] + (means(t - 1)[p] - mean)) * kPerUnit;
        if (chain.shared()) sum[c] += e[c];
        else out.transition[((t - 1) * C_ + p) * C_ + c] = T(e[c]);
      }
    }
    if (kTangent) center(b_.data, b_mean_.data);
  }

  int64_t C_ = 0, Cp_ = 0, n_ = 0, row_ = 0;
  double offset_ = 0, offset_rest_ = 0;  // taken off so far, as two numbers
  double matrix_offset_ = 0;             // and off the matrix in matrix_
  ChainDirection<T> v_;
  Buffer<double> high_, low_, mean_;                         // a_t and what is beside it
  Buffer<double> b_, b_low_, b_mean_;
  Buffer<double> matrix_, v_matrix_, u_, v_unary_, x_low_;   // scores and their direction
  Buffer<double> x_, p_, sums_, e_, pairs_;
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
