// log Z of each pair (alignment_forward.h), limited by the exponential of each match score, and its gradient: in
// one file, since both are built from the same sweep and would be compiled twice.
//
// Gradient of sum_b g_b log Z_b. Block by block from the last, the forward steps are done again from
// the row of nodes in front of the block (alignment_sum.h) and their totals kept; then the same steps run backwards:
//   bM[i][j] = u[i+1][j+1] + open_x bX[i+1][j] + open_y bY[i][j+1],   u = e^match bM,
//   bX[i][j] = the same with gap_x,   bY[i][j] = the same with gap_y,
// each lane with an exponent of its own, as in the forward steps. A part's marginal is what leads to it
// times its weight times what follows, over Z. About 2.5 times the work of the forward pass.
#include <memory>

#include "alignment_forward.h"
#include "pages.h"

namespace sl {
namespace {

// v[L-1], v[0], ..., v[L-2]: every lane takes the value of the row below it, lane 0 that of the top row.
template <class T>
inline Vec<T> rotate(Vec<T> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_alignr_epi32(0xffff, (__m512i)v, (__m512i)v, 15);
  else return (Vec<T>)_mm512_maskz_alignr_epi64(0xff, (__m512i)v, (__m512i)v, 7);
#else
  IVec<T> pick;
  for (int r = 0; r < kLanes<T>; ++r) pick[r] = (r + kLanes<T> - 1) % kLanes<T>;
  return __builtin_shuffle(v, pick);
#endif
}

template <class T>
inline Vec<T> with_first(Vec<T> v, T x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_mask_broadcastss_ps((__m512)v, 1, _mm_set_ss(x));
  else return (Vec<T>)_mm512_mask_broadcastsd_pd((__m512d)v, 1, _mm_set_sd(x));
#else
  v[0] = x;
  return v;
#endif
}

// The row of cells below a block: u, bX and their exponents by column, zeros around them.
template <class T>
struct Below {
  Buffer<T> u, x, e;
  void reset(int64_t m) {
    for (auto* row : {&u, &x, &e}) row->resize(m + 3 * kLanes<T>), std::fill_n(row->data, m + 3 * kLanes<T>, T(0));
  }
  static T* at(Buffer<T>& row) { return row.data + kLanes<T>; }
};

template <class T, bool Affine, bool Local>
class BackSweep {
  static constexpr int64_t L = kLanes<T>;
  using V = Vec<T>;
  using I = IVec<T>;
  using Int = LaneInt<T>;
  using Record = StepRecord<T, Affine>;

 public:
  // Z = z * 2^e; out.match and the rest are this pair's own rows.
  void set(const Pair<T>& pair, const GapWeights<T>& weights, Wide z, T weight, const AlignmentGradient<T>& out) {
    p_ = &pair, w_ = &weights, out_ = &out, ze_ = Int(z.e), scale_ = T(double(weight) / z.m), most_ = std::abs(weight) * T(1.01);
    below_.reset(pair.m), top_.reset(pair.m);
    column_open_.resize(pair.m + 3 * L), column_gap_.resize(pair.m + 3 * L);
    std::fill_n(column_open_.data, pair.m + 3 * L, T(0)), std::fill_n(column_gap_.data, pair.m + 3 * L, T(0));
    first_u_.assign(pair.n, T(0)), first_y_.assign(pair.n, T(0)), first_e_.assign(pair.n, Int(0));
    out.clear_padding(pair);
  }

  bool block(int64_t k, Record& record) {
    const Steps steps(*p_, k * L, 1, true);
    std::swap(below_, top_);
    if (p_->low > -p_->n - p_->m) top_.reset(p_->m);  // in a band some columns stay unvisited
    start_block(steps);
    if (!link(steps.end - 1)) return false;
    entry_ = int64_t(record.since.size()) - 1;
    weigh(record.exponents[entry_]);
    alignas(kBytes) T tile[L * L];
    Ahead<T, true> ahead(out_->match, p_->M, p_->n, p_->m, steps.i0 - L, L);
    const int64_t tiles = (steps.count() + L - 1) / L;
    for (int64_t c = tiles - 1; c >= 0; --c) {
      ahead.next(L);
      const int64_t t0 = steps.begin + c * L, t1 = std::min(t0 + L, steps.end);
      const int64_t a = std::clamp(std::max(L, steps.inner_begin), t0, t1), b = std::clamp(steps.inner_end - 1, a, t1);
      if ((b < t1 && !run<false>(steps, t0, b, t1, tile, record)) || (a < b && !run<true>(steps, t0, a, b, tile, record)) ||
          (t0 < a && !run<false>(steps, t0, t0, a, tile, record)))
        return false;
      for (int64_t t = t1; t < t0 + L; ++t) store(tile + (t - t0) * L, V{});
      write_tile(steps, t0, tile);
    }
    return finish_block(steps);
  }

