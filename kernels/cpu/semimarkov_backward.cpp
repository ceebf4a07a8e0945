// Gradient of sum_b g_b log Z_b from the scaled forward values (semimarkov_scaled.h). The shared
// transition's gradient E * sum_t a_t^T r_t is a matrix product over rows and positions (outer.h).
// Rows that forward could not represent are done in log space. Limited by the W C exponentials a
// position and by writing the (B, N, W, C) gradient.
#include "outer.h"
#include "pages.h"
#include "semimarkov_log.h"
#include "semimarkov_scaled.h"
#include "transpose.h"

namespace sl {
namespace {

template <class T>
struct Backward {
  const Semi<T> semi;
  const int64_t N, W, C, Cp, ring;
  const SemiState<T> state;
  const T* grad;
  T *d_segments, *d_transition;
  SemiMatrix<T> matrix;
  Panels<T> panels;  // E transposed: panels of labels before

  Backward(const SemiArgs& args, T* values, double* scales, const T* grad_, T* d_segments_, T* d_transition_)
      : semi(args), N(args.N), W(args.W), C(args.C), Cp(semi.Cp), ring(ring_size(std::min(W, N) + 1)), state{values, scales, N, C}, grad(grad_), d_segments(d_segments_), d_transition(d_transition_) {
    if (!semi.shared()) return;
    matrix.set(semi.transition(0, 1), C);
    RawBuffer<T> turned;
    turned.resize(C * Cp);
    transpose(C, C, matrix.entries.data, Cp, turned.data, Cp);
    panels.pack(C, C, T(0), turned.data, Cp);
  }

  struct Scratch {
    Buffer<T> q;  // the last `ring` positions of every row
    Buffer<T> r, f, h;
    OuterSum<T> pairs;
    SemiMatrix<T> own;
    SemiLogRow<T, Along::kNothing> careful;
  };

  struct Row {
    int64_t b, n;
    const double* scale;
    T *q, *r;
  };

  T* slot(T* of, int64_t t) const { return of + (t & (ring - 1)) * Cp; }

  // The gradient of the segments that start at t, and r_t.
  void start(Row& row, int64_t t, const SemiMatrix<T>* matrix, Scratch& s) const {
    const double from = row.scale[t] + (matrix ? matrix->whole : 0.0);
    T* out = d_segments + (row.b * N + t) * W * C;
    const int64_t widths = row.scale[t] == kNegInf<double> ? 0 : semi.widths(t, row.n);
    const T* v = state.v(row.b, t);
    Vec<T> fraction;
    for (int64_t c = 0; c < C; c += kLanes<T>) {
      store(s.h.data + c, take_exponents<T>(load_row(v, c, C, T(0)), matrix ? load(matrix->height.data + c) : Vec<T>{}, &fraction));
      store(s.f.data + c, fraction);
      store(row.r + c, Vec<T>{});
    }
    for (int64_t w = 0; w < widths; ++w) {
      if (row.scale[t + w + 1] == kNegInf<double>) {
        std::fill_n(out + w * C, C, T(0));
        continue;
      }
      const T offset = T(from - row.scale[t + w + 1]), *segments = semi.segments(row.b, t, w), *q = slot(row.q, t + w + 1);
      for (int64_t c = 0; c < C; c += kLanes<T>) {
        const Vec<T> x = (load_row(segments, c, C, kNegInf<T>) + offset) + load(s.h.data + c);
        const Vec<T> p = load(s.f.data + c) * exp_allowed<T>(x) * load(q + c);
        store(row.r + c, load(row.r + c) + p);
        store_row(out + w * C, c, C, p * grad[row.b]);
      }
    }
    std::fill(out + widths * C, out + W * C, T(0));
    for (int64_t c = 0; c < C; c += kLanes<T>) {
      const Vec<T> by = load_row(v, c, C, T(0));
      store(row.r + c, by > T(0) ? load(row.r + c) / by : Vec<T>{});
    }
  }

  void shared_group(Row* rows, int count, Scratch& s) const {
    int active = 0;
    const T* from[kRows];
    for (int64_t t = count ? rows[0].n - 1 : -1; t >= 0; --t) {
      while (active < count && rows[active].n > t) ++active;
      for (int r = 0; r < active; ++r) start(rows[r], t, t ? &matrix : nullptr, s), from[r] = rows[r].r;
      if (t == 0) break;
      step<SumProduct, T>(active, from, panels, [&](int r, int64_t p, Vec<T> sum) { store(slot(rows[r].q, t) + p, sum); });
      for (int r = 0; r < active; ++r) {
        T* right = s.pairs.push(state.a(rows[r].b, t));
        for (int64_t c = 0; c < C; c += kLanes<T>) store(right + c, load(rows[r].r + c) * grad[rows[r].b]);
      }
    }
  }

