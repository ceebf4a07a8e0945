// Best path of each pair. The forward sweep keeps the comparisons that decided each cell as bits, 2 to
// 6 words of L bits a row of cells, so the traceback of one pair takes at most 6/8 byte a cell and is given up
// before the next pair; without a path only one row of nodes is kept. Limited by the vector adds,
// compares and shuffles of a step (about 1 cycle a cell with AVX-512), from some 500 x 500 on by reading
// the match scores.
//
// Where opening a gap scores less than extending it, opening one after a gap of the same side never wins, and
//   X[i][j] = max(H[i-1][j] + open_x[i-1], X[i-1][j] + gap_x[i-1]),  H = max(M, X, Y),
// which takes two operations and one comparison less a cell than leaving X out of H does.
#include <memory>

#include "alignment.h"

namespace sl {
namespace {

constexpr int kStackShift = 1, kStack = 1 << kStackShift;  // rows of a lane, but for the last ones

template <class T>
using Word = std::conditional_t<(kLanes<T> > 8), uint16_t, uint8_t>;

// Linear gaps; affine ones that cost more to open than to extend; any affine ones.
enum Gaps { kLinear, kCostly, kAny };

template <class T, Gaps Kind, bool Local, bool Trace>
class MaxSweep {
  static constexpr int64_t L = kLanes<T>, kBlock = kStack * L;
  static constexpr bool Affine = Kind != kLinear, Any = Kind == kAny;
  // Bits a step: M>=X, and both >=Y (M>=Y and X>=Y where Any); opened x and y of affine gaps; then whether
  // a local match continues a path.
  static constexpr int kOpened = Any ? 3 : 2, kWords = kOpened + (Affine ? 2 : 0) + (Local ? 1 : 0);
  using V = Vec<T>;
  using I = IVec<T>;
  using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

 public:
  // Score and, with Trace, the operations of a best path in order; false if rounding made opening a gap
  // after one of the same side as good as extending it, so that the path has to be found with Any.
  bool run(const Pair<T>& pair, T* score, std::vector<int8_t>* ops) {
    p_ = &pair;
    sure_ = true;
    top_ = splat<T>(0);
    *score = sweep(ops);
    return sure_;
  }
  // Whether a sum may have been out of range, after run with this score: without potentials larger than safe_size, what
  // was lost below the range scores less than -3/4 of it.
  bool may_have_overflowed(T score) const {
    V top = top_;
    const auto see = [&](const T* from, int64_t size) {
      for (int64_t k = 0; k < size; k += L) top = vmax(top, load(from + k));  // zeros follow
    };
    see(p_->gap_x, p_->n), see(p_->gap_y, p_->m);
    if (Affine) see(p_->open_x, p_->n), see(p_->open_y, p_->m);
    return !(score >= -std::numeric_limits<T>::max() / 2) || !(hmax(top) <= p_->safe_size());
  }

 private:
  T sweep(std::vector<int8_t>* ops) {
    if (p_->n == 0 || p_->m == 0) return border(ops);
    boundaries();
    const int64_t blocks = p_->blocks(kBlock);
    narrow_ = p_->n - (blocks - 1) * kBlock <= L ? blocks - 1 : blocks;
    if (Trace) {
      offset_.resize(blocks + 1);
      offset_[0] = 0;
      for (int64_t k = 0; k < blocks; ++k) offset_[k + 1] = offset_[k] + Steps(*p_, k * kBlock, stack(k)).count() * stack(k) * kWords;
      if (int64_t(bits_.size()) < offset_[blocks]) bits_.resize(offset_[blocks]);
    }
    best_ = 0, best_i_ = best_j_ = -1;
    for (int64_t k = 0; k < blocks; ++k) k == narrow_ ? block<1>(k) : block<kStack>(k);
    T score = best_;
    if (!Local) {
      const int64_t row = (p_->n - 1) % kBlock, deep = stack(blocks - 1), r = L - 1 - row / deep;
      const Row& last = s_.rows[row % deep];
      score = Any ? std::max(last.my[r], last.x[r]) : last.my[r];
      best_i_ = p_->n - 1, best_j_ = p_->m - 1;
    }
    if (Trace && score > kNegInf<T>) trace(ops);
    return score;
  }

  // What a row of every lane carries from step to step: of its last node max(M, Y), X, Y and max(M, X),
  // and the node diagonally before its next one. Unless Any, my is the maximum of all three.
  struct Row {
    V my, x, y, mx, before;
  };
  struct State {
    Row rows[kStack];