  // Gaps from the nodes of the border, which no lane visits (first_row and its exponents: nodes (0, j)), and the
  // gap scores of y; false if the sums that meet in node (0, 0) do not give Z again.
  bool finish(const SumSweep<T, Affine, Local>& forward, const T* first_row, const T* first_e, Wide z, T weight) {
    bool good = true;
    for (int64_t j = 0; j < p_->m; ++j) {
      good &= settle((Affine ? column_gap_ : column_open_).data[L + j], w_->gap_y[j], out_->gap_y[j]);
      if (Affine) good &= settle(column_open_.data[L + j], w_->open_y[j], out_->open_y[j]);
    }
    if (Local || !good) return good;
    // Products of two totals stay doubles where neither is beyond 2^400: a third of the time for short sequences.
    const T* top_e = Below<T>::at(top_.e);
    T most = T(std::abs(z.e));
    for (int64_t j = 0; j <= p_->m; ++j) most = std::max(most, std::max(std::abs(first_e[j]), std::abs(top_e[j])));
    for (int64_t i = 0; i < p_->n; ++i) most = std::max(most, std::max(T(std::abs(first_e_[i])), T(std::abs(forward.column_exponent(i + 1)))));
    return most < 400 ? border<Narrow>(forward, first_row, first_e, z, weight) : border<Wide>(forward, first_row, first_e, z, weight);
  }

 private:
  // A double with the interface of Wide, where no exponent is large.
  struct Narrow {
    double x = 0;
    static double power(int64_t e) {
      const uint64_t bits = uint64_t(e + 1023) << 52;
      double found;
      std::memcpy(&found, &bits, sizeof found);
      return found;
    }
    static Narrow of(double x, int64_t e = 0) { return {x * power(e)}; }
    double at(int64_t e) const { return x * power(-e); }
    Narrow operator*(Narrow b) const { return {x * b.x}; }
    Narrow operator+(Narrow b) const { return {x + b.x}; }
  };

  template <class Number>
  bool border(const SumSweep<T, Affine, Local>& forward, const T* first_row, const T* first_e, Wide z, T weight) {
    const double share = double(weight) / z.m;
    const auto top = [&](Buffer<T>& row, int64_t j) { return Number::of(double(Below<T>::at(row)[j]), int64_t(Below<T>::at(top_.e)[j])); };
    const auto number = [](T x) { return Number::of(double(x)); };
    const int64_t n = p_->n, m = p_->m;
    const bool global = p_->mode == kGlobal;
    const Number open_x = number(w_->open_x[0]), open_y = number(w_->open_y[0]);
    Number follows, turns;  // what follows a gap along the border, and gaps that leave it
    for (int64_t i = n; i >= 1; --i) {
      const Number leads = Number::of(double(forward.column(i)), forward.column_exponent(i));
      const Number aside = Number::of(double(first_y_[i - 1]), first_e_[i - 1]);
      if (global || i < n) turns = turns + leads * aside;  // a free gap has no score to derive by
      if (!global) continue;
      const Number leaves = (i < n ? Number::of(double(first_u_[i]), first_e_[i]) : Number{}) + open_y * aside;
      follows = follows * number(w_->gap_x[std::min(i, n - 1)]) + leaves;
      if (!p_->node_in_band(i, 0)) follows = {};
      (i == 1 && Affine ? out_->open_x : out_->gap_x)[i - 1] += T(share * (leads * follows).at(z.e));
    }
    (Affine ? out_->open_y : out_->gap_y)[0] += T(share * (open_y * turns).at(z.e));
    const Number down = open_x * follows;
    follows = {}, turns = {};
    for (int64_t j = m; j >= 1; --j) {
      const Number leads = Number::of(double(first_row[j]), int64_t(first_e[j])), aside = top(top_.x, j - 1);
      if (global || j < m) turns = turns + leads * aside;
      if (!global) continue;
      const Number leaves = (j < m ? top(top_.u, j) : Number{}) + open_x * aside;
      follows = follows * number(w_->gap_y[std::min(j, m - 1)]) + leaves;
      if (!p_->node_in_band(0, j)) follows = {};
      (j == 1 && Affine ? out_->open_y : out_->gap_y)[j - 1] += T(share * (leads * follows).at(z.e));
    }
    (Affine ? out_->open_x : out_->gap_x)[0] += T(share * (open_x * turns).at(z.e));
    if (!global) return true;
    const Number whole = top(top_.u, 0) + down + open_y * follows;
    return std::abs(whole.at(z.e) / z.m - 1) < (sizeof(T) == 4 ? 1e-2 : 1e-6);
  }

