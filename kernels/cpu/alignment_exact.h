// Sums over the paths of one pair with an exponent for every number (wide.h), and optionally the
// derivative of everything along a direction v in the space of potentials:
//   M[i][j] = (M + X + Y)[i-1][j-1] e^match,  X = (M + Y) e^open + X e^gap,  Y likewise,
// and probabilities from the end, P(summand) = P(its sum) (its share of the sum). No vectors, about 20 times the time of
// alignment_sum.h.
//
// In place of a derivative a total may carry the mean log share of its paths, log p(path | total): minus its entropy, as
// a sum of terms of one sign, where log Z - E[s] would cancel. The derivative of the entropy by a score is minus the
// covariance of its part with log p, as that of the marginals is the covariance with the direction's score.
#pragma once
#include "alignment.h"
#include "wide.h"

namespace sl {

template <class T>
struct AlignmentDirection {  // shapes of the potentials, contiguous; open is null with linear gaps
  const T *match = nullptr, *gap_x = nullptr, *gap_y = nullptr, *open_x = nullptr, *open_y = nullptr;
};

template <class T>
struct AlignmentGradient {  // one pair's own rows; open is gap with linear gaps
  T *match, *gap_x, *gap_y, *open_x, *open_y;

  AlignmentGradient(const AlignmentArgs& a, int64_t b, T* match_, T* gap_x_, T* gap_y_, T* open_x_, T* open_y_)
      : match(match_ + b * a.N * a.M), gap_x(gap_x_ + b * a.N), gap_y(gap_y_ + b * a.M), open_x(a.affine ? open_x_ + b * a.N : gap_x), open_y(a.affine ? open_y_ + b * a.M : gap_y) {}
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
    std::fill_n(open_x, N, T(0)), std::fill_n(open_y, M, T(0));
  }
};

template <class T, class N, Carry C>
class ExactPair {
 public:
  using Number = Dual<N, C>;
  struct Node {
    Number m, x, y;
    Number all() const { return m + x + y; }
  };
  Number z;  // Z, and what it carries

