// log Z and its gradient for chains with few labels, one sequence a lane (lanes.h): chain_scaled.h's
// recurrence with every maximum and sum over labels vertical. The same rule decides which sequences
// are done again in log space. Limited by the exponentials, the three products and the transpositions,
// in this order.
#pragma once
#include "chain_log.h"
#include "chain_scaled.h"
#include "lanes.h"

namespace sl {

inline Vec<float> inverse_power(Vec<float> x, IVec<float>* exponent) {
  IVec<float> bits;
  std::memcpy(&bits, &x, sizeof bits);
  *exponent = (bits >> 23) - 127;
  const IVec<float> limited = 127 - *exponent > 254 ? IVec<float>{} + 254 : 127 - *exponent;
  const IVec<float> inverse = limited << 23;
  std::memcpy(&x, &inverse, sizeof x);
  return x;
}
inline Vec<double> inverse_power(Vec<double> x, IVec<double>* exponent) {
  IVec<double> bits;
  std::memcpy(&bits, &x, sizeof bits);
  *exponent = (bits >> 52) - 1023;
  const IVec<double> limited = 1023 - *exponent > 2046 ? IVec<double>{} + 2046 : 1023 - *exponent;
  const IVec<double> inverse = limited << 52;
  std::memcpy(&x, &inverse, sizeof x);
  return x;
}

// sum[p][c] += sum_k left_k[p] right_k[c], vectors of lanes; kDepth pairs at a time, since reading and
// writing the sum takes longer than adding one pair to it.
template <class T>
class LaneOuterSum {
  static constexpr int L = kLanes<T>, kDepth = 8;

 public:
  explicit LaneOuterSum(int64_t C) : C_(C) { sum.resize(C * C * L), left_.resize(kDepth * C * L), right_.resize(kDepth * C * L); }
  void reset() {
    used_ = 0;
    std::fill_n(sum.data, C_ * C_ * L, T(0));
  }
  // Where the next pair goes; both must be filled before the next call.
  void push(T** left, T** right) {
    if (used_ == kDepth) flush();
    *left = left_.data + used_ * C_ * L, *right = right_.data + used_++ * C_ * L;
  }
  void flush() {
    for (int64_t p = 0; p + 1 < C_; p += 2) rows<2>(p);
    if (C_ % 2) rows<1>(C_ - 1);
    used_ = 0;
  }
  Buffer<T> sum;

 private:
  template <int R>
  void rows(int64_t p) {
    in_blocks(C_, [&](auto width, int64_t c) {
      constexpr int W = decltype(width)::value;
      Vec<T> acc[R][W];
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 6
        for (int j = 0; j < W; ++j) acc[r][j] = load(sum.data + ((p + r) * C_ + c + j) * L);
      for (int k = 0; k < used_; ++k) {
        const T *left = left_.data + (k * C_ + p) * L, *right = right_.data + (k * C_ + c) * L;
#pragma GCC unroll 6
        for (int j = 0; j < W; ++j) {
          const Vec<T> x = load(right + j * L);
#pragma GCC unroll 2
          for (int r = 0; r < R; ++r) acc[r][j] += load(left + r * L) * x;
        }
      }
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 6
        for (int j = 0; j < W; ++j) store(sum.data + ((p + r) * C_ + c + j) * L, acc[r][j]);
    });
  }

  const int64_t C_;
  int used_ = 0;
  Buffer<T> left_, right_;
};

template <class T>
class Lanes {
  using V = Vec<T>;
  static constexpr int L = kLanes<T>;

 public:
  Lanes(const Chain<T>& chain, const ScaledMatrix<T>& matrix, const Shift<T>& columns, const Shift<T>& start, T* log_z, T* d_unary, ChainSums<T>& sums, int64_t chunk)
      : chain_(chain), matrix_(matrix), columns_(columns), start_(start), N_(chain.N), C_(chain.C), log_z_(log_z), d_unary_(d_unary), sums_(sums), chunk_(chunk), outer_(chain.C) {
    pairs_.resize(C_ * C_ * L);
    std::fill_n(pairs_.data, C_ * C_ * L, T(0));
    for (int64_t p = 0; p < C_; ++p)
      for (int64_t c = 0; c < C_; ++c) onward_[p * kMostLaneLabels + c] = back_[c * kMostLaneLabels + p] = matrix.row(p, chain.Cp)[c];
    for (int64_t c = 0; c < C_; ++c) last_[c] = chain.end ? chain.end[c] : T(0);
    V unused;
    if (chain.end) last_log_ = weights(chain.end, static_cast<const Shift<T>*>(nullptr), C_, last_, &unused);
    else std::fill_n(last_, kMostLaneLabels, T(1));
  }

