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
  T safe = 0, low = 0;  // below low a lane is brought back to [1, 2); below safe that comes too late

  void set(const Pair<T>& p, bool affine) {
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
    // Beyond this exp has no finite value, or none that could be multiplied.
    const auto too_large = [&](const T* from, int64_t size) {
      return std::any_of(from, from + size, [](T x) { return !(x < kLargest<T>); });
    };
    if (too_large(p.gap_x, p.n) || too_large(p.open_x, p.n) || too_large(p.gap_y, p.m) || too_large(p.open_y, p.m)) up = 700;
    const double least = double(std::numeric_limits<T>::min()) * std::exp(std::min(up + down, 700.0)) / 1e-8;
    safe = T(std::min(least, 1e30));
    // A step may lose 20 binary orders before what is left is no longer safe.
    low = std::max(kLow<T>, std::min(safe * T(1 << 20), T(0.25)));
    low = std::max(low, std::min(safe, T(1)));
  }
};

// What a block's forward steps leave for its backward steps: vectors of each step, in the scale of its
// exponents.
template <class T, bool Affine>
struct StepRecord {
  static constexpr int64_t L = kLanes<T>;
  Buffer<T> store;
  int64_t begin = 0, steps = 0;
  std::vector<int32_t> event;        // of each step: its entry in exponents
  std::vector<IVec<T>> exponents;

  enum Field { kWeight, kBefore, kAboveMY, kLeftMX, kAboveX, kLeftY };
  static constexpr int64_t kFields = Affine ? 6 : 4;
  void reset(int64_t begin_, int64_t steps_) {
    begin = begin_, steps = steps_;
    store.resize(steps * kFields * L);
    event.resize(steps);
    exponents.clear();
  }
  T* at(int64_t t) { return store.data + (t - begin) * kFields * L; }
};

template <class T, bool Affine, bool Local>
class SumSweep {
  static constexpr int64_t L = kLanes<T>;
  using V = Vec<T>;
  using I = IVec<T>;
  using Int = LaneInt<T>;

 public:
  void set(const Pair<T>& pair, const GapWeights<T>& weights) {
    p_ = &pair, w_ = &weights;
    column_.resize(pair.n + 2 * L);
    column_e_.assign(pair.n + 2 * L, 0);
    border(pair.n, pair.open_x, pair.gap_x, true, column_.data, column_e_.data());
    std::fill_n(column_.data + pair.n + 1, 2 * L - 1, T(0));
    top_ = splat<T>(0);
    z_ = {};
  }

  // The row of nodes (0, j).
  void first_row(T* my, T* x, T* e) {
    std::vector<Int> exponent(p_->m + 1);
    border(p_->m, p_->open_y, p_->gap_y, false, my, exponent.data());
    for (int64_t j = 0; j < Saved<T, Affine>::row_width(p_->M); ++j) {
      if (j > p_->m) my[j] = 0;
      e[j] = T(exponent[std::min(j, p_->m)]);
      if (Affine) x[j] = 0;
    }
  }

