// Matrix products c (+)= a b for matrices that a cache holds, in tiles of c that fit the register file
// (32 registers with AVX-512, 16 below). Every entry of c is summed in the order of b's rows, whatever the tiles.
// Limited by multiply-adds: 100 to 113 GFLOP/s on a Zen 4 core that reaches 118, for 20 to 80 words of NT=30, P=60
// (87 to 111 for 10).
#pragma once
#include <algorithm>
#include <type_traits>

#include "simd.h"

namespace sl {

#if defined(__AVX512F__)
constexpr int kTallRows = 12, kTallVectors = 2;  // a by columns: its entries for one row of b lie together
constexpr int kWideRows = 6, kWideVectors = 4;   // a by rows: one pointer each, so fewer of them
#else
constexpr int kTallRows = 6, kTallVectors = 2;
constexpr int kWideRows = 4, kWideVectors = 3;
#endif

// f(std::integral_constant<int, n>) for n in 1..Most.
template <int Most, class F>
inline void with_count(int64_t n, F&& f) {
  if constexpr (Most > 1)
    if (n < Most) return with_count<Most - 1>(n, f);
  f(std::integral_constant<int, Most>());
}

template <class T>
struct Product {
  int64_t rows, cols, depth;  // cols: whole vectors
  const T* a;
  int64_t a_step;
  const T* b;
  int64_t b_step;
  T* c;
  int64_t c_step;
  bool add;  // to what c holds
};

template <class T, int R, int V, bool ByColumns>
inline void product_tile(const Product<T>& p, int64_t row, int64_t col) {
  T* c = p.c + row * p.c_step + col;
  Vec<T> acc[R][V];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[r][v] = p.add ? load(c + r * p.c_step + v * kLanes<T>) : Vec<T>{};
  const T* b = p.b + col;
  const T* a[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) a[r] = p.a + (ByColumns ? row + r : (row + r) * p.a_step);
  const T* column = p.a + row;
  for (int64_t k = 0; k < p.depth; ++k, b += p.b_step, column += p.a_step) {
    Vec<T> e[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) e[v] = load(b + v * kLanes<T>);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const T x = ByColumns ? column[r] : a[r][k];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] += e[v] * x;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(c + r * p.c_step + v * kLanes<T>, acc[r][v]);
}

// Tiles of equal height, as nearly as rows allow: a low one loads b as often as a high one.
template <int MostRows, int MostVectors, bool ByColumns, class T>
inline void multiply(const Product<T>& p) {
  const int64_t vectors = p.cols / kLanes<T>, tiles = (p.rows + MostRows - 1) / MostRows, blocks = (vectors + MostVectors - 1) / MostVectors;
  for (int64_t j = 0; j < blocks; ++j) {
    const int64_t col = j * vectors / blocks, width = (j + 1) * vectors / blocks - col;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t row = i * p.rows / tiles, height = (i + 1) * p.rows / tiles - row;
      with_count<MostRows>(height, [&](auto r) {
        with_count<MostVectors>(width, [&](auto v) {
          product_tile<T, decltype(r)::value, decltype(v)::value, ByColumns>(p, row, col * kLanes<T>);
        });
      });
    }
  }
}

// c[r][j] (+)= sum_k a[k][r] b[k][j]
template <class T>
inline void multiply_columns(const Product<T>& p) { multiply<kTallRows, kTallVectors, true>(p); }

// c[r][j] (+)= sum_k a[r][k] b[k][j]
template <class T>
inline void multiply_rows(const Product<T>& p) { multiply<kWideRows, kWideVectors, false>(p); }

}  // namespace sl
