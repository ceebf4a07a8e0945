// Constraints of a structured SVM as sparse sums, and where their multipliers stand.
//
//   plane p:  a_p = sum_k coefficient_k * shift(row_k, offset_k),   xi_i >= b_p - <w, a_p>  for the planes p of block i
//
// Rows (features of a position, or of a whole constraint) are stored once and shared by all planes that use them.
#pragma once
#include <cstdint>

namespace sl {

// What a visit knows of a key. A table by key would be larger than any cache; a visit meets a few hundred keys that
// lie together, which this many entries hold side by side, and what they do not hold is computed again.
struct Entry {
  double product;   // <row, w>, where seen is the present visit
  double moved;     // what the row is to be added by, where touched is the present visit
  int64_t key, seen, touched;
};
constexpr int64_t kEntries = 2048;  // ENTRIES of structlearn/solvers/planes.py

struct Planes {
  const int64_t* row_start;    // (rows + 1,) into value
  const int64_t* row_column;   // (rows,) into column; -1: a dense row, columns 0, 1, ...
  const int32_t* column;
  const void* value;           // double, or float if narrow: rows are read far more often than a cache holds them
  const int64_t* term_start;   // (planes + 1,)
  const int64_t* term_row;
  const int64_t* term_offset;
  const double* term_coefficient;
  const int64_t* term_key;     // equal where row and offset are, from 0; -1: not shared; -2: the row is a single 1
  Entry* entries;              // (kEntries,) scratch
  int64_t* visit;              // counts up over all calls
  int64_t narrow;

  Entry& entry(int64_t key) const { return entries[key & (kEntries - 1)]; }
  // body(values of row r)
  template <class F>
  auto with_row(int64_t r, F&& body) const {
    return narrow ? body(static_cast<const float*>(value) + row_start[r]) : body(static_cast<const double*>(value) + row_start[r]);
  }
  // <row, w> for w shifted to the row's place.
  double row_dot(int64_t r, const double* w) const {
    return with_row(r, [&](const auto* x) { return row_dot(r, x, w); });
  }
  template <class X>
  double row_dot(int64_t r, const X* x, const double* w) const {
    const int64_t size = row_start[r + 1] - row_start[r];
    if (row_column[r] >= 0) {
      const int32_t* at = column + row_column[r];
      double sum = 0;
      for (int64_t j = 0; j < size; ++j) sum += w[at[j]] * x[j];
      return sum;
    }
    // Sums over fixed lanes: vectors without reassociation, hence the same bits on every machine.
    double lane[16] = {0};
    int64_t j = 0;
    for (; j + 16 <= size; j += 16)
      for (int k = 0; k < 16; ++k) lane[k] += w[j + k] * x[j + k];
    for (int k = 0; j < size; ++j, ++k) lane[k] += w[j] * x[j];
    for (int step = 8; step; step /= 2)
      for (int k = 0; k < step; ++k) lane[k] += lane[k + step];
    return lane[0];
  }
  double dot(int64_t p, const double* w) const {
    double total = 0;
    for (int64_t k = term_start[p]; k < term_start[p + 1]; ++k) total += term_coefficient[k] * row_dot(term_row[k], w + term_offset[k]);
    return total;
  }
  void add_row(int64_t k, double c, double* w) const {
    const int64_t r = term_row[k], size = row_start[r + 1] - row_start[r];
    double* to = w + term_offset[k];
    with_row(r, [&](const auto* x) {
      if (row_column[r] >= 0) {
        const int32_t* at = column + row_column[r];
        for (int64_t j = 0; j < size; ++j) to[at[j]] += c * x[j];
      } else {
        for (int64_t j = 0; j < size; ++j) to[j] += c * x[j];
      }
    });
  }
  // w += scale * a_p
  void add(int64_t p, double scale, double* w) const {
    for (int64_t k = term_start[p]; k < term_start[p + 1]; ++k) add_row(k, scale * term_coefficient[k], w);
  }
  void clear(int64_t p, double* w) const {
    for (int64_t k = term_start[p]; k < term_start[p + 1]; ++k) {
      const int64_t r = term_row[k], size = row_start[r + 1] - row_start[r];
      double* to = w + term_offset[k];
      if (row_column[r] >= 0) {
        const int32_t* at = column + row_column[r];
        for (int64_t j = 0; j < size; ++j) to[at[j]] = 0;
      } else {
        for (int64_t j = 0; j < size; ++j) to[j] = 0;
      }
    }
  }
};

}  // namespace sl
