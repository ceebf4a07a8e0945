// The k best paths: every state of a node keeps its k best prefixes in order, equal scores in the order
// of the recurrence's summands, then of rank,
//   M = k best of { M, X, Y before } + match,   X = k best of { k best of { M, Y } + open, X + gap },
// with the prefix each came from, 12 k bytes a node. Limited by the merges: a few compares for each kept prefix.
#include <memory>

#include "alignment.h"

namespace sl {
namespace {

template <class T>
class KBest {
 public:
  KBest(int64_t k) : k_(k) {}

  void run(const Pair<T>& pair, bool affine, int64_t* paths, T* scores, int64_t B) {
    p_ = &pair, affine_ = affine, local_ = pair.mode == kLocal;
    const int64_t n = p_->n, m = p_->m, width = p_->N + p_->M;
    const int64_t row = (m + 1) * 3 * k_;
    values_.assign(2 * row, kNegInf<T>);
    from_.assign((n + 1) * row, -1);
    best_.assign(k_, kNegInf<T>);
    ends_.assign(k_, -1);
    if (local_) best_[0] = 0;  // the empty alignment
    T *now = values_.data(), *before = now + row;
    for (int64_t i = 0; i <= n; ++i) {
      std::swap(now, before);
      std::fill_n(now, row, kNegInf<T>);
      for (int64_t j = 0; j <= m; ++j) node(i, j, now, before);
    }
    if (!local_) {
      // The three states of the last node, in their order.
      const T* last = now + m * 3 * k_;
      int64_t size = 0;
      for (int64_t s = 0; s < 3; ++s) size = merge(last + s * k_, T(0), entry(n, m, s), best_.data(), ends_.data(), size);
    }
    for (int64_t i = 0; i < k_; ++i) {
      int64_t* out = paths + (i * B + p_->b) * width;
      scores[i * B + p_->b] = p_->whole(best_[i]);
      ops_.clear();
      if (best_[i] > kNegInf<T>) trace(ends_[i]);
      std::copy(ops_.begin(), ops_.end(), out);
      std::fill(out + ops_.size(), out + width, kPadOp);
    }
  }

 private:
  // Place of the best prefix of a state of a node; rank r follows r places behind.
  int64_t entry(int64_t i, int64_t j, int64_t state) const { return ((i * (p_->m + 1) + j) * 3 + state) * k_; }

  bool free_x(int64_t j) const { return p_->mode == kSemiglobal && (j == 0 || j == p_->m); }
  bool free_y(int64_t i) const { return p_->mode == kSemiglobal && (i == 0 || i == p_->n); }

  // Merges list + score, whose prefixes are place, place + 1, ..., into the first `size` of best.
  template <class Place>
  int64_t merge(const T* list, T score, Place place, T* best, Place* from, int64_t size) const {
    for (int64_t r = 0; r < k_; ++r) {
      const T x = list[r] + score;
      if (x == kNegInf<T> || (size == k_ && !(x > best[k_ - 1]))) break;
      int64_t at = size < k_ ? size++ : k_ - 1;
      for (; at > 0 && x > best[at - 1]; --at) best[at] = best[at - 1], from[at] = from[at - 1];
      best[at] = x, from[at] = Place(place + r);
    }
    return size;
  }

