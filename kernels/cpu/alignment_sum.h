// Sums over paths in probability space, with an exponent for every row.
//
// The sweep of alignment.h with (max, +) replaced by (+, x) on w = exp(score):
//   m = (M + X + Y)[diagonal] w,   x = (M + Y)[above] ox + X[above] gx,   y = (M + X)[left] oy + Y[left] gy.
// Totals of neighbouring nodes are similar, those of distant ones differ by thousands of binary
// orders, so each lane (row) has its own exponent E: its node holds total * 2^-E, and what comes from
// the lane above is multiplied by 2^(E above - E). Whenever a total leaves [low, kHigh] all lanes are
// brought back to [1, 2). The row between two blocks carries an exponent a column.
//
// Exactness: what falls below the smallest normal number (2^-126 in float) is lost. A path whose total
// into a node is lost in one state could only have gained e^spread over the others from there on,
// spread = the largest |gap - open|, so a node with total >= safe = 2^-126 e^spread / 1e-8 has lost no
// share of Z above 1e-8. A node below safe (or unreachable: forbidden parts look the same) ends the
// attempt, and the pair is done with an exponent for every number (alignment_exact.h): slower, always right.
#pragma once
#include "alignment.h"
#include "chain_scaled.h"
#include "wide.h"

namespace sl {

// Far apart, since bringing lanes back costs as much as several steps. The product of a total, a weight
// and what follows, kHigh^2 e^kLargest, is divided by Z in one factor, so it must stay below 2^126.
template <class T>
constexpr T kLow = T(1) / T(int64_t(1) << 50);
template <class T>
constexpr T kHigh = T(int64_t(1) << 30);
template <class T>
constexpr T kLargest = sizeof(T) == 4 ? T(42) : T(500);

template <class T>
using LaneInt = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

// 2^e, 0 below the normal numbers; e is at most the largest exponent.
template <class T>
inline Vec<T> power_of_two(IVec<T> e) {
  using K = ExpConst<T>;
  using Int = LaneInt<T>;
  const IVec<T> bits = (e > -K::bias ? e + Int(K::bias) : IVec<T>{}) << K::shift;
  Vec<T> x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// At most as many as 2^-e can take away.
template <class T>
inline IVec<T> orders(IVec<T> e) {
  const LaneInt<T> most = ExpConst<T>::bias - 1;
  return e > most ? IVec<T>{} + most : e;
}

template <class T>
inline IVec<T> exponents(Vec<T> x) {
  using K = ExpConst<T>;
  IVec<T> bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (bits >> K::shift) - LaneInt<T>(K::bias);
}

// Whether any lane is outside [low, high]; NaN is.
template <class T>
inline bool any_outside(Vec<T> x, Vec<T> low, Vec<T> high) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NGE_UQ) | _mm512_cmp_ps_mask((__m512)x, (__m512)high, _CMP_NLE_UQ);
  else
    return _mm512_cmp_pd_mask((__m512d)x, (__m512d)low, _CMP_NGE_UQ) | _mm512_cmp_pd_mask((__m512d)x, (__m512d)high, _CMP_NLE_UQ);
#else
  return sign_bits(~((x >= low) & (x <= high)));
#endif
}

template <class T>
inline bool any_set(IVec<T> x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_test_epi32_mask((__m512i)x, (__m512i)x);
  else return _mm512_test_epi64_mask((__m512i)x, (__m512i)x);
#else
  return sign_bits(x != 0);
#endif
}

// A set of lanes, and the few things done with one.
#if defined(__AVX512F__)
template <class T>
using Lanes = std::conditional_t<sizeof(T) == 4, __mmask16, __mmask8>;
template <class T>
inline Lanes<T> lanes_between(IVec<T> j, IVec<T> first, IVec<T> last) {
  if constexpr (sizeof(T) == 4) return _mm512_mask_cmple_epi32_mask(_mm512_cmpge_epi32_mask((__m512i)j, (__m512i)first), (__m512i)j, (__m512i)last);
  else return _mm512_mask_cmple_epi64_mask(_mm512_cmpge_epi64_mask((__m512i)j, (__m512i)first), (__m512i)j, (__m512i)last);
}
template <class T>
inline Vec<T> choose(Lanes<T> lanes, Vec<T> a, Vec<T> b) {
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_mask_mov_ps((__m512)b, lanes, (__m512)a);
  else return (Vec<T>)_mm512_mask_mov_pd((__m512d)b, lanes, (__m512d)a);
}
#else
template <class T>
using Lanes = IVec<T>;
template <class T>
inline Lanes<T> lanes_between(IVec<T> j, IVec<T> first, IVec<T> last) { return (j >= first) & (j <= last); }
template <class T>
inline Vec<T> choose(Lanes<T> lanes, Vec<T> a, Vec<T> b) { return lanes ? a : b; }
#endif

