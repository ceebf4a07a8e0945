// One sequence in log space and in double, with every sum taken relative to its own maximum, and optionally the
// derivative of everything along a direction v in the space of potentials:
//   b_t[c] = log sum_p exp(a_t[p] + T[p][c]),          b'_t[c] = sum_p q(p|c) (a'_t[p] + v_T[p][c])
//   a_t[c] = log sum_w exp(b_{t-w-1}[c] + s[w][c]),    a'_t[c] = sum_w q(w|c) (b'_{t-w-1}[c] + v_s[w][c])
// with q the normalised summands. Backwards, for the probabilities P of segments and D_t[c] that one
// labelled c ends before t,
//   P[t][w][c] = D_{t+w+1}[c] exp(b_t[c] + s[t][w][c] - a_{t+w+1}[c]),   G_t[c] = sum_w P[t][w][c]
//   P[t][p][c] = G_t[c] exp(a_t[p] + T[p][c] - b_t[c]),                  D_t[p] = sum_c P[t][p][c]
// and the same with the product rule for P'. The exponentials are at most 1 and sum to 1, so nothing
// drifts with the length. a_t and b_t are kept relative to whole numbers near their largest entry: such numbers add up
// exactly, and what is left of a large potential after one of them is exact, too. Each logarithm is a number, the largest
// summand or a whole number more, and apart from it the rest, which a large number would swallow. With v = log q, the sum of v over an
// output is log p(y), hence -along the entropy. C^2 exponentials a position, about 40 times the scaled product.
#pragma once
#include "draw.h"
#include "semimarkov_careful.h"

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

template <class T, Along along>
class SemiLogRow {
 public:
  bool feasible = true;
  double log_z = 0;
  double slope = 0;  // d log_z along the direction

  // Forward pass; enough for log_z and slope.
  void forward(const Semi<T>& whole, int64_t b, const SemiDirection<T>& v = {}) {
    careful_.set(whole, b);
    const Semi<double>& semi = careful_.semi();
    C_ = semi.C, Cp_ = semi.Cp, W_ = semi.W, n_ = semi.length(0), row_ = b, v_ = v, unit_ = careful_.unit;
    log_z = slope = 0, feasible = true;
    if (n_ == 0) return;
    for (Buffer<double>* x : {&a_, &b_}) x->resize((n_ + 1) * Cp_), std::fill_n(x->data, (n_ + 1) * Cp_, kNegInf<double>);
    for (Buffer<double>* x : {&ra_, &rb_}) x->resize((n_ + 1) * Cp_), std::fill_n(x->data, (n_ + 1) * Cp_, 0.0);
    for (Buffer<double>* x : {&da_, &db_}) x->resize(kTangent ? (n_ + 1) * Cp_ : 0), std::fill_n(x->data, kTangent ? (n_ + 1) * Cp_ : 0, 0.0);
    ends_.assign(n_ + 1, kNegInf<double>), starts_ = ends_;
    find_open(semi);
    starts_[0] = 0;
    std::copy_n(at(open_starts_, 0), C_, at(b_, 0));
    for (int64_t t = 1; t <= n_; ++t)
      if (end_step(whole, semi, t) && t < n_) label_step(whole, semi, t);
    feasible = ends(n_);
    if (!feasible) {
      log_z = kNegInf<double>;
      return;
    }
    const double top = *std::max_element(at(a_, n_), at(a_, n_) + C_);
    double most = kNegInf<double>, sum = 0;
    last_.resize(C_);
    for (int64_t c = 0; c < C_; ++c) most = std::max(most, last_[c] = (at(a_, n_)[c] - top) * unit_ + at(ra_, n_)[c]);
    for (int64_t c = 0; c < C_; ++c) sum += last_[c] = std::exp(last_[c] - most);
    for (int64_t c = 0; c < C_; ++c) {
      last_[c] /= sum;
      if (kTangent && last_[c] > 0) slope += last_[c] * last_slope(c);
    }
    log_z = saturated<double>(((long double)(ends_[n_]) + top) * unit_ + (most + std::log(sum)));
  }