  void node(int64_t i, int64_t j, T* now, const T* before) {
    if (!p_->node_in_band(i, j)) return;
    T *M = now + j * 3 * k_, *X = M + k_, *Y = X + k_;
    int32_t* from = from_.data() + entry(i, j, 0);
    if (i + j == 0) {
      if (!local_) M[0] = 0;
      return;
    }
    if (i && j) {
      const T* u = before + (j - 1) * 3 * k_;
      int64_t size = 0;
      if (local_) M[0] = 0, from[0] = -1, size = 1;
      for (int64_t s = 0; s < 3; ++s) size = merge(u + s * k_, T(0), int32_t(s * k_), M, from, size);
      for (int64_t r = 0; r < k_; ++r) M[r] += p_->match[(i - 1) * p_->row + j - 1];
    }
    if (i) {
      const bool free = free_x(j);
      gap(before + j * 3 * k_, 1, free ? T(0) : p_->open_x[i - 1], free ? T(0) : p_->gap_x[i - 1], X, from + k_);
    }
    if (j) {
      const bool free = free_y(i);
      gap(now + (j - 1) * 3 * k_, 2, free ? T(0) : p_->open_y[j - 1], free ? T(0) : p_->gap_y[j - 1], Y, from + 2 * k_);
    }
    if (local_) {
      // A list at a time, so that equal scores stay in the order of their last node.
      int64_t used = 0;
      while (used < k_ && best_[used] > kNegInf<T>) ++used;
      merge(M, T(0), entry(i, j, 0), best_.data(), ends_.data(), used);
    }
  }

  // One gap state from the three lists u of the node before it.
  void gap(const T* u, int64_t state, T open, T gap, T* out, int32_t* from) {
    int64_t size = 0;
    if (!affine_) {
      for (int64_t s = 0; s < 3; ++s) size = merge(u + s * k_, T(0), int32_t(s * k_), out, from, size);
      for (int64_t r = 0; r < k_; ++r) out[r] += gap;
      return;
    }
    const int64_t other = 3 - state;
    size = merge(u, T(0), int32_t(0), out, from, size);
    size = merge(u + other * k_, T(0), int32_t(other * k_), out, from, size);
    for (int64_t r = 0; r < k_; ++r) out[r] += open;
    merge(u + state * k_, gap, int32_t(state * k_), out, from, size);
  }

  // The path whose last prefix is at `end`, -1 for the empty local one.
  void trace(int64_t end) {
    const int64_t n = p_->n, m = p_->m, cell = end < 0 ? 0 : end / (3 * k_);
    int64_t i = cell / (m + 1), j = cell % (m + 1), code = end < 0 ? -1 : end % (3 * k_);
    ops_.insert(ops_.end(), m - j, 2);
    ops_.insert(ops_.end(), n - i, 1);
    while (code >= 0 && i + j > 0) {
      const int64_t op = code / k_;
      ops_.push_back(int8_t(op));
      code = from_[entry(i, j, 0) + code];
      i -= op != 2, j -= op != 1;
    }
    ops_.insert(ops_.end(), j, 2);
    ops_.insert(ops_.end(), i, 1);
    std::reverse(ops_.begin(), ops_.end());
  }

  const Pair<T>* p_ = nullptr;
  const int64_t k_;
  bool affine_ = false, local_ = false;
  std::vector<T> values_, best_;
  std::vector<int32_t> from_;  // of each prefix: state * k + rank of the one before it, -1 where it starts
  std::vector<int64_t> ends_;  // of each path kept: its last prefix
  std::vector<int8_t> ops_;
};

template <class T>
int64_t kbest(const AlignmentArgs* args, int64_t k, int64_t* paths, T* scores) {
  struct Scratch {
    Pair<T> pair;
    KBest<T> best;
    explicit Scratch(int64_t k) : best(k) {}
  };
  std::vector<std::unique_ptr<Scratch>> scratch(std::max<int64_t>(1, args->threads));
  for_pairs(*args, 2000 / k, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Scratch>(k);
    scratch[worker]->pair.set(*args, b);
    scratch[worker]->pair.shrink();
    scratch[worker]->best.run(scratch[worker]->pair, args->affine, paths, scores, args->B);
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_alignment_kbest_f32(const sl::AlignmentArgs* a, int64_t k, int64_t* paths, float* scores) { return sl::kbest(a, k, paths, scores); }
int64_t sl_alignment_kbest_f64(const sl::AlignmentArgs* a, int64_t k, int64_t* paths, double* scores) { return sl::kbest(a, k, paths, scores); }
}