// How many entries from p[0] on are x: at most L.
template <class T>
inline int64_t same_onward(const T* p, T x) {
#if defined(__AVX512F__)
  return __builtin_ctz(~(bits_ge(load(p), splat(x)) & bits_ge(splat(x), load(p))));
#else
  int64_t k = 0;
  while (k < kLanes<T> && p[k] == x) ++k;
  return k;
#endif
}

// e^score of match scores, below 2^-126 zero. Scores above kLargest end the attempt, so theirs may be anything that
// is not a plausible number.
template <class T>
inline Vec<T> exp_of_score(Vec<T> x) {
#if defined(__AVX512F__)
  // As vexp, but nothing has to be set to 0: the scaling underflows by itself.
  if constexpr (sizeof(T) == 4) {
    const Vec<T> bounded = vmax(splat<T>(-200), x);
    const Vec<T> k = (bounded * T(1.44269504088896340736) + kRounding<T>) - kRounding<T>;
    return scalef(exp_fraction<T>(bounded, k), k);
  }
#endif
  return vexp<T>(vmin(x, splat<T>(kLargest<T>)));
}

// What the forward pass leaves for the backward one, in one row of T a pair: whether it succeeded and
// Z = z * 2^e, then for each block the row of nodes in front of it: max(M, Y) or all, X, exponents.
template <class T, bool Affine>
struct Saved {
  static constexpr int64_t kHeader = 4, kRows = Affine ? 3 : 2;
  T* data;
  int64_t width;

  static int64_t row_width(int64_t M) { return M + 3 * kLanes<T>; }
  static int64_t size(int64_t N, int64_t M) { return kHeader + ((N + kLanes<T> - 1) / kLanes<T> + 1) * kRows * row_width(M); }
  Saved(T* pair, int64_t M) : data(pair), width(row_width(M)) {}
  T& succeeded() const { return data[0]; }
  T& mantissa() const { return data[1]; }
  T& exponent() const { return data[2]; }
  T* my(int64_t block) const { return data + kHeader + block * kRows * width; }
  T* x(int64_t block) const { return my(block) + (Affine ? width : 0); }
  T* e(int64_t block) const { return my(block) + (kRows - 1) * width; }
};

// exp of a pair's gap scores, laid out as Pair has them, and the bound for safe totals.
template <class T>
struct GapWeights {
  static constexpr int L = kLanes<T>;
  Buffer<T> store;
  T *gap_x, *open_x, *gap_y, *open_y;
  T safe = 0, low = 0;  // below low a lane is brought back; below safe that comes too late
  LaneInt<T> lowest = 0;

  // False where some exp has no finite value, or none that could be multiplied.
  bool set(const Pair<T>& p, bool affine) {
    const auto too_large = [&](const T* from, int64_t size) {
      return std::any_of(from, from + size, [](T x) { return !(x < kLargest<T>); });
    };
    if (too_large(p.gap_x, p.n) || too_large(p.open_x, p.n) || too_large(p.gap_y, p.m) || too_large(p.open_y, p.m)) return false;
    const int64_t each_x = p.n + 2 * L, each_y = p.m + 3 * L;
    store.resize(2 * (each_x + each_y) + 4 * L);
    T* out = store.data;
    const auto fill = [&](const T* from, int64_t whole) {
      T* start = out;
      for (int64_t k = 0; k < whole; k += L) store_row(out, k, whole, vexp<T>(load_row(from, k, whole, T(0))));
      out += whole;
      return start;
    };
    gap_x = fill(p.gap_x, each_x);
    open_x = affine ? fill(p.open_x, each_x) : gap_x;
    gap_y = fill(p.gap_y - L, each_y) + L;
    open_y = affine ? fill(p.open_y - L, each_y) + L : gap_y;
    double up = 0, down = 0;
    const auto widen = [&](const T* gap, const T* open, int64_t size) {
      for (int64_t k = 0; affine && k < size; ++k) {
        const double d = double(gap[k]) - double(open[k]);
        if (d == d) up = std::max(up, d), down = std::max(down, -d);
      }
    };
    widen(p.gap_x, p.open_x, p.n);
    widen(p.gap_y, p.open_y, p.m);
    const double least = double(std::numeric_limits<T>::min()) * std::exp(std::min(up + down, 700.0)) / 1e-8;
    safe = T(std::min(least, 1e30));
    // A step may lose 20 binary orders before what is left is no longer safe.
    low = std::max(kLow<T>, std::min(safe * T(1 << 20), T(0.25)));
    low = std::max(low, std::min(safe, T(1)));
    lowest = low > kLow<T> ? 0 : -40;
    return true;
  }
};

