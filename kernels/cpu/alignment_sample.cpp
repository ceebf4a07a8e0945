// Draws from p(path): totals of all nodes once a pair (alignment_exact.h), then for every draw from the
// end backwards the operation before, in proportion to what leads to the node by it. By inverse CDF in
// the order of ties; uniform[k] of the N + M + 1 decides the k-th choice from the end.
#include <memory>

#include "alignment_exact.h"

namespace sl {
namespace {

template <class T, class N>
class Sampler {
 public:
  // `sums` after forward.
  Sampler(const ExactPair<T, N, Carry::kNothing>& sums, const Pair<T>& pair) : sums_(sums), pair_(pair) {
    if (pair.mode != kLocal) return;
    rows_.assign(pair.n + 1, N{});
    for (int64_t i = 1; i <= pair.n; ++i)
      for (int64_t j = 1; j <= pair.m; ++j) rows_[i] = rows_[i] + sums.node(i, j).m.w;
    rows_[0] = N::one();  // the empty alignment
  }

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
      const auto& here = sums_.node(i, j);
      op = choose({here.m.w, here.x.w, here.y.w});
    }
    while (i + j > 0) {
      ops->push_back(int8_t(op));
      i -= op != 2, j -= op != 1;
      const auto& u = sums_.node(i, j);
      if (op == 0 && local) {
        const int k = choose({N::one(), u.m.w, u.x.w, u.y.w});
        if (k == 0) break;
        op = k - 1;
      } else if (i + j > 0) {
        if (op == 0) op = choose({u.m.w, u.x.w, u.y.w});
        else if (op == 1) op = choose_gap(u.m.w, u.y.w, u.x.w, sums_.open_x(i + 1, j).w, sums_.gap_x(i + 1, j).w, 2, 1);
        else op = choose_gap(u.m.w, u.x.w, u.y.w, sums_.open_y(i, j + 1).w, sums_.gap_y(i, j + 1).w, 1, 2);
      }
    }
    ops->insert(ops->end(), j, 2);
    ops->insert(ops->end(), i, 1);
    std::reverse(ops->begin(), ops->end());
  }

 private:
  // The lowest k of `count` whose share of the weights up to it exceeds `uniform`, which becomes uniform again within it.
  template <class F>
  static int64_t draw(double* uniform, int64_t count, F&& weight) {
    N sum;
    for (int64_t k = 0; k < count; ++k) sum = sum + weight(k);
    double left = *uniform;
    int64_t last = 0;
    for (int64_t k = 0; k < count; ++k) {
      const double share = weight(k).over(sum);
      if (!(share > 0)) continue;
      last = k, *uniform = std::min(left / share, 1.0);
      if (left < share) break;
      left -= share;
    }
    return last;
  }
  int choose(std::initializer_list<N> weights) {
    double uniform = double(*uniform_++);
    return int(draw(&uniform, int64_t(weights.size()), [&](int64_t k) { return weights.begin()[k]; }));
  }
  int choose_gap(N match, N other, N same, N open, N gap, int other_op, int same_op) {
    const int k = choose({match * open, other * open, same * gap});
    return k == 0 ? 0 : k == 1 ? other_op : same_op;
  }

  // The node behind the last match; (0, 0) for the empty alignment.
  void local_end(int64_t* i, int64_t* j) {
    double uniform = double(*uniform_++);
    *i = draw(&uniform, pair_.n + 1, [&](int64_t row) { return rows_[row]; });
    *j = *i == 0 ? 0 : 1 + draw(&uniform, pair_.m, [&](int64_t column) { return sums_.node(*i, column + 1).m.w; });
  }

  const ExactPair<T, N, Carry::kNothing>& sums_;
  const Pair<T>& pair_;
  const T* uniform_ = nullptr;
  std::vector<N> rows_;  // of local ends, by their row
};

template <class T>
int64_t sample(const AlignmentArgs* args, const T* uniform, int64_t S, int64_t* paths) {
  const int64_t width = args->N + args->M;
  struct Scratch {
    Pair<T> pair;
    Exact<T, Carry::kNothing> exact;
    std::vector<int8_t> ops;
  };
  std::vector<std::unique_ptr<Scratch>> scratch(std::max<int64_t>(1, args->threads));
  for_pairs(*args, 500, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Scratch>();
    Scratch& own = *scratch[worker];
    own.pair.set(*args, b);
    own.exact(own.pair, {}, [&](auto& sums) {
      Sampler<T, decltype(sums.z.w)> sampler(sums, own.pair);
      for (int64_t s = 0; s < S; ++s) {
        const int64_t at = (s * args->B + b) * width;
        own.ops.clear();
        if (sums.z.w.positive()) sampler.path(uniform + (s * args->B + b) * (width + 1), &own.ops);
        std::copy(own.ops.begin(), own.ops.end(), paths + at);
        std::fill(paths + at + own.ops.size(), paths + at + width, kPadOp);
      }
    });
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_alignment_sample_f32(const sl::AlignmentArgs* a, const float* uniform, int64_t S, int64_t* paths) { return sl::sample(a, uniform, S, paths); }
int64_t sl_alignment_sample_f64(const sl::AlignmentArgs* a, const double* uniform, int64_t S, int64_t* paths) { return sl::sample(a, uniform, S, paths); }
}
