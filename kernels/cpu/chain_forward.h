// log Z of each chain in scaled probability space (chain_scaled.h), rows that it cannot represent in
// log space (chain_log.h). Limited by fused multiply-adds for C >= 50, by the exponentials and the
// latency of one step below.
#pragma once
#include "chain_log.h"
#include "chain_scaled.h"

namespace sl {

// Where forward leaves a_t and w_t of a sequence for backward.
template <class T>
struct Tape {
  T *alpha = nullptr, *weight = nullptr;  // alpha null: nothing is kept; weight null: backward computes w_t again
  int64_t row = 0, step = 0;              // strides between sequences and between positions
  bool by_group = false;                  // sequences are numbered within their group, not within the batch

  int64_t slot(int64_t b, int r) const { return by_group ? r : b; }
  T* a(int64_t slot, int64_t t) const { return alpha + slot * row + t * step; }
  T* w(int64_t slot, int64_t t) const { return weight + slot * row + t * step; }
};

template <class T>
struct Forward {
  const Chain<T> chain;
  const int64_t N, C, Cp;
  T* log_z;
  ScaledMatrix<T> matrix;   // shared transition
  Shift<T> columns, start;  // its column maxima, and the scores of the first label
  Panels<T> panels;

  Forward(const ChainArgs& args, T* log_z_) : chain(args), N(args.N), C(args.C), Cp(chain.Cp), log_z(log_z_) {
    if (chain.start) start.set(chain.start, C);
    if (!chain.shared()) return;
    matrix.set(chain.transition(0, 0), C);
    columns.set(matrix.column_max.data, C);
    panels.pack(C, C, T(1), matrix.entries.data, Cp);
  }

  // What one worker keeps between groups.
  struct Scratch {
    RawBuffer<T> rows, weight;  // rows: two positions of every row in the group, where alpha is not kept
    ScaledMatrix<T> own;     // this position's matrix, where it is not shared
    Shift<T> columns;
    LogRow<T> careful;
  };

  struct Row {
    int64_t b, n, slot, exponents = 0;
    double logs = 0, logs_rest = 0;  // sum of all that was taken off
    T scale = 1, *now = nullptr, *weight = nullptr;
    const T* before = nullptr;
    Vec<T> low, high;
  };

  T* place(Scratch& s, const Tape<T>& tape, int r, int64_t slot, int64_t t) const {
    return tape.alpha ? tape.a(slot, t) : s.rows.data + (2 * r + (t & 1)) * Cp;
  }

  // What step t reads and writes.
  SL_FETCH void fetch(const Row& row, int64_t t, const Tape<T>& tape) const {
    fetch_row<false>(chain.unary(row.b, t), C);
    if (tape.alpha) fetch_row<true>(tape.a(row.slot, t), C);
    if (tape.weight) fetch_row<true>(tape.w(row.slot, t), C);
  }

  void finish(Row& row, int64_t c, Vec<T> sum) const {
    const Vec<T> v = sum * row.scale, a = v * load(row.weight + c);
    row.low = vmin(row.low, sum);
    row.high = vmax(row.high, a);
    store_row(row.now, c, C, a);
  }