  struct State {
    V m, x, y, u, below_u;  // bM, bX, bY and u of the step behind, and u of the rows below two steps behind
    V open_x, gap_x, column_open, column_gap;  // of gaps that leave the nodes

    State() = default;
    // Member by member, so that a copy lives in registers: as a whole GCC copies it through memory.
    State(const State& other) { *this = other; }
    State& operator=(const State& other) {
      m = other.m, x = other.x, y = other.y, u = other.u, below_u = other.below_u;
      open_x = other.open_x, column_open = other.column_open;
      if (Affine) gap_x = other.gap_x, column_gap = other.column_gap;
      return *this;
    }
  };

  void start_block(const Steps& steps) {
    const int64_t i0 = steps.i0;
    s_ = State{};
    places_.set(*p_, *w_, i0, true);
    for (int r = 0; r < L; ++r) {
      const int64_t i = i0 + L - 1 - r, next = std::min(i + 1, p_->n - 1);
      open_below_[r] = w_->open_x[next], gap_below_[r] = w_->gap_x[next];
      first_[r] = Int(std::max<int64_t>(0, i + p_->low));
      last_[r] = i < p_->n ? Int(std::min(p_->m - 1, i + p_->high)) : Int(-1);
      has_below_[r] = i + 1 < p_->n ? Int(-1) : Int(0);
    }
    idle_ = choose<T>(lanes_between<T>(lane_rows_, I{} + Int(steps.rows), I{} + Int(L)), splat<T>(1), V{});
    // The node behind the bottom row's last one, diagonally.
    const int64_t column = steps.end - (L - 1);
    e_ = I{} + Int(Below<T>::at(below_.e)[std::clamp<int64_t>(column, 0, p_->m - 1)]);
    if (steps.rows == L) s_.below_u[0] = Below<T>::at(below_.u)[column];
    set_end();
  }
  void set_end() {
    const Int most = ExpConst<T>::bias;
    end_ = idle_ > T(0) ? V{} : power_of_two<T>(e_ < -most ? I{} + most : -e_);
  }

  // Factors from the lane below, for the exponents as they are and the column that step t takes in.
  bool link(int64_t t) {
    const T* e = Below<T>::at(below_.e);
    taken_ = e[std::clamp<int64_t>(t - (L - 1), 0, p_->m - 1)];
    Vec<T> bits;
    std::memcpy(&bits, &e_, sizeof bits);
    bits = rotate<T>(bits);
    I difference;
    std::memcpy(&difference, &bits, sizeof difference);
    difference[0] = Int(taken_);
    difference -= e_;
    const Int limit = ExpConst<T>::bias - 27;
    const I active = (Int(t) - lane_rows_ >= first_) & has_below_;  // the others have run their row, or are the last
    const I far = ((difference > limit) | (difference < -limit)) & active;
    factor_ = power_of_two<T>(active & ~far ? difference : I{});
    return !any_set<T>(far);
  }
  bool normalise(I j, I inside, bool all_inside) {
    const I fine = (s_.m >= w_->safe) & (s_.m <= std::numeric_limits<T>::max());
    if (any_set<T>(inside & ~fine)) return false;
    const I e = inside ? orders<T>(exponents<T>(s_.m) - places_.at(j)) : I{};
    const V scale = power_of_two<T>(-e);
    s_.m *= scale, s_.x *= scale, s_.y *= scale, s_.u *= scale, s_.below_u *= scale;
    e_ += e;
    if (Local) set_end();
    if (all_inside) return true;
    // As in the forward steps, for lanes that the backward ones have not reached.
    const I before = e_;
    for (int r = 1; r < L; ++r)
      if (!inside[r] && !(s_.m[r] > 0)) e_[r] = e_[r - 1];
    const I moved = before - e_;
    const Int limit = ExpConst<T>::bias - 27;
    if (any_set<T>(((moved > limit) | (moved < -limit)) & (s_.below_u > T(0)))) return false;
    s_.below_u *= power_of_two<T>(moved > limit ? I{} : moved);
    if (Local) set_end();
    return true;
  }