  // Backward pass after forward: adds weight * P (or, with a direction, weight * P') to the gradient of a
  // shared transition and overwrites those of this row, padding included.
  void backward(const Semi<T>& whole, T weight, const SemiGradient<T>& out) {
    const int64_t N = whole.N, W = whole.W, steps = std::max<int64_t>(N - 1, 0), used = n_ > 0 && feasible ? n_ : 0;
    std::fill(out.segments + used * W * C_, out.segments + N * W * C_, T(0));
    if (!whole.shared()) std::fill(out.transition + std::max<int64_t>(used - 1, 0) * C_ * C_, out.transition + steps * C_ * C_, T(0));
    if (!used) return;
    const Semi<double>& semi = careful_.semi();
    for (Buffer<double>* x : {&d_, &dd_}) x->resize((n_ + 1) * Cp_), std::fill_n(x->data, (n_ + 1) * Cp_, 0.0);
    g_.resize(Cp_), dg_.resize(Cp_);
    if (whole.shared()) pairs_.assign(C_ * C_, 0.0);
    for (int64_t c = 0; c < C_; ++c) {
      at(d_, n_)[c] = last_[c];
      if (kTangent && last_[c] > 0) at(dd_, n_)[c] = last_[c] * (last_slope(c) - slope);
    }
    for (int64_t t = n_ - 1; t >= 0; --t) {
      start_gradient(whole, semi, t, weight, out.segments + t * W * C_);
      if (t) label_gradient(whole, semi, t, weight, whole.shared() ? nullptr : out.transition + (t - 1) * C_ * C_);
    }
    for (int64_t i = 0; whole.shared() && i < C_ * C_; ++i) out.transition[i] += T(pairs_[i] * weight);
  }

  // Draws of the last label before t, given the label of the segment that starts there (-1: none does), and of the width
  // of a segment labelled c that ends before t.
  int64_t draw_label(int64_t t, int64_t next, double uniform) {
    const Semi<double>& semi = careful_.semi();
    return draw_by(C_, uniform, [&](int64_t p) { return Term{at(a_, t)[p] + (next < 0 ? 0.0 : semi.transition(0, t)[p * C_ + next]), at(ra_, t)[p]}; });
  }
  int64_t draw_width(int64_t t, int64_t c, double uniform) {
    const Semi<double>& semi = careful_.semi();
    return draw_by(std::min(W_, t), uniform, [&](int64_t w) {
      const int64_t s = t - w - 1;
      return begins(s) ? Term{(semi.segments(0, s, w)[c] + (starts_[s] - ends_[t])) + at(b_, s)[c], at(rb_, s)[c]} : Term{kNegInf<double>, 0};
    });
  }

 private:
  static constexpr bool kTangent = along != Along::kNothing;

  double* at(Buffer<double>& x, int64_t t) const { return x.data + t * Cp_; }
  bool ends(int64_t t) const { return ends_[t] > kNegInf<double>; }
  bool begins(int64_t t) const { return starts_[t] > kNegInf<double>; }
  double last_slope(int64_t c) { return at(da_, n_)[c] + (along == Along::kLogProbability ? std::log(last_[c]) : 0.0); }

  // exp(x + rest), x in units.
  struct Term {
    double x, rest;
  };
  template <class F>
  int64_t draw_by(int64_t n, double uniform, F&& term) {
    weight_.resize(n);
    double top = kNegInf<double>, most = kNegInf<double>;
    for (int64_t i = 0; i < n; ++i) top = std::max(top, term(i).x);
    for (int64_t i = 0; i < n; ++i) most = std::max(most, weight_[i] = (term(i).x - top) * unit_ + term(i).rest);
    for (int64_t i = 0; i < n; ++i) weight_[i] = std::exp(weight_[i] - most);
    return draw(weight_.data(), n, uniform);
  }

  // What the direction adds for a part, whose normalised summand is exp(x).
  Vec<double> part(const T* v, int64_t c, Vec<double> x) const {
    return along == Along::kLogProbability ? x : load_double(v, c, C_);
  }
  const T* v_segments(const Semi<T>& whole, int64_t t, int64_t w) const {
    return along == Along::kDirection ? v_.segments + ((row_ * whole.N + t) * whole.W + w) * C_ : nullptr;
  }
  const T* v_matrix(const Semi<T>& whole, int64_t t, int64_t p) const {
    if (along != Along::kDirection) return nullptr;
    return v_.transition + (whole.shared() ? 0 : (row_ * (whole.N - 1) + t - 1) * C_ * C_) + p * C_;
  }

  // 0 for the labels from which an output goes on, -inf for others: after a segment that ends before t, and for one that
  // starts there. Scores that no output uses would set the scale of those that some do.
  void find_open(const Semi<double>& semi) {
    for (Buffer<double>* x : {&open_ends_, &open_starts_}) x->resize((n_ + 1) * Cp_), std::fill_n(x->data, (n_ + 1) * Cp_, kNegInf<double>);
    std::fill_n(at(open_ends_, n_), C_, 0.0);
    for (int64_t t = n_ - 1; t >= 0; --t) {
      double* starts = at(open_starts_, t);
      for (int64_t w = 0; w < semi.widths(t, n_); ++w)
        for (int64_t c = 0; c < C_; ++c)
          if (semi.segments(0, t, w)[c] > kNegInf<double> && at(open_ends_, t + w + 1)[c] == 0) starts[c] = 0;
      for (int64_t p = 0; t && p < C_; ++p)
        for (int64_t c = 0; c < C_; ++c)
          if (semi.transition(0, t)[p * C_ + c] > kNegInf<double> && starts[c] == 0) at(open_ends_, t)[p] = 0;
    }
  }