  void group(int64_t g, Scratch& s, const Tape<T>& tape) const {
    const int64_t begin = g * chain.group_size;
    int active = int(std::min(chain.B, begin + chain.group_size) - begin);
    Row rows[kRows];
    if (!tape.alpha) s.rows.resize(2 * kRows * Cp);
    s.weight.resize((tape.weight ? 1 : kRows) * Cp);
    for (int r = 0; r < active; ++r) {
      Row& row = rows[r];
      row.b = chain.order[begin + r], row.n = chain.length(row.b), row.slot = tape.slot(row.b, r);
      if (tape.alpha && !tape.by_group) std::fill(tape.a(row.slot, row.n), tape.a(row.slot, N), T(0));
      if (row.n == 0) {
        log_z[row.b] = 0;
        continue;
      }
      row.weight = tape.weight ? tape.w(row.slot, 0) : s.weight.data + r * Cp;
      row.low = row.high = splat<T>(1);
      row.now = place(s, tape, r, row.slot, 0);
      first(row);
    }
    while (active && rows[active - 1].n == 0) --active;
    const int all = active;
    const bool far = chain.far();
    const T* before[kRows];
    for (int64_t t = 1; active && t < rows[0].n; ++t) {
      while (rows[active - 1].n <= t) --active;
      const Shift<T>& m = chain.shared() ? columns : s.columns;
      if (!chain.shared()) s.own.set(chain.transition(rows[0].b, t - 1), C), s.columns.set(s.own.column_max.data, C);
      for (int r = 0; r < active; ++r) {
        Row& row = rows[r];
        row.scale = take_exponent(hmax(row.high), &row.exponents);
        row.high = Vec<T>{};
        before[r] = row.now;
        row.now = place(s, tape, r, row.slot, t);
        if (tape.weight) row.weight = tape.w(row.slot, t);
        add_to<T>(row.logs, row.logs_rest, double(weights(chain.unary(row.b, t), &m, C, row.weight, &row.low)));
        add_to<T>(row.logs, row.logs_rest, double(m.top));
        if (far && t + 1 < row.n) fetch(row, t + 1, tape);
      }
      if (chain.shared()) step<SumProduct, T>(active, before, panels, [&](int r, int64_t c, Vec<T> sum) { finish(rows[r], c, sum); });
      else own_step(before[0], s.own, rows[0]);
    }
    for (int r = 0; r < all; ++r) close(rows[r], s, tape);
  }

  void first(Row& row) const {
    alignas(kBytes) T zero[kLanes<T>] = {};
    row.logs = double(weights(chain.unary(row.b, 0), chain.start ? &start : nullptr, C, row.weight, &row.low));
    add_to<T>(row.logs, row.logs_rest, double(start.top));
    for (int64_t c = 0; c < C; c += kLanes<T>) store_row(row.now, c, C, load(row.weight + c) + load(zero));
  }

  void own_step(const T* before, const ScaledMatrix<T>& own, Row& row) const {
    for (int64_t c = 0; c < Cp; c += kLanes<T>) {
      Vec<T> sum{};
      for (int64_t p = 0; p < C; ++p) sum += load(own.row(p, Cp) + c) * before[p];
      if (C - c < kLanes<T>)  // padding must not look like a lost sum
        for (int64_t i = C - c; i < kLanes<T>; ++i) sum[i] = 1;
      finish(row, c, sum);
    }
  }

  void close(Row& row, Scratch& s, const Tape<T>& tape) const {
    T k = 0, sum = 0;
    if (chain.end) {
      k = weights(chain.end, static_cast<const Shift<T>*>(nullptr), C, s.weight.data, &row.low);
      for (int64_t c = 0; c < C; ++c) sum += row.now[c] * s.weight.data[c];
    } else {
      for (int64_t c = 0; c < C; ++c) sum += row.now[c];
    }
    add_to<T>(row.logs, row.logs_rest, double(k));
    const double whole = row.logs + (row.logs_rest + (std::log(double(sum)) + double(row.exponents) * 0.693147180559945309417));
    // A NaN or infinite total (a row of -inf, or overflow of the sum of logs) is not below or above
    // anything, so the comparison is written to fail then.
    if (hmin<T>(row.low) >= kSafe<T> && sum >= kSafe<T> && std::isfinite(whole)) {
      log_z[row.b] = saturated<T>(whole);
      return;
    }
    s.careful.forward(chain, row.b);
    log_z[row.b] = s.careful.value();
    if (tape.alpha) *tape.a(row.slot, 0) = T(-1);  // tells backward that this row has no scaled form
  }
};

}  // namespace sl
