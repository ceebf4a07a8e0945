// The words of a few sentences in a dense grammar (grammar_dense.h), in scaled probability space. All of them
// share the rules, so every matrix of rules W_s (grammar_dense_rules.h) is read once for all words:
//   L_g[s][A] = sum_t x_g[t] W_s[t][A],   pair_g[A] = sum_u x_{g+1}[u] sum_t x_g[t] W_u[t][A]
// for the parts beside word g and for the words g, g+1, and back, with q the gradient of pair,
//   dW_s[t][A] += sum_g x_g[t] dL_g[s][A],   dx_g[t] = sum_sA dL_g[s][A] W_s[t][A],
// where the gradient of what pair sums over u is x_{g+1}[u] q_g[A] and need not be kept.
// Limited by multiply-adds; at N=10, NT=30, P=60 they are three quarters of the work.
#pragma once
#include "grammar_dense_rules.h"
#include "products.h"

namespace sl {

// exp(x_c) 2^-K into to[c], columns beyond `size` 0; returns K, or NaN if nothing is allowed or scores are beyond `widest`.
template <class T>
inline T scaled_weights(const T* x, int64_t size, int64_t width, T widest, T* to) {
  Vec<T> top = splat<T>(kNegInf<T>);
  for (int64_t c = 0; c < size; c += kLanes<T>) top = vmax(load_row(x, c, size, kNegInf<T>), top);
  const T best = hmax(top);
  if (!(std::abs(best) < widest)) return std::numeric_limits<T>::quiet_NaN();
  const RelativeWeights<T> weight(best);
  std::fill_n(to, width, T(0));
  for (int64_t c = 0; c < size; c += kLanes<T>) store(to + c, weight(load_row(x, c, size, kNegInf<T>)));
  return weight.shift;
}

template <class T>
class DenseWords {
 public:
  explicit DenseWords(const DenseSumRules<T>& rules) : rules_(rules), w_(rules.w) {}

  // Words of which matrices and their gradients take half a cache of 1 MB. For NT=30, P=60 groups of 20 to 80 words
  // take the same time, of 10 words 5 % more.
  static int64_t most(const GrammarArgs& a) { return (int64_t(1) << 19) / (4 * a.NT * dense_width(a.NT) * int64_t(sizeof(T))); }

  void start(int64_t room) {
    count_ = 0;
    x_.resize((room + 1) * w_.Pp);
  }
  // The next word, from its scores; its exponent, or NaN if it cannot be scaled.
  T add(const T* terms) { return scaled_weights(terms, w_.P, w_.Pp, rules_.widest, x_.data + count_++ * w_.Pp); }
  void drop(int64_t words) { count_ -= words; }
  int64_t count() const { return count_; }

  const T* x(int64_t g) const { return x_.data + g * w_.Pp; }
  const T* left(int64_t g) const { return matrices_.data + g * size(); }                  // g the left part: [r][A]
  const T* right(int64_t g) const { return matrices_.data + g * size() + w_.NT * w_.C; }  // g the right part: [l][A]
  const T* pair(int64_t g) const { return pairs_.data + g * w_.C; }

  // Without `pairs`, only what gradients need.
  void multiply_out(bool pairs) {
    const int64_t G = count_, C = w_.C, Gp = (G + 15) / 16 * 16;
    std::fill_n(x_.data + G * w_.Pp, w_.Pp, T(0));
    x_turned_.resize(w_.P * Gp), matrices_.resize(G * size()), pairs_.resize(G * C), scratch_.resize(G * std::max(C, w_.Pp));
    transpose(G, w_.P, x_.data, w_.Pp, x_turned_.data, Gp);
    for (int64_t s = 0; s < 2 * w_.NT; ++s)
      multiply_columns<T>({G, C, w_.P, x_turned_.data, Gp, w_.matrix(s), C, matrices_.data + s * C, size(), false});
    std::fill_n(pairs_.data, G * C, T(0));
    for (int64_t u = 0; pairs && u < w_.P; ++u) {
      multiply_columns<T>({G, C, w_.P, x_turned_.data, Gp, w_.matrix(2 * w_.NT + u), C, scratch_.data, C, false});
      for (int64_t g = 0; g < G; ++g) add_scaled(scratch_.data + g * C, x(g + 1)[u], C, pairs_.data + g * C);
    }
  }