  template <class F>
  void each_start(int64_t t, F&& f) const {
    for (int64_t w = 0; w < std::min(W_, t); ++w)
      if (begins(t - w - 1)) f(t - w - 1, w);
  }
  // What a segment from s adds to a_t, relative to `to`.
  Vec<double> segment(const Semi<double>& semi, int64_t s, int64_t w, int64_t c, double to) {
    return (load_row(semi.segments(0, s, w), c, C_, kNegInf<double>) + load(at(open_ends_, s + w + 1) + c) + (starts_[s] - to)) + load(at(b_, s) + c);
  }
  // What label p before t adds to b_t, relative to it.
  Vec<double> pair(const double* matrix, int64_t t, int64_t p, int64_t c) {
    return (load_row(matrix + p * C_, c, C_, kNegInf<double>) + load(at(open_starts_, t) + c) - (starts_[t] - ends_[t])) + at(a_, t)[p];
  }

  // Labels c.. of log sum_i exp(x_i + rest_i) and of its derivative; each(f) calls f(x, rest, direction of the part,
  // derivative so far), x in units.
  template <class Each>
  void log_sum(int64_t c, Each&& each, double* sums, double* rests, double* slopes) {
    Vec<double> top = splat<double>(kNegInf<double>), most = top, sum{}, mean{};
    each([&](Vec<double> x, Vec<double>, const T*, Vec<double>) { top = vmax(x, top); });
    const Vec<double> shift = top > kNegInf<double> ? top : Vec<double>{};
    each([&](Vec<double> x, Vec<double> rest, const T*, Vec<double>) { most = vmax((x - shift) * unit_ + rest, most); });
    most = top > kNegInf<double> ? most : Vec<double>{};
    each([&](Vec<double> x, Vec<double> rest, const T* v, Vec<double> before) {
      const Vec<double> y = ((x - shift) * unit_ + rest) - most, e = vexp<double>(y);
      sum += e;
      if constexpr (kTangent) mean += e > 0.0 ? e * (part(v, c, y) + before) : Vec<double>{};
    });
    for (int64_t i = 0; i < kLanes<double>; ++i) {
      if (!(sum[i] > 0)) continue;
      const double log = std::log(sum[i]), rest = most[i] + log;
      sums[c + i] = shift[i] + std::rint(rest / unit_);
      rests[c + i] = rest - (sums[c + i] - shift[i]) * unit_;
      if (kTangent) slopes[c + i] = mean[i] / sum[i] - (along == Along::kLogProbability ? log : 0.0);
    }
  }
  Vec<double> slopes(Buffer<double>& x, int64_t t, int64_t c) const { return kTangent ? load(at(x, t) + c) : Vec<double>{}; }

  // a_t from b before it; false if nothing can end before t.
  bool end_step(const Semi<T>& whole, const Semi<double>& semi, int64_t t) {
    const double near = *std::max_element(starts_.begin() + std::max<int64_t>(0, t - W_), starts_.begin() + t);
    if (near == kNegInf<double>) return false;
    Vec<double> top = splat<double>(kNegInf<double>);
    for (int64_t c = 0; c < C_; c += kLanes<double>)
      each_start(t, [&](int64_t s, int64_t w) { top = vmax(segment(semi, s, w, c, near), top); });
    const double best = hmax(top);
    if (!(best > kNegInf<double>)) return false;
    ends_[t] = std::rint(near + best);
    for (int64_t c = 0; c < C_; c += kLanes<double>)
      log_sum(c, [&](auto&& f) {
        each_start(t, [&](int64_t s, int64_t w) { f(segment(semi, s, w, c, ends_[t]), load(at(rb_, s) + c), v_segments(whole, s, w), slopes(db_, s, c)); });
      }, at(a_, t), at(ra_, t), at(da_, t));
    return true;
  }

