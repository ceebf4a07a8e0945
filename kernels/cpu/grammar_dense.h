// Grammars in which most triples of nonterminals are rules: cells are vectors over all nonterminals, and
// their parts are joined by matrix products over (max, +) or (+, x). For the words i..j,
//   X[l][r] = (+)_k a[i][k][l] (x) a[k+1][j][r]           over cuts between two larger constituents,
//   out[A]  = (+)_lr X[l][r] (x) W[l][r][A]               N^3 NT^2 + N^2 NT^3 instead of N^3 NT^3,
// and where a part is a single word, its preterminals are summed into a matrix once for all spans:
//   L_i[r][A] = (+)_t terms[i][t] (x) W[t][r][A],   R_j[l][A] = (+)_t terms[j][t] (x) W[l][t][A],
//   out[A] (+)= (+)_r L_i[r][A] (x) a[i+1][j][r]  (+)  (+)_l a[i][j-1][l] (x) R_j[l][A],
// r over all symbols, since the other part may be a word too. Limited by multiply-adds (add/max) for
// NT >= 16.
#pragma once
#include "grammar.h"

namespace sl {

// Room for NT nonterminals in whole vectors of every instruction set.
inline int64_t dense_width(int64_t nonterminals) { return (nonterminals + 15) / 16 * 16; }

// The rules' weights as matrices whose columns are parents.
template <class T>
struct DenseRules {
  int64_t NT = 0, P = 0, S = 0, C = 0;  // C: columns, padded
  Buffer<T> inner;  // [l][r][A], both nonterminals
  Buffer<T> left;   // [t][r][A], the left child a preterminal, r any symbol
  Buffer<T> right;  // [t][l][A], only the right child a preterminal

  void shape(const GrammarArgs& a) { NT = a.NT, P = a.P, S = NT + P, C = dense_width(NT); }
  int64_t inner_size() const { return NT * NT * C; }
  int64_t left_size() const { return P * S * C; }
  int64_t right_size() const { return P * NT * C; }
  void fill(T zero) {
    inner.resize(inner_size()), left.resize(left_size()), right.resize(right_size());
    std::fill_n(inner.data, inner_size(), zero);
    std::fill_n(left.data, left_size(), zero);
    std::fill_n(right.data, right_size(), zero);
  }
  T* row(int64_t l, int64_t r) const {  // by parent, of two children
    return l >= NT ? left.data + ((l - NT) * S + r) * C : r >= NT ? right.data + ((r - NT) * NT + l) * C : inner.data + (l * NT + r) * C;
  }
  // f(rule, l, r, parent), pair by pair: the places of a pair's rules lie together, and what is read at `rule`
  // runs along one stream a parent; in the order of rules every place would be on another page.
  template <class F>
  static void for_rules(const GrammarArgs& a, F&& f) {
    for (int64_t l = 0; l < a.NT + a.P; ++l)
      for (int64_t q = a.left_start[l]; q < a.left_start[l + 1]; ++q)
        for (int64_t t = a.pair_start[q]; t < a.pair_start[q + 1]; ++t) f(a.pair_rules[t], l, a.pair_right[q], a.pair_parents[t]);
  }
};

// X[l * NT + r] = (+)_k left_k[l] (x) right_k[r]; rows of whole vectors.
template <class Op, class T>
inline void outer(int64_t NT, int64_t cuts, const T* const* left, const T* const* right, T* X) {
  for (int64_t l = 0; l < NT; l += kRows)
    with_rows(int(std::min<int64_t>(kRows, NT - l)), [&](auto rows) {
      constexpr int R = decltype(rows)::value;
      const auto block = [&](int64_t c, auto vectors) {
        constexpr int V = decltype(vectors)::value;
        Vec<T> acc[R][V];
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) acc[i][v] = Op::template zero<T>();
        for (int64_t k = 0; k < cuts; ++k) {
          Vec<T> e[V];
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) e[v] = load(right[k] + c + v * kLanes<T>);
#pragma GCC unroll 8
          for (int i = 0; i < R; ++i) {
            const T x = left[k][l + i];
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) acc[i][v] = Op::template accumulate<T>(acc[i][v], x, e[v]);
          }
        }
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) store_row(X + (l + i) * NT, c + v * kLanes<T>, NT, acc[i][v]);
      };
      int64_t c = 0;
      for (; c + 2 * kLanes<T> < NT; c += 3 * kLanes<T>) block(c, std::integral_constant<int, 3>());
      for (; c + kLanes<T> < NT; c += 2 * kLanes<T>) block(c, std::integral_constant<int, 2>());
      for (; c < NT; c += kLanes<T>) block(c, std::integral_constant<int, 1>());
    });
}

// out[c] (+)= (+)_d scale (x) x[d] (x) matrix[d][c]; rows of `columns` entries, whole vectors.
template <class Op, class T>
inline void add_product(int64_t depth, const T* x, T scale, const T* matrix, int64_t columns, T* out) {
  for (int64_t c = 0; c < columns; c += kLanes<T>) {
    // Two chains, since one would wait for its own last addition.
    Vec<T> a = Op::template zero<T>(), b = Op::template zero<T>();
    int64_t d = 0;
    for (; d + 1 < depth; d += 2) {
      a = Op::template accumulate<T>(a, x[d], load(matrix + d * columns + c));
      b = Op::template accumulate<T>(b, x[d + 1], load(matrix + (d + 1) * columns + c));
    }
    if (d < depth) a = Op::template accumulate<T>(a, x[d], load(matrix + d * columns + c));
    store(out + c, Op::template join<T>(load(out + c), Op::template accumulate<T>(Op::template zero<T>(), scale, Op::template join<T>(a, b))));
  }
}

// The matrices L_i and R_i of `words` words from their weights, both [word][symbol][A].
template <class Op, class T>
inline void word_matrices(const DenseRules<T>& w, int64_t words, const T* const* weights, T* left, T* right) {
  for (int64_t i = 0; i < words; i += kRows) {
    const int rows = int(std::min<int64_t>(kRows, words - i));
    T* out[2] = {left + i * w.S * w.C, right + i * w.NT * w.C};
    const int64_t columns[2] = {w.S * w.C, w.NT * w.C};
    const T* matrix[2] = {w.left.data, w.right.data};
    for (int side = 0; side < 2; ++side)
      step_strided<Op, T>(rows, weights + i, matrix[side], w.P, columns[side], columns[side], [&](int r, int64_t c, Vec<T> x) {
        store(out[side] + r * columns[side] + c, x);
      });
  }
}

}  // namespace sl
