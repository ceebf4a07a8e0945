// Draws from p(path): totals of all nodes once a pair (alignment_exact.h), then for every draw from the
// end backwards the operation before, in proportion to what leads to the node by it. By inverse CDF in
// the order of ties; uniform[k] of the N + M + 1 decides the k-th choice from the end.
#include <memory>

#include "alignment_exact.h"

namespace sl {
namespace {

// The lowest k whose share of the weights so far exceeds the uniform number.
inline int draw(double uniform, const Wide* weights, int count) {
  Wide sum;
  for (int k = 0; k < count; ++k) sum = sum + weights[k];
  double below = 0;
  int last = 0;
  for (int k = 0; k < count; ++k) {
    if (!(weights[k].m > 0)) continue;
    last = k;
    below += weights[k].at(sum.e);
    if (below > uniform * sum.m) return k;
  }
  return last;
}

template <class T>
class Sampler {
  using Exact = ExactPair<T, false>;

 public:
  void set(const AlignmentArgs& args, int64_t b) {
    pair_.set(args, b);
    affine_ = args.open_x;
    exact_.forward(pair_, affine_);
    if (pair_.mode != kLocal) return;
    rows_.assign(pair_.n + 1, {});
    for (int64_t i = 1; i <= pair_.n; ++i)
      for (int64_t j = 1; j <= pair_.m; ++j) rows_[i] = rows_[i] + exact_.node(i, j).m.w;
    rows_[0] = Wide::of(1);  // the empty alignment
  }
  bool feasible() const { return exact_.z.w.m > 0; }

  void path(const T* uniform, std::vector<int8_t>* ops) {
    const int64_t n = pair_.n, m = pair_.m;
    ops->clear();
    uniform_ = uniform;
    int64_t i = n, j = m;
    int op = 0;
    const bool local = pair_.mode == kLocal;
    if (local) {
      local_end(&i, &j);
      ops->insert(ops->end(), m - j, 2);
      ops->insert(ops->end(), n - i, 1);
    } else if (i + j > 0) {
      const auto& here = exact_.node(i, j);
      op = choose({here.m.w, here.x.w, here.y.w});
    }
    while (i + j > 0) {
      ops->push_back(int8_t(op));
      i -= op != 2, j -= op != 1;
      const auto& u = exact_.node(i, j);
      if (op == 0 && local) {
        const int k = choose({Wide::of(1), u.m.w, u.x.w, u.y.w});
        if (k == 0) break;
        op = k - 1;
      } else if (i + j > 0) {
        if (op == 0) op = choose({u.m.w, u.x.w, u.y.w});
        else if (op == 1) op = choose_gap(u.m.w, u.y.w, u.x.w, exact_.open_x(i + 1, j).w, exact_.gap_x(i + 1, j).w, 2, 1);
        else op = choose_gap(u.m.w, u.x.w, u.y.w, exact_.open_y(i, j + 1).w, exact_.gap_y(i, j + 1).w, 1, 2);
      }
    }
    ops->insert(ops->end(), j, 2);
    ops->insert(ops->end(), i, 1);
    std::reverse(ops->begin(), ops->end());
  }

 private:
  int choose(std::initializer_list<Wide> weights) { return draw(double(*uniform_++), weights.begin(), int(weights.size())); }
  int choose_gap(Wide match, Wide other, Wide same, Wide open, Wide gap, int other_op, int same_op) {
    const int k = choose({match * open, other * open, same * gap});
    return k == 0 ? 0 : k == 1 ? other_op : same_op;
  }

  // The node behind the last match; (0, 0) for the empty alignment.
  void local_end(int64_t* i, int64_t* j) {
    const Wide z = exact_.z.w;
    double left = double(*uniform_++) * z.m;
    *i = *j = 0;
    if ((left -= rows_[0].at(z.e)) < 0) return;
    for (int64_t row = 1; row <= pair_.n; ++row) {
      const double whole = rows_[row].at(z.e);
      if (whole <= 0) continue;
      *i = row;
      if (left < whole) break;
      left -= whole;
    }
    for (int64_t column = 1; *i && column <= pair_.m; ++column) {
      const double w = exact_.node(*i, column).m.w.at(z.e);
      if (w <= 0) continue;
      *j = column;
      if ((left -= w) < 0) break;
    }
  }

  Pair<T> pair_;
  Exact exact_;
  bool affine_ = false;
  const T* uniform_ = nullptr;
  std::vector<Wide> rows_;  // of local ends, by their row
};

template <class T>
int64_t sample(const AlignmentArgs* args, const T* uniform, int64_t S, int64_t* paths) {
  const int64_t width = args->N + args->M;
  std::vector<std::unique_ptr<Sampler<T>>> scratch(std::max<int64_t>(1, args->threads));
  for_pairs(*args, 500, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Sampler<T>>();
    Sampler<T>& sampler = *scratch[worker];
    sampler.set(*args, b);
    std::vector<int8_t> ops;
    for (int64_t s = 0; s < S; ++s) {
      const int64_t at = (s * args->B + b) * width;
      ops.clear();
      if (sampler.feasible()) sampler.path(uniform + (s * args->B + b) * (width + 1), &ops);
      std::copy(ops.begin(), ops.end(), paths + at);
      std::fill(paths + at + ops.size(), paths + at + width, kPadOp);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_alignment_sample_f32(const sl::AlignmentArgs* a, const float* uniform, int64_t S, int64_t* paths) { return sl::sample(a, uniform, S, paths); }
int64_t sl_alignment_sample_f64(const sl::AlignmentArgs* a, const double* uniform, int64_t S, int64_t* paths) { return sl::sample(a, uniform, S, paths); }
}