  // b_t from a_t, if any label may follow.
  void label_step(const Semi<T>& whole, const Semi<double>& semi, int64_t t) {
    const double* matrix = semi.transition(0, t);
    Vec<double> top = splat<double>(kNegInf<double>);
    for (int64_t p = 0; p < C_; ++p)
      for (int64_t c = 0; c < C_; c += kLanes<double>) top = vmax(load_row(matrix + p * C_, c, C_, kNegInf<double>) + load(at(open_starts_, t) + c) + at(a_, t)[p], top);
    const double best = hmax(top);
    if (!(best > kNegInf<double>)) return;
    starts_[t] = ends_[t] + std::rint(best);
    for (int64_t c = 0; c < C_; c += kLanes<double>)
      log_sum(c, [&](auto&& f) {
        for (int64_t p = 0; p < C_; ++p) f(pair(matrix, t, p, c), splat(at(ra_, t)[p]), v_matrix(whole, t, p), kTangent ? splat(at(da_, t)[p]) : Vec<double>{});
      }, at(b_, t), at(rb_, t), at(db_, t));
  }

  // P[t] (or P'[t]) from D; leaves G_t in g_ (and its derivative in dg_).
  void start_gradient(const Semi<T>& whole, const Semi<double>& semi, int64_t t, T weight, T* out) {
    const int64_t widths = begins(t) ? semi.widths(t, n_) : 0;
    std::fill_n(g_.data, Cp_, 0.0);
    std::fill_n(dg_.data, Cp_, 0.0);
    std::fill(out + widths * C_, out + whole.W * C_, T(0));
    for (int64_t w = 0; w < widths; ++w) {
      const int64_t end = t + w + 1;
      if (!ends(end)) {
        std::fill_n(out + w * C_, C_, T(0));
        continue;
      }
      for (int64_t c = 0; c < C_; c += kLanes<double>) {
        const Vec<double> a = load(at(a_, end) + c), x = (segment(semi, t, w, c, ends_[end]) - a) * unit_ + (load(at(rb_, t) + c) - load(at(ra_, end) + c));
        const Vec<double> q = a > kNegInf<double> ? vexp<double>(x) : Vec<double>{};
        Vec<double> p = q * load(at(d_, end) + c);
        store(g_.data + c, load(g_.data + c) + p);
        if constexpr (kTangent) {
          const Vec<double> d = part(v_segments(whole, t, w), c, x) + load(at(db_, t) + c) - load(at(da_, end) + c);
          p = q > 0.0 ? q * load(at(dd_, end) + c) + p * d : Vec<double>{};
          store(dg_.data + c, load(dg_.data + c) + p);
        }
        store_double(out + w * C_, c, C_, p * double(weight));
      }
    }
  }

  // D_t and the pairs (or their derivatives) from G_t; pairs null: added to pairs_.
  void label_gradient(const Semi<T>& whole, const Semi<double>& semi, int64_t t, T weight, T* pairs) {
    if (!begins(t)) {
      if (pairs) std::fill_n(pairs, C_ * C_, T(0));
      return;
    }
    const double* matrix = semi.transition(0, t);
    for (int64_t p = 0; p < C_; ++p) {
      Vec<double> sum{}, dsum{};
      for (int64_t c = 0; c < C_; c += kLanes<double>) {
        const Vec<double> b = load(at(b_, t) + c), x = (pair(matrix, t, p, c) - b) * unit_ + (at(ra_, t)[p] - load(at(rb_, t) + c));
        const Vec<double> q = b > kNegInf<double> ? vexp<double>(x) : Vec<double>{};
        Vec<double> y = q * load(g_.data + c);
        sum += y;
        if constexpr (kTangent) {
          const Vec<double> d = part(v_matrix(whole, t, p), c, x) + at(da_, t)[p] - load(at(db_, t) + c);
          y = q > 0.0 ? q * load(dg_.data + c) + y * d : Vec<double>{};
          dsum += y;
        }
        if (pairs) store_double(pairs + p * C_, c, C_, y * double(weight));
        else store_row(pairs_.data() + p * C_, c, C_, y + load_row(pairs_.data() + p * C_, c, C_, 0.0));
      }
      at(d_, t)[p] = hsum(sum);
      at(dd_, t)[p] = hsum(dsum);
    }
  }

  int64_t C_ = 0, Cp_ = 0, W_ = 0, n_ = 0, row_ = 0;
  double unit_ = 1;
  CarefulSemi careful_;
  SemiDirection<T> v_;
  std::vector<double> ends_, starts_;  // what a_t and b_t are relative to, -inf where there is nothing
  std::vector<double> last_, pairs_, weight_;  // last_: probabilities of the last label
  Buffer<double> open_ends_, open_starts_;
  Buffer<double> a_, ra_, da_, b_, rb_, db_, d_, dd_, g_, dg_;  // ra_, rb_: rests
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
