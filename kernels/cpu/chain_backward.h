// Gradient of sum_b g_b log Z_b from the scaled forward values a_t (chain_scaled.h):
//   x_t[c] = w_t[c] b_t[c],   b_{t-1}[p] = 2^-e sum_c E[p][c] x_t[c],   b_last = exp(end)
//   P(y_t = c) = a_t[c] b_t[c] / sum_c a_t[c] b_t[c]
//   P(y_{t-1} = p, y_t = c) = a_{t-1}[p] E[p][c] x_t[c] / sum_p a_{t-1}[p] (sum_c E[p][c] x_t[c]).
// Both are normalised by their own sums, so no scale has to be stored. The shared transition's
// gradient E * sum_t a_{t-1}^T x_t is a matrix product over rows and positions: pairs of vectors are
// collected and added as updates of rank kDepth. A row whose sum falls below kSafe is done again in
// log space; since its pairs are already in the group's sum, the group starts again without it. The
// sum at t bounds what b_{t-1} can have lost before its scaling: sum_p a_{t-1}[p] b~[p], with the
// largest a_{t-1} brought to 1, is that sum.
#pragma once
#include "chain_forward.h"
#include "outer.h"
#include "transpose.h"

namespace sl {

template <class T>
struct Backward {
  const Chain<T>& chain;
  const int64_t N, C, Cp;
  const T* grad;  // null: 1
  T *d_unary, *d_transition;
  const ScaledMatrix<T>& matrix;  // of a shared transition
  const Shift<T>& columns;        // and its column maxima
  Panels<T> panels;               // E transposed: panels of predecessors

  Backward(const Chain<T>& chain_, const ScaledMatrix<T>& matrix_, const Shift<T>& columns_, const T* grad_, T* d_unary_, T* d_transition_)
      : chain(chain_), N(chain.N), C(chain.C), Cp(chain.Cp), grad(grad_), d_unary(d_unary_), d_transition(d_transition_), matrix(matrix_), columns(columns_) {
    if (!chain.shared()) return;
    RawBuffer<T> turned;
    turned.resize(C * Cp);
    transpose(C, C, matrix.entries.data, Cp, turned.data, Cp);
    panels.pack(C, C, T(0), turned.data, Cp);
  }

  struct Scratch {
    RawBuffer<T> vectors;  // b_t and x_t of every row of a group, weights of one
    T *beta, *message, *weight;
    OuterSum<T> pairs;
    RawBuffer<T> sum;  // of all groups of this chunk
    ScaledMatrix<T> own;
    Shift<T> columns;
    LogRow<T> careful;
    Tape<T> tape;

    explicit Scratch(const Chain<T>& chain) {
      vectors.resize((2 * kRows + 1) * chain.Cp);
      beta = vectors.data, message = beta + kRows * chain.Cp, weight = message + kRows * chain.Cp;
      if (chain.shared()) sum.resize(chain.C * chain.Cp), std::fill_n(sum.data, chain.C * chain.Cp, T(0));
    }
  };

  struct Row {
    int64_t b, n, slot;
    T *beta, *message;  // b_t (padded with 0) and x_t
    T scale;            // by which b_t is still to be multiplied
    T inverse;          // g / sum_c a_t[c] b_t[c]
  };

  T weight_of(int64_t b) const { return grad ? grad[b] : T(1); }

  // Multiplies b_t by row.scale and writes the row's unary gradient at t; false if the row must be done in log space.
  // Here and below members are copied first: a store of a vector may alias them, so a loop would read them every time.
  bool marginal(Row& row, int64_t t, const Tape<T>& tape) const {
    const int64_t size = C;
    const T *at = tape.a(row.slot, t), scale = row.scale;
    T* beta = row.beta;
    Vec<T> sum{};
    for (int64_t c = 0; c < size; c += kLanes<T>) {
      const Vec<T> b = load(beta + c) * scale;
      store(beta + c, b);
      sum += load_row(at, c, size, T(0)) * b;
    }
    const T total = hsum(sum);
    if (!(total >= kSafe<T>)) return false;
    const T inverse = row.inverse = weight_of(row.b) / total;
    T* out = d_unary + (row.b * N + t) * size;
    for (int64_t c = 0; c < size; c += kLanes<T>) store_row(out, c, size, load_row(at, c, size, T(0)) * load(beta + c) * inverse);
    return true;
  }