// Where to bring totals back to, as binary orders. Those of global alignments grow along a row up to the diagonal, by
// up to eight orders a step, and fall beyond it: left of it they are brought to the lower end of the range, right of
// it to the upper one, which takes half as many times. Backward steps see the same from the other side.
template <class T>
class Places {
  using I = IVec<T>;
  LaneInt<T> lowest_ = 0, steep_ = 0;
  I diagonal_;

 public:
  void set(const Pair<T>& p, const GapWeights<T>& w, int64_t i0, bool backward) {
    lowest_ = w.lowest, steep_ = p.mode != kGlobal ? 0 : backward ? -2 : 2;
    const double slope = double(p.m) / double(p.n);
    for (int r = 0; r < kLanes<T>; ++r) diagonal_[r] = LaneInt<T>(double(i0 + kLanes<T> - 1 - r) * slope);
  }
  // Of lanes in columns j.
  I at(I j) const {
    const LaneInt<T> highest = 20;
    const I place = (j - diagonal_) * steep_ - LaneInt<T>(10);
    return place < lowest_ ? I{} + lowest_ : place > highest ? I{} + highest : place;
  }
};

// What a block's forward steps leave for its backward steps: at each step the weights of its cells and the totals
// of its nodes, which are 0 outside the matrix, by state, or with linear gaps that of M and of all.
template <class T, bool Affine>
struct StepRecord {
  static constexpr int64_t L = kLanes<T>;
  Buffer<T> weights, nodes;
  int64_t begin = 0;
  std::vector<IVec<T>> exponents;  // in whose scale nodes are
  std::vector<int64_t> since;      // and from which step on

  enum Field { kM, kX, kY, kAll = 1 };
  static constexpr int64_t kFields = Affine ? 3 : 2;
  void reset(int64_t begin_, int64_t steps) {
    begin = begin_;
    nodes.resize(steps * kFields * L);
    weights.resize((steps + L - 1) / L * L * L);
    exponents.clear(), since.clear();
  }
  void change(int64_t t, const IVec<T>& e) { exponents.push_back(e), since.push_back(t); }
  T* weights_at(int64_t t) { return weights.data + (t - begin) * L; }
  T* nodes_at(int64_t t) { return nodes.data + (t - begin) * kFields * L; }
};

template <class T, bool Affine, bool Local>
class SumSweep {
  static constexpr int64_t L = kLanes<T>;
  using V = Vec<T>;
  using I = IVec<T>;
  using Int = LaneInt<T>;

 public:
  // False, as from first_row, where exponents may become too large for whole numbers in T.
  bool set(const Pair<T>& pair, const GapWeights<T>& weights) {
    p_ = &pair, w_ = &weights;
    column_.resize(pair.n + 2 * L);
    column_e_.assign(pair.n + 2 * L, 0);
    const bool good = border(pair.n, pair.open_x, pair.gap_x, true, 1, column_.data, column_e_.data());
    std::fill_n(column_.data + pair.n + 1, 2 * L - 1, T(0));
    top_ = splat<T>(0);
    z_ = {};
    return good && double(pair.n + pair.m) * kLargest<T> / kLn2 < kMostOrders;
  }

