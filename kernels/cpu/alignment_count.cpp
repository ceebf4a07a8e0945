// Best path for each value of the statistics: every node carries M, X and Y for S values, and an
// operation with increment d moves them up by d places. The comparisons of a node are kept as bytes
// for a slab of rows at a time; when the traceback leaves a slab, the one above is computed again from
// the row of nodes in front of it. Limited by reading and writing three rows of S values a node.
#include <memory>

#include "alignment.h"
#include "counted.h"

namespace sl {
namespace {

// Increments in the shapes of the potentials, contiguous; null: none.
struct CountSteps {
  const int32_t *match, *gap_x, *gap_y, *open_x, *open_y;
};

template <class T>
class CountChart {
  // What decided a node: M>=X, M>=Y, X>=Y, x opened, y opened, a local match continues a path.
  static constexpr uint8_t kMX = 1, kMY = 2, kXY = 4, kOpenX = 8, kOpenY = 16, kContinues = 32;
  static constexpr int64_t kSlabBytes = int64_t(32) << 20;

 public:
  // table: best score for each value of the statistics.
  void fill(const Pair<T>& pair, const CountSteps& steps, bool affine, int64_t S, T* table) {
    p_ = &pair, steps_ = steps, affine_ = affine, S_ = S, local_ = pair.mode == kLocal;
    const int64_t n = p_->n, m = p_->m;
    row_ = (m + 1) * 3 * S;
    slab_ = std::max<int64_t>(1, kSlabBytes / ((m + 1) * S));
    checkpoints_.resize((n / slab_ + 1) * row_);
    work_.resize(2 * row_);
    std::fill_n(table, S, kNegInf<T>);
    ends_.assign(S, -1);
    if (local_) table[0] = 0;
    T *now = work_.data(), *before = now + row_;
    for (int64_t i = 0; i <= n; ++i, std::swap(now, before)) {
      node_row(i, before, now, nullptr);
      if ((i + 1) % slab_ == 0) std::copy_n(now, row_, checkpoints_.data() + i / slab_ * row_);
      for (int64_t j = 1; local_ && j <= m; ++j)
        for (int64_t s = 0; s < S; ++s)
          if (node(now, j)[s] > table[s]) table[s] = node(now, j)[s], ends_[s] = i * (m + 1) + j;
    }
    if (local_) return;
    const T* last = node(before, m);
    ends_.assign(S, n * (m + 1) + m);
    for (int64_t s = 0; s < S; ++s) table[s] = std::max(last[s], std::max(last[S + s], last[2 * S + s]));
  }

  // A path that attains table[g], after fill.
  void trace(int64_t g, std::vector<int8_t>* ops) {
    const int64_t n = p_->n, m = p_->m;
    ops->clear();
    codes_.resize(std::min(slab_, n + 1) * (m + 1) * S_);
    slab_begin_ = n + 1;
    int64_t i = ends_[g] < 0 ? 0 : ends_[g] / (m + 1), j = ends_[g] < 0 ? 0 : ends_[g] % (m + 1);
    ops->insert(ops->end(), m - j, 2);
    ops->insert(ops->end(), n - i, 1);
    int op = local_ ? 0 : entered_by(i, j, g, 0);
    while (i + j > 0) {
      const uint8_t code = at(i, j, g);
      const bool starts = local_ && op == 0 && !(code & kContinues);
      const bool extends = affine_ && op != 0 && !(code & (op == 1 ? kOpenX : kOpenY));
      ops->push_back(int8_t(op));
      g -= increment(op, !extends, i, j);
      i -= op != 2, j -= op != 1;
      if (starts) break;
      if (!extends) op = entered_by(i, j, g, op);
    }
    ops->insert(ops->end(), j, 2);
    ops->insert(ops->end(), i, 1);
    std::reverse(ops->begin(), ops->end());
  }

 private:
  const T* node(const T* row, int64_t j) const { return row + j * 3 * S_; }
  T* node(T* row, int64_t j) const { return row + j * 3 * S_; }

  bool free_x(int64_t j) const { return p_->mode == kSemiglobal && (j == 0 || j == p_->m); }
  bool free_y(int64_t i) const { return p_->mode == kSemiglobal && (i == 0 || i == p_->n); }

  // Of the operation into node (i, j).
  int64_t increment(int op, bool opens, int64_t i, int64_t j) const {
    if (op == 0) return steps_.match ? steps_.match[(p_->b * p_->N + i - 1) * p_->M + j - 1] : 0;
    const bool opening = affine_ && opens;
    if (op == 1) {
      const int32_t* d = opening ? steps_.open_x : steps_.gap_x;
      return d && !free_x(j) ? d[p_->b * p_->N + i - 1] : 0;
    }
    const int32_t* d = opening ? steps_.open_y : steps_.gap_y;
    return d && !free_y(i) ? d[p_->b * p_->M + j - 1] : 0;
  }

  // Nodes (i, 0..m) from those of row i - 1, and what decided them if codes is given.
  void node_row(int64_t i, const T* before, T* now, uint8_t* codes) {
    const int64_t S = S_;
    for (int64_t j = 0; j <= p_->m; ++j) {
      T *M = node(now, j), *X = M + S, *Y = X + S;
      uint8_t* code = codes ? codes + j * S : nullptr;
      if (code) std::fill_n(code, S, uint8_t(0));
      std::fill_n(M, 3 * S, kNegInf<T>);
      if (i + j == 0 && !local_) M[0] = 0;
      if (!p_->node_in_band(i, j)) continue;
      if (i && j) match(M, node(before, j - 1), increment(0, false, i, j), p_->match[(i - 1) * p_->row + j - 1], code);
      if (i) {
        const T* u = node(before, j);
        const T open = free_x(j) ? T(0) : p_->open_x[i - 1], gap = free_x(j) ? T(0) : p_->gap_x[i - 1];
        gap_state(X, u, u + 2 * S, u + S, increment(1, true, i, j), open, increment(1, false, i, j), gap, code, kOpenX);
      }
      if (j) {
        const T* u = node(now, j - 1);
        const T open = free_y(i) ? T(0) : p_->open_y[j - 1], gap = free_y(i) ? T(0) : p_->gap_y[j - 1];
        gap_state(Y, u, u + S, u + 2 * S, increment(2, true, i, j), open, increment(2, false, i, j), gap, code, kOpenY);
      }
      if (code)
        for (int64_t s = 0; s < S; ++s)
          code[s] |= (M[s] >= X[s] ? kMX : 0) | (M[s] >= Y[s] ? kMY : 0) | (X[s] >= Y[s] ? kXY : 0);
    }
  }

