// Tree kernel of Collins and Duffy between all trees of two sets, (A, B).
//
//   K(u, v) = sum over nodes a of u and b of v of C(a, b),
//   C(a, b) = 0 where the productions differ, else decay * prod_k (1 + C(a_k, b_k)) over their children,
//
// the product being 1 over a word. Both sets are forests of different subtrees, numbered so that children come before
// parents, and a tree is the list of its nodes' numbers. Trees of the second set are taken in blocks: their different
// nodes are sorted by production once, and a tree u meets only nodes with productions of its own. What limits the speed
// is adding up a block's sums over the nodes of its trees, one load and add a node of v for each pair (u, v).
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "parallel.h"

namespace sl {

struct TreeKernelForest {
  const int64_t* production;  // (U,)
  const int64_t* first_child; // (U + 1,) into children
  const int64_t* children;    // numbers of nodes
  const int64_t* first_node;  // (trees + 1,) into nodes
  const int64_t* nodes;       // numbers of the nodes of each tree, rising, with repetitions
  int64_t trees;
};

struct TreeKernelArgs {
  TreeKernelForest left, right;
  int64_t symmetric;  // both sets are one: only the lower triangle is computed, then mirrored
  int64_t threads;
};

namespace {

// A table of |u| rows by this many columns of doubles stays in the second-level cache for sentences of usual length.
constexpr int64_t kBlock = 1024;

// Consecutive trees of the right set, and their different nodes sorted by production.
struct Block {
  int64_t from, to;
  std::vector<int64_t> nodes;                   // rising
  std::vector<int64_t> productions, starts;     // rising productions; where each one's columns start
  std::vector<int32_t> columns;                 // columns by production, rising inside
  std::vector<int32_t> tree_columns;            // columns of the nodes of every tree
  std::vector<int64_t> first_column;            // of each tree, into tree_columns
  std::vector<int32_t> child_columns;           // columns of the children of every column
  std::vector<int64_t> first_child;
};

Block make_block(const TreeKernelForest& f, int64_t from, int64_t to) {
  Block b;
  b.from = from;
  b.to = to;
  b.nodes.assign(f.nodes + f.first_node[from], f.nodes + f.first_node[to]);
  std::sort(b.nodes.begin(), b.nodes.end());
  b.nodes.erase(std::unique(b.nodes.begin(), b.nodes.end()), b.nodes.end());
  const auto column = [&](int64_t node) { return int32_t(std::lower_bound(b.nodes.begin(), b.nodes.end(), node) - b.nodes.begin()); };
  const int64_t n = int64_t(b.nodes.size());
  b.columns.resize(n);
  for (int64_t i = 0; i < n; ++i) b.columns[i] = int32_t(i);
  std::stable_sort(b.columns.begin(), b.columns.end(), [&](int32_t x, int32_t y) { return f.production[b.nodes[x]] < f.production[b.nodes[y]]; });
  for (int64_t i = 0; i < n; ++i) {
    const int64_t p = f.production[b.nodes[b.columns[i]]];
    if (b.productions.empty() || b.productions.back() != p) {
      b.productions.push_back(p);
      b.starts.push_back(i);
    }
  }
  b.starts.push_back(n);
  for (int64_t i = 0; i < n; ++i) {
    b.first_child.push_back(int64_t(b.child_columns.size()));
    for (int64_t c = f.first_child[b.nodes[i]]; c < f.first_child[b.nodes[i] + 1]; ++c) b.child_columns.push_back(column(f.children[c]));
  }
  for (int64_t t = from; t < to; ++t) {
    b.first_column.push_back(int64_t(b.tree_columns.size()));
    for (int64_t i = f.first_node[t]; i < f.first_node[t + 1]; ++i) b.tree_columns.push_back(column(f.nodes[i]));
  }
  b.first_column.push_back(int64_t(b.tree_columns.size()));
  return b;
}

// Tables of one worker: C by node of u and column, all 0 between trees.
template <class T>
struct Scratch {
  std::vector<T> table, sums;
  std::vector<int64_t> nodes, weights;
};

template <class T>
void row(const TreeKernelForest& left, int64_t u, const Block& b, int64_t to, T decay, Scratch<T>& s, T* out) {
  const int64_t width = int64_t(b.nodes.size());
  s.nodes.clear();
  s.weights.clear();
  for (int64_t i = left.first_node[u]; i < left.first_node[u + 1]; ++i) {
    if (s.nodes.empty() || s.nodes.back() != left.nodes[i]) {
      s.nodes.push_back(left.nodes[i]);
      s.weights.push_back(0);
    }
    ++s.weights.back();
  }
  const int64_t size = int64_t(s.nodes.size());
  if (int64_t(s.table.size()) < size * width) s.table.resize(size * width, T(0));
  s.sums.assign(width, T(0));
  const auto matches = [&](int64_t i, auto&& f) {
    const int64_t p = left.production[s.nodes[i]];
    const auto found = std::lower_bound(b.productions.begin(), b.productions.end(), p);
    if (found == b.productions.end() || *found != p) return;
    const int64_t at = found - b.productions.begin();
    for (int64_t k = b.starts[at]; k < b.starts[at + 1]; ++k) f(b.columns[k]);
  };
  for (int64_t i = 0; i < size; ++i) {
    const int64_t* child = left.children + left.first_child[s.nodes[i]];
    const int64_t count = left.first_child[s.nodes[i] + 1] - left.first_child[s.nodes[i]];
    int64_t rows[64];
    std::vector<int64_t> more;
    int64_t* below = rows;
    if (count > 64) {
      more.resize(count);
      below = more.data();
    }
    for (int64_t k = 0; k < count; ++k) below[k] = (std::lower_bound(s.nodes.begin(), s.nodes.end(), child[k]) - s.nodes.begin()) * width;
    const T weight = T(s.weights[i]);
    matches(i, [&](int32_t column) {
      const int32_t* its = b.child_columns.data() + b.first_child[column];
      T c = decay;
      for (int64_t k = 0; k < count; ++k) c *= T(1) + s.table[below[k] + its[k]];
      s.table[i * width + column] = c;
      s.sums[column] += weight * c;
    });
  }
  for (int64_t t = b.from; t < to; ++t) {
    T sum = 0;
    for (int64_t i = b.first_column[t - b.from]; i < b.first_column[t - b.from + 1]; ++i) sum += s.sums[b.tree_columns[i]];
    out[t] = sum;
  }
  for (int64_t i = 0; i < size; ++i) matches(i, [&](int32_t column) { s.table[i * width + column] = T(0); });
}

template <class T>
int64_t gram(const TreeKernelArgs* args, const T* decay, T* out) {
  const TreeKernelForest &left = args->left, &right = args->right;
  std::vector<std::pair<int64_t, int64_t>> bounds;
  for (int64_t t = 0; t < right.trees;) {
    int64_t to = t + 1;
    while (to < right.trees && right.first_node[to + 1] - right.first_node[t] <= 2 * kBlock) ++to;
    bounds.push_back({t, to});
    t = to;
  }
  parallel_for(int64_t(bounds.size()), int(args->threads), [&](int64_t task, int) {
    const Block b = make_block(right, bounds[task].first, bounds[task].second);
    Scratch<T> scratch;
    for (int64_t u = args->symmetric ? b.from : 0; u < left.trees; ++u)
      row(left, u, b, args->symmetric ? std::min(b.to, u + 1) : b.to, *decay, scratch, out + u * right.trees);
  });
  if (args->symmetric)
    for (int64_t u = 0; u < left.trees; ++u)
      for (int64_t v = 0; v < u; ++v) out[v * left.trees + u] = out[u * left.trees + v];
  return 0;
}

// K(u, u) of every tree of the left set: a block of one tree.
template <class T>
int64_t diagonal(const TreeKernelArgs* args, const T* decay, T* out) {
  const TreeKernelForest& f = args->left;
  constexpr int64_t kChunk = 16;
  parallel_for((f.trees + kChunk - 1) / kChunk, int(args->threads), [&](int64_t task, int) {
    for (int64_t u = task * kChunk; u < std::min(f.trees, (task + 1) * kChunk); ++u) {
      Scratch<T> scratch;
      row(f, u, make_block(f, u, u + 1), u + 1, *decay, scratch, out);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define TREE_KERNEL(suffix, T)                                                                                  \
  extern "C" int64_t sl_tree_kernel_gram_##suffix(const sl::TreeKernelArgs* a, const T* decay, T* out) {        \
    return sl::gram<T>(a, decay, out);                                                                          \
  }                                                                                                             \
  extern "C" int64_t sl_tree_kernel_diagonal_##suffix(const sl::TreeKernelArgs* a, const T* decay, T* out) {    \
    return sl::diagonal<T>(a, decay, out);                                                                      \
  }
TREE_KERNEL(f32, float)
TREE_KERNEL(f64, double)
