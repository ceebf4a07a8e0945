// One sentence in log space and in double, with every sum taken relative to its own maximum, and optionally the
// derivative of everything along a direction v in the space of potentials. With x the sum over labels, S the sum over
// splits and P the probability of a span:
//   log I[i][j] = log x[i][j] + log S[i][j],   log S[i][j] = log sum_k exp(log I[i][k] + log I[k+1][j])
//   P(k | i, j) = I[i][k] I[k+1][j] / S[i][j],   P[i][k], P[k+1][j] += P[i][j] P(k | i, j)
//   (log I)'[i][j] = sum_l p(l | i, j) v[i][j][l] + sum_k P(k | i, j) ((log I)'[i][k] + (log I)'[k+1][j]).
// A logarithm is kept as a whole number and a rest: whole numbers add up exactly, so that large scores cost the rest no
// digits. With v = log p(l | i, j) + log P(k | i, j), the sum of v over a tree is log p(tree), hence -slope the entropy.
// One exponential a label and a split.
#pragma once
#include "draw.h"
#include "span_tree_careful.h"

namespace sl {

template <class T, Along along>
class SpanTreeLog {
 public:
  bool feasible = true;
  double log_z = 0;
  double slope = 0;  // d log_z along the direction

  // v: direction (B, N, N, L), contiguous, if there is one.
  explicit SpanTreeLog(const SpanTree<T>& trees, const T* v = nullptr) : trees_(trees), L_(trees.L), v_(v) { y_.resize(padded<double>(L_)); }

  void inside(int64_t b) {
    b_ = b, n_ = trees_.length(b), feasible = true, log_z = slope = 0;
    if (n_ == 0) return;
    unit_ = sizeof(T) == 8 ? unit_of(largest_potential(trees_, b), 2 * n_) : 1.0;
    for (Numbers* x : {&left_, &right_, &split_, &label_}) x->resize(n_ * n_);
    for (Buffer<double>* x : {&dleft_, &dright_, &dsplit_, &dlabel_}) x->resize(kTangent ? n_ * n_ : 0);
    for (int64_t w = 0; w < n_; ++w)
      for (int64_t i = 0; i + w < n_; ++i) cell(i, i + w);
    feasible = left_.whole.data[n_ - 1] > kNegInf<double>;
    log_z = kNegInf<double>;
    if (!feasible) return;
    log_z = saturated<double>(((long double)(left_.whole.data[n_ - 1]) + left_.rest.data[n_ - 1]) * unit_);
    if (kTangent) slope = dleft_.data[n_ - 1];
  }

  // After inside: weight * P, or with a direction weight * P', into d (N, N, L), every entry.
  void outside(T weight, T* d) {
    const int64_t N = trees_.N;
    std::fill_n(d, N * N * L_, T(0));
    if (n_ == 0 || !feasible) return;
    for (Buffer<double>* x : {&pleft_, &pright_, &dpleft_, &dpright_}) x->resize(n_ * n_), std::fill_n(x->data, n_ * n_, 0.0);
    pleft_.data[n_ - 1] = 1;
    for (int64_t w = n_ - 1; w >= 0; --w)
      for (int64_t i = 0; i + w < n_; ++i) {
        const int64_t j = i + w, at = i * n_ + j;
        const double p = pleft_.data[at] + pright_.data[j * n_ + i], dp = dpleft_.data[at] + dpright_.data[j * n_ + i];
        if (p == 0 && dp == 0) continue;
        if (w) hand_down(i, j, p, dp);
        write(i, j, p, dp, weight, d + (i * N + j) * L_);
      }
  }

  int64_t draw_label(int64_t i, int64_t j, double uniform) {
    const double top = labels(i, j);
    weight_.resize(L_);
    for (int64_t l = 0; l < L_; ++l) weight_[l] = std::exp((y_.data[l] - top) * unit_);
    return draw(weight_.data(), L_, uniform);
  }
  // How many words of i..j, j > i, are in the left part.
  int64_t draw_split(int64_t i, int64_t j, double uniform) {
    weight_.resize(padded<double>(j - i));
    each_split(i, j, [&](int64_t k, Vec<double> q, Vec<double>) { store(weight_.data() + k, q); });
    return 1 + draw(weight_.data(), j - i, uniform);
  }

