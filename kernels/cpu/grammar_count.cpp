// Count-augmented CKY: the best derivation for every value g of one or two statistics, and the one that
// maximises offset[g] + slope[g] * score. With tables over g in place of numbers,
//   x[g] = max_k max_h a[i][k][B][h] + a[k+1][j][C][g - h],
//   a[i][j][A][g + span step] = spans[i][j][A] + max_r rules[r] + x_r[g - rule step].
// A constituent's table covers only values that it can have. Limited by the convolutions (counted.h).
#include "counted.h"
#include "grammar.h"

namespace sl {
namespace {

template <class T>
struct CountArgs {  // as in structlearn/ops/grammar_count.py; increments of g, null where all are 0
  const int32_t *terms, *rules, *roots, *spans;
  int64_t rules_b, roots_b;  // strides, 0 where shared
  int64_t size1, size2;
  const T *offset, *slope;
  int64_t *y, *index;
  T *value, *table;
};

template <class T>
class CountedDerivations {
 public:
  // unit: what the scores have been divided by.
  CountedDerivations(const CFG<T>& cfg, const CountArgs<T>& args, T unit = T(1)) : cfg_(cfg), args_(args), unit_(unit), tables_(args.size1, args.size2), made_(cfg.NT) {}

  void run(int64_t b) {
    b_ = b, n_ = cfg_.length(b);
    const int64_t N = cfg_.N, size = args_.size1 * args_.size2;
    T* table = args_.table + b * size;
    std::fill_n(args_.y + b * N * N, N * N, kPadLabel);
    std::fill_n(table, size, kNegInf<T>);
    roots_.clear();
    if (n_ == 0) {
      table[0] = 0;
    } else {
      fill();
      for (const auto& [symbol, box] : roots_) {
        const Step s = root_step(symbol);
        for (int64_t g1 = box.first1; box.rows && g1 <= box.last1() && g1 + s.g1 < args_.size1; ++g1)
          for (int64_t g2 = box.first2; g2 <= box.last2() && g2 + s.g2 < args_.size2; ++g2) {
            T& best = table[(g1 + s.g1) * args_.size2 + g2 + s.g2];
            best = std::max(best, tables_.at(box, g1, g2) + cfg_.root(b, symbol));
          }
      }
    }
    args_.index[b] = pick(table, args_.offset + b * size, args_.slope + b * size, size, args_.value + b, unit_);
    if (n_ && args_.value[b] > kNegInf<T>) trace(args_.index[b], args_.y + b * N * N);
    for (int64_t g = 0; unit_ != 1 && g < size; ++g) table[g] = saturated(table[g], unit_);
  }

 private:
  struct Step {
    int64_t g1, g2;
  };
  using Chart = SparseChart<int32_t, 1>;  // numbers of boxes

  Step step(const int32_t* from, int64_t at) const { return from ? Step{from[at] / args_.size2, from[at] % args_.size2} : Step{0, 0}; }
  Step term_step(int64_t i, int64_t p) const { return step(args_.terms, (b_ * cfg_.N + i) * cfg_.P + p); }
  Step rule_step(int64_t r) const { return step(args_.rules, b_ * args_.rules_b + r); }
  Step root_step(int64_t s) const { return s < cfg_.args.root_count ? step(args_.roots, b_ * args_.roots_b + s) : Step{0, 0}; }
  Step span_step(int64_t i, int64_t j, int64_t a) const { return step(args_.spans, ((b_ * cfg_.N + i) * cfg_.N + j) * cfg_.NT + a); }