  // False if N cannot hold the weights of the paths that count.
  bool forward(const Pair<T>& pair, const AlignmentDirection<T>& v = {}) {
    p_ = &pair, local_ = pair.mode == kLocal;
    const int64_t n = p_->n, m = p_->m;
    constexpr bool limited = std::is_same_v<N, Wide>;
    const auto [least, most] = limited ? p_->extremes() : std::pair<T, T>{};
    lowest_ = limited ? -Wide::kLargest / double(n + m + 2) : kNegInf<double>;
    if (double(most) > -lowest_ / 2) return false;
    set_gaps(v);
    nodes_.assign((n + 1) * (m + 1), Node{});
    z = local_ ? Number::one() : Number{};
    for (int64_t i = 0; i <= n; ++i)
      for (int64_t j = 0; j <= m; ++j) {
        if (!p_->node_in_band(i, j)) continue;
        Node& here = own(i, j);
        if (i + j == 0 && !local_) here.m = Number::one();
        if (i && j) here.m = before_match(i, j) * match(i, j);
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
    // Scores below lowest_ count as lowest_: that changes nothing where paths without them are all that counts.
    return double(least) >= lowest_ || !z.w.positive() || z.w.log() > lowest_ + double(n + m) * double(most) + 1000;
  }

  // After forward: overwrites the pair's gradient with weight times the marginals, or times the derivative of what
  // totals carry.
  void backward(T weight, const AlignmentGradient<T>& out) {
    const int64_t n = p_->n, m = p_->m;
    out.clear(p_->N, p_->M);
    if (!z.w.positive()) return;
    const auto value = [&](const Mass& mass) { return T(weight * (C == Carry::kNothing ? mass.p : mass.d)); };
    const Mass whole{1, 0};
    std::vector<NodeMass> here(m + 1), above(m + 1);
    if (!local_) here[m].split(whole, z, node(n, m));
    for (int64_t i = n; i >= 0; --i, std::swap(here, above), above.assign(m + 1, NodeMass{})) {
      for (int64_t j = m; j >= 0; --j) {
        if (!p_->node_in_band(i, j)) continue;
        const Node& to = node(i, j);
        NodeMass& mass = here[j];
        if (i && j) {
          if (local_) mass.m += mass_part<C>(whole, z, to.m);
          out.match[(i - 1) * p_->M + j - 1] = value(mass.m);
          above[j - 1].split(mass.m, before_match(i, j), node(i - 1, j - 1));
        }
        // A gap's mass goes to opening it from two states, and to extending it.
        const auto gap = [&](const Mass& own, const Number& total, const Number& first, Mass& to_first, const Number& second, Mass& to_second,
                             const Number& same, Mass& to_same, const Number& open, const Number& gap, bool free, T& d_open, T& d_gap) {
          const Number others = first + second;
          const Mass opened = mass_part<C>(own, total, others * open), extended = mass_part<C>(own, total, same * gap);
          if (!free) d_open += value(opened), d_gap += value(extended);
          to_first += mass_part<C>(opened, others, first), to_second += mass_part<C>(opened, others, second), to_same += extended;
        };
        if (i) {
          const Node& from = node(i - 1, j);
          NodeMass& to_from = above[j];
          gap(mass.x, to.x, from.m, to_from.m, from.y, to_from.y, from.x, to_from.x, open_x(i, j), gap_x(i, j), free_x(j), out.open_x[i - 1], out.gap_x[i - 1]);
        }
        if (j) {
          const Node& from = node(i, j - 1);
          NodeMass& to_from = here[j - 1];
          gap(mass.y, to.y, from.m, to_from.m, from.x, to_from.x, from.y, to_from.y, open_y(i, j), gap_y(i, j), free_y(i), out.open_y[j - 1], out.gap_y[j - 1]);
        }
      }
    }
  }

  const Node& node(int64_t i, int64_t j) const { return nodes_[i * (p_->m + 1) + j]; }
  // Weights of the operations into node (i, j).
  Number match(int64_t i, int64_t j) const {
    return weight(p_->match[(i - 1) * p_->row + j - 1], v_match_ ? double(v_match_[(i - 1) * p_->M + j - 1]) : 0);
  }
  Number open_x(int64_t i, int64_t j) const { return free_x(j) ? Number::one() : open_x_[i - 1]; }
  Number gap_x(int64_t i, int64_t j) const { return free_x(j) ? Number::one() : gap_x_[i - 1]; }
  Number open_y(int64_t i, int64_t j) const { return free_y(i) ? Number::one() : open_y_[j - 1]; }
  Number gap_y(int64_t i, int64_t j) const { return free_y(i) ? Number::one() : gap_y_[j - 1]; }

 private:
  Node& own(int64_t i, int64_t j) { return nodes_[i * (p_->m + 1) + j]; }
  bool free_x(int64_t j) const { return p_->mode == kSemiglobal && (j == 0 || j == p_->m); }
  bool free_y(int64_t i) const { return p_->mode == kSemiglobal && (i == 0 || i == p_->n); }

  Number before_match(int64_t i, int64_t j) const {
    const Number all = node(i - 1, j - 1).all();
    return local_ ? all + Number::one() : all;
  }
  Number weight(T score, double direction) const {
    return Number::of(score > kNegInf<T> ? N::exp(std::max(double(score), lowest_)) : N{}, direction);
  }
  struct NodeMass {
    Mass m, x, y;
    void split(const Mass& mass, const Number& total, const Node& node) {
      m += mass_part<C>(mass, total, node.m), x += mass_part<C>(mass, total, node.x), y += mass_part<C>(mass, total, node.y);
    }
  };

  void set_gaps(const AlignmentDirection<T>& v) {
    v_match_ = v.match ? v.match + p_->b * p_->N * p_->M : nullptr;
    const auto fill = [&](const T* score, const T* direction, int64_t size, int64_t whole, std::vector<Number>& out) {
      out.resize(size);
      for (int64_t k = 0; k < size; ++k) out[k] = weight(score[k], direction ? double(direction[p_->b * whole + k]) : 0);
    };
    fill(p_->gap_x, v.gap_x, p_->n, p_->N, gap_x_);
    fill(p_->gap_y, v.gap_y, p_->m, p_->M, gap_y_);
    fill(p_->open_x, p_->affine ? v.open_x : v.gap_x, p_->n, p_->N, open_x_);
    fill(p_->open_y, p_->affine ? v.open_y : v.gap_y, p_->m, p_->M, open_y_);
  }

  const Pair<T>* p_ = nullptr;
  bool local_ = false;
  double lowest_ = 0;
  const T* v_match_ = nullptr;
  std::vector<Number> gap_x_, gap_y_, open_x_, open_y_;
  std::vector<Node> nodes_;
};

// The sums over a pair's paths in whatever numbers hold them.
template <class T, Carry C>
class Exact {
  ExactPair<T, Wide, C> wide_;
  ExactPair<T, Huge, C> huge_;

 public:
  // Calls use(sums), an ExactPair after forward, and returns log Z.
  template <class F>
  T operator()(const Pair<T>& pair, const AlignmentDirection<T>& v, F&& use) {
    const auto with = [&](auto& sums) {
      use(sums);
      return log_of<T>(sums.z.w);
    };
    if (wide_.forward(pair, v)) return with(wide_);
    huge_.forward(pair, v);
    return with(huge_);
  }
};

}  // namespace sl
