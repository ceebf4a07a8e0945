// log Z of each sequence in scaled probability space (semimarkov_scaled.h), rows that it cannot
// represent in log space (semimarkov_log.h). Limited by the W C exponentials a position.
#include "semimarkov_log.h"
#include "semimarkov_scaled.h"

namespace sl {
namespace {

template <class T>
struct Forward {
  const Semi<T> semi;
  const int64_t N, W, C, Cp, ring;
  T* log_z;
  const SemiState<T> state;  // null pointers if nothing is kept
  SemiMatrix<T> matrix;      // shared transition
  Panels<T> panels;

  Forward(const SemiArgs& args, T* log_z_, T* values, double* scales)
      : semi(args), N(args.N), W(args.W), C(args.C), Cp(semi.Cp), ring(ring_size(std::min(W, N))), log_z(log_z_), state{values, scales, N, C} {
    if (!semi.shared()) return;
    matrix.set(semi.transition(0, 1), C);
    panels.pack(C, C, T(1), matrix.entries.data, Cp);
  }

  // What one worker keeps between groups.
  struct Scratch {
    Buffer<T> a, v;                     // of every row in the group, now
    Buffer<T> fractions, heights;       // f and h, the last `ring` positions of every row
    std::vector<double> scales;
    std::vector<double> starts;         // k_t + M
    std::vector<T> offsets;             // k_s + M - k_t by width
    SemiMatrix<T> own;                  // this position's matrix, where it is not shared
    SemiLogRow<T, Along::kNothing> careful;
  };

  struct Row {
    int64_t b, n;
    T *a, *v, *fractions, *heights;
    double *scale, *start;
    bool safe = true;
    int64_t steep_until = 0;  // segments that end up to here may have a steep height
  };

  T* slot(T* of, int64_t t) const { return of + (t & (ring - 1)) * Cp; }

  // Zeros where nothing else is written, so that the kept values are a function of the arguments.
  void blank(const Row& row) const {
    if (N) std::fill_n(state.a(row.b, 0), C, T(0));
    std::fill_n(state.a(row.b, row.n), (N - row.n) * 2 * C, T(0));
    std::fill(row.scale + row.n, row.scale + N + 2, 0.0);
  }

  // a_t and k_t.
  void end(Row& row, int64_t t, Scratch& s) const {
    const int64_t widths = std::min(W, t);
    int64_t near = t - 1;
    while (near >= t - widths && row.start[near] == kNegInf<double>) --near;
    Vec<T> top = splat<T>(kNegInf<T>);
    for (int64_t w = t - 1 - near; w < widths; ++w) {
      const int64_t from = t - 1 - w;
      if (row.start[from] == kNegInf<double>) continue;
      const T offset = T(row.start[from] - row.start[near]), *segments = semi.segments(row.b, from, w), *h = slot(row.heights, from);
      for (int64_t c = 0; c < C; c += kLanes<T>) top = vmax(load_row(segments, c, C, kNegInf<T>) + (load(h + c) + offset), top);
    }
    const T k = hmax(top);
    const bool alive = std::isfinite(k);
    if (!alive && k != kNegInf<T>) row.safe = false;
    row.scale[t] = alive ? row.start[near] + std::rint(double(k)) : kNegInf<double>;
    int64_t first = alive ? t - 1 - near : widths;
    double farthest = 0;
    for (int64_t w = first; w < widths; ++w) {
      const double offset = row.start[t - 1 - w] - row.scale[t];
      s.offsets[w] = T(offset);
      if (offset > kNegInf<double>) farthest = std::max(farthest, std::abs(offset));
    }
    if (!(farthest <= kMostWhole<T>)) row.safe = false;
    if (row.steep_until >= t) sums<true>(row, t, first, widths, s);
    else sums<false>(row, t, first, widths, s);
  }

  // a_t, summed over widths first..widths.
  template <bool Steep>
  void sums(Row& row, int64_t t, int64_t first, int64_t widths, const Scratch& s) const {
    IVec<T> lost{};
    for (int64_t c = 0; c < C; c += kLanes<T>) {
      Vec<T> sum{};
      for (int64_t w = first; w < widths; ++w) {
        const int64_t from = t - 1 - w;
        const Vec<T> h = load(slot(row.heights, from) + c), x = (load_row(semi.segments(row.b, from, w), c, C, kNegInf<T>) + s.offsets[w]) + h;
        if (Steep) lost |= (x > kFloor<T>) & ((h > kSteep<T>) | (h < -kSteep<T>));
        sum += load(slot(row.fractions, from) + c) * exp_allowed<T>(x);
      }
      store(row.a + c, sum);
      if (state.values && t < row.n) store_row(state.a(row.b, t), c, C, sum);
    }
    if (Steep)
      for (int i = 0; i < kLanes<T>; ++i)
        if (lost[i]) row.safe = false;
  }