  // What step t needs: a_{t-1}, the gradient's place beside it, and w_t.
  SL_FETCH void fetch(const Row& row, int64_t t, const Tape<T>& tape) const {
    fetch_row<false>(tape.a(row.slot, t - 1), C);
    fetch_row<true>(d_unary + (row.b * N + t - 1) * C, C);
    if (tape.weight) fetch_row<false>(tape.w(row.slot, t), C);
  }

  void last(Row& row) const {
    row.scale = 1;
    if (chain.end) {
      Vec<T> unused;
      weights(chain.end, static_cast<const Shift<T>*>(nullptr), C, row.beta, &unused);
    } else {
      for (int64_t c = 0; c < Cp; ++c) row.beta[c] = c < C ? T(1) : T(0);
    }
  }

  // x_t from b_t; the same weights as forward.
  void message(Row& row, int64_t t, const Shift<T>& m, Scratch& s) const {
    const T* weight = s.tape.weight ? s.tape.w(row.slot, t) : s.weight;
    Vec<T> unused;  // forward has looked at it
    if (!s.tape.weight) weights(chain.unary(row.b, t), &m, C, s.weight, &unused);
    const int64_t size = C;
    const T* beta = row.beta;
    T* out = row.message;
    for (int64_t c = 0; c < size; c += kLanes<T>) store(out + c, load(weight + c) * load(beta + c));
  }

  // After b~ = E x_t stands in row.beta: the scale that brings its largest entry into [1, 2). False as above.
  bool rescale(Row& row) const {
    const int64_t size = C;
    const T* beta = row.beta;
    Vec<T> high{};
    for (int64_t c = 0; c < size; c += kLanes<T>) high = vmax(high, load(beta + c));
    const T top = hmax(high);
    if (!(top >= kSafe<T>)) return false;
    int64_t ignored = 0;
    row.scale = take_exponent(top, &ignored);
    return true;
  }

  // x_t / sum_p a_{t-1}[p] (sum_c E[p][c] x_t[c]), times the weight of the row.
  void share(const Row& row, T* right) const {
    const int64_t size = C;
    const T *message = row.message, scale = row.scale, inverse = row.inverse;
    for (int64_t c = 0; c < size; c += kLanes<T>) store(right + c, load(message + c) * scale * inverse);
  }

  // Rows in `rows` share the matrix. Returns the row that failed, or -1.
  int shared_group(Row* rows, int count, Scratch& s) const {
    s.pairs.reset(C, Cp);
    const bool far = chain.far();
    int active = 0;
    const T* from[kRows];
    for (int64_t t = rows[0].n - 1;; --t) {
      for (; active < count && rows[active].n > t; ++active) {
        last(rows[active]);
        if (!marginal(rows[active], t, s.tape)) return active;
      }
      if (t == 0) break;
      for (int r = 0; r < active; ++r) message(rows[r], t, columns, s), from[r] = rows[r].message;
      if (far && t > 1)
        for (int r = 0; r < active; ++r) fetch(rows[r], t - 1, s.tape);
      step<SumProduct, T>(active, from, panels, [&](int r, int64_t p, Vec<T> sum) { store(rows[r].beta + p, sum); });
      for (int r = 0; r < active; ++r) {
        if (!rescale(rows[r]) || !marginal(rows[r], t - 1, s.tape)) return r;
        share(rows[r], s.pairs.push(s.tape.a(rows[r].slot, t - 1)));
      }
    }
    s.pairs.flush();
    for (int64_t i = 0; i < C * Cp; ++i) s.sum.data[i] += s.pairs.sum.data[i];
    return -1;
  }

