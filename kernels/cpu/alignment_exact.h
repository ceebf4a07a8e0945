// Sums over the paths of one pair with an exponent for every number (wide.h), and optionally the
// derivative of everything along a direction v in the space of potentials:
//   M[i][j] = (M + X + Y)[i-1][j-1] e^match,  X = (M + Y) e^open + X e^gap,  Y likewise, and from the end
//   bM[i][j] = e^match bM[i+1][j+1] + e^open_x bX[i+1][j] + e^open_y bY[i][j+1]
//   bX[i][j] = the same with e^gap_x,   bY[i][j] = the same with e^gap_y,
// the marginal of a part being what leads to it times its weight times what follows, over Z. No
// vectors, about 20 times the time of alignment_sum.h.
#pragma once
#include "alignment.h"
#include "wide.h"

namespace sl {

template <class T>
struct AlignmentDirection {  // shapes of the potentials, contiguous; open is null with linear gaps
  const T *match = nullptr, *gap_x = nullptr, *gap_y = nullptr, *open_x = nullptr, *open_y = nullptr;
};

template <class T>
struct AlignmentGradient {  // one pair's own rows; open is null with linear gaps
  T *match, *gap_x, *gap_y, *open_x, *open_y;

  AlignmentGradient(const AlignmentArgs& a, int64_t b, T* match_, T* gap_x_, T* gap_y_, T* open_x_, T* open_y_)
      : match(match_ + b * a.N * a.M), gap_x(gap_x_ + b * a.N), gap_y(gap_y_ + b * a.M), open_x(a.open_x ? open_x_ + b * a.N : nullptr), open_y(a.open_x ? open_y_ + b * a.M : nullptr) {}
  void clear(int64_t N, int64_t M) const {
    std::fill_n(match, N * M, T(0));
    clear_gaps(N, M);
  }
  // All that a sweep over the cells of the pair does not overwrite.
  void clear_padding(const Pair<T>& p) const {
    if (p.low > -p.n - p.m) return clear(p.N, p.M);
    for (int64_t i = 0; i < p.n; ++i) std::fill(match + i * p.M + p.m, match + (i + 1) * p.M, T(0));
    std::fill(match + p.n * p.M, match + p.N * p.M, T(0));
    clear_gaps(p.N, p.M);
  }
  void clear_gaps(int64_t N, int64_t M) const {
    std::fill_n(gap_x, N, T(0)), std::fill_n(gap_y, M, T(0));
    if (open_x) std::fill_n(open_x, N, T(0)), std::fill_n(open_y, M, T(0));
  }
};

template <class T, bool Tangent>
class ExactPair {
 public:
  using Number = Dual<Tangent>;
  struct Node {
    Number m, x, y;
    Number all() const { return m + x + y; }
  };
  Number z;  // Z, and along a direction the derivative of log Z

  Wide forward(const Pair<T>& pair, bool affine, const AlignmentDirection<T>& v = {}) {
    p_ = &pair, affine_ = affine, local_ = pair.mode == kLocal;
    set_gaps(v);
    const int64_t n = p_->n, m = p_->m;
    nodes_.assign((n + 1) * (m + 1), Node{});
    z = local_ ? Number::one() : Number{};
    for (int64_t i = 0; i <= n; ++i)
      for (int64_t j = 0; j <= m; ++j) {
        if (!p_->node_in_band(i, j)) continue;
        Node& here = own(i, j);
        if (i + j == 0 && !local_) here.m = Number::one();
        if (i && j) {
          Number before = node(i - 1, j - 1).all();
          if (local_) before = before + Number::one();
          here.m = before * match(i, j);
        }
        if (i) {
          const Node& u = node(i - 1, j);
          here.x = (u.m + u.y) * open_x(i, j) + u.x * gap_x(i, j);
        }
        if (j) {
          const Node& u = node(i, j - 1);
          here.y = (u.m + u.x) * open_y(i, j) + u.y * gap_y(i, j);
        }
        if (local_) z = z + here.m;
      }
    if (!local_) z = node(n, m).all();
    return z.w;
  }