  // The row of nodes (0, j).
  bool first_row(T* my, T* x, T* e) {
    std::vector<Int> exponent(p_->m + 1);
    // A change of exponents costs as much as a step, so they change no oftener than has to be.
    if (!border(p_->m, p_->open_y, p_->gap_y, false, 16, my, exponent.data())) return false;
    for (int64_t j = 0; j < Saved<T, Affine>::row_width(p_->M); ++j) {
      if (j > p_->m) my[j] = 0;
      e[j] = T(exponent[std::min(j, p_->m)]);
      if (Affine) x[j] = 0;
    }
    return true;
  }

  // Runs block k from the row of nodes in front of it to the one behind it, and fetches block `next` into the
  // cache; false: not representable.
  bool block(int64_t k, int64_t next, const T* in_my, const T* in_x, const T* in_e, T* out_my, T* out_x, T* out_e, StepRecord<T, Affine>* record) {
    const Steps steps(*p_, k * L, 1, true);
    const int64_t i0 = steps.i0, begin = steps.begin;
    in_my_ = in_my, in_x_ = in_x, in_e_ = in_e, out_my_ = out_my, out_x_ = out_x, out_e_ = out_e;
    if (record) record->reset(begin, steps.count());
    start_block(steps);
    if (!link(begin)) return false;
    if (record) record->change(begin, e_);
    Ahead<T> ahead(p_->match, p_->row, p_->n, p_->m, next * L, L);
    alignas(kBytes) T tile[L * L];
    for (int64_t t0 = begin; t0 < steps.end; t0 += L) {
      const int64_t t1 = std::min(t0 + L, steps.end);
      const int64_t a = std::clamp(steps.inner_begin, t0, t1), b = std::clamp(steps.inner_end, a, t1);
      T* weights = record ? record->weights_at(t0) : tile;
      ahead.next(L);
      weigh(i0, t0, weights);
      const bool good = (a == t0 || part<false>(steps, t0, a, weights, record)) && (a == b || part<true>(steps, a, b, weights + (a - t0) * L, record)) &&
                        (b == t1 || part<false>(steps, b, t1, weights + (b - t0) * L, record));
      if (!good) return false;
    }
    fill_row(std::max<int64_t>(1, steps.end - (L - 1) + 1), Saved<T, Affine>::row_width(p_->M));
    if (Local) flush_ends(steps);
    return hmax(top_) < kLargest<T>;
  }

  // The total of the last node, after the last block; or of all local alignments.
  Wide total() const {
    if (Local) return z_ + Wide::of(1);
    const int64_t r = L - 1 - (p_->n - 1) % L;
    return Wide::of(double(s_.my[r]) + (Affine ? double(s_.x[r]) : 0.0), e_[r]);
  }
  // Node (i, 0), only X: times 2 to the exponent.
  T column(int64_t i) const { return column_.data[i]; }
  Int column_exponent(int64_t i) const { return column_e_[i]; }

 private:
  static constexpr double kMostOrders = sizeof(T) == 4 ? 0x1p24 : 0x1p50;

  struct State {
    V my, x, y, mx, before;  // before: all that leads to the next step's cells diagonally

    State() = default;
    State(V my, V x, V y, V mx, V before) : my(my), x(x), y(y), mx(mx), before(before) {}
    // Member by member, so that a copy lives in registers: as a whole GCC copies it through memory.
    State(const State& other) { *this = other; }
    State& operator=(const State& other) {
      my = other.my, before = other.before;
      if (Affine) x = other.x, y = other.y, mx = other.mx;
      return *this;
    }
  };

  // Weights of the L steps from t on. All at once: among the steps, which wait for each other, the long chains of
  // operations of the exponentials would fill the queues from which those are taken.
  void weigh(int64_t i0, int64_t t, T* out) {
    V v[L];
    read_tile<1>(*p_, i0, 0, t, v);
    V top = top_;
#pragma GCC unroll 16
    for (int k = 0; k < L; ++k) {
      top = vmax(top, v[k]);
      store(out + k * L, exp_of_score<T>(v[k]));
    }
    top_ = top;
  }