  bool own_row(Row& row, Scratch& s) const {
    last(row);
    if (!marginal(row, row.n - 1, s.tape)) return false;
    for (int64_t t = row.n - 1; t > 0; --t) {
      s.own.set(chain.transition(row.b, t - 1), C);
      s.columns.set(s.own.column_max.data, C);
      message(row, t, s.columns, s);
      for (int64_t p = 0; p < C; ++p) {
        Vec<T> sum{};
        for (int64_t c = 0; c < C; c += kLanes<T>) sum += load(s.own.row(p, Cp) + c) * load(row.message + c);
        row.beta[p] = hsum(sum);
      }
      if (!rescale(row) || !marginal(row, t - 1, s.tape)) return false;
      T* out = d_transition + (row.b * (N - 1) + t - 1) * C * C;
      for (int64_t p = 0; p < C; ++p) {
        const T left = s.tape.a(row.slot, t - 1)[p] * row.inverse;
        for (int64_t c = 0; c < C; c += kLanes<T>)
          store_row(out + p * C, c, C, load(s.own.row(p, Cp) + c) * (load(row.message + c) * row.scale) * left);
      }
    }
    return true;
  }

  void group(int64_t g, Scratch& s, ChainSums<T>& sums, int64_t chunk) const {
    const int64_t begin = g * chain.group_size, stop = std::min(chain.B, begin + chain.group_size);
    Row rows[kRows];
    int count = 0;
    const auto careful = [&](int64_t b) {
      s.careful.forward(chain, b);
      s.careful.backward(chain, weight_of(b), sums.of(chain, chunk, b, d_unary, d_transition));
    };
    for (int64_t i = begin; i < stop; ++i) {
      const int64_t b = chain.order[i], n = chain.length(b);
      const int64_t slot = s.tape.slot(b, int(i - begin));
      if (n == 0 || *s.tape.a(slot, 0) < 0) {
        careful(b);
        continue;
      }
      rows[count] = {b, n, slot, s.beta + count * Cp, s.message + count * Cp, T(1), T(0)};
      std::fill(d_unary + (b * N + n) * C, d_unary + (b + 1) * N * C, T(0));
      if (!chain.shared() && N > 1) std::fill(d_transition + (b * (N - 1) + n - 1) * C * C, d_transition + (b + 1) * (N - 1) * C * C, T(0));
      ++count;
    }
    if (!chain.shared()) {
      if (count && !own_row(rows[0], s)) careful(rows[0].b), count = 0;
    } else {
      for (int failed; count && (failed = shared_group(rows, count, s)) >= 0;) {
        careful(rows[failed].b);
        for (int r = failed; r + 1 < count; ++r) rows[r].b = rows[r + 1].b, rows[r].n = rows[r + 1].n, rows[r].slot = rows[r + 1].slot;
        --count;
      }
    }
    for (int r = 0; r < count; ++r) {
      const T *front = d_unary + rows[r].b * N * C, *back = front + (rows[r].n - 1) * C;
      const ChainGradient<T> out = sums.of(chain, chunk, rows[r].b, d_unary, d_transition);
      for (int64_t c = 0; c < C; ++c) out.start[c] += front[c], out.end[c] += back[c];
    }
  }

  // Adds the pairs of all groups to the chunk's transition gradient.
  void close(const Scratch& s, ChainSums<T>& sums, int64_t chunk) const {
    if (!chain.shared()) return;
    T* out = sums.transition(chunk);
    for (int64_t p = 0; p < C; ++p)
      for (int64_t c = 0; c < C; c += kLanes<T>) {
        const Vec<T> part = load(s.sum.data + p * Cp + c) * load(matrix.row(p, Cp) + c);
        const Vec<T> allowed = load(matrix.column_max.data + c) > kNegInf<T> ? part : Vec<T>{};
        store_row(out + p * C, c, C, load_row(out + p * C, c, C, T(0)) + allowed);
      }
  }
};

}  // namespace sl
