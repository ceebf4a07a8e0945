// Count-augmented CKY: the best tree for every value g of one or two statistics, and the one that
// maximises offset[g] + slope[g] * score,
//   S[g] = max_k max_h a[i][k][h] + a[k+1][j][g - h],   a[i][j][g] = max_l S[g - step[l]] + spans[i][j][l].
// A span's table covers only values that its subtrees can have, so small spans have small tables.
// Limited by the convolutions: one vector of the right table for each entry of the left one.
#include "counted.h"
#include "span_tree_careful.h"

namespace sl {
namespace {

template <class T>
struct CountArgs {  // as in structlearn/ops/span_tree_count.py
  const int32_t* step;  // (B, N, N, L) increments of g
  int64_t size1, size2;
  const T *offset, *slope;
  int64_t *labels, *index;
  T *value, *table;
};

template <class T>
class CountedTrees {
 public:
  CountedTrees(const SpanTree<T>& trees, const CountArgs<T>& args) : trees_(trees), args_(args), tables_(args.size1, args.size2) {}

  void run(int64_t b) {
    b_ = b;
    const int64_t n = trees_.length(b), N = trees_.N, size = args_.size1 * args_.size2;
    int64_t* y = args_.labels + b * N * N;
    T* table = args_.table + b * size;
    std::fill_n(y, N * N, kPadLabel);
    std::fill_n(table, size, kNegInf<T>);
    if (n == 0) {
      table[0] = 0;
    } else {
      tables_.clear();
      cells_.assign(n * n, {});
      n_ = n;
      for (int64_t w = 0; w < n; ++w)
        for (int64_t i = 0; i + w < n; ++i) cell(i, i + w);
      const CountBox& root = at(0, n - 1);
      for (int64_t g1 = root.first1; root.rows && g1 <= root.last1(); ++g1)
        std::copy_n(tables_.row(root, g1), root.cols, table + g1 * args_.size2 + root.first2);
    }
    args_.index[b] = pick(table, args_.offset + b * size, args_.slope + b * size, size, args_.value + b);
    if (n && args_.value[b] > kNegInf<T>) trace(args_.index[b], y);
  }

 private:
  // Labels of a span that move the statistics alike: only the best of them, the lowest of equals.
  struct Choice {
    int64_t step1, step2, label;
    T score;
  };
  CountBox& at(int64_t i, int64_t j) { return cells_[i * n_ + j]; }

  void choices(int64_t i, int64_t j) {
    const T* x = trees_.row(b_, i) + (j - i) * trees_.L;
    const int32_t* step = args_.step + ((b_ * trees_.N + i) * trees_.N + j) * trees_.L;
    choices_.clear();
    for (int64_t l = 0; l < trees_.L; ++l) {
      if (x[l] == kNegInf<T>) continue;
      const int64_t step1 = step[l] / args_.size2, step2 = step[l] % args_.size2;
      auto same = std::find_if(choices_.begin(), choices_.end(), [&](const Choice& c) { return c.step1 == step1 && c.step2 == step2; });
      if (same == choices_.end()) choices_.push_back({step1, step2, l, x[l]});
      else if (x[l] > same->score) same->score = x[l], same->label = l;
    }
  }

  void cell(int64_t i, int64_t j) {
    choices(i, j);
    CountBox splits;
    if (i == j) splits.cover(0, 0, 0, 0);
    for (int64_t k = i; k < j; ++k) {
      const CountBox &a = at(i, k), &b = at(k + 1, j);
      if (a.rows && b.rows) splits.cover(a, b);
    }
    CountBox& out = at(i, j);
    if (!splits.rows) return;
    for (const Choice& c : choices_) out.cover(splits, c.step1, c.step2);
    if (!out.rows) return;
    tables_.place(out);
    const int64_t mark = tables_.mark();
    tables_.place(splits);
    if (!out.rows || !splits.rows) return;
    if (i == j) tables_.row(splits, 0)[0] = 0;
    for (int64_t k = i; k < j; ++k) tables_.convolve(at(i, k), at(k + 1, j), T(0), splits);
    for (const Choice& c : choices_) tables_.shift(splits, c.step1, c.step2, c.score, out);
    tables_.release(mark);
  }

