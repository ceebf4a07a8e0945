// log Z and its gradient for chains with few labels: one sequence a lane instead of one label a lane.
//
// With C <= 16 labels a vector of labels is mostly padding, and every maximum or sum over labels is a
// chain of shuffles. Here lane i of every vector belongs to sequence i of a group, labels are a loop,
// and all of chain_scaled.h's recurrence is vertical; the price is a transposition of the potentials
// on the way in and of the gradient on the way out. The same rule decides which sequences are done
// again in log space. Limited by the transpositions and the exponentials, about equally.
#include <memory>

#include "chain_log.h"
#include "chain_scaled.h"

extern "C" int64_t sl_chain_forward_f32(const sl::ChainArgs*, float*, float*);
extern "C" int64_t sl_chain_forward_f64(const sl::ChainArgs*, double*, double*);
extern "C" int64_t sl_chain_backward_f32(const sl::ChainArgs*, const float*, const float*, const float*, float*, float*, float*, float*);
extern "C" int64_t sl_chain_backward_f64(const sl::ChainArgs*, const double*, const double*, const double*, double*, double*, double*, double*);

namespace sl {
namespace {

constexpr int64_t kMostLabels = 16;

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

template <class T>
class Lanes {
  using V = Vec<T>;
  static constexpr int L = kLanes<T>;

 public:
  Lanes(const Chain<T>& chain, const ScaledMatrix<T>& matrix, T* log_z, T* d_unary, ChainSums<T>& sums, int64_t chunk)
      : chain_(chain), matrix_(matrix), N_(chain.N), C_(chain.C), log_z_(log_z), d_unary_(d_unary), sums_(sums), chunk_(chunk) {
    pairs_.resize(C_ * C_ * L), group_pairs_.resize(C_ * C_ * L);
    std::fill_n(pairs_.data, C_ * C_ * L, T(0));
    for (int64_t c = 0; c < C_; ++c) last_[c] = chain.end ? chain.end[c] : T(0);
    if (chain.end) last_log_ = weights(chain.end, static_cast<const T*>(nullptr), C_, last_);
    else std::fill_n(last_, kMostLabels, T(1));
  }

  void group(const int64_t* rows, int count) {
    rows_ = rows, count_ = count;
    longest_ = chain_.length(rows[0]);
    alpha_.resize(std::max<int64_t>(longest_, 1) * C_ * L), weight_.resize(std::max<int64_t>(longest_, 1) * C_ * L);
    alignas(kBytes) T lengths[L] = {};
    for (int i = 0; i < count; ++i) lengths[i] = T(chain_.length(rows[i]));
    lengths_ = load(lengths);
    forward();
    bool careful[L] = {};
    for (int i = 0; i < count; ++i) careful[i] = !ok_[i];
    for (bool again = true; again;) {
      for (int i = 0; i < count; ++i) lengths[i] = careful[i] ? T(0) : lengths[i];
      lengths_ = load(lengths);
      const V failed = backward();
      again = false;
      for (int i = 0; i < count; ++i)
        if (failed[i] != 0) careful[i] = again = true;
    }
    for (int64_t i = 0; i < C_ * C_ * L; i += L) store(pairs_.data + i, load(pairs_.data + i) + load(group_pairs_.data + i));
    for (int i = 0; i < count; ++i) finish(rows[i], careful[i]);
  }

  // Adds the pairs of all groups to the chunk's transition gradient.
  void close() {
    T* out = sums_.transition.data() + chunk_ * C_ * C_;
    for (int64_t p = 0; p < C_; ++p)
      for (int64_t c = 0; c < C_; ++c)
        if (matrix_.column_max.data[c] > kNegInf<T>) out[p * C_ + c] += hsum(load(pairs_.data + (p * C_ + c) * L)) * entry(p, c);
  }

 private:
  T entry(int64_t p, int64_t c) const { return matrix_.row(p, chain_.Cp)[c]; }
  T* alpha(int64_t t) { return alpha_.data + t * C_ * L; }
  T* weight(int64_t t) { return weight_.data + t * C_ * L; }
  IVec<T> active(int64_t t) const { return lengths_ > T(t); }

