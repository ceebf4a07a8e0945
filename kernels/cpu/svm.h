// Constraints of a structured SVM as sparse sums, and where their multipliers stand.
//
//   plane p:  a_p = sum_k coefficient_k * shift(row_k, offset_k),   xi_i >= b_p - <w, a_p>  for the planes p of block i
//
// Rows (features of a position, or of a whole constraint) are stored once and shared by all planes that use them.
#pragma once
#include <cstdint>

namespace sl {

struct Planes {
  const int64_t* row_start;    // (rows + 1,)
  const int32_t* column;       // nonzeros of the rows
  const double* value;
  const int64_t* term_start;   // (planes + 1,)
  const int64_t* term_row;
  const int64_t* term_offset;
  const double* term_coefficient;

  template <class F>
  void each(int64_t p, F&& f) const {
    for (int64_t k = term_start[p]; k < term_start[p + 1]; ++k) {
      const int64_t from = row_start[term_row[k]], to = row_start[term_row[k] + 1], offset = term_offset[k];
      const double c = term_coefficient[k];
      for (int64_t j = from; j < to; ++j) f(offset + column[j], c * value[j]);
    }
  }
  double dot(int64_t p, const double* w) const {
    double total = 0;
    for (int64_t k = term_start[p]; k < term_start[p + 1]; ++k) {
      const int64_t from = row_start[term_row[k]], to = row_start[term_row[k] + 1];
      const double* at = w + term_offset[k];
      double sum = 0;
      for (int64_t j = from; j < to; ++j) sum += at[column[j]] * value[j];
      total += term_coefficient[k] * sum;
    }
    return total;
  }
  void add(int64_t p, double scale, double* w) const {
    each(p, [&](int64_t at, double x) { w[at] += scale * x; });
  }
};

}  // namespace sl