  // Gradients to be filled; 0 where a word has none.
  void start_gradient() {
    d_matrices_.resize(count_ * size()), d_pairs_.resize(count_ * w_.C);
    std::fill_n(d_matrices_.data, count_ * size(), T(0)), std::fill_n(d_pairs_.data, count_ * w_.C, T(0));
  }
  T* d_left(int64_t g) { return d_matrices_.data + g * size(); }
  T* d_right(int64_t g) { return d_left(g) + w_.NT * w_.C; }
  T* d_pair(int64_t g) { return d_pairs_.data + g * w_.C; }

  // The gradient of the rules goes into d (is added to it, with `add`), that of terms is kept for d_terms.
  void gradient(DenseTable<T>& d, bool add) {
    const int64_t G = count_, C = w_.C, Pp = w_.Pp, wide = padded<T>(w_.P);
    d_x_.resize(G * Pp), d_next_.resize((G + 1) * Pp);
    std::fill_n(d_x_.data, G * Pp, T(0)), std::fill_n(d_next_.data, Pp, T(0));
    for (int64_t s = 0; s < 2 * w_.NT; ++s) {
      const T* given = d_matrices_.data + s * C;
      multiply_columns<T>({w_.P, C, G, x_.data, Pp, given, size(), d.matrix(s), C, add});
      multiply_rows<T>({G, wide, w_.NT, given, size(), turned(s), Pp, d_x_.data, Pp, true});
    }
    for (int64_t u = 0; u < w_.P; ++u) {
      const int64_t s = 2 * w_.NT + u;
      for (int64_t g = 0; g < G; ++g)
        for (int64_t c = 0; c < C; c += kLanes<T>) store(scratch_.data + g * C + c, load(d_pair(g) + c) * x(g + 1)[u]);
      multiply_columns<T>({w_.P, C, G, x_.data, Pp, scratch_.data, C, d.matrix(s), C, add});
      multiply_rows<T>({G, wide, w_.NT, d_pairs_.data, C, turned(s), Pp, scratch_.data, Pp, false});
      for (int64_t g = 0; g < G; ++g) {
        const T *made = scratch_.data + g * Pp, next = x(g + 1)[u];
        Vec<T> sum{};
        for (int64_t c = 0; c < wide; c += kLanes<T>) {
          T* to = d_x_.data + g * Pp + c;
          store(to, load(to) + load(made + c) * next);
          sum += load(made + c) * load(x(g) + c);
        }
        d_next_.data[(g + 1) * Pp + u] = hsum(sum);
      }
    }
  }
  void d_terms(int64_t g, T* out) const {
    for (int64_t t = 0; t < w_.P; ++t) out[t] += (d_x_.data[g * w_.Pp + t] + d_next_.data[g * w_.Pp + t]) * x(g)[t];
  }

 private:
  int64_t size() const { return 2 * w_.NT * w_.C; }
  const T* turned(int64_t s) const { return rules_.turned.data + s * w_.NT * w_.Pp; }
  static void add_scaled(const T* x, T factor, int64_t size, T* to) {
    for (int64_t c = 0; c < size; c += kLanes<T>) store(to + c, load(to + c) + load(x + c) * factor);
  }

  const DenseSumRules<T>& rules_;
  const DenseTable<T>& w_;
  int64_t count_ = 0;
  RawBuffer<T> x_, x_turned_, matrices_, pairs_, scratch_, d_matrices_, d_pairs_, d_x_, d_next_;
};

}  // namespace sl