  void fill() {
    chart_.reset(cfg_, n_, {-1});
    tables_.clear(), boxes_.clear();
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (const T x = cfg_.terms(b_, j)[p]; x > kNegInf<T>) {
          const Step s = term_step(j, p);
          CountBox box;
          box.cover(s.g1, s.g1, s.g2, s.g2);
          tables_.place(box);
          if (box.rows) tables_.row(box, s.g1)[0] = x, file(j, j, cfg_.NT + p, box);
        }
      for (int64_t i = j - 1; i >= 0; --i) cell(i, j);
    }
  }
  void file(int64_t i, int64_t j, int64_t symbol, const CountBox& box) {
    const auto places = chart_.insert(cfg_, i, j, symbol);
    if (i == 0 && j == n_ - 1) roots_.emplace_back(symbol, box);
    if (!places.left && !places.right) return;
    for (int32_t* to : {places.left, places.right})
      if (to) *to = int32_t(boxes_.size());
    boxes_.push_back(box);
  }
  template <class F>
  void for_cuts(const Chart::Cuts& c, F&& f) {
    for (int64_t k = c.first; k <= c.last; ++k)
      if (c.left[k] >= 0 && c.right[k] >= 0) f(k, boxes_[c.left[k]], boxes_[c.right[k]]);
  }
  template <class F>
  void for_pairs(int64_t i, int64_t j, F&& f) {  // f(pair, cuts, box of x)
    Chart::Cuts c;
    for (const int32_t left : chart_.present(i))
      for (int64_t q = cfg_.args.left_start[left]; q < cfg_.args.left_start[left + 1]; ++q) {
        if (!chart_.cuts(i, j, left, cfg_.args.pair_right[q], &c)) continue;
        CountBox x;
        for_cuts(c, [&](int64_t, const CountBox& a, const CountBox& b) { x.cover(a, b); });
        f(q, c, x);
      }
  }
  template <class F>
  void for_rules(int64_t q, F&& f) {  // f(rule, parent, score) over allowed rules
    for (int64_t t = cfg_.args.pair_start[q]; t < cfg_.args.pair_start[q + 1]; ++t) {
      const int64_t r = cfg_.args.pair_rules[t];
      if (const T w = cfg_.rules(b_)[r]; w > kNegInf<T>) f(r, cfg_.parent(r), w);
    }
  }

  void cell(int64_t i, int64_t j) {
    touched_.clear();
    for_pairs(i, j, [&](int64_t q, const Chart::Cuts&, const CountBox& x) {
      for_rules(q, [&](int64_t r, int32_t a, T) {
        if (!made_[a].rows) touched_.push_back(a);
        const Step s = rule_step(r);
        made_[a].cover(x, s.g1, s.g2);
      });
    });
    for (const int32_t a : touched_) tables_.place(made_[a]);
    const int64_t mark = tables_.mark();
    for_pairs(i, j, [&](int64_t q, const Chart::Cuts& c, CountBox& x) {
      tables_.place(x);
      if (x.rows) {
        for_cuts(c, [&](int64_t, const CountBox& a, const CountBox& b) { tables_.convolve(a, b, T(0), x); });
        for_rules(q, [&](int64_t r, int32_t a, T w) {
          const Step s = rule_step(r);
          tables_.shift(x, s.g1, s.g2, w, made_[a]);
        });
      }
      tables_.release(mark);
    });
    const T* spans = cfg_.spans(b_, i, j);
    for (const int32_t a : touched_) {
      CountBox& box = made_[a];
      const Step s = span_step(i, j, a);
      if (box.rows && (!spans || spans[a] > kNegInf<T>)) {
        tables_.move(box, s.g1, s.g2, spans ? spans[a] : T(0));
        if (box.rows) file(i, j, a, box);
      }
      box = CountBox();
    }
  }

  struct Way {
    int64_t rule = -1, cut = 0, left1 = 0, left2 = 0;
  };
  // The best way to make symbol over i..j with statistics g before the span's own step.
  Way way(int64_t i, int64_t j, int64_t symbol, int64_t g1, int64_t g2) {
    Way found;
    T best = kNegInf<T>;
    Chart::Cuts c;
    for (int64_t t = cfg_.args.parent_start[symbol]; t < cfg_.args.parent_start[symbol + 1]; ++t) {
      const int64_t r = cfg_.args.parent_rules[t];
      const Step s = rule_step(r);
      const int64_t h1 = g1 - s.g1, h2 = g2 - s.g2;
      if (h1 < 0 || h2 < 0 || !chart_.cuts(i, j, cfg_.left(r), cfg_.right(r), &c)) continue;
      Way mine{r, 0, 0, 0};
      T x = kNegInf<T>;
      for_cuts(c, [&](int64_t k, const CountBox& a, const CountBox& b) {
        for (int64_t a1 = a.first1; a.rows && a1 <= std::min(a.last1(), h1); ++a1)
          for (int64_t a2 = a.first2; a2 <= std::min(a.last2(), h2); ++a2) {
            const T here = tables_.at(a, a1, a2) + tables_.at(b, h1 - a1, h2 - a2);
            if (here > x) x = here, mine.cut = k, mine.left1 = a1, mine.left2 = a2;
          }
      });
      if (const T made = x + cfg_.rules(b_)[r]; made > best) best = made, found = mine;
    }
    return found;
  }