  // The best way to reach g over the cuts of i..j: lowest cut, then lowest statistics on the left.
  struct Split {
    int64_t k, left1, left2;
    T score;
  };
  Split split(int64_t i, int64_t j, int64_t g1, int64_t g2) {
    Split best{i, 0, 0, i == j && g1 == 0 && g2 == 0 ? T(0) : kNegInf<T>};
    for (int64_t k = i; k < j; ++k) {
      const CountBox &a = at(i, k), &b = at(k + 1, j);
      for (int64_t a1 = a.first1; a.rows && a1 <= std::min(a.last1(), g1); ++a1)
        for (int64_t a2 = a.first2; a2 <= std::min(a.last2(), g2); ++a2) {
          const T x = tables_.at(a, a1, a2) + tables_.at(b, g1 - a1, g2 - a2);
          if (x > best.score) best = {k, a1, a2, x};
        }
    }
    return best;
  }

  void trace(int64_t g, int64_t* y) {
    stack_.assign(1, {0, n_ - 1, g / args_.size2, g % args_.size2});
    while (!stack_.empty()) {
      const Frame f = stack_.back();
      stack_.pop_back();
      choices(f.i, f.j);
      Split best{0, 0, 0, kNegInf<T>};
      T score = kNegInf<T>;
      const Choice* chosen = nullptr;
      for (const Choice& c : choices_) {
        if (c.step1 > f.g1 || c.step2 > f.g2) continue;
        const Split s = split(f.i, f.j, f.g1 - c.step1, f.g2 - c.step2);
        const T x = s.score + c.score;
        if (x == kNegInf<T> || x < score || (x == score && chosen && chosen->label < c.label)) continue;
        score = x, best = s, chosen = &c;
      }
      if (!chosen) return;
      y[f.i * trees_.N + f.j] = chosen->label;
      if (f.i == f.j) continue;
      stack_.push_back({f.i, best.k, best.left1, best.left2});
      stack_.push_back({best.k + 1, f.j, f.g1 - chosen->step1 - best.left1, f.g2 - chosen->step2 - best.left2});
    }
  }

  struct Frame {
    int64_t i, j, g1, g2;
  };
  const SpanTree<T>& trees_;
  const CountArgs<T>& args_;
  CountTables<T> tables_;
  int64_t b_ = 0, n_ = 0;
  std::vector<CountBox> cells_;
  std::vector<Choice> choices_;
  std::vector<Frame> stack_;
};

// Sentence b in double.
template <class T>
void count_in_double(const SpanTree<T>& trees, const CountArgs<T>& args, int64_t b) {
  CarefulTrees careful;
  careful.set(trees, b);
  const int64_t S = args.size1 * args.size2, square = trees.N * trees.N;
  std::vector<double> offset(S), slope(args.slope + b * S, args.slope + (b + 1) * S), table(S);
  for (int64_t g = 0; g < S; ++g) offset[g] = double(args.offset[b * S + g]) / careful.unit;
  double value;
  CountedTrees<double>(careful.trees(), {args.step + b * square * trees.L, args.size1, args.size2, offset.data(), slope.data(), args.labels + b * square,
                                         args.index + b, &value, table.data()}).run(0);
  args.value[b] = saturated<T>((long double)(value) * careful.unit);
  for (int64_t g = 0; g < S; ++g) args.table[b * S + g] = saturated<T>((long double)(table[g]) * careful.unit);
}

// Whether sentence b's table may have left the range of T, or its pick have been rounded hard.
template <class T>
bool is_doubtful(const SpanTree<T>& trees, const CountArgs<T>& args, int64_t b) {
  const T value = args.value[b], score = args.table[b * args.size1 * args.size2 + args.index[b]];
  const bool moderate = (is_moderate(value) || value == kNegInf<T>) && (is_moderate(score) || score == kNegInf<T>);
  return !moderate || may_overflow(largest_potential(trees, b), 2 * trees.length(b));
}

template <class T>
int64_t best_by_count(const SpanTreeArgs* args, const CountArgs<T>& count) {
  const SpanTree<T> trees(*args);
  const int64_t chunks = trees.work * double(count.size1 * count.size2) < 100000 ? 1 : std::max<int64_t>(1, std::min(args->threads, args->B));
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    CountedTrees<T> run(trees, count);
    for (int64_t i = chunk; i < trees.B; i += chunks) {
      run.run(trees.order[i]);
      if (is_doubtful(trees, count, trees.order[i])) count_in_double(trees, count, trees.order[i]);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define COUNT(suffix, T)                                                                                               \
  extern "C" int64_t sl_span_tree_best_by_count_##suffix(const sl::SpanTreeArgs* a, const int32_t* step, int64_t size1, \
                                                         int64_t size2, const T* offset, const T* slope,               \
                                                         int64_t* labels, int64_t* index, T* value, T* table) {        \
    return sl::best_by_count<T>(a, {step, size1, size2, offset, slope, labels, index, value, table});                  \
  }
COUNT(f32, float)
COUNT(f64, double)