  void group(const int64_t* rows, int count) {
    rows_ = rows, count_ = count;
    longest_ = chain_.length(rows[0]);
    const int64_t size = std::max<int64_t>(longest_, 1) * C_ * L;
    alpha_ = alphas_.resize(size), weight_ = weights_.resize(size);
    IVec<T> lengths{};
    for (int i = 0; i < count; ++i) lengths[i] = chain_.length(rows[i]);
    forward();
    bool careful[L] = {};
    for (int i = 0; i < count; ++i) careful[i] = !ok_[i];
    for (bool again = true; again;) {
      for (int i = 0; i < count; ++i)
        if (careful[i]) lengths[i] = 0;
      const V failed = backward(lengths);
      again = false;
      for (int i = 0; i < count; ++i)
        if (failed[i] != 0) careful[i] = again = true;
    }
    for (int64_t i = 0; i < C_ * C_ * L; i += L) store(pairs_.data + i, load(pairs_.data + i) + load(outer_.sum.data + i));
    for (int i = 0; i < count; ++i) finish(rows[i], careful[i]);
  }

  // Adds the pairs of all groups to the chunk's transition gradient.
  void close() {
    T* out = sums_.transition(chunk_);
    for (int64_t p = 0; p < C_; ++p)
      for (int64_t c = 0; c < C_; ++c)
        if (matrix_.column_max.data[c] > kNegInf<T>) out[p * C_ + c] += hsum(load(pairs_.data + (p * C_ + c) * L)) * onward_[p * kMostLaneLabels + c];
  }

 private:
  T* alpha(int64_t t) { return alpha_ + t * C_ * L; }
  T* weight(int64_t t) { return weight_ + t * C_ * L; }

  void finish(int64_t b, bool careful) {
    const ChainGradient<T> out = sums_.of(chain_, chunk_, b, d_unary_, nullptr);
    if (careful) {
      careful_.forward(chain_, b);
      log_z_[b] = careful_.value();
      careful_.backward(chain_, T(1), out);
      return;
    }
    const int64_t n = chain_.length(b);
    std::fill(out.unary + n * C_, out.unary + N_ * C_, T(0));
    if (n == 0) log_z_[b] = 0;
    for (int64_t c = 0; n && c < C_; ++c) out.start[c] += out.unary[c], out.end[c] += out.unary[(n - 1) * C_ + c];
  }

  // What a lane holds past its sequence's end is never read: its total is taken where the sequence ends.
  void forward() {
    alignas(kBytes) static const T zeros[kMostLaneLabels] = {};
    DoubleVec<T> logs{}, logs_rest{};
    V low = splat<T>(1), high = splat<T>(1);
    IVec<T> exponents{};
    const T* from[L];
    for (int i = 0; i < L; ++i) from[i] = zeros;
    int active = count_;
    for (; active && chain_.length(rows_[active - 1]) == 0; --active) ok_[active - 1] = true;
    for (int64_t t = 0; t < longest_; ++t) {
      for (; chain_.length(rows_[active - 1]) <= t; --active) from[active - 1] = zeros;
      for (int i = 0; i < active; ++i) from[i] = chain_.unary(rows_[i], t);
      T* w = weight(t);
      to_lanes<T>(from, C_, w);
      const Shift<T>& shift = t ? columns_ : start_;
      const T* moved = t || chain_.start ? shift.rest.data : zeros;
      V top = splat<T>(kNegInf<T>);
      for (int64_t c = 0; c < C_; ++c) top = vmax(load(w + c * L) + moved[c], top);
      add_to<T>(logs, logs_rest, __builtin_convertvector(top, DoubleVec<T>));
      add_to<T>(logs, logs_rest, DoubleVec<T>{} + double(shift.top));
      for (int64_t c = 0; shift.wide && c < C_; ++c)
        if (moved[c] < Shift<T>::kFar) low = load(w + c * L) - top + moved[c] >= ExpConst<T>::lowest ? V{} : low;
      for (int64_t c = 0; c < C_; ++c) store(w + c * L, vexp<T>(load(w + c * L) - top + moved[c]));
      if (t == 0) {
        std::copy_n(w, C_ * L, alpha(0));
      } else {
        IVec<T> e;
        const V scale = inverse_power(high, &e);
        exponents += e;
        high = V{};
        lane_step<SumProduct, T>(alpha(t - 1), onward_, C_, [&](int64_t c, V sum) {
          low = vmin(low, sum);
          const V a = sum * scale * load(w + c * L);
          high = vmax(high, a);
          store(alpha(t) + c * L, a);
        });
      }
      if (chain_.length(rows_[active - 1]) > t + 1) continue;
      V sum{};
      for (int64_t c = 0; c < C_; ++c) sum += load(alpha(t) + c * L) * last_[c];
      for (int i = active - 1; i >= 0 && chain_.length(rows_[i]) == t + 1; --i) {
        double all = logs[i], rest = logs_rest[i];
        add_to<T>(all, rest, double(last_log_));
        const double whole = all + (rest + (std::log(double(sum[i])) + double(exponents[i]) * 0.693147180559945309417));
        ok_[i] = low[i] >= kSafe<T> && sum[i] >= kSafe<T> && std::isfinite(whole);
        log_z_[rows_[i]] = saturated<T>(whole);
      }
    }
  }