  void own_row(Row& row, Scratch& s) const {
    for (int64_t t = row.n - 1; t >= 0; --t) {
      if (t) s.own.set(semi.transition(row.b, t), C);
      start(row, t, t ? &s.own : nullptr, s);
      if (t == 0) return;
      T *out = d_transition + (row.b * (N - 1) + t - 1) * C * C, *q = slot(row.q, t);
      const T* a = state.a(row.b, t);
      for (int64_t p = 0; p < C; ++p) {
        Vec<T> sum{};
        for (int64_t c = 0; c < C; c += kLanes<T>) {
          const Vec<T> x = load(s.own.row(p, Cp) + c) * load(row.r + c);
          sum += x;
          store_row(out + p * C, c, C, x * (a[p] * grad[row.b]));
        }
        q[p] = hsum(sum);
      }
    }
  }

  void group(int64_t g, Scratch& s, SemiSums<T>& sums, int64_t chunk) const {
    const int64_t begin = g * semi.group_size, stop = std::min(semi.B, begin + semi.group_size);
    Row rows[kRows];
    int count = 0;
    for (int64_t i = begin; i < stop; ++i) {
      const int64_t b = semi.order[i], n = semi.length(b);
      const double* scale = state.scale(b);
      if (n == 0 || std::isnan(scale[0]) || scale[n] == kNegInf<double>) {
        s.careful.forward(semi, b);
        s.careful.backward(semi, grad[b], sums.of(semi, chunk, b, d_segments, d_transition));
        continue;
      }
      rows[count] = {b, n, scale, s.q.data + count * ring * Cp, s.r.data + count * Cp};
      T* last = slot(rows[count].q, n);
      for (int64_t c = 0; c < Cp; ++c) last[c] = c < C ? T(scale[N + 1]) : T(0);
      std::fill(d_segments + (b * N + n) * W * C, d_segments + (b + 1) * N * W * C, T(0));
      if (!semi.shared()) std::fill(d_transition + (b * (N - 1) + n - 1) * C * C, d_transition + (b + 1) * (N - 1) * C * C, T(0));
      ++count;
    }
    if (semi.shared()) shared_group(rows, count, s);
    else if (count) own_row(rows[0], s);
  }
};

template <class T>
int64_t backward(const SemiArgs* args, T* values, double* scales, const T* grad, T* d_segments, T* d_transition) {
  on_large_pages(d_segments, args->B * args->N * args->W * args->C);
  const Backward<T> run(*args, values, scales, grad, d_segments, d_transition);
  const Semi<T>& semi = run.semi;
  const int64_t C = semi.C, Cp = semi.Cp, chunks = semi.workers();
  SemiSums<T> sums(semi, chunks);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    FlushSubnormals flush;
    typename Backward<T>::Scratch s;
    s.q.resize(kRows * run.ring * Cp), s.r.resize(kRows * Cp), s.f.resize(Cp), s.h.resize(Cp);
    if (semi.shared()) s.pairs.reset(C, Cp);
    for_groups_of(chunk, chunks, semi.groups, [&](int64_t g) { run.group(g, s, sums, chunk); });
    if (!semi.shared()) return;
    s.pairs.flush();
    T* out = sums.transition.data() + chunk * C * C;
    for (int64_t p = 0; p < C; ++p)
      for (int64_t c = 0; c < C; ++c)
        if (run.matrix.column_max.data[c] > kNegInf<T>) out[p * C + c] += s.pairs.sum.data[p * Cp + c] * run.matrix.row(p, Cp)[c];
  });
  sums.write(semi, d_transition);
  return 0;
}

}  // namespace
}  // namespace sl

#define BACKWARD(suffix, T)                                                                                          \
  extern "C" int64_t sl_semimarkov_backward_##suffix(const sl::SemiArgs* a, T* values, double* scales, const T* grad, \
                                                     T* d_segments, T* d_transition) {                               \
    return sl::backward<T>(a, values, scales, grad, d_segments, d_transition);                                       \
  }
BACKWARD(f32, float)
BACKWARD(f64, double)