    State() = default;
    // Member by member, so that a copy lives in registers: as a whole GCC copies it through memory.
    State(const State& other) { *this = other; }
    State& operator=(const State& other) {
      for (int q = 0; q < kStack; ++q) {
        const Row& from = other.rows[q];
        rows[q].my = from.my, rows[q].before = from.before;
        if (Affine) rows[q].x = from.x, rows[q].y = from.y;
        if (Any) rows[q].mx = from.mx;
      }
      return *this;
    }
  };

  T border(std::vector<int8_t>* ops) {
    const int64_t n = p_->n, m = p_->m;
    if (Trace) {
      ops->assign(n, 1);
      ops->insert(ops->end(), m, 2);
    }
    if (Local || p_->mode == kSemiglobal) return 0;
    T sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += i ? p_->gap_x[i] : p_->open_x[i];
    for (int64_t j = 0; j < m; ++j) sum += j ? p_->gap_y[j] : p_->open_y[j];
    return sum;
  }

  // Nodes (i, 0) and (0, j).
  void boundaries() {
    const int64_t n = p_->n, m = p_->m;
    column_.resize(n + 2 * L);
    row_my_.resize(m + 3 * L);
    row_x_.resize(m + 3 * L);
    const bool free = p_->mode == kSemiglobal;
    const auto walk = [&](T* out, int64_t size, const T* open, const T* gap, bool along_x) {
      T sum = 0;
      out[0] = Local ? kNegInf<T> : T(0);
      for (int64_t k = 1; k <= size; ++k) {
        if (!free) sum += k == 1 ? open[0] : gap[k - 1];
        out[k] = Local || !(along_x ? p_->node_in_band(k, 0) : p_->node_in_band(0, k)) ? kNegInf<T> : sum;
      }
    };
    walk(column_.data, n, p_->open_x, p_->gap_x, true);
    walk(row_my_.data, m, p_->open_y, p_->gap_y, false);
    std::fill_n(column_.data + n + 1, 2 * L - 1, kNegInf<T>);
    std::fill_n(row_my_.data + m + 1, 3 * L - 1, kNegInf<T>);
    std::fill_n(row_x_.data, m + 3 * L, kNegInf<T>);
  }

  // Rows a lane: one where the last block has no more rows than lanes.
  int64_t stack(int64_t k) const { return k == narrow_ ? 1 : kStack; }

  template <int Stack>
  void block(int64_t k) {
    const Steps steps(*p_, k * kBlock, Stack);
    if (steps.count() == 0) return;
    const int64_t i0 = steps.i0, begin = steps.begin;
    const V nothing = splat<T>(kNegInf<T>);
    for (int q = 0; q < Stack; ++q) {
      V before;
      for (int r = 0; r < L; ++r) {
        const int64_t i = i0 + Stack * (L - 1 - r) + q, row = std::min(i, p_->n - 1);
        open_x_[q][r] = p_->open_x[row], gap_x_[q][r] = p_->gap_x[row];
        border_[q][r] = begin == 0 ? column_.data[row + 1] : kNegInf<T>;
        // First and last column inside the matrix and the band.
        first_[q][r] = Int(std::max<int64_t>(0, i + p_->low)), last_[q][r] = Int(std::min(p_->m - 1, i + p_->high));
        before[r] = begin == 0 && q > 0 ? column_.data[row] : kNegInf<T>;
      }
      s_.rows[q] = {Any ? nothing : border_[q], border_[q], nothing, border_[q], before};
      best_lane_[q] = nothing, best_step_[q] = I{};
    }
    if (begin == 0 && i0 > 0) {
      row_my_.data[0] = Any ? kNegInf<T> : column_.data[i0];
      row_x_.data[0] = column_.data[i0];
    }
    s_.rows[0].before[L - 1] = Any ? std::max(row_my_.data[begin], row_x_.data[begin]) : row_my_.data[begin];
    if (Trace) out_ = bits_.data() + offset_[k];

    alignas(kBytes) T tile[Stack][L * L];
    // Cells behind the last column or row feed no cell inside; only a local path may begin to end there.
    const int64_t inner_end = !Local && p_->mode == kGlobal && p_->all_in_band() ? steps.end : steps.inner_end;
    Ahead<T> ahead(p_->match, p_->row, p_->n, p_->m, i0 + kBlock, kBlock);
    for (int64_t t0 = begin; t0 < steps.end; t0 += L) {
      const int64_t t1 = std::min(t0 + L, steps.end);
      for (int q = 0; q < Stack; ++q) load_tile<Stack>(*p_, i0, q, t0, tile[q], top_);
      if (t0 >= steps.inner_begin && t1 <= inner_end)
        p_->same_y ? inner<Stack, true>(i0, t0, t1, tile[0], ahead) : inner<Stack, false>(i0, t0, t1, tile[0], ahead);
      else
        edge<Stack>(steps, t0, t1, tile[0]);
    }
    if (Local) collect(steps, Stack);
  }