  // Totals of the nodes along a border: exponents, multiples of `unit`, and mantissas.
  bool border(int64_t size, const T* open, const T* gap, bool along_x, double unit, T* out, Int* e) {
    constexpr int64_t D = kLanes<double>;
    const int64_t last = Local ? -1 : std::min(size, along_x ? -p_->low : p_->high);  // in the band
    sums_.resize(2 * (size + 1 + D));
    double *sums = sums_.data, *whole = sums + size + 1 + D, sum = 0;
    std::fill(sums + last + 1, sums + size + 1, kNegInf<double>);
    if (p_->mode == kGlobal) {
      for (int64_t k = 0; k <= last; ++k) {
        if (k) sum += double(k == 1 ? open[0] : gap[k - 1]);
        if (sum < -kMostOrders * kLn2 && sum > kNegInf<double>) return false;
        sums[k] = sum;
      }
    } else {
      std::fill(sums, sums + last + 1, 0.0);
    }
    for (int64_t k = 0; k <= size; k += D) {
      const Vec<double> x = load(sums + k);
      const Vec<double> floor = x > kNegInf<double> ? unit * ((x / (unit * kLn2) - 0.5 + kRounding<double>) - kRounding<double>) : Vec<double>{};
      store(whole + k, floor);
      store(sums + k, vexp<double>(x - floor * kLn2));
    }
    for (int64_t k = 0; k <= size; ++k) out[k] = T(sums[k]), e[k] = Int(whole[k]);
    return true;
  }

  void start_block(const Steps& steps) {
    const int64_t i0 = steps.i0, begin = steps.begin;
    V border{};
    places_.set(*p_, *w_, i0, false);
    const I place = places_.at(I{} - Int(1));
    for (int r = 0; r < L; ++r) {
      const int64_t i = i0 + L - 1 - r, row = std::min(i, p_->n - 1);
      open_x_[r] = w_->open_x[row], gap_x_[r] = w_->gap_x[row];
      border[r] = begin == 0 && i < p_->n ? column_.data[row + 1] : T(0);
      e_[r] = border[r] > 0 ? column_e_[row + 1] - place[r] : Int(in_e_[begin]);
      first_[r] = Int(std::max<int64_t>(0, i + p_->low));
      last_[r] = i < p_->n ? Int(std::min(p_->m - 1, i + p_->high)) : Int(-1);
    }
    border *= power_of_two<T>(place);
    border_ = border;
    idle_ = choose<T>(lanes_between<T>(lane_rows_, I{} + Int(steps.rows), I{} + Int(L)), splat<T>(1), V{});
    s_ = {Affine ? V{} : border, border, V{}, border, V{}};
    const T scale = T(Wide::of(1, int64_t(in_e_[begin])).at(e_[L - 1]));
    s_.before[L - 1] = (in_my_[begin] + (Affine ? in_x_[begin] : T(0))) * scale;
    out_my_[0] = Affine ? T(0) : column_.data[std::min(i0 + L, p_->n)];
    if (Affine) out_x_[0] = column_.data[std::min(i0 + L, p_->n)];
    out_e_[0] = T(column_e_[std::min(i0 + L, p_->n)]);
    if (begin > 0) fill_row(1, begin);
    set_start();
    ends_ = V{}, ends_total_ = V{}, ends_e_ = I{} - Int(1 << 20);
  }

  // The empty prefix of a local alignment in each lane's scale.
  void set_start() {
    const Int most = ExpConst<T>::bias;
    start_ = power_of_two<T>(e_ < -most ? I{} + most : -e_);
  }

  // Nodes of the row behind the block that no step reaches.
  void fill_row(int64_t from, int64_t to) const {
    if (from >= to) return;
    std::fill(out_my_ + from, out_my_ + to, T(0));
    if (Affine) std::fill(out_x_ + from, out_x_ + to, T(0));
    std::fill(out_e_ + from, out_e_ + to, out_e_[from - 1]);
  }

