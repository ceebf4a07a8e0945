// The best trees of a group of sentences of up to 128 words, one a lane: the recurrence of span_tree_max.cpp with the
// first best split of every span noted on the way. In short sentences looking for splits again takes longer than the
// recurrence; so a tree is read by following splits, with no branch that depends on it, and the label of a span is the
// first that equals the maximum kept for it. Limited by the maxima over labels: two to four loads and two shuffles a
// span of up to 32 labels.
#pragma once
#include "span_tree_kbest.h"
#include "span_tree_labels.h"

namespace sl {

// Vectors of 32 bytes at most: 16 sentences then make two groups, for two threads, and processors that work on half a
// wide vector at a time lose nothing.
constexpr int kLaneBytes = kBytes < 32 ? kBytes : 32;
template <class T>
struct LaneVec {
  typedef T V __attribute__((vector_size(kLaneBytes)));
  typedef T U __attribute__((vector_size(kLaneBytes), aligned(sizeof(T)), may_alias));
};
template <class T>
constexpr int kSentences = kLaneBytes / int(sizeof(T));
#if defined(__AVX512F__)
inline LaneVec<float>::V vmax(LaneVec<float>::V a, LaneVec<float>::V b) { return (LaneVec<float>::V)_mm256_max_ps((__m256)a, (__m256)b); }
inline LaneVec<double>::V vmax(LaneVec<double>::V a, LaneVec<double>::V b) { return (LaneVec<double>::V)_mm256_max_pd((__m256d)a, (__m256d)b); }
#endif

template <class T>
class BestTreesByLanes {
 public:
  static constexpr int G = kSentences<T>;
  // The longest sentence; the speed of the other path was two thirds of this one's there. Splits fit a byte.
  static constexpr int64_t kLongest = 128;

  BestTreesByLanes(const SpanTree<T>& trees, int64_t* labels, T* scores) : trees_(trees), labels_(labels), scores_(scores) {}

  // How many of these 1..G sentences have no tree.
  int64_t group(const int64_t* rows, int64_t count) {
    n_ = trees_.length(rows[0]);
    int64_t cells = 0;
    for (int64_t w = 1; w <= n_; ++w) base_[w] = int32_t(cells), cells += n_ - w + 1;
    KeptBuffer<T, 2> charts;
    KeptBuffer<uint8_t, 0> splits;
    top_ = charts.resize((2 * cells + kSlackCells) * G), a_ = top_ + cells * G;
    split_ = splits.resize(((n_ + 1) * kLongest + kSlackCells) * G);
    label_maxima(rows, count, cells);
    std::copy_n(top_, n_ * G, a_);
    for (int64_t w = 2; w <= n_; ++w) diagonal(w);
    follow(rows, count);
    int64_t without = 0;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t b = rows[r], n = trees_.length(b);
      const T best = n ? a_[base_[n] * G + r] : T(0);
      if (scores_) scores_[b] = best;
      int64_t* y = labels_ + b * trees_.N * trees_.N;
      std::fill_n(y, trees_.N * trees_.N, kPadLabel);
      if (is_doubtful(best, trees_, b)) {
        without += !kbest_in_double(trees_, b, 1, labels_, scores_);
        continue;
      }
      if (n && best > kNegInf<T>) {
        if (trees_.L <= kLanes<T>) write_labels<1>(b, r, n, y);
        else if (trees_.L <= 2 * kLanes<T>) write_labels<2>(b, r, n, y);
        else write_labels<0>(b, r, n, y);
      }
      without += best == kNegInf<T>;
    }
    return without;
  }

 private:
  using V = typename LaneVec<T>::V;
  using U = typename LaneVec<T>::U;
  using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  typedef Int I __attribute__((vector_size(kLaneBytes)));
  typedef uint8_t Bytes __attribute__((vector_size(G)));
  static constexpr int kSlackCells = 3;  // a block of 4 may end that far past the last diagonal

  static V at(const T* p) { return *reinterpret_cast<const U*>(p); }