  template <int Stack, bool SameY>
  void inner(int64_t i0, int64_t t0, int64_t t1, const T* tile, Ahead<T>& ahead) {
    State s = s_;
    V best[Stack], open_x[Stack], gap_x[Stack];
    I at[Stack];
    for (int q = 0; q < Stack; ++q) best[q] = best_lane_[q], at[q] = best_step_[q], open_x[q] = open_x_[q], gap_x[q] = gap_x_[q];
    const T *open_y = p_->open_y + t0 - (L - 1), *gap_y = p_->gap_y + t0 - (L - 1);
    const V open_all = load(open_y), gap_all = load(gap_y);
    T *in_my = row_my_.data + t0 + 1, *in_x = row_x_.data + t0 + 1;
    Word<T>* out = out_;
    NextTile<T> next_tile(p_->match, p_->row, i0, t0 + L);
#pragma GCC unroll 2
    for (int k = 0; k < t1 - t0; ++k) {
      const V open = SameY ? open_all : load(open_y + k), gap = SameY ? gap_all : load(gap_y + k);
      V my = from_above<T>(s.rows[Stack - 1].my, in_my + k), x = Affine ? from_above<T>(s.rows[Stack - 1].x, in_x + k) : V{};
#pragma GCC unroll 4
      for (int q = 0; q < Stack; ++q) {
        ahead.next();
        next_tile.row();
        const V m = step(s.rows[q], my, x, load(tile + (q * L + k) * L), open_x[q], gap_x[q], open, gap, out, [](V&, V&, V&) {});
        my = s.rows[q].my, x = s.rows[q].x;
        if (Local) note(m, Int(t0 + k), best[q], at[q]);
      }
      next_tile.lane();
      in_my[k - (L - 1)] = my[0];
      if (Affine) in_x[k - (L - 1)] = x[0];
    }
    for (int q = 0; q < Stack; ++q) best_lane_[q] = best[q], best_step_[q] = at[q];
    s_ = s, out_ = out;
  }

  static void note(V m, Int t, V& best, I& at) {
    const I better = m > best;
    best = better ? m : best;
    at = better ? I{} + t : at;
  }

  // Steps where some cells are outside the matrix or the band, or in the last row or column.
  template <int Stack>
  void edge(const Steps& steps, int64_t t0, int64_t t1, const T* tile) {
    State s = s_;
    const V nothing = splat<T>(kNegInf<T>);
    const I lanes = lane_numbers<T>();
    Word<T>* out = out_;
    for (int64_t t = t0; t < t1; ++t) {
      const I j = Int(t) - lanes;
      const V open_y = load(p_->open_y + t - (L - 1)), gap_y = load(p_->gap_y + t - (L - 1));
      V my = from_above<T>(s.rows[Stack - 1].my, row_my_.data + t + 1), x = from_above<T>(s.rows[Stack - 1].x, row_x_.data + t + 1);
      for (int q = 0; q < Stack; ++q) {
        const I inside = (j >= first_[q]) & (j <= last_[q]);
        V open_x = open_x_[q], gap_x = gap_x_[q], open = open_y, gap = gap_y;
        if (p_->mode == kSemiglobal) {
          const I last_column = j == Int(p_->m - 1), last_row = lanes * Int(Stack) == Int(p_->n - 1 - steps.i0 - q);
          open_x = last_column ? V{} : open_x, gap_x = last_column ? V{} : gap_x;
          open = last_row ? V{} : open, gap = last_row ? V{} : gap;
        }
        const V border = border_[q];
        const V m = step(s.rows[q], my, x, load(tile + (q * L + t - t0) * L), open_x, gap_x, open, gap, out, [&](V& m, V& x, V& y) {
          m = inside ? m : nothing;
          x = inside ? x : (j < 0 ? border : nothing);
          y = inside ? y : nothing;
        });
        my = s.rows[q].my, x = s.rows[q].x;
        if (Local) note(m, Int(t), best_lane_[q], best_step_[q]);
      }
      const int64_t column = t - (L - 1);
      if (column >= 0 && column < p_->m) {
        row_my_.data[column + 1] = my[0];
        if (Affine) row_x_.data[column + 1] = x[0];
      }
    }
    s_ = s, out_ = out;
  }