 private:
  static constexpr bool kTangent = along != Along::kNothing;
  // Logarithms in units, as whole + rest; (-inf, 0) for that of 0.
  struct Numbers {
    Buffer<double> whole, rest;
    void resize(int64_t n) { whole.resize(n), rest.resize(n); }
    void set(int64_t at, double w, double r) { whole.data[at] = w, rest.data[at] = r; }
  };

  const T* direction(int64_t i, int64_t j) const { return v_ + ((b_ * trees_.N + i) * trees_.N + j) * L_; }

  // The labels of i..j in units into y_; the largest.
  double labels(int64_t i, int64_t j) {
    const T* x = trees_.row(b_, i) + (j - i) * L_;
    const double share = 1 / unit_;
    double top = kNegInf<double>;
    for (int64_t l = 0; l < L_; ++l) top = std::max(top, y_.data[l] = double(x[l]) * share);
    return top;
  }
  // What the direction adds for labels l.. of i..j, whose probabilities are exp(x).
  Vec<double> part(int64_t i, int64_t j, int64_t l, Vec<double> x) const {
    return along == Along::kLogProbability ? x : load_double(direction(i, j), l, L_);
  }

  void cell(int64_t i, int64_t j) {
    const int64_t at = i * n_ + j, other = j * n_ + i;
    const double top = labels(i, j);
    double whole = 0, rest = 0, slope = 0;
    if (top > kNegInf<double>) {
      Vec<double> sum{}, mean{};
      for (int64_t l = 0; l < L_; l += kLanes<double>) {
        const Vec<double> x = (load_row(y_.data, l, L_, kNegInf<double>) - top) * unit_, e = vexp<double>(x);
        sum += e;
        if constexpr (kTangent) mean += e > 0.0 ? e * part(i, j, l, x) : Vec<double>{};
      }
      const double total = hsum(sum), log = std::log(total);
      label_.set(at, top, log);
      if (kTangent) slope = dlabel_.data[at] = hsum(mean) / total - (along == Along::kLogProbability ? log : 0.0);
      whole = std::rint(top), rest = (top - whole) + log / unit_;
    }
    const bool lives = top > kNegInf<double> && (i == j || splits(i, j, &whole, &rest, &slope));
    const double sum = whole + std::rint(rest);
    rest -= sum - whole;
    for (auto [x, place] : {std::pair{&left_, at}, std::pair{&right_, other}})
      if (lives) x->set(place, sum, rest);
      else x->set(place, kNegInf<double>, 0);
    if (kTangent) dleft_.data[at] = dright_.data[other] = lives ? slope : 0;
  }