  // g 2^(exponents of both directions) / Z; over_ marks the lanes where that is too large for T.
  void weigh(const I& alpha) {
    const I e = alpha + e_ - ze_;
    over_ = e > Int(ExpConst<T>::bias);
    any_over_ = any_set<T>(over_);
    factor_out_ = power_of_two<T>(over_ ? I{} : e) * scale_;
  }

  // Steps to-1 down to from, at most L.
  template <bool Plain>
  bool run(const Steps& steps, int64_t t0, int64_t from, int64_t to, T* tile, Record& record) {
    State s = s_;
    const V low = splat<T>(w_->low), high = splat<T>(kHigh<T>), one = splat<T>(1), idle = idle_;
    const I first = first_, last = last_, rows = lane_rows_;
    const int64_t m_size = p_->m, L1 = L - 1;
    const bool semiglobal = p_->mode == kSemiglobal;
    const Lanes<T> last_row = lanes_between<T>(rows, I{} + Int(p_->n - 1 - steps.i0), I{} + Int(p_->n - 1 - steps.i0));
    const T *below_u = Below<T>::at(below_.u) - L1, *below_x = Below<T>::at(below_.x) - L1, *below_e = Below<T>::at(below_.e) - L1;
    T *top_u = Below<T>::at(top_.u) + 1, *top_x = Below<T>::at(top_.x) + 1, *top_e = Below<T>::at(top_.e) + 1;
    T *columns_open = column_open_.data + L + 2, *columns_gap = column_gap_.data + L + 2;
    const T *open_y = w_->open_y + 1 - L1, *gap_y = w_->gap_y + 1 - L1;
    const auto in_e = [&](int64_t t) { return below_e[Plain ? t : std::clamp<int64_t>(t, L1, m_size + L1 - 1)]; };
    V factor, open_in, gap_in, end, out;
    T taken;
    bool any_over;
    const auto reload = [&] {
      factor = factor_, end = end_, open_in = open_below_ * factor, gap_in = gap_below_ * factor, taken = taken_;
      out = factor_out_, any_over = any_over_;
    };
    reload();
    for (int64_t t = to - 1; t >= from;) {
      if (in_e(t) != taken) {
        if (!link(t)) return false;
        reload();
      }
      if (t < record.since[entry_]) {
        weigh(record.exponents[--entry_]);
        reload();
      }
      const int64_t begin = t;
      int64_t stop = t;
      while (stop > from && in_e(stop - 1) == taken) --stop;
      stop = std::max(stop, record.since[entry_]);
      const T *kept = record.nodes_at(t), *weights = record.weights_at(t);
      bool outside = false;
      do {
        V open_below = open_in, gap_below = gap_in, open_right = load(open_y + t), gap_right = load(gap_y + t);
        Lanes<T> inside{}, last_column{};
        if (!Plain) {
          const I j = Int(t) - rows;
          inside = lanes_between<T>(j, first, last), last_column = lanes_between<T>(j, I{} + Int(m_size - 1), I{} + Int(m_size - 1));
          if (semiglobal) {
            open_below = choose<T>(last_column, factor, open_in), gap_below = choose<T>(last_column, factor, gap_in);
            open_right = choose<T>(last_row, one, open_right), gap_right = choose<T>(last_row, one, gap_right);
          }
        }
        const V around_u = rotate<T>(s.u), around_x = rotate<T>(s.x);
        if (Plain || t + 1 < m_size) top_u[t] = around_u[0], top_x[t] = around_x[0];
        const V diagonal = s.below_u, below = with_first<T>(around_x, below_x[t]);
        s.below_u = with_first<T>(around_u, below_u[t]) * factor;
        V gx = below * factor * out, gy = s.y * out, m, x, y;
        if (Affine) {
          const V down = below * open_below + diagonal, right = s.y * open_right;
          m = down + right;
          x = below * gap_below + (diagonal + right);
          y = s.y * gap_right + down;
        } else {
          m = x = y = below * gap_below + (s.y * gap_right + diagonal);
        }
        if (Local) m += end;
        if (!Plain) {
          const Lanes<T> corner = last_column & last_row;
          if (!Local) m = choose<T>(corner, end, m), x = choose<T>(corner, end, x), y = choose<T>(corner, end, y);
          m = choose<T>(inside, m, V{}), x = choose<T>(inside, x, V{}), y = choose<T>(inside, y, V{});
          if (semiglobal) gx = choose<T>(last_column, V{}, gx), gy = choose<T>(last_row, V{}, gy);
          if (__builtin_expect(any_over, 0)) {
            const I j = Int(t) - rows;
            if (any_set<T>(over_ & (j >= first) & (j <= last))) return false;
          }
        } else if (__builtin_expect(any_over, 0)) {
          return false;
        }
        const V in_m = load(kept + Record::kM * L);
        s.m = m, s.x = x, s.y = y;
        s.u = load(weights) * m;
        store(tile + (t - t0) * L, in_m * (m * out));
        s.column_open = rotate<T>(s.column_open);
        if (Affine) s.column_gap = rotate<T>(s.column_gap);
        if (Plain || t + 1 < m_size) {
          columns_open[t] += s.column_open[0];
          if (Affine) columns_gap[t] += s.column_gap[0];
        }
        if (Affine) {
          const V in_x = load(kept + Record::kX * L), in_y = load(kept + Record::kY * L);
          s.open_x += (in_m + in_y) * gx;
          s.gap_x += in_x * gx;
          s.column_open = with_first<T>(s.column_open, T(0)) + (in_m + in_x) * gy;
          s.column_gap = with_first<T>(s.column_gap, T(0)) + in_y * gy;
        } else {
          const V all = load(kept + Record::kAll * L);
          s.open_x += all * gx;
          s.column_open = with_first<T>(s.column_open, T(0)) + all * gy;
        }
        if (!Plain && t < steps.rows) {  // this lane is in column 0
          const int r = int(L1 - t);
          first_u_[steps.i0 + t] = s.u[r], first_y_[steps.i0 + t] = s.y[r], first_e_[steps.i0 + t] = e_[r];
        }
        outside = any_outside<T>(Plain ? m + idle : choose<T>(inside, m, one), low, high);
        kept -= Record::kFields * L, weights -= L, --t;
      } while (!__builtin_expect(outside, 0) && t >= stop);
      const T own = T(e_[L - 1]);
      const int64_t most = Plain ? begin : std::min(begin, m_size - 2);
      if (most > t) std::fill(top_e + t + 1, top_e + most + 1, own);
      if (__builtin_expect(outside, 0)) {
        s_ = s;
        const I j = Int(t + 1) - rows;
        if (!normalise(j, (j >= first) & (j <= last), Plain) || !link(t)) return false;
        weigh(record.exponents[entry_]);
        s = s_;
        reload();
      }
    }
    s_ = s;
    return true;
  }