  void match(T* M, const T* u, int64_t d, T score, uint8_t* code) const {
    const T *x = u + S_, *y = x + S_;
    for (int64_t s = d; s < S_; ++s) {
      T h = std::max(std::max(u[s - d], x[s - d]), y[s - d]);
      if (local_ && s == d) {
        if (code && h > 0) code[s] |= kContinues;
        h = std::max(h, T(0));
      } else if (code) {
        code[s] |= kContinues;
      }
      M[s] = h + score;
    }
  }

  // out = max(max(a, b) + open, c + gap), each moved by its increment.
  void gap_state(T* out, const T* a, const T* b, const T* c, int64_t d_open, T open, int64_t d_gap, T gap, uint8_t* code, uint8_t opened) {
    const int64_t S = S_;
    for (int64_t s = d_open; s < S; ++s) out[s] = std::max(a[s - d_open], b[s - d_open]) + open;
    for (int64_t s = d_gap; s < S; ++s) {
      const T extending = c[s - d_gap] + gap;
      if (code && out[s] >= extending) code[s] |= opened;
      out[s] = std::max(out[s], extending);
    }
    for (int64_t s = 0; code && s < std::min(d_gap, S); ++s) code[s] |= opened;
  }

  uint8_t at(int64_t i, int64_t j, int64_t g) {
    if (i < slab_begin_) load_slab(i / slab_);
    return codes_[((i - slab_begin_) * (p_->m + 1) + j) * S_ + g];
  }

  // The operation by which a best path enters node (i, j), given that it leaves it by `after`.
  int entered_by(int64_t i, int64_t j, int64_t g, int after) {
    if (i + j == 0) return 0;
    const uint8_t code = at(i, j, g);
    if (affine_ && after == 1) return code & kMY ? 0 : 2;
    if (affine_ && after == 2) return code & kMX ? 0 : 1;
    return (code & kMX) && (code & kMY) ? 0 : code & kXY ? 1 : 2;
  }

  void load_slab(int64_t k) {
    slab_begin_ = k * slab_;
    T *now = work_.data(), *before = now + row_;
    const int64_t width = (p_->m + 1) * S_;
    if (k > 0) std::copy_n(checkpoints_.data() + (k - 1) * row_, row_, before);
    for (int64_t i = slab_begin_; i < std::min(p_->n + 1, slab_begin_ + slab_); ++i, std::swap(now, before)) {
      node_row(i, before, now, codes_.data() + (i - slab_begin_) * width);
    }
  }

  const Pair<T>* p_ = nullptr;
  CountSteps steps_{};
  bool affine_ = false, local_ = false;
  int64_t S_ = 0, row_ = 0, slab_ = 1, slab_begin_ = 0;
  std::vector<T> checkpoints_;  // the last row of nodes of each slab
  std::vector<T> work_;
  std::vector<int64_t> ends_;  // node i * (m + 1) + j in which the best path of each value ends
  std::vector<uint8_t> codes_;
};

template <class T>
int64_t best_by_count(const AlignmentArgs* args, const CountSteps& steps, int64_t S, const T* offset, const T* slope, int64_t* path, int64_t* index, T* value, T* table) {
  const int64_t width = args->N + args->M;
  struct Scratch {
    Pair<T> pair;
    CountChart<T> chart;
    std::vector<int8_t> ops;
  };
  std::vector<std::unique_ptr<Scratch>> scratch(std::max<int64_t>(1, args->threads));
  for_pairs(*args, 20000 / std::max<int64_t>(1, S / kLanes<T>), [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Scratch>();
    Scratch& s = *scratch[worker];
    s.pair.set(*args, b);
    T* scores = table + b * S;
    const bool shrunk = s.pair.shrink();
    s.chart.fill(s.pair, steps, args->affine, S, scores);
    index[b] = pick(scores, offset + b * S, slope + b * S, S, value + b, s.pair.unit);
    for (int64_t g = 0; shrunk && g < S; ++g) scores[g] = s.pair.whole(scores[g]);
    s.ops.clear();
    if (value[b] > kNegInf<T>) s.chart.trace(index[b], &s.ops);
    int64_t* out = path + b * width;
    std::copy(s.ops.begin(), s.ops.end(), out);
    std::fill(out + s.ops.size(), out + width, kPadOp);
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define COUNT(suffix, T)                                                                                                      \
  extern "C" int64_t sl_alignment_best_by_count_##suffix(                                                                     \
      const sl::AlignmentArgs* a, const int32_t* match, const int32_t* gap_x, const int32_t* gap_y, const int32_t* open_x,    \
      const int32_t* open_y, int64_t S, const T* offset, const T* slope, int64_t* path, int64_t* index, T* value, T* table) { \
    return sl::best_by_count<T>(a, {match, gap_x, gap_y, open_x, open_y}, S, offset, slope, path, index, value, table);       \
  }
COUNT(f32, float)
COUNT(f64, double)