  // For lanes of the given lengths, 0 for those to leave out. Lanes in which a sum fell below kSafe are
  // not 0 in the result.
  V backward(IVec<T> lengths) {
    V beta[kMostLaneLabels], failed{}, scale = splat<T>(1);
    alignas(kBytes) T message[kMostLaneLabels * L], marginal[kMostLaneLabels * L], unused[kMostLaneLabels];
    outer_.reset();
    std::fill_n(message, C_ * L, T(0));
    for (int64_t c = 0; c < C_; ++c) beta[c] = V{};
    T* to[L];
    for (int i = 0; i < L; ++i) to[i] = unused;
    int active = 0;
    for (int64_t t = longest_ - 1; t >= 0; --t) {
      const IVec<T> on = lengths > int(t), begins = lengths == int(t + 1);
      V total{};
      for (int64_t c = 0; c < C_; ++c) {
        beta[c] = begins ? splat<T>(last_[c]) : beta[c];
        total += load(alpha(t) + c * L) * beta[c];
      }
      scale = begins ? splat<T>(1) : scale;
      const IVec<T> missed = on & ~(total >= vmax(scale, splat<T>(1)) * kSafe<T>);
      failed = missed ? splat<T>(1) : failed;
      const V inverse = on & ~missed ? T(1) / total : V{};
      // The message from t + 1 is 0 in lanes that end at t, so it pairs with any left.
      T *left, *right;
      outer_.push(&left, &right);
      std::copy_n(message, C_ * L, right);
      for (int64_t c = 0; c < C_; ++c) {
        const V share = on ? load(alpha(t) + c * L) * inverse : V{};
        store(left + c * L, share);
        store(marginal + c * L, share * beta[c]);
      }
      for (; active < count_ && chain_.length(rows_[active]) > t; ++active) {}
      for (int i = 0; i < active; ++i) to[i] = d_unary_ + (rows_[i] * N_ + t) * C_;
      from_lanes<T>(marginal, C_, to);
      if (t == 0) break;
      for (int64_t c = 0; c < C_; ++c) store(message + c * L, on ? load(weight(t) + c * L) * beta[c] : V{});
      V high{};
      lane_step<SumProduct, T>(message, back_, C_, [&](int64_t p, V sum) {
        beta[p] = sum;
        high = vmax(high, sum);
      });
      const IVec<T> weak = on & ~(high >= kSafe<T>);
      failed = weak ? splat<T>(1) : failed;
      IVec<T> ignored;
      scale = inverse_power(on & ~weak ? high : splat<T>(1), &ignored);
      for (int64_t c = 0; c < C_; ++c) beta[c] *= scale, store(message + c * L, load(message + c * L) * scale);
    }
    outer_.flush();
    return failed;
  }

  const Chain<T>& chain_;
  const ScaledMatrix<T>& matrix_;
  const Shift<T>&columns_, &start_;
  const int64_t N_, C_;
  T *log_z_, *d_unary_;
  ChainSums<T>& sums_;
  const int64_t chunk_;
  const int64_t* rows_ = nullptr;
  int count_ = 0;
  int64_t longest_ = 0;
  bool ok_[L] = {};
  alignas(kBytes) T onward_[kMostLaneLabels * kMostLaneLabels] = {}, back_[kMostLaneLabels * kMostLaneLabels] = {};
  alignas(kBytes) T last_[kMostLaneLabels + L] = {};
  T last_log_ = 0;
  Buffer<T> pairs_;
  KeptBuffer<T, 0> alphas_;
  KeptBuffer<T, 1> weights_;
  T *alpha_ = nullptr, *weight_ = nullptr;
  LaneOuterSum<T> outer_;
  LogRow<T> careful_;
};

template <class T>
void with_lanes(const Chain<T>& chain, T* log_z, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  ScaledMatrix<T> matrix;
  Shift<T> columns, start;
  matrix.set(chain.transition(0, 0), chain.C);
  columns.set(matrix.column_max.data, chain.C);
  if (chain.start) start.set(chain.start, chain.C);
  const int64_t chunks = std::min<int64_t>(chain.workers(), chain.groups);
  ChainSums<T> sums(chain, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    Lanes<T> run(chain, matrix, columns, start, log_z, d_unary, sums, chunk);
    for_groups_of(chunk, chunks, chain.groups, [&](int64_t g) {
      run.group(chain.order.data() + g * chain.group_size, int(std::min(chain.group_size, chain.B - g * chain.group_size)));
    });
    run.close();
  });
  sums.write(chain, d_transition, d_start, d_end);
}

}  // namespace sl