  void write_tile(const Steps& steps, int64_t t0, const T* tile) const {
    V v[L];
#pragma GCC unroll 16
    for (int k = 0; k < L; ++k) v[k] = load(tile + k * L);
    transpose(v);
    const Windows<T> windows(t0 - (L - 1), p_->m);
    T* last = out_->match + (steps.i0 + L - 1) * p_->M;
    if (steps.rows == L && windows.all_inside()) {
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) store(last - r * p_->M + t0 - (L - 1) + r, v[r]);
    } else {
      for (int64_t r = L - steps.rows; r < L; ++r) windows.write(last - r * p_->M, r, v[r]);
    }
  }

  // The share of a gap score: weight times what its gaps lead from and to. Without the weight that may be out of range.
  bool settle(T around, T weight, T& out) const {
    out = weight > 0 ? around * weight : T(0);
    return std::abs(out) <= most_;
  }

  bool finish_block(const Steps& steps) {
    bool good = true;
    for (int64_t row = 0; row < steps.rows; ++row) {
      const int64_t i = steps.i0 + row + 1, r = L - 1 - row;  // the row below the nodes that it is reached from
      if (i >= p_->n) continue;
      good &= settle((Affine ? s_.gap_x : s_.open_x)[r], w_->gap_x[i], out_->gap_x[i]);
      if (Affine) good &= settle(s_.open_x[r], w_->open_x[i], out_->open_x[i]);
    }
    for (int r = 0; r < L; ++r) {
      column_open_.data[L + steps.begin - (L - 1) + r + 1] += s_.column_open[r];
      if (Affine) column_gap_.data[L + steps.begin - (L - 1) + r + 1] += s_.column_gap[r];
    }
    Below<T>::at(top_.u)[steps.begin] = s_.u[L - 1], Below<T>::at(top_.x)[steps.begin] = s_.x[L - 1];
    Below<T>::at(top_.e)[steps.begin] = T(e_[L - 1]);
    return good;
  }