  void label_maxima(const int64_t* rows, int64_t count, int64_t cells) const {
    const int64_t L = trees_.L;
#if defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
      for (int64_t i = 0; i < n_; ++i) {
        const float* x[G];
        for (int r = 0; r < G; ++r) x[r] = trees_.row(rows[std::min<int64_t>(r, count - 1)], i);
        const auto put = [&](int64_t j, __m256 most, bool) { _mm256_storeu_ps(top_ + (base_[j + 1] + i) * G, most); };
        label_max_of<G>(x, n_ - i, L, put);
      }
      return;
    }
#endif
    if (count < G || trees_.length(rows[count - 1]) < n_) std::fill_n(top_, cells * G, kNegInf<T>);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t i = 0, end = trees_.length(rows[r]); i < end; ++i)
        label_max(trees_.row(rows[r], i), end - i, L, [&](int64_t j, T x) { top_[(base_[j + 1] + i) * G + r] = x; });
  }

  void diagonal(int64_t w) {
    const int64_t count = n_ - w + 1;
    int64_t i = 0;
    for (; count - i > 2; i += 4) block<4>(w, i);
    if (count - i == 2) block<2>(w, i);
    else if (count - i == 1) block<1>(w, i);
  }

  // Spans i, .., i + Cells - 1 of w words. What is written past the end of a diagonal belongs to the next.
  template <int Cells>
  void block(int64_t w, int64_t i) {
    V most[Cells];
    I where[Cells], here = I{} + 1;
#pragma GCC unroll 4
    for (int c = 0; c < Cells; ++c) most[c] = V{} + kNegInf<T>, where[c] = here;
    const T *left = a_ + i * G, *right = a_ + (base_[w - 1] + i + 1) * G;
    for (int64_t u = 1; u < w; ++u, here += 1) {
#pragma GCC unroll 4
      for (int c = 0; c < Cells; ++c) {
        const V sum = at(left + c * G) + at(right + c * G);
        where[c] = sum > most[c] ? here : where[c];
        most[c] = vmax(sum, most[c]);
      }
      left += (n_ - u + 1) * G, right -= (n_ - w + u + 1) * G;
    }
    const int64_t to = (base_[w] + i) * G;
#pragma GCC unroll 4
    for (int c = 0; c < Cells; ++c) {
      *reinterpret_cast<U*>(a_ + to + c * G) = most[c] + at(top_ + to + c * G);
      const Bytes narrow = __builtin_convertvector(where[c], Bytes);
      std::memcpy(split_ + (w * kLongest + i + c) * G, &narrow, G);
    }
  }

  // The n - 1 larger spans of every tree in preorder, where a span with s words on the left has its right part s places
  // further on. One step of all sentences after the other: none waits for what it has just stored.
  void follow(const int64_t* rows, int64_t count) {
    for (int64_t r = 0; r < count; ++r) spans_[r][0] = uint32_t(trees_.length(rows[r]) * kLongest);
    for (int64_t k = 0; k < n_ - 1; ++k) {
      while (trees_.length(rows[count - 1]) - 1 <= k) --count;
      for (int64_t r = 0; r < count; ++r) {
        const uint32_t span = spans_[r][k], s = split_[span * G + r];
        const uint32_t left = span % kLongest + s * kLongest, right = span - s * (kLongest - 1);
        spans_[r][left >= 2 * kLongest ? k + 1 : kLongest] = left;
        spans_[r][right >= 2 * kLongest ? k + s : kLongest] = right;
      }
    }
  }

  template <int Vectors>
  void write_labels(int64_t b, int64_t r, int64_t n, int64_t* y) const {
    const int64_t N = trees_.N, L = trees_.L, step = trees_.args.stride_i + L;
    const T* x = trees_.row(b, 0);
    for (int64_t i = 0; i < n; ++i) y[i * (N + 1)] = first_equal_of<Vectors>(x + i * step, L, top_[i * G + r]);
    for (int64_t k = 0; k < n - 1; ++k) {
      const int64_t i = spans_[r][k] % kLongest, w = spans_[r][k] / kLongest;
      y[i * (N + 1) + w - 1] = first_equal_of<Vectors>(x + i * step + (w - 1) * L, L, top_[(base_[w] + i) * G + r]);
    }
  }

  template <int Vectors>
  static int64_t first_equal_of(const T* x, int64_t L, T best) {
#if defined(__AVX512F__)
    if constexpr (Vectors > 0) {
      const auto same = [&](int64_t l) -> uint64_t {
        if constexpr (sizeof(T) == 4) return _mm512_cmp_ps_mask((__m512)load_row(x, l, L, kNegInf<T>), _mm512_set1_ps(best), _CMP_EQ_OQ);
        else return _mm512_cmp_pd_mask((__m512d)load_row(x, l, L, kNegInf<T>), _mm512_set1_pd(best), _CMP_EQ_OQ);
      };
      uint64_t mask = same(0);
      if (Vectors == 2) mask |= same(kLanes<T>) << kLanes<T>;
      return mask ? __builtin_ctzll(mask) : 0;
    }
#endif
    return first_equal(x, L, best);
  }

  const SpanTree<T>& trees_;
  int64_t* labels_;
  T* scores_;
  int64_t n_ = 0;
  T *top_ = nullptr, *a_ = nullptr;  // of widths 1..n, each by first word and then by sentence
  uint8_t* split_ = nullptr;  // by words, first word (of kLongest) and sentence
  uint32_t spans_[G][kLongest + 1];  // words * kLongest + first word; the last place takes what is no larger span
  int32_t base_[kLongest + 1];  // of every width in a_
};

}  // namespace sl