  // Factors from the lane above, for the exponents as they are now and the column that step t takes in.
  bool link(int64_t t) {
    const T exponent = in_e_[std::min(t + 1, p_->m)];
    T next;
    const Int as_int = Int(exponent);
    std::memcpy(&next, &as_int, sizeof as_int);
    taken_ = exponent;
    Vec<T> e;
    std::memcpy(&e, &e_, sizeof e);
    const Vec<T> above = from_above<T>(e, &next);
    I difference;
    std::memcpy(&difference, &above, sizeof difference);
    difference -= e_;
    const I active = Int(t) - lane_rows_ <= last_;  // the others have run their row
    const Int limit = ExpConst<T>::bias - 27;
    const I far = ((difference > limit) | (difference < -limit)) & active;
    // Nothing comes into lanes without a row, so that all in them is 0.
    factor_ = idle_ > T(0) ? V{} : power_of_two<T>(active & ~far ? difference : I{});
    return !any_set<T>(far);
  }
  // Brings the lanes in `inside` back into the middle of the range; false if one of them is below safe or not finite.
  bool normalise(V h, I j, I inside, bool all_inside) {
    const I fine = (h >= w_->safe) & (h <= std::numeric_limits<T>::max());
    if (any_set<T>(inside & ~fine)) return false;
    if (Local) add_ends();
    const I e = (h > T(0)) & inside ? orders<T>(exponents<T>(h) - places_.at(j)) : I{};
    const V scale = power_of_two<T>(-e);
    s_.my *= scale, s_.before *= scale;
    if (Affine) s_.x *= scale, s_.y *= scale, s_.mx *= scale;
    e_ += e;
    if (all_inside) return true;
    // A lane that has not started takes the exponent it will be fed with; in a band its first diagonal
    // neighbour may have come already.
    const I before = e_;
    for (int r = int(L) - 2; r >= 0; --r)
      if (!(h[r] > 0) && !inside[r] && border_[r] == 0) e_[r] = e_[r + 1];
    const I moved = before - e_;
    const Int limit = ExpConst<T>::bias - 27;
    if (any_set<T>(((moved > limit) | (moved < -limit)) & (s_.before > T(0)))) return false;
    s_.before *= power_of_two<T>(moved > limit ? I{} : moved);
    return true;
  }

  template <bool Plain>
  bool part(const Steps& steps, int64_t from, int64_t to, const T* weights, StepRecord<T, Affine>* record) {
    return record ? run<Plain, true>(steps, from, to, weights, record) : run<Plain, false>(steps, from, to, weights, record);
  }