  // f_t and h_t from v_t; no matrix at the first position.
  void start(Row& row, int64_t t, const SemiMatrix<T>* matrix) const {
    T *f = slot(row.fractions, t), *h = slot(row.heights, t);
    Vec<T> low = splat<T>(1), fraction;
    for (int64_t c = 0; c < C; c += kLanes<T>) {
      const Vec<T> v = load(row.v + c);
      low = vmin(low, v);
      store(h + c, take_exponents<T>(v, matrix ? load(matrix->height.data + c) : Vec<T>{}, &fraction));
      store(f + c, fraction);
      if (state.values) store_row(state.v(row.b, t), c, C, v);
    }
    row.start[t] = row.scale[t] + (matrix ? matrix->whole : 0.0);
    if (t == 0) return;
    if (!matrix->safe) row.safe = false;
    if (matrix->steep) row.steep_until = t + W;
    if (row.scale[t] == kNegInf<double> || hmin<T>(low) >= kWellAbove<T>) return;
    const T* transition = semi.transition(row.b, t);
    for (int64_t c = 0; c < C; ++c) {
      if (row.v[c] >= kWellAbove<T>) continue;
      if (row.v[c] != 0) row.safe = false;
      for (int64_t p = 0; p < C; ++p)
        if (row.a[p] > 0 && transition[p * C + c] > kNegInf<T>) row.safe = false;
    }
  }

  void group(int64_t g, Scratch& s) const {
    const int64_t begin = g * semi.group_size;
    int active = int(std::min(semi.B, begin + semi.group_size) - begin);
    Row rows[kRows];
    const int64_t kept = ring * Cp;
    s.a.resize(kRows * Cp), s.v.resize(kRows * Cp), s.fractions.resize(kRows * kept), s.heights.resize(kRows * kept);
    s.scales.resize(kRows * (N + 1)), s.starts.resize(kRows * (N + 1)), s.offsets.resize(W);
    for (int r = 0; r < active; ++r) {
      const int64_t b = semi.order[begin + r];
      rows[r] = {b, semi.length(b), s.a.data + r * Cp, s.v.data + r * Cp, s.fractions.data + r * kept, s.heights.data + r * kept,
                 state.values ? state.scale(b) : s.scales.data() + r * (N + 1), s.starts.data() + r * (N + 1)};
      if (state.values) blank(rows[r]);
      if (rows[r].n == 0) {
        log_z[b] = 0;
        continue;
      }
      rows[r].scale[0] = 0;
      std::fill_n(rows[r].v, Cp, T(1));
      start(rows[r], 0, nullptr);
    }
    const T* from[kRows];
    for (int64_t t = 1; t <= semi.length(semi.order[begin]); ++t) {
      while (rows[active - 1].n < t) --active;
      for (int r = 0; r < active; ++r) end(rows[r], t, s), from[r] = rows[r].a;
      int going = active;
      for (; going && rows[going - 1].n == t; --going) close(rows[going - 1], s);
      if (!going) break;
      if (semi.shared()) {
        step<SumProduct, T>(going, from, panels, [&](int r, int64_t c, Vec<T> sum) { store(rows[r].v + c, sum); });
      } else {
        s.own.set(semi.transition(rows[0].b, t), C);
        own_step(rows[0], s.own);
      }
      for (int r = 0; r < going; ++r) start(rows[r], t, semi.shared() ? &matrix : &s.own);
    }
  }

  void own_step(Row& row, const SemiMatrix<T>& own) const {
    for (int64_t c = 0; c < Cp; c += kLanes<T>) {
      Vec<T> sum{};
      for (int64_t p = 0; p < C; ++p) sum += load(own.row(p, Cp) + c) * row.a[p];
      for (int64_t i = C - c; i < kLanes<T>; ++i) sum[i] = 1;  // padding must not look like a lost sum
      store(row.v + c, sum);
    }
  }

  void close(Row& row, Scratch& s) const {
    const double k = row.scale[row.n];
    double sum = 0;
    for (int64_t c = 0; c < C; ++c) sum += double(row.a[c]);
    if (row.safe && sum > 0 && std::isfinite(sum)) {
      log_z[row.b] = T(k + std::log(sum));
      if (state.values) row.scale[N + 1] = 1 / sum;
      return;
    }
    s.careful.forward(semi, row.b);
    log_z[row.b] = saturated<T>(s.careful.log_z);
    row.scale[0] = s.careful.feasible ? std::numeric_limits<double>::quiet_NaN() : 0;
    row.scale[row.n] = kNegInf<double>;
  }
};

template <class T>
int64_t forward(const SemiArgs* args, T* log_z, T* values, double* scales) {
  const Forward<T> run(*args, log_z, values, scales);
  const int64_t chunks = run.semi.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    typename Forward<T>::Scratch scratch;
    for_groups_of(chunk, chunks, run.semi.groups, [&](int64_t g) { run.group(g, scratch); });
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_semimarkov_forward_f32(const sl::SemiArgs* a, float* log_z, float* values, double* scales) { return sl::forward(a, log_z, values, scales); }
int64_t sl_semimarkov_forward_f64(const sl::SemiArgs* a, double* log_z, double* values, double* scales) { return sl::forward(a, log_z, values, scales); }
}