  void finish(int64_t b, bool careful) {
    const ChainGradient<T> out = sums_.of(chain_, chunk_, b, d_unary_, nullptr);
    if (careful) {
      careful_.forward(chain_, b);
      log_z_[b] = T(careful_.log_z);
      careful_.backward(chain_, T(1), out);
      return;
    }
    const int64_t n = chain_.length(b);
    std::fill(out.unary + n * C_, out.unary + N_ * C_, T(0));
    if (n == 0) log_z_[b] = 0;
    for (int64_t c = 0; n && c < C_; ++c) out.start[c] += out.unary[c], out.end[c] += out.unary[(n - 1) * C_ + c];
  }

  void forward() {
    double logs[L] = {};
    IVec<T> exponents{};
    V low = splat<T>(1), high = splat<T>(1);
    for (int i = 0; i < count_; ++i) ok_[i] = chain_.length(rows_[i]) == 0;
    for (int64_t t = 0; t < longest_; ++t) {
      V x[kMostLabels], top = splat<T>(kNegInf<T>);
      alignas(kBytes) T in[kMostLabels * L] = {};
      int on = 0;
      for (; on < count_ && chain_.length(rows_[on]) > t; ++on) {
        const T* u = chain_.unary(rows_[on], t);
        for (int64_t c = 0; c < C_; ++c) in[c * L + on] = u[c];
      }
      const T* shift = t ? matrix_.column_max.data : chain_.start;
      for (int64_t c = 0; c < C_; ++c) x[c] = load(in + c * L) + (shift ? shift[c] : T(0)), top = vmax(x[c], top);
      for (int i = 0; i < on; ++i) logs[i] += double(top[i]);
      for (int64_t c = 0; c < C_; ++c) store(weight(t) + c * L, vexp<T>(x[c] - top));
      if (t == 0) {
        std::copy_n(weight(0), C_ * L, alpha(0));
      } else {
        const IVec<T> on_lanes = active(t);
        IVec<T> e;
        const V scale = inverse_power(high, &e);
        exponents += on_lanes & e;
        high = V{};
        for (int64_t c = 0; c < C_; ++c) {
          V sum{};
          for (int64_t p = 0; p < C_; ++p) sum += load(alpha(t - 1) + p * L) * entry(p, c);
          low = on_lanes ? vmin(low, sum) : low;
          const V a = sum * scale * load(weight(t) + c * L);
          high = vmax(high, a);
          store(alpha(t) + c * L, a);
        }
        high = on_lanes ? high : splat<T>(1);
      }
      if (t + 1 < longest_ && chain_.length(rows_[on - 1]) > t + 1) continue;
      V sum{};
      for (int64_t c = 0; c < C_; ++c) sum += load(alpha(t) + c * L) * last_[c];
      for (int i = on - 1; i >= 0 && chain_.length(rows_[i]) == t + 1; --i) {
        const double whole = std::log(double(sum[i])) + double(exponents[i]) * 0.693147180559945309417 + logs[i] + double(last_log_);
        ok_[i] = low[i] >= kSafe<T> && sum[i] >= kSafe<T> && std::isfinite(whole);
        log_z_[rows_[i]] = T(whole);
      }
    }
  }