  // Runs block k from the row of nodes in front of it to the one behind it, and fetches block `next` into the
  // cache; false: not representable.
  bool block(int64_t k, int64_t next, const T* in_my, const T* in_x, const T* in_e, T* out_my, T* out_x, T* out_e, StepRecord<T, Affine>* record) {
    const Steps steps(*p_, k * L, 1);
    const int64_t i0 = steps.i0, begin = steps.begin;
    in_my_ = in_my, in_x_ = in_x, in_e_ = in_e, out_my_ = out_my, out_x_ = out_x, out_e_ = out_e;
    if (record) record->reset(begin, steps.count());
    start_block(steps);
    if (!link(begin)) return false;
    if (record) record->exponents.push_back(e_);
    Ahead<T> ahead(p_->match, p_->row, p_->n, p_->m, next * L, L);
    // The steps of a tile wait for each other; the exponentials of the next tile fill the gaps.
    alignas(kBytes) T scores[L * L], weights[2][L * L];
    load_tile<1>(*p_, i0, 0, begin, scores);
    for (int r = 0; r < L; ++r) store(weights[0] + r * L, weight_of(load(scores + r * L)));
    int now = 0;
    for (int64_t t0 = begin; t0 < steps.end; t0 += L, now ^= 1) {
      const int64_t t1 = std::min(t0 + L, steps.end);
      const int64_t a = std::clamp(steps.inner_begin, t0, t1), b = std::clamp(steps.inner_end, a, t1);
      load_tile<1>(*p_, i0, 0, t1, scores);
      const Tiles tiles{t0, weights[now], scores, weights[now ^ 1], &ahead};
      const bool good = (a == t0 || part<false>(steps, t0, a, tiles, record)) && (a == b || part<true>(steps, a, b, tiles, record)) &&
                        (b == t1 || part<false>(steps, b, t1, tiles, record));
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
  struct State {
    V my, x, y, mx, above_my, above_x;

    State() = default;
    State(V my, V x, V y, V mx, V above_my, V above_x) : my(my), x(x), y(y), mx(mx), above_my(above_my), above_x(above_x) {}
    // Member by member, so that a copy lives in registers: as a whole GCC copies it through memory.
    State(const State& other) { *this = other; }
    State& operator=(const State& other) {
      my = other.my, above_my = other.above_my;
      if (Affine) x = other.x, y = other.y, mx = other.mx, above_x = other.above_x;
      return *this;
    }
  };
  // L steps each: the weights of these, the scores of the next, and where their weights go.
  struct Tiles {
    int64_t t0;
    const T *weights, *scores;
    T* next;
    Ahead<T>* ahead;
  };

  V weight_of(V score) {
    top_ = vmax(top_, score);
    return vexp<T>(vmin(score, splat<T>(kLargest<T>)));
  }

  // Totals of the nodes along a border, mantissas and exponents.
  void border(int64_t size, const T* open, const T* gap, bool along_x, T* out, Int* e) {
    constexpr int64_t D = kLanes<double>;
    sums_.resize(size + 1 + D);
    double sum = 0;
    for (int64_t k = 0; k <= size; ++k) {
      if (p_->mode == kGlobal && k) sum += double(k == 1 ? open[0] : gap[k - 1]);
      const bool there = !Local && (along_x ? p_->node_in_band(k, 0) : p_->node_in_band(0, k));
      sums_.data[k] = there ? sum : kNegInf<double>;
    }
    for (int64_t k0 = 0; k0 <= size; k0 += D) {
      double whole[D];
      Vec<double> x = load(sums_.data + k0);
      for (int64_t k = 0; k < D; ++k) whole[k] = x[k] > kNegInf<double> ? std::floor(x[k] / kLn2) : 0;
      x = vexp<double>(x - load(whole) * kLn2);
      for (int64_t k = k0; k < std::min(k0 + D, size + 1); ++k) out[k] = T(x[k - k0]), e[k] = Int(whole[k - k0]);
    }
  }

  void start_block(const Steps& steps) {
    const int64_t i0 = steps.i0, begin = steps.begin;
    V border{};
    for (int r = 0; r < L; ++r) {
      const int64_t i = i0 + L - 1 - r, row = std::min(i, p_->n - 1);
      open_x_[r] = w_->open_x[row], gap_x_[r] = w_->gap_x[row];
      border[r] = begin == 0 ? column_.data[row + 1] : T(0);
      e_[r] = border[r] > 0 ? column_e_[row + 1] : Int(in_e_[begin]);
      first_[r] = Int(std::max<int64_t>(0, i + p_->low));
      last_[r] = i < p_->n ? Int(std::min(p_->m - 1, i + p_->high)) : Int(-1);
    }
    border_ = border;
    s_ = {Affine ? V{} : border, border, V{}, border, V{}, V{}};
    const T scale = T(Wide::of(1, int64_t(in_e_[begin])).at(e_[L - 1]));
    s_.above_my[L - 1] = in_my_[begin] * scale;
    if (Affine) s_.above_x[L - 1] = in_x_[begin] * scale;
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
    for (int64_t j = from; j < to; ++j) {
      out_my_[j] = 0;
      if (Affine) out_x_[j] = 0;
      out_e_[j] = out_e_[j - 1];
    }
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
    factor_ = power_of_two<T>(active & ~far ? difference : I{});
    return !any_set<T>(far);
  }
  // Brings the lanes in `inside` back to [1, 2); false if one of them is below safe or not finite.
  bool normalise(V h, I inside, bool all_inside) {
    const I fine = (h >= w_->safe) & (h <= std::numeric_limits<T>::max());
    if (any_set<T>(inside & ~fine)) return false;
    if (Local) add_ends();
    const I e = (h > T(0)) & inside ? exponents<T>(h) : I{};
    const V scale = power_of_two<T>(-e);
    s_.my *= scale, s_.above_my *= scale;
    if (Affine) s_.x *= scale, s_.y *= scale, s_.mx *= scale, s_.above_x *= scale;
    e_ += e;
    if (all_inside) return true;
    // A lane that has not started takes the exponent it will be fed with; in a band its first diagonal
    // neighbour may have come already.
    const I before = e_;
    for (int r = int(L) - 2; r >= 0; --r)
      if (!(h[r] > 0) && !inside[r] && border_[r] == 0) e_[r] = e_[r + 1];
    const I moved = before - e_;
    const Int limit = ExpConst<T>::bias - 27;
    if (any_set<T>(((moved > limit) | (moved < -limit)) & (Affine ? (s_.above_my > T(0)) | (s_.above_x > T(0)) : s_.above_my > T(0)))) return false;
    const V shift = power_of_two<T>(moved > limit ? I{} : moved);
    s_.above_my *= shift;
    if (Affine) s_.above_x *= shift;
    return true;
  }

  template <bool Plain>
  bool part(const Steps& steps, int64_t from, int64_t to, const Tiles& tiles, StepRecord<T, Affine>* record) {
    return record ? run<Plain, true>(steps, from, to, tiles, record) : run<Plain, false>(steps, from, to, tiles, record);
  }

  // Steps from..to-1 of a tile. All that the loop needs is copied out of the object first: the compiler would
  // reload it behind every store.
  template <bool Plain, bool Keep>
  bool run(const Steps& steps, int64_t from, int64_t to, const Tiles& tiles, StepRecord<T, Affine>* record) {
    using Record = StepRecord<T, Affine>;
    State s = s_;
    V top = top_, ends = ends_, factor = factor_, start = start_, open_in = open_x_ * factor, gap_in = gap_x_ * factor;
    T taken = taken_, own = T(e_[0]);
    int32_t event = Keep ? int32_t(record->exponents.size()) - 1 : 0;
    const V low = splat<T>(w_->low), high = splat<T>(kHigh<T>), one = splat<T>(1), border = border_, largest = splat<T>(kLargest<T>);
    const I first = first_, last = last_, rows = lane_rows_;
    const int64_t m_last = p_->m, L1 = L - 1;
    const bool semiglobal = p_->mode == kSemiglobal;
    const I last_row = rows == Int(p_->n - 1 - steps.i0);
    const T *in_my = in_my_ + 1, *in_x = in_x_ + 1, *in_e = in_e_ + 1, *open_right = w_->open_y - L1, *gap_right = w_->gap_y - L1;
    T *out_my = out_my_ + 1 - L1, *out_x = out_x_ + 1 - L1, *out_e = out_e_ + 1 - L1;
    Ahead<T> ahead = *tiles.ahead;
    const auto reload = [&] {
      factor = factor_, taken = taken_, open_in = open_x_ * factor, gap_in = gap_x_ * factor;
    };
    for (int64_t t = from; t < to; ++t) {
      if (in_e[Plain ? t : std::min(t, m_last - 1)] != taken) {
        if (!link(t)) return false;
        reload();
      }
      ahead.next();
      V open_y = load(open_right + t), gap_y = load(gap_right + t);
      V open_above = open_in, gap_above = gap_in;
      I j{}, inside = I{} - Int(1);
      if (!Plain) {
        j = Int(t) - rows, inside = (j >= first) & (j <= last);
        if (semiglobal) {
          const I last_column = j == Int(m_last - 1);
          open_above = last_column ? factor : open_in, gap_above = last_column ? factor : gap_in;
          open_y = last_row ? one : open_y, gap_y = last_row ? one : gap_y;
        }
      }
      V before = Affine ? s.above_my + s.above_x : s.above_my;
      if (Local) before += start;
      const int64_t k = (t - tiles.t0) * L;
      const V weight = load(tiles.weights + k), my = from_above<T>(s.my, in_my + t), score = load(tiles.scores + k);
      top = vmax(top, score);
      store(tiles.next + k, vexp<T>(vmin(score, largest)));
      V m = before * weight, x, y;
      s.above_my = my * factor;
      T* kept = Keep ? record->at(t) : nullptr;
      if (Keep) {
        store(kept + Record::kWeight * L, weight);
        store(kept + Record::kBefore * L, before);
        store(kept + Record::kAboveMY * L, s.above_my);
        store(kept + Record::kLeftMX * L, Affine ? s.mx : s.my);
        record->event[t - record->begin] = event;
      }
      if (Affine) {
        const V above = from_above<T>(s.x, in_x + t);
        s.above_x = above * factor;
        if (Keep) store(kept + Record::kAboveX * L, s.above_x), store(kept + Record::kLeftY * L, s.y);
        x = my * open_above + above * gap_above;
        y = s.mx * open_y + s.y * gap_y;
      } else {
        x = my * gap_above;
        y = s.my * gap_y;
      }
      if (!Plain) {
        m = inside ? m : V{};
        x = inside ? x : (j < 0 ? border : V{});
        y = inside ? y : V{};
      }
      if (Local) ends += m;
      V h;
      if (Affine) {
        s.my = m + y, s.mx = m + x, s.x = x, s.y = y;
        h = s.my + x;
      } else {
        h = s.my = m + x + y;
      }
      if (Plain || (t >= L1 && t - L1 < m_last)) {
        out_my[t] = s.my[0];
        if (Affine) out_x[t] = x[0];
        out_e[t] = own;
      }
      const V checked = Plain ? h : (inside ? h : one);
      if (__builtin_expect(any_outside<T>(checked, low, high), 0)) {
        s_ = s, ends_ = ends;
        if (!normalise(h, inside, Plain) || !link(t + 1)) return false;
        if (Local) set_start(), start = start_;
        s = s_, ends = ends_, own = T(e_[0]);
        reload();
        if (Keep) record->exponents.push_back(e_), ++event;
      }
    }
    s_ = s, ends_ = ends, top_ = top, *tiles.ahead = ahead;
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
  V open_x_, gap_x_, border_, factor_, top_, start_, ends_, ends_total_;
  I e_, first_, last_, ends_e_;
  const I lane_rows_ = lane_numbers<T>();
  T taken_ = 0;  // the exponent of the column that comes in from above
  Buffer<T> column_;
  Buffer<double> sums_;
  std::vector<Int> column_e_;
  Wide z_;
};

}  // namespace sl
