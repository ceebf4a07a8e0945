// Best segmentation of each sequence:
//   b_t[c] = max_p(a_t[p] + T[p][c]),   a_t[c] = max_w(b_{t-w-1}[c] + s[t-w-1][w][c])
//
// A start t pushes b_t + s[t] to the W ends it can reach, so that segments are read once, in order.
// Only maxima are kept; the best width and the best label before are found again along the best path
// from the same two addends, which gives the same bits and the lowest index on ties. Limited by
// reading the segments from memory once they exceed the caches, by add/max throughput before.
#include "semimarkov_kbest.h"
#include "transpose.h"

namespace sl {
namespace {

template <class T>
struct Viterbi {
  const Semi<T> semi;
  const int64_t N, W, C, Cp;
  int64_t* codes;
  T* scores;
  Panels<T> forward;  // T packed for steps
  Buffer<T> into;     // into[c][p] = T[p][c]
  std::vector<Buffer<T>> charts;  // per worker: for every row a_0..a_n, then b_0..b_n

  Viterbi(const SemiArgs& args, int64_t* codes_, T* scores_)
      : semi(args), N(args.N), W(args.W), C(args.C), Cp(semi.Cp), codes(codes_), scores(scores_), charts(semi.workers()) {
    if (!semi.shared()) return;
    const T* t = semi.transition(0, 1);
    forward.pack(C, C, kNegInf<T>, t, C);
    into.resize(C * Cp);
    transpose(C, C, t, C, into.data, Cp);
  }

  // b_t to all ends; a_{t+W} has not been touched before, nor any end when t = 0.
  void push(int64_t row, int64_t n, int64_t t, const T* b, T* a) const {
    const int64_t widths = semi.widths(t, n), fresh = t == 0 ? 0 : W - 1;
    for (int64_t w = 0; w < widths; ++w) {
      const T* s = semi.segments(row, t, w);
      T* to = a + (t + w + 1) * Cp;
      if (w >= fresh)
        for (int64_t c = 0; c < C; c += kLanes<T>) store(to + c, load(b + c) + load_row(s, c, C, kNegInf<T>));
      else
        for (int64_t c = 0; c < C; c += kLanes<T>) store(to + c, vmax(load(b + c) + load_row(s, c, C, kNegInf<T>), load(to + c)));
    }
  }

  int64_t before(int64_t row, int64_t t, const T* a, int64_t c) const {
    T best;
    return semi.shared() ? argmax_sum(a, into.data + c * Cp, C, &best) : argmax_column(a, semi.transition(row, t), C, c);
  }

  void trace(int64_t row, int64_t n, const T* a, const T* b) {
    const T* last = a + n * Cp;
    int64_t c = std::max_element(last, last + C) - last;
    scores[row] = last[c];
    if (is_doubtful(last[c], semi, row)) return kbest_in_double(semi, row, 1, codes, scores);
    int64_t* y = codes + row * N;
    if (last[c] == kNegInf<T>) {
      std::fill_n(y, N, kPadCode);
      return;
    }
    blank_code(y, n, N);
    for (int64_t t = n; t > 0;) {
      int64_t w = 0;
      for (int64_t i = 0; i < std::min(W, t); ++i)
        if (b[(t - i - 1) * Cp + c] + semi.segments(row, t - i - 1, i)[c] == a[t * Cp + c]) {
          w = i;
          break;
        }
      t -= w + 1;
      y[t] = w * C + c;
      if (t) c = before(row, t, a + t * Cp, c);
    }
  }

  void group(int64_t g, int worker) {
    const int64_t begin = g * semi.group_size;
    int active = int(std::min(semi.B, begin + semi.group_size) - begin);
    const int64_t* rows = semi.order.data() + begin;
    while (active && semi.length(rows[active - 1]) == 0) {
      const int64_t row = rows[--active];
      scores[row] = 0;
      std::fill_n(codes + row * N, N, kPadCode);
    }
    if (!active) return;
    const int64_t longest = semi.length(rows[0]), size = (longest + 1) * Cp;
    Buffer<T>& chart = charts[worker];
    chart.resize(2 * semi.group_size * size);
    const auto a = [&](int r) { return chart.data + 2 * r * size; };
    const auto b = [&](int r) { return chart.data + (2 * r + 1) * size; };
    for (int r = 0; r < active; ++r) {
      std::fill_n(b(r), Cp, T(0));
      push(rows[r], semi.length(rows[r]), 0, b(r), a(r));
    }
    const int all = active;
    for (int64_t t = 1; t < longest; ++t) {
      while (semi.length(rows[active - 1]) <= t) --active;
      const T* from[kRows];
      T* to[kRows];
      for (int r = 0; r < active; ++r) from[r] = a(r) + t * Cp, to[r] = b(r) + t * Cp;
      const auto finish = [&](int r, int64_t c, Vec<T> best) { store(to[r] + c, best); };
      if (semi.shared()) step<MaxPlus, T>(active, from, forward, finish);
      else step_once<MaxPlus, T>(from[0], semi.transition(rows[0], t), C, [&](int64_t c, Vec<T> best) { finish(0, c, best); });
      for (int r = 0; r < active; ++r) push(rows[r], semi.length(rows[r]), t, to[r], a(r));
    }
    for (int r = 0; r < all; ++r) trace(rows[r], semi.length(rows[r]), a(r), b(r));
  }
};

template <class T>
int64_t viterbi(const SemiArgs* args, int64_t* codes, T* scores) {
  Viterbi<T> run(*args, codes, scores);
  parallel_for(run.semi.groups, run.semi.workers(), [&](int64_t g, int worker) { run.group(g, worker); });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_semimarkov_viterbi_f32(const sl::SemiArgs* a, int64_t* codes, float* scores) { return sl::viterbi(a, codes, scores); }
int64_t sl_semimarkov_viterbi_f64(const sl::SemiArgs* a, int64_t* codes, double* scores) { return sl::viterbi(a, codes, scores); }
}