  // Lanes in which a sum fell below kSafe are not 0 in the result.
  V backward() {
    V beta[kMostLabels], x[kMostLabels], failed{}, scale = splat<T>(1);
    std::fill_n(group_pairs_.data, C_ * C_ * L, T(0));
    for (int64_t c = 0; c < C_; ++c) beta[c] = V{}, x[c] = V{};
    for (int64_t t = longest_ - 1; t >= 0; --t) {
      const IVec<T> on_lanes = active(t), begins = lengths_ == T(t + 1);
      V total{};
      for (int64_t c = 0; c < C_; ++c) {
        beta[c] = begins ? splat<T>(last_[c]) : beta[c];
        total += load(alpha(t) + c * L) * beta[c];
      }
      scale = begins ? splat<T>(1) : scale;
      const IVec<T> lost = on_lanes & ~(total >= vmax(scale, splat<T>(1)) * kSafe<T>);
      failed = lost ? splat<T>(1) : failed;
      const V inverse = on_lanes & ~lost ? T(1) / total : V{};
      alignas(kBytes) T out[kMostLabels * L];
      V left[kMostLabels];
      for (int64_t c = 0; c < C_; ++c) {
        left[c] = on_lanes ? load(alpha(t) + c * L) * inverse : V{};
        store(out + c * L, left[c] * beta[c]);
      }
      for (int i = 0; i < count_; ++i) {
        if (lengths_[i] <= T(t)) continue;
        T* row = d_unary_ + (rows_[i] * N_ + t) * C_;
        for (int64_t c = 0; c < C_; ++c) row[c] = out[c * L + i];
      }
      // x holds the scaled message from t + 1, 0 in lanes that end here.
      if (t + 1 < longest_)
        for (int64_t p = 0; p < C_; ++p)
          for (int64_t c = 0; c < C_; ++c) {
            T* pair = group_pairs_.data + (p * C_ + c) * L;
            store(pair, load(pair) + left[p] * x[c]);
          }
      if (t == 0) break;
      V moved[kMostLabels], high{};
      for (int64_t c = 0; c < C_; ++c) x[c] = on_lanes ? load(weight(t) + c * L) * beta[c] : V{};
      for (int64_t p = 0; p < C_; ++p) {
        V sum{};
        for (int64_t c = 0; c < C_; ++c) sum += x[c] * entry(p, c);
        moved[p] = sum;
        high = vmax(high, sum);
      }
      const IVec<T> weak = on_lanes & ~(high >= kSafe<T>);
      failed = weak ? splat<T>(1) : failed;
      IVec<T> ignored;
      scale = inverse_power(on_lanes & ~weak ? high : splat<T>(1), &ignored);
      for (int64_t c = 0; c < C_; ++c) beta[c] = moved[c] * scale, x[c] *= scale;
    }
    return failed;
  }

  const Chain<T>& chain_;
  const ScaledMatrix<T>& matrix_;
  const int64_t N_, C_;
  T *log_z_, *d_unary_;
  ChainSums<T>& sums_;
  const int64_t chunk_;
  const int64_t* rows_ = nullptr;
  int count_ = 0;
  int64_t longest_ = 0;
  V lengths_{};
  bool ok_[L] = {};
  alignas(kBytes) T last_[kMostLabels + L] = {};
  T last_log_ = 0;
  Buffer<T> alpha_, weight_, pairs_, group_pairs_;
  LogRow<T, false> careful_;
};

template <class T>
void by_lanes(const Chain<T>& chain, T* log_z, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  ScaledMatrix<T> matrix;
  matrix.set(chain.transition(0, 0), chain.C);
  const int64_t groups = (chain.B + kLanes<T> - 1) / kLanes<T>, chunks = std::min<int64_t>(chain.workers(), groups);
  ChainSums<T> sums(chain, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    Lanes<T> run(chain, matrix, log_z, d_unary, sums, chunk);
    for (int64_t g = chunk; g < groups; g += chunks)
      run.group(chain.order.data() + g * kLanes<T>, int(std::min<int64_t>(kLanes<T>, chain.B - g * kLanes<T>)));
    run.close();
  });
  sums.write(chain, d_transition, d_start, d_end);
}

// Value and gradient of sum_b log Z_b; the forward values need not outlive the call.
template <class T, class F, class G>
int64_t value_and_gradient(const ChainArgs* args, F&& forward, G&& backward, T* log_z, T* d_unary, T* d_transition, T* d_start, T* d_end) {
  if (args->shared && args->C <= kMostLabels && args->C > 0 && args->B * 2 > kLanes<T>) {
    by_lanes<T>(Chain<T>(*args, false), log_z, d_unary, d_transition, d_start, d_end);
    return 0;
  }
  const std::unique_ptr<T[]> alpha(new T[args->B * args->N * args->C]);
  const std::vector<T> ones(args->B, T(1));
  forward(args, log_z, alpha.get());
  return backward(args, alpha.get(), log_z, ones.data(), d_unary, d_transition, d_start, d_end);
}

}  // namespace
}  // namespace sl

#define VALUE_AND_GRADIENT(suffix, T)                                                                                  \
  extern "C" int64_t sl_chain_value_and_gradient_##suffix(const sl::ChainArgs* a, T* log_z, T* d_unary,                \
                                                          T* d_transition, T* d_start, T* d_end) {                     \
    return sl::value_and_gradient<T>(a, sl_chain_forward_##suffix, sl_chain_backward_##suffix, log_z, d_unary,         \
                                     d_transition, d_start, d_end);                                                    \
  }
VALUE_AND_GRADIENT(f32, float)
VALUE_AND_GRADIENT(f64, double)