  // Adds log S[i][j] to whole + rest, and its derivative to slope; false if there is no split.
  bool splits(int64_t i, int64_t j, double* whole, double* rest, double* slope) {
    const int64_t w = j - i, at = i * n_ + j;
    const double *l = left_.whole.data + i * n_ + i, *r = right_.whole.data + j * n_ + i + 1;
    Vec<double> top = splat<double>(kNegInf<double>);
    for (int64_t k = 0; k < w; k += kLanes<double>) top = vmax(load_row(l, k, w, kNegInf<double>) + load_row(r, k, w, kNegInf<double>), top);
    const double best = hmax(top);
    split_.set(at, best, 0);
    if (!(best > kNegInf<double>)) return false;
    Vec<double> most = splat<double>(kNegInf<double>), sum{}, means{};
    for (int64_t k = 0; k < w; k += kLanes<double>) most = vmax(split(i, j, k), most);
    split_.rest.data[at] = hmax(most);
    each_split(i, j, [&](int64_t k, Vec<double> q, Vec<double> x) {
      sum += q;
      if constexpr (kTangent) means += q > 0.0 ? q * (children(i, j, k) + (along == Along::kLogProbability ? x : Vec<double>{})) : Vec<double>{};
    });
    const double total = hsum(sum), log = std::log(total);
    split_.rest.data[at] += log / unit_;
    *whole += best, *rest += split_.rest.data[at];
    if (kTangent) *slope += dsplit_.data[at] = hsum(means) / total - (along == Along::kLogProbability ? log : 0.0);
    return true;
  }
  // log I[i][k] + log I[k+1][j] relative to the whole number of log S[i][j], for k - i = k, k + 1, ..
  Vec<double> split(int64_t i, int64_t j, int64_t k) const {
    const int64_t w = j - i, l = i * n_ + i, r = j * n_ + i + 1;
    const Vec<double> whole = load_row(left_.whole.data + l, k, w, kNegInf<double>) + load_row(right_.whole.data + r, k, w, kNegInf<double>);
    return (whole - split_.whole.data[i * n_ + j]) + (load_row(left_.rest.data + l, k, w, 0.0) + load_row(right_.rest.data + r, k, w, 0.0));
  }
  Vec<double> children(int64_t i, int64_t j, int64_t k) const {
    return load_row(dleft_.data + i * n_ + i, k, j - i, 0.0) + load_row(dright_.data + j * n_ + i + 1, k, j - i, 0.0);
  }
  // f(k, exp(x), x) with x = log I + log I - log S.
  template <class F>
  void each_split(int64_t i, int64_t j, F&& f) const {
    const double log_s = split_.rest.data[i * n_ + j];
    for (int64_t k = 0; k < j - i; k += kLanes<double>) {
      const Vec<double> x = (split(i, j, k) - log_s) * unit_;
      f(k, vexp<double>(x), x);
    }
  }

  void hand_down(int64_t i, int64_t j, double p, double dp) {
    const int64_t w = j - i, l = i * n_ + i, r = j * n_ + i + 1;
    const auto add = [w](double* to, int64_t k, Vec<double> x) { store_row(to, k, w, load_row(to, k, w, 0.0) + x); };
    each_split(i, j, [&](int64_t k, Vec<double> q, Vec<double> x) {
      add(pleft_.data + l, k, q * p), add(pright_.data + r, k, q * p);
      if constexpr (kTangent) {
        const Vec<double> d = children(i, j, k) + (along == Along::kLogProbability ? x : Vec<double>{}) - dsplit_.data[i * n_ + j];
        const Vec<double> y = q > 0.0 ? q * dp + q * p * d : Vec<double>{};
        add(dpleft_.data + l, k, y), add(dpright_.data + r, k, y);
      }
    });
  }

  void write(int64_t i, int64_t j, double p, double dp, T weight, T* out) {
    labels(i, j);
    const double top = label_.whole.data[i * n_ + j], log = label_.rest.data[i * n_ + j];
    for (int64_t l = 0; l < L_; l += kLanes<double>) {
      const Vec<double> x = (load_row(y_.data, l, L_, kNegInf<double>) - top) * unit_ - log, q = vexp<double>(x);
      Vec<double> y = q * p;
      if constexpr (kTangent) y = q > 0.0 ? q * dp + y * (part(i, j, l, x) - dlabel_.data[i * n_ + j]) : Vec<double>{};
      store_double(out, l, L_, y * double(weight));
    }
  }

  const SpanTree<T>& trees_;
  const int64_t L_;
  const T* v_;
  int64_t b_ = 0, n_ = 0;
  double unit_ = 1;
  Numbers left_, right_;   // log I, by first word and last, and by last word and first
  Numbers split_, label_;  // log S, and of the labels the largest in units and log sum_l exp(x_l - largest)
  Buffer<double> dleft_, dright_, dsplit_, dlabel_, pleft_, pright_, dpleft_, dpright_, y_;
  std::vector<double> weight_;
};

}  // namespace sl