  // One row of every lane: its next cell from the nodes above (max(M, Y) and X), to the left and
  // diagonally before; `mask` may overwrite M, X and Y of cells that are not there. Returns M.
  template <class F>
  static inline __attribute__((always_inline)) V step(Row& s, V above_my, V above_x, V match, V open_x, V gap_x, V open_y,
                                                      V gap_y, Word<T>*& out, F&& mask) {
    V before = s.before;
    unsigned continues = 0;
    if (Local) {
      if (Trace) continues = bits_gt(before, V{});
      before = vmax(before, V{});
    }
    V m = before + match, x, y;
    unsigned opened_x = 0, opened_y = 0;
    if (Affine) {
      s.before = Any ? vmax(above_my, above_x) : above_my;
      const V opening_x = above_my + open_x, extending_x = above_x + gap_x;
      const V opening_y = (Any ? s.mx : s.my) + open_y, extending_y = s.y + gap_y;
      x = vmax(opening_x, extending_x), y = vmax(opening_y, extending_y);
      if (Trace) opened_x = bits_ge(opening_x, extending_x), opened_y = bits_ge(opening_y, extending_y);
    } else {
      s.before = above_my;
      x = above_my + gap_x, y = s.my + gap_y;
    }
    mask(m, x, y);
    const V mx = vmax(m, x);
    s.my = vmax(Any ? m : mx, y);
    if (Affine) s.x = x, s.y = y;
    if (Any) s.mx = mx;
    if (Trace) {
      out[0] = Word<T>(bits_ge(m, x));
      out[1] = Word<T>(bits_ge(Any ? m : mx, y));
      if (Any) out[2] = Word<T>(bits_ge(x, y));
      if (Affine) out[kOpened] = Word<T>(opened_x), out[kOpened + 1] = Word<T>(opened_y);
      if (Local) out[kWords - 1] = Word<T>(continues);
      out += kWords;
    }
    return m;
  }

  void collect(const Steps& steps, int64_t deep) {
    for (int64_t row = 0; row < steps.rows; ++row) {
      const int64_t l = row / deep, q = row % deep, r = L - 1 - l;
      if (best_lane_[q][r] > best_) best_ = best_lane_[q][r], best_i_ = steps.i0 + row, best_j_ = best_step_[q][r] - l;
    }
  }

  // The operation by which a best path enters cell (i, j), given that it leaves it by `after`.
  int entered_by(const Word<T>* w, int r, int after) {
    const auto bit = [&](int k) { return w[k] >> r & 1; };
    if (!Any) {
      const int op = bit(1) ? (bit(0) ? 0 : 1) : 2;
      if (Affine && after != 0 && op == after) sure_ = false;
      return op;
    }
    if (after == 1) return bit(1) ? 0 : 2;
    if (after == 2) return bit(0) ? 0 : 1;
    return bit(0) && bit(1) ? 0 : bit(2) ? 1 : 2;
  }