  // Steps from..to-1, at most L, with their weights. All that the loop needs is copied out of the object first: the
  // compiler would reload it behind every store.
  template <bool Plain, bool Keep>
  bool run(const Steps& steps, int64_t from, int64_t to, const T* weights, StepRecord<T, Affine>* record) {
    using Record = StepRecord<T, Affine>;
    State s = s_;
    V ends = ends_, factor, start, open_in, gap_in;
    T taken;
    const auto reload = [&] { factor = factor_, start = start_, taken = taken_, open_in = open_x_ * factor, gap_in = gap_x_ * factor; };
    reload();
    const V low = splat<T>(w_->low), high = splat<T>(kHigh<T>), one = splat<T>(1), border = border_, idle = idle_;
    const I first = first_, last = last_, rows = lane_rows_;
    const int64_t m_last = p_->m, L1 = L - 1;
    const bool semiglobal = p_->mode == kSemiglobal;
    const Lanes<T> last_row = lanes_between<T>(rows, I{} + Int(p_->n - 1 - steps.i0), I{} + Int(p_->n - 1 - steps.i0));
    const T *in_my = in_my_ + 1, *in_x = in_x_ + 1, *in_e = in_e_ + 1, *open_right = w_->open_y - L1, *gap_right = w_->gap_y - L1;
    T *out_my = out_my_ + 1 - L1, *out_x = out_x_ + 1 - L1, *out_e = out_e_ + 1 - L1;
    T* kept = Keep ? record->nodes_at(from) : nullptr;
    for (int64_t t = from; t < to;) {
      if (in_e[t] != taken) {
        if (!link(t)) return false;
        reload();
      }
      const int64_t begin = t, end = std::min(to, t + same_onward(in_e + t, taken));
      bool outside = false;
      V h;
      do {
        V open_y = load(open_right + t), gap_y = load(gap_right + t);
        V open_above = open_in, gap_above = gap_in;
        I j{};
        Lanes<T> inside{};
        if (!Plain) {
          j = Int(t) - rows, inside = lanes_between<T>(j, first, last);
          if (semiglobal) {
            const Lanes<T> last_column = lanes_between<T>(j, I{} + Int(m_last - 1), I{} + Int(m_last - 1));
            open_above = choose<T>(last_column, factor, open_in), gap_above = choose<T>(last_column, factor, gap_in);
            open_y = choose<T>(last_row, one, open_y), gap_y = choose<T>(last_row, one, gap_y);
          }
        }
        const V my = from_above<T>(s.my, in_my + t);
        V m = (Local ? s.before + start : s.before) * load(weights), x, y;
        if (Affine) {
          const V above = from_above<T>(s.x, in_x + t);
          s.before = (my + above) * factor;
          x = my * open_above + above * gap_above;
          y = s.mx * open_y + s.y * gap_y;
        } else {
          s.before = my * factor;
          x = my * gap_above;
          y = s.my * gap_y;
        }
        if (!Plain) m = choose<T>(inside, m, V{}), x = choose<T>(inside, x, V{}), y = choose<T>(inside, y, V{});
        if (Local) ends += m;
        if (Affine) {
          if (Keep) store(kept + Record::kM * L, m), store(kept + Record::kX * L, x), store(kept + Record::kY * L, y);
          if (!Plain && t < L1) x = choose<T>(lanes_between<T>(j, I{} - Int(L), I{} - Int(1)), border, x);
          s.my = m + y, s.mx = m + x, s.x = x, s.y = y;
          h = s.my + x;
        } else {
          h = x + (m + y);  // x comes last
          if (Keep) store(kept + Record::kM * L, m), store(kept + Record::kAll * L, h);
          if (!Plain && t < L1) h = choose<T>(lanes_between<T>(j, I{} - Int(L), I{} - Int(1)), border, h);
          s.my = h;
        }
        if (Plain || (t >= L1 && t - L1 < m_last)) {
          out_my[t] = s.my[0];
          if (Affine) out_x[t] = s.x[0];
        }
        outside = any_outside<T>(Plain ? h + idle : choose<T>(inside, h, one), low, high);
        weights += L, kept += Keep ? Record::kFields * L : 0, ++t;
      } while (!__builtin_expect(outside, 0) && t < end);
      const T own = T(e_[0]);
      if (Plain) store(out_e + begin, splat<T>(own));
      else if (t > L1) std::fill(out_e + std::max(begin, L1), out_e + std::max(std::max(begin, L1), std::min(t, m_last + L1)), own);
      if (__builtin_expect(outside, 0)) {
        s_ = s, ends_ = ends;
        const I j = Int(t - 1) - rows;
        if (!normalise(h, j, (j >= first) & (j <= last), Plain) || !link(t)) return false;
        if (Local) set_start();
        s = s_, ends = ends_;
        reload();
        if (Keep) record->change(t, e_);
      }
    }
    s_ = s, ends_ = ends;
    return true;
  }

  // Adds the ends collected since the last change of exponents to the lanes' totals.
  void add_ends() {
    const I mine = ends_ > T(0) ? e_ + exponents<T>(ends_) : ends_e_;
    const I e = mine > ends_e_ ? mine : ends_e_;
    const Int most = ExpConst<T>::bias;
    const I shift = e_ - e;
    ends_total_ = ends_total_ * power_of_two<T>(ends_e_ - e) + ends_ * power_of_two<T>(shift > most ? I{} + most : shift);
    ends_e_ = e;
    ends_ = V{};
  }
  void flush_ends(const Steps& steps) {
    add_ends();
    for (int64_t row = 0; row < steps.rows; ++row) z_ = z_ + Wide::of(double(ends_total_[L - 1 - row]), ends_e_[L - 1 - row]);
  }

  const Pair<T>* p_ = nullptr;
  const GapWeights<T>* w_ = nullptr;
  const T *in_my_ = nullptr, *in_x_ = nullptr, *in_e_ = nullptr;
  T *out_my_ = nullptr, *out_x_ = nullptr, *out_e_ = nullptr;
  State s_;
  V open_x_, gap_x_, border_, idle_, factor_, top_, start_, ends_, ends_total_;
  I e_, first_, last_, ends_e_;
  Places<T> places_;
  const I lane_rows_ = lane_numbers<T>();
  T taken_ = 0;  // the exponent of the column that comes in from above
  Buffer<T> column_;
  Buffer<double> sums_;
  std::vector<Int> column_e_;
  Wide z_;
};

}  // namespace sl