  const Pair<T>* p_ = nullptr;
  const GapWeights<T>* w_ = nullptr;
  const AlignmentGradient<T>* out_ = nullptr;
  State s_;
  V open_below_, gap_below_, idle_, factor_, factor_out_, end_;
  I e_, first_, last_, has_below_, over_;
  Places<T> places_;
  bool any_over_ = false;
  const I lane_rows_ = lane_numbers<T>();
  Int ze_ = 0;
  T scale_ = 0, most_ = 0, taken_ = 0;  // g / z; what no share exceeds; the exponent of the column that comes in from below
  int64_t entry_ = 0;        // of the record's exponents, for which factor_out_ holds
  Below<T> below_, top_;
  Buffer<T> column_open_, column_gap_;     // of y's gaps, by column
  std::vector<T> first_u_, first_y_;       // u and bY in column 0
  std::vector<Int> first_e_;               // and their exponents
};

template <class T, bool Affine, bool Local>
struct Backward {
  using Record = StepRecord<T, Affine>;
  Forward<T, Affine, Local> onward;
  BackSweep<T, Affine, Local> back;
  std::vector<Record> records;
  std::vector<T> out_row, own_rows;
  Exact<T, Carry::kNothing> exact;

  bool fast(const Saved<T, Affine>& saved, T weight, const AlignmentGradient<T>& out) {
    const Pair<T>& pair = onward.pair;
    const Wide z{double(saved.mantissa()), int64_t(saved.exponent())};
    if (!onward.weights.set(pair, Affine) || !onward.sweep.set(pair, onward.weights)) return false;
    back.set(pair, onward.weights, z, weight, out);
    if (records.empty()) records.resize(1);
    out_row.resize(3 * saved.width);
    T *my = out_row.data(), *x = my + saved.width, *e = x + saved.width;
    for (int64_t k = pair.blocks(kLanes<T>) - 1; k >= 0; --k) {
      if (!onward.sweep.block(k, k - 1, saved.my(k), saved.x(k), saved.e(k), my, x, e, &records[0])) return false;
      if (!back.block(k, records[0])) return false;
    }
    return back.finish(onward.sweep, saved.my(0), saved.e(0), z, weight);
  }

  void run(const AlignmentArgs& args, int64_t b, T* saved_row, T weight, const AlignmentGradient<T>& out) {
    onward.pair.set(args, b);
    const Saved<T, Affine> saved(saved_row, args.M);
    bool done = false;
    if (saved.succeeded() > 0) {
      FlushSubnormals flush;
      done = fast(saved, weight, out);
    }
    if (!done) slow(weight, out);
  }

  // log Z and its gradient. While all steps of a pair fit in a core's cache they are kept and done once.
  T both(const AlignmentArgs& args, int64_t b, const AlignmentGradient<T>& out) {
    constexpr int64_t kMostKept = 1 << 20;
    const Pair<T>& pair = onward.pair;
    onward.pair.set(args, b);
    own_rows.resize(Saved<T, Affine>::size(args.N, args.M));
    const int64_t blocks = pair.blocks(kLanes<T>), steps = blocks * (pair.m + kLanes<T>);
    if (pair.n == 0 || pair.m == 0 || steps * (Record::kFields + 1) * kLanes<T> * int64_t(sizeof(T)) > kMostKept) {
      const T log_z = onward.run(args, b, own_rows.data());
      run(args, b, own_rows.data(), T(1), out);
      return log_z;
    }
    {
      FlushSubnormals flush;
      if (int64_t(records.size()) < blocks) records.resize(blocks);
      const Wide z = onward.fast(own_rows.data(), records.data());
      if (z.m > 0 && std::isfinite(z.m)) {
        const Saved<T, Affine> saved(own_rows.data(), args.M);
        back.set(pair, onward.weights, z, T(1), out);
        bool done = true;
        for (int64_t k = blocks - 1; k >= 0 && done; --k) done = back.block(k, records[k]);
        if (done && back.finish(onward.sweep, saved.my(0), saved.e(0), z, T(1))) return T(z.log());
      }
    }
    return slow(T(1), out);
  }