  // After forward: overwrites the pair's gradient with weight times the marginals, or with Tangent their
  // derivative.
  void backward(T weight, const AlignmentGradient<T>& out) {
    const int64_t n = p_->n, m = p_->m;
    out.clear(p_->N, p_->M);
    if (!(z.w.m > 0)) return;
    const auto share = [&](Number a, Number b) {
      const Number both = a * b;
      const double p = both.w.at(z.w.e) / z.w.m;
      return p > 0 ? T(weight * (Tangent ? p * (both.r - z.r) : p)) : T(0);
    };
    std::vector<Node> below(m + 2), here(m + 2);
    for (int64_t i = n; i >= 0; --i, std::swap(below, here)) {
      for (int64_t j = m; j >= 0; --j) {
        Node& b = here[j];
        b = Node{};
        if (!p_->node_in_band(i, j)) continue;
        if (!local_ && i == n && j == m) b = {Number::one(), Number::one(), Number::one()};
        if (local_) b.m = Number::one();
        if (i < n && j < m && p_->node_in_band(i + 1, j + 1)) {
          const Number next = match(i + 1, j + 1) * below[j + 1].m;
          b = {b.m + next, b.x + next, b.y + next};
        }
        if (i < n && p_->node_in_band(i + 1, j)) {
          const Number opened = open_x(i + 1, j) * below[j].x, extended = gap_x(i + 1, j) * below[j].x;
          b = {b.m + opened, b.x + extended, b.y + opened};
        }
        if (j < m && p_->node_in_band(i, j + 1)) {
          const Number opened = open_y(i, j + 1) * here[j + 1].y, extended = gap_y(i, j + 1) * here[j + 1].y;
          b = {b.m + opened, b.x + opened, b.y + extended};
        }
        if (i && j) out.match[(i - 1) * p_->M + j - 1] = share(node(i, j).m, b.m);
        if (i && !free_x(j)) {
          const Node& u = node(i - 1, j);
          (affine_ ? out.open_x : out.gap_x)[i - 1] += share((u.m + u.y) * open_x(i, j), b.x);
          out.gap_x[i - 1] += share(u.x * gap_x(i, j), b.x);
        }
        if (j && !free_y(i)) {
          const Node& u = node(i, j - 1);
          (affine_ ? out.open_y : out.gap_y)[j - 1] += share((u.m + u.x) * open_y(i, j), b.y);
          out.gap_y[j - 1] += share(u.y * gap_y(i, j), b.y);
        }
      }
    }
  }

  const Node& node(int64_t i, int64_t j) const { return nodes_[i * (p_->m + 1) + j]; }
  // Weights of the operations into node (i, j).
  Number match(int64_t i, int64_t j) const {
    return Number::of(Wide::exp(double(p_->match[(i - 1) * p_->row + j - 1])), v_match_ ? double(v_match_[(i - 1) * p_->M + j - 1]) : 0);
  }
  Number open_x(int64_t i, int64_t j) const { return free_x(j) ? Number::one() : open_x_[i - 1]; }
  Number gap_x(int64_t i, int64_t j) const { return free_x(j) ? Number::one() : gap_x_[i - 1]; }
  Number open_y(int64_t i, int64_t j) const { return free_y(i) ? Number::one() : open_y_[j - 1]; }
  Number gap_y(int64_t i, int64_t j) const { return free_y(i) ? Number::one() : gap_y_[j - 1]; }

 private:
  Node& own(int64_t i, int64_t j) { return nodes_[i * (p_->m + 1) + j]; }
  bool free_x(int64_t j) const { return p_->mode == kSemiglobal && (j == 0 || j == p_->m); }
  bool free_y(int64_t i) const { return p_->mode == kSemiglobal && (i == 0 || i == p_->n); }

  void set_gaps(const AlignmentDirection<T>& v) {
    v_match_ = v.match ? v.match + p_->b * p_->N * p_->M : nullptr;
    const auto fill = [&](const T* score, const T* direction, int64_t size, int64_t whole, std::vector<Number>& out) {
      out.resize(size);
      for (int64_t k = 0; k < size; ++k)
        out[k] = Number::of(Wide::exp(double(score[k])), direction ? double(direction[p_->b * whole + k]) : 0);
    };
    fill(p_->gap_x, v.gap_x, p_->n, p_->N, gap_x_);
    fill(p_->gap_y, v.gap_y, p_->m, p_->M, gap_y_);
    fill(p_->open_x, affine_ ? v.open_x : v.gap_x, p_->n, p_->N, open_x_);
    fill(p_->open_y, affine_ ? v.open_y : v.gap_y, p_->m, p_->M, open_y_);
  }

  const Pair<T>* p_ = nullptr;
  bool affine_ = false, local_ = false;
  const T* v_match_ = nullptr;
  std::vector<Number> gap_x_, gap_y_, open_x_, open_y_;
  std::vector<Node> nodes_;
};

}  // namespace sl