  void trace(int64_t g, int64_t* y) {
    const int64_t g1 = g / args_.size2, g2 = g % args_.size2;
    std::sort(roots_.begin(), roots_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    T best = kNegInf<T>;
    Frame top{0, n_ - 1, -1, 0, 0};
    for (const auto& [symbol, box] : roots_) {
      const Step s = root_step(symbol);
      const T x = g1 < s.g1 || g2 < s.g2 ? kNegInf<T> : tables_.at(box, g1 - s.g1, g2 - s.g2) + cfg_.root(b_, symbol);
      if (x > best) best = x, top = {0, n_ - 1, symbol, g1 - s.g1, g2 - s.g2};
    }
    stack_.assign(1, top);
    while (!stack_.empty()) {
      const Frame f = stack_.back();
      stack_.pop_back();
      if (f.symbol < 0) return;
      if (f.i == f.j) {
        y[f.i * cfg_.N + f.j] = f.symbol - cfg_.NT;
        continue;
      }
      const Step s = span_step(f.i, f.j, f.symbol);
      const Way w = way(f.i, f.j, f.symbol, f.g1 - s.g1, f.g2 - s.g2);
      if (w.rule < 0) return;
      y[f.i * cfg_.N + f.j] = w.rule;
      const Step r = rule_step(w.rule);
      stack_.push_back({f.i, w.cut, cfg_.left(w.rule), w.left1, w.left2});
      stack_.push_back({w.cut + 1, f.j, cfg_.right(w.rule), f.g1 - s.g1 - r.g1 - w.left1, f.g2 - s.g2 - r.g2 - w.left2});
    }
  }

  struct Frame {
    int64_t i, j, symbol, g1, g2;
  };
  const CFG<T>& cfg_;
  const CountArgs<T>& args_;
  const T unit_;
  CountTables<T> tables_;
  int64_t b_ = 0, n_ = 0;
  Chart chart_;
  std::vector<CountBox> boxes_, made_;
  std::vector<int32_t> touched_;
  std::vector<std::pair<int64_t, CountBox>> roots_;
  std::vector<Frame> stack_;
};

template <class T>
int64_t best_by_count(const GrammarArgs* args, const CountArgs<T>& count) {
  const CFG<T> cfg(*args);
  cfg.for_chunks([&](int64_t, const std::vector<int64_t>& sentences) {
    RangeCheck<T> range(cfg);
    CountedDerivations<T> run(cfg, count);
    for (const int64_t b : sentences) {
      if (!range.may_overflow(b)) {
        run.run(b);
        continue;
      }
      const ShrunkSentence<T> shrunk(cfg, b);
      CountedDerivations<T>(shrunk.cfg(), count, shrunk.unit).run(b);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define COUNT(suffix, T)                                                                                               \
  extern "C" int64_t sl_grammar_best_by_count_##suffix(                                                                \
      const sl::GrammarArgs* a, const int32_t* terms, const int32_t* rules, const int32_t* roots, const int32_t* spans, \
      int64_t rules_b, int64_t roots_b, int64_t size1, int64_t size2, const T* offset, const T* slope, int64_t* y,      \
      int64_t* index, T* value, T* table) {                                                                            \
    return sl::best_by_count<T>(a, {terms, rules, roots, spans, rules_b, roots_b, size1, size2, offset, slope, y, index, value, table}); \
  }
COUNT(f32, float)
COUNT(f64, double)