  void trace(std::vector<int8_t>* ops) {
    const int64_t n = p_->n, m = p_->m;
    ops->clear();
    int64_t i = best_i_, j = best_j_;
    if (Local) {
      const int64_t at_i = i < 0 ? 0 : i + 1, at_j = j < 0 ? 0 : j + 1;
      ops->insert(ops->end(), m - at_j, 2);
      ops->insert(ops->end(), n - at_i, 1);
    }
    // Where cell (i, j) has its bits. Shifts: a division takes longer than all else.
    struct Cell {
      const Word<T>* words;
      int lane;
    };
    const auto cell = [&](int64_t i, int64_t j) {
      const int64_t k = uint64_t(i) / kBlock, row = uint64_t(i) % kBlock;
      const int shift = k == narrow_ ? 0 : kStackShift;
      const int64_t l = row >> shift, step = j + l - std::max<int64_t>(0, k * kBlock + p_->low);
      return Cell{bits_.data() + offset_[k] + ((step << shift) + (row - (l << shift))) * kWords, int(L - 1 - l)};
    };
    Cell at = i < 0 ? Cell{} : cell(i, j);
    int op = Local || i < 0 ? 0 : entered_by(at.words, at.lane, 0);
    while (i >= 0 && j >= 0) {
      ops->push_back(int8_t(op));
      const bool starts = Local && op == 0 && !(at.words[kWords - 1] >> at.lane & 1);
      const bool extends = Affine && op != 0 && !(at.words[kOpened + op - 1] >> at.lane & 1);
      i -= op != 2, j -= op != 1;
      if (starts || i < 0 || j < 0) break;
      at = cell(i, j);
      if (!extends) op = entered_by(at.words, at.lane, op);
    }
    // On the border only one operation is left; a local path is free there.
    if (Local && best_i_ >= 0) {
      ops->insert(ops->end(), j + 1, 2);
      ops->insert(ops->end(), i + 1, 1);
    } else if (!Local) {
      ops->insert(ops->end(), i + 1, 1);
      ops->insert(ops->end(), j + 1, 2);
    }
    std::reverse(ops->begin(), ops->end());
  }

  const Pair<T>* p_ = nullptr;
  State s_;
  V open_x_[kStack], gap_x_[kStack], border_[kStack], best_lane_[kStack];
  I best_step_[kStack], first_[kStack], last_[kStack];
  Buffer<T> column_, row_my_, row_x_;  // nodes (i, 0); the last row of nodes: max(M, Y) or all three, and X
  std::vector<Word<T>> bits_;
  std::vector<int64_t> offset_;  // of each block in bits_
  Word<T>* out_ = nullptr;
  V top_;  // the largest match scores
  T best_ = 0;
  int64_t best_i_ = -1, best_j_ = -1;
  bool sure_ = true;
  int64_t narrow_ = 0;  // the block with one row a lane, if any
};

template <class T, bool Affine, bool Local, bool Trace>
void run(const AlignmentArgs& args, int64_t* path, T* scores) {
  const int64_t width = args.N + args.M;
  struct Scratch {
    Pair<T> pair;
    MaxSweep<T, Affine ? kCostly : kLinear, Local, Trace> sweep;
    MaxSweep<T, Affine ? kAny : kLinear, Local, Trace> general;
    std::vector<int8_t> ops;
  };
  std::vector<std::unique_ptr<Scratch>> scratch(std::max<int64_t>(1, args.threads));
  for_pairs(args, 50000, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Scratch>();
    Scratch& s = *scratch[worker];
    s.pair.set(args, b);
    const auto sweep = [&] {
      const bool usual = !Affine || (args.mode != kSemiglobal && s.pair.opening_costs());
      if (usual && s.sweep.run(s.pair, &scores[b], &s.ops)) return s.sweep.may_have_overflowed(scores[b]);
      s.general.run(s.pair, &scores[b], &s.ops);
      return s.general.may_have_overflowed(scores[b]);
    };
    if (sweep() && s.pair.shrink()) {
      sweep();
      scores[b] = s.pair.whole(scores[b]);
    }
    if (!Trace) return;
    int64_t* out = path + b * width;
    int64_t used = 0;
    if (scores[b] > kNegInf<T>)
      for (; used < int64_t(s.ops.size()); ++used) out[used] = s.ops[used];
    std::fill(out + used, out + width, kPadOp);
  });
}

template <class T>
int64_t best(const AlignmentArgs* a, int64_t* path, T* scores) {
  const bool affine = a->affine, local = a->mode == kLocal;
  const auto with = [&](auto affine_, auto local_, auto trace_) {
    run<T, decltype(affine_)::value, decltype(local_)::value, decltype(trace_)::value>(*a, path, scores);
  };
  const std::true_type yes;
  const std::false_type no;
  const auto traced = [&](auto affine_, auto local_) { path ? with(affine_, local_, yes) : with(affine_, local_, no); };
  if (affine) local ? traced(yes, yes) : traced(yes, no);
  else local ? traced(no, yes) : traced(no, no);
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_alignment_max_f32(const sl::AlignmentArgs* a, int64_t* path, float* scores) { return sl::best(a, path, scores); }
int64_t sl_alignment_max_f64(const sl::AlignmentArgs* a, int64_t* path, double* scores) { return sl::best(a, path, scores); }
}
