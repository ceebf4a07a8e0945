// The k best trees: each span keeps its k best subtrees in order,
//   S = k largest of { A[i][k][a] + A[k+1][j][b] },   A[i][j] = k largest of { S[c] + spans[i][j][l] },
// equal scores in the order of (k, a, b) and of (l, c). Limited by the merge: a list is left at its
// first entry that does not make it, and a pair (a, b) has (a+1)(b+1)-1 pairs that are no worse.
#pragma once
#include "kbest.h"
#include "span_tree_careful.h"

namespace sl {

struct Subtree {
  int32_t label, split, left, right;
};

template <class T>
class KBestTrees {
 public:
  KBestTrees(const SpanTree<T>& trees, int64_t k) : trees_(trees), k_(k), splits_(k), best_(k) {}

  void row(int64_t b, int64_t* labels, T* scores) {
    const int64_t n = trees_.length(b), N = trees_.N, B = trees_.B;
    for (int64_t i = 0; i < k_; ++i) std::fill_n(labels + (i * B + b) * N * N, N * N, kPadLabel), scores[i * B + b] = kNegInf<T>;
    if (n == 0) {
      scores[b] = 0;
      return;
    }
    value_.assign(n * n * k_, kNegInf<T>);
    subtree_.resize(n * n * k_);
    n_ = n;
    for (int64_t w = 0; w < n; ++w)
      for (int64_t i = 0; i + w < n; ++i) cell(trees_.row(b, i) + w * trees_.L, i, i + w);
    const T* root = value_.data() + (n - 1) * k_;
    for (int64_t i = 0; i < k_ && root[i] > kNegInf<T>; ++i) {
      scores[i * B + b] = root[i];
      read(i, labels + (i * B + b) * N * N);
    }
  }

 private:
  int64_t at(int64_t i, int64_t j) const { return (i * n_ + j) * k_; }

  void cell(const T* x, int64_t i, int64_t j) {
    splits_.clear();
    if (i == j) splits_.offer(T(0), {0, 0, 0, 0});
    for (int64_t k = i; k < j; ++k) {
      const T *left = value_.data() + at(i, k), *right = value_.data() + at(k + 1, j);
      for (int64_t a = 0; a < k_; ++a) {
        int64_t b = 0;
        while ((a + 1) * (b + 1) <= k_ && splits_.offer(left[a] + right[b], {0, int32_t(k), int32_t(a), int32_t(b)})) ++b;
        if (b == 0) break;
      }
    }
    best_.clear();
    for (int64_t l = 0; l < trees_.L; ++l)
      for (int64_t c = 0; c < splits_.size(); ++c) {
        Subtree subtree = splits_.tag(c);
        subtree.label = int32_t(l);
        if (!best_.offer(splits_.value(c) + x[l], subtree)) break;
      }
    for (int64_t c = 0; c < best_.size(); ++c) value_[at(i, j) + c] = best_.value(c), subtree_[at(i, j) + c] = best_.tag(c);
  }

  void read(int64_t rank, int64_t* y) {
    stack_.assign(1, {0, n_ - 1, rank});
    while (!stack_.empty()) {
      const auto [i, j, r] = stack_.back();
      stack_.pop_back();
      const Subtree& s = subtree_[at(i, j) + r];
      y[i * trees_.N + j] = s.label;
      if (i == j) continue;
      stack_.push_back({i, s.split, s.left});
      stack_.push_back({s.split + 1, j, s.right});
    }
  }

  struct Frame {
    int64_t i, j, rank;
  };
  const SpanTree<T>& trees_;
  const int64_t k_;
  int64_t n_ = 0;
  KLargest<T, Subtree> splits_, best_;
  std::vector<T> value_;
  std::vector<Subtree> subtree_;
  std::vector<Frame> stack_;
};

// The k best of sentence b in double, for scores that T cannot hold or tell apart; whether there is any.
template <class T>
bool kbest_in_double(const SpanTree<T>& trees, int64_t b, int64_t k, int64_t* labels, T* scores) {
  const int64_t square = trees.N * trees.N;
  CarefulTrees careful;
  careful.set(trees, b);
  std::vector<int64_t> y(k * square);
  std::vector<double> found(k);
  KBestTrees<double>(careful.trees(), k).row(0, y.data(), found.data());
  for (int64_t i = 0; i < k; ++i) {
    if (scores) scores[i * trees.B + b] = saturated<T>((long double)(found[i]) * careful.unit);
    std::copy_n(y.data() + i * square, square, labels + (i * trees.B + b) * square);
  }
  return found[0] > kNegInf<double>;
}

}  // namespace sl
