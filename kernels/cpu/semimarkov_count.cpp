// Count-augmented Viterbi: the best segmentation for every value g of some statistics, and the one
// that maximises offset[g] + slope[g] * score (structures/semimarkov_count.py states the recurrence).
//
// A chart row holds all S values of the statistics for one label at one position, so that a segment is
// a shifted vector operation over g, and the maximum over labels is the register-blocked (max, +)
// product of rows.h: T^T by the chart. Limited by loads and stores of the chart, W of them a cell.
#include "counted.h"
#include "semimarkov_careful.h"

namespace sl {
namespace {

// Field order and null rules as in structlearn/ops/semimarkov_count.py.
template <class T>
struct CountArgs {
  const int32_t *segment_step, *transition_step;  // shaped as the potentials, contiguous
  int64_t size;
  const T *offset, *slope;
  int64_t *codes, *index;
  T *value, *table;
};

template <class T>
class CountedRow {
 public:
  CountedRow(const Semi<T>& semi, const CountArgs<T>& args) : semi_(semi), args_(args), C_(semi.C), W_(semi.W), S_(args.size) {
    const int64_t steps = std::max<int64_t>(semi.N - 1, 0);
    for (int64_t i = 0; args.segment_step && i < semi.B * semi.N * W_ * C_; ++i) jump_ = std::max(jump_, args.segment_step[i]);
    for (int64_t i = 0; args.transition_step && i < (semi.shared() ? 1 : semi.B * steps) * C_ * C_; ++i) jump_ = std::max(jump_, args.transition_step[i]);
    // Stores may run past g = S - 1 by one jump and one vector; nothing comes back from there, since
    // increments are not negative. An increment of S or more leads past the table at once.
    jump_ = int32_t(std::min<int64_t>(jump_, S_));
    width_ = padded<T>(S_ + jump_ + kLanes<T>);
  }

  void run(int64_t b) {
    b_ = b;
    const int64_t n = semi_.length(b);
    int64_t* y = args_.codes + b * semi_.N;
    T* table = args_.table + b * S_;
    std::fill_n(y, semi_.N, kPadCode);
    std::fill_n(table, S_, kNegInf<T>);
    if (n == 0) {
      table[0] = 0;
    } else {
      fill(n);
      for (int64_t c = 0; c < C_; ++c)
        for (int64_t g = 0; g < S_; ++g) table[g] = std::max(table[g], a(n, c)[g]);
    }
    args_.index[b] = pick(table, args_.offset + b * S_, args_.slope + b * S_, S_, args_.value + b);
    if (n && args_.value[b] > kNegInf<T>) trace(n, args_.index[b], y);
  }

 private:
  T* a(int64_t t, int64_t c) { return ending_.data + (t * C_ + c) * width_; }
  T* b(int64_t t, int64_t c) { return starting_.data + (t * C_ + c) * width_; }
  int64_t segment_step(int64_t t, int64_t w, int64_t c) const {
    return args_.segment_step ? args_.segment_step[((b_ * semi_.N + t) * W_ + w) * C_ + c] : 0;
  }
  int64_t transition_step(int64_t t, int64_t p, int64_t c) const {
    if (!args_.transition_step) return 0;
    return args_.transition_step[(semi_.shared() ? 0 : (b_ * (semi_.N - 1) + t - 1) * C_ * C_) + p * C_ + c];
  }

  void fill(int64_t n) {
    const int64_t cells = (n + 1) * C_ * width_;
    ending_.resize(cells), starting_.resize(cells);
    std::fill_n(ending_.data, cells, kNegInf<T>);
    std::fill_n(starting_.data, cells, kNegInf<T>);
    // Values of g that prefixes can have reached, by position; a row is only touched up to there.
    std::vector<int64_t> reach(n + 1, 0);
    for (int64_t c = 0; c < C_; ++c) b(0, c)[0] = 0;
    for (int64_t t = 0; t < n; ++t) {
      if (t) labels(t, &reach[t]);
      for (int64_t w = 0; w < semi_.widths(t, n); ++w) {
        const T* s = semi_.segments(b_, t, w);
        int64_t most = 0;
        for (int64_t c = 0; c < C_; ++c) {
          const int64_t step = segment_step(t, w, c);
          most = std::max(most, step);
          if (s[c] > kNegInf<T> && step < S_) shift(b(t, c), s[c], a(t + w + 1, c) + step, reach[t]);
        }
        reach[t + w + 1] = std::min(S_ - 1, std::max(reach[t + w + 1], reach[t] + most));
      }
    }
  }

  // to[g] = max(to[g], from[g] + s) for g <= reach.
  static void shift(const T* from, T s, T* to, int64_t reach) {
    for (int64_t g = 0; g <= reach; g += kLanes<T>) store(to + g, vmax(load(from + g) + s, load(to + g)));
  }