  T slow(T weight, const AlignmentGradient<T>& out) {
    return exact(onward.pair, {}, [&](auto& sums) { sums.backward(weight, out); });
  }
};

// log_z given: the gradient of sum_b log Z_b, and log Z; else that of sum_b grad_b log Z_b from what forward saved.
template <class T, bool Affine, bool Local>
void run(const AlignmentArgs& args, T* log_z, T* saved, const T* grad, T* d_match, T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) {
  const int64_t size = Saved<T, Affine>::size(args.N, args.M);
  std::vector<std::unique_ptr<Backward<T, Affine, Local>>> scratch(std::max<int64_t>(1, args.threads));
  for_pairs(args, 10000, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Backward<T, Affine, Local>>();
    const AlignmentGradient<T> out{args, b, d_match, d_gap_x, d_gap_y, d_open_x, d_open_y};
    if (log_z) log_z[b] = scratch[worker]->both(args, b, out);
    else scratch[worker]->run(args, b, saved + b * size, grad[b], out);
  });
}

template <class T>
int64_t backward(const AlignmentArgs* a, T* log_z, T* saved, const T* grad, T* d_match, T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) {
  on_large_pages(d_match, a->B * a->N * a->M);
  const bool local = a->mode == kLocal;
  const auto with = [&](auto affine_, auto local_) {
    run<T, decltype(affine_)::value, decltype(local_)::value>(*a, log_z, saved, grad, d_match, d_gap_x, d_gap_y, d_open_x, d_open_y);
  };
  const std::true_type yes;
  const std::false_type no;
  if (a->affine) local ? with(yes, yes) : with(yes, no);
  else local ? with(no, yes) : with(no, no);
  return 0;
}

template <class T, bool Affine, bool Local>
void run_forward(const AlignmentArgs& args, T* log_z, T* saved) {
  const int64_t size = Saved<T, Affine>::size(args.N, args.M);
  std::vector<std::unique_ptr<Forward<T, Affine, Local>>> scratch(std::max<int64_t>(1, args.threads));
  for_pairs(args, 20000, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Forward<T, Affine, Local>>();
    log_z[b] = scratch[worker]->run(args, b, saved ? saved + b * size : nullptr);
  });
}

template <class T>
int64_t forward(const AlignmentArgs* a, T* log_z, T* saved) {
  const bool local = a->mode == kLocal;
  if (a->affine) local ? run_forward<T, true, true>(*a, log_z, saved) : run_forward<T, true, false>(*a, log_z, saved);
  else local ? run_forward<T, false, true>(*a, log_z, saved) : run_forward<T, false, false>(*a, log_z, saved);
  return 0;
}

}  // namespace
}  // namespace sl

#define BACKWARD(suffix, T)                                                                                                 \
  extern "C" int64_t sl_alignment_backward_##suffix(const sl::AlignmentArgs* a, T* saved, const T* grad, T* d_match,        \
                                                    T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) {                     \
    return sl::backward<T>(a, nullptr, saved, grad, d_match, d_gap_x, d_gap_y, d_open_x, d_open_y);                         \
  }                                                                                                                         \
  extern "C" int64_t sl_alignment_value_and_gradient_##suffix(const sl::AlignmentArgs* a, T* log_z, T* d_match,             \
                                                              T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) {           \
    return sl::backward<T>(a, log_z, nullptr, nullptr, d_match, d_gap_x, d_gap_y, d_open_x, d_open_y);                      \
  }
BACKWARD(f32, float)
BACKWARD(f64, double)
extern "C" {
int64_t sl_alignment_forward_f32(const sl::AlignmentArgs* a, float* log_z, float* saved) { return sl::forward(a, log_z, saved); }
int64_t sl_alignment_forward_f64(const sl::AlignmentArgs* a, double* log_z, double* saved) { return sl::forward(a, log_z, saved); }
// Lanes of a vector, from which the size of `saved` follows.
int64_t sl_alignment_lanes_f32(const sl::AlignmentArgs*) { return sl::kLanes<float>; }
int64_t sl_alignment_lanes_f64(const sl::AlignmentArgs*) { return sl::kLanes<double>; }
}