  // b_t from a_t.
  void labels(int64_t t, int64_t* reach) {
    const T* m = semi_.transition(b_, t);
    if (args_.transition_step) {
      int64_t most = 0;
      for (int64_t c = 0; c < C_; ++c)
        for (int64_t p = 0; p < C_; ++p) {
          const int64_t step = transition_step(t, p, c);
          most = std::max(most, step);
          if (m[p * C_ + c] > kNegInf<T> && step < S_) shift(a(t, p), m[p * C_ + c], b(t, c) + step, *reach);
        }
      *reach = std::min(S_ - 1, *reach + most);
      return;
    }
    if (!into_.data || !semi_.shared()) {
      into_.resize(C_ * C_);
      for (int64_t c = 0; c < C_; ++c)
        for (int64_t p = 0; p < C_; ++p) into_.data[c * C_ + p] = m[p * C_ + c];
    }
    for (int64_t c0 = 0; c0 < C_; c0 += kRows) {
      const int rows = int(std::min<int64_t>(kRows, C_ - c0));
      const T* weights[kRows];
      for (int r = 0; r < rows; ++r) weights[r] = into_.data + (c0 + r) * C_;
      step_strided<MaxPlus, T>(rows, weights, a(t, 0), C_, width_, *reach + 1,
                               [&](int r, int64_t g, Vec<T> best) { store(b(t, c0 + r) + g, best); });
    }
  }

  // Addends as in fill, so that sums compare equal.
  void trace(int64_t n, int64_t g, int64_t* y) {
    blank_code(y, n, semi_.N);
    int64_t c = 0;
    for (int64_t p = 1; p < C_; ++p)
      if (a(n, p)[g] > a(n, c)[g]) c = p;
    for (int64_t t = n; t > 0;) {
      int64_t w = 0, before = g;
      for (; w < std::min(W_, t); ++w) {
        const int64_t s = t - w - 1;
        before = g - segment_step(s, w, c);
        if (before >= 0 && b(s, c)[before] + semi_.segments(b_, s, w)[c] == a(t, c)[g]) break;
      }
      t -= w + 1, g = before;
      y[t] = w * C_ + c;
      if (t == 0) return;
      const T* m = semi_.transition(b_, t);
      for (int64_t p = 0; p < C_; ++p) {
        before = g - transition_step(t, p, c);
        if (before >= 0 && a(t, p)[before] + m[p * C_ + c] == b(t, c)[g]) {
          c = p, g = before;
          break;
        }
      }
    }
  }

  const Semi<T>& semi_;
  const CountArgs<T>& args_;
  const int64_t C_, W_, S_;
  int64_t b_ = 0, width_ = 0;
  int32_t jump_ = 0;
  Buffer<T> ending_, starting_, into_;
};

// Row b in double.
template <class T>
void count_in_double(const Semi<T>& semi, const CountArgs<T>& args, int64_t b) {
  CarefulSemi careful;
  careful.set(semi, b);
  const int64_t S = args.size, matrices = semi.N - 1;
  std::vector<double> offset(S), slope(args.slope + b * S, args.slope + (b + 1) * S), table(S);
  for (int64_t g = 0; g < S; ++g) offset[g] = double(args.offset[b * S + g]) / careful.unit;
  double value;
  CountedRow<double>(careful.semi(), {args.segment_step ? args.segment_step + b * semi.N * semi.W * semi.C : nullptr,
                                      args.transition_step && !semi.shared() ? args.transition_step + b * matrices * semi.C * semi.C : args.transition_step,
                                      S, offset.data(), slope.data(), args.codes + b * semi.N, args.index + b, &value, table.data()}).run(0);
  args.value[b] = saturated<T>((long double)(value) * careful.unit);
  for (int64_t g = 0; g < S; ++g) args.table[b * S + g] = saturated<T>((long double)(table[g]) * careful.unit);
}

// Whether row b's table may have left the range of T, or its pick have been rounded hard.
template <class T>
bool is_doubtful(const Semi<T>& semi, const CountArgs<T>& args, int64_t b) {
  const T value = args.value[b], score = args.table[b * args.size + args.index[b]];
  const bool moderate = (is_moderate(value) || value == kNegInf<T>) && (is_moderate(score) || score == kNegInf<T>);
  return !moderate || may_overflow(largest_potential(semi, b), 2 * semi.length(b));
}

template <class T>
int64_t best_by_count(const SemiArgs* args, const CountArgs<T>& count) {
  const Semi<T> semi(*args, false);
  const int64_t chunks = workers_for(semi.work * count.size, args->threads, semi.B);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    CountedRow<T> row(semi, count);
    for (int64_t i = chunk; i < semi.B; i += chunks) {
      row.run(semi.order[i]);
      if (is_doubtful(semi, count, semi.order[i])) count_in_double(semi, count, semi.order[i]);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define COUNT(suffix, T)                                                                                             \
  extern "C" int64_t sl_semimarkov_best_by_count_##suffix(                                                           \
      const sl::SemiArgs* a, const int32_t* segment_step, const int32_t* transition_step, int64_t size,              \
      const T* offset, const T* slope, int64_t* codes, int64_t* index, T* value, T* table) {                         \
    return sl::best_by_count<T>(a, {segment_step, transition_step, size, offset, slope, codes, index, value, table}); \
  }
COUNT(f32, float)
COUNT(f64, double)
