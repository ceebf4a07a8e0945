// The k best derivations: each constituent keeps its k best ways in order,
//   x = k largest of { a[i][k][B][s] + a[k+1][j][C][t] },   a[i][j][A] = k largest of { x_r[c] + rules[r] },
// equal scores in the order of (k, s, t) and of (r, c). Limited by the merge: a list is left at its first
// entry that does not make it, and rules whose children do not meet cost one look-up of two bit masks.
#include "grammar.h"
#include "kbest.h"

namespace sl {
namespace {

struct Way {
  int32_t rule, cut, left, right;
};

template <class T>
class KBestDerivations {
 public:
  KBestDerivations(const CFG<T>& cfg, int64_t k) : cfg_(cfg), k_(k), cuts_(k), best_(k) {}

  void sentence(int64_t b, int64_t* y, T* scores) {
    const int64_t n = cfg_.length(b), N = cfg_.N, B = cfg_.B;
    for (int64_t i = 0; i < k_; ++i) std::fill_n(y + (i * B + b) * N * N, N * N, kPadLabel), scores[i * B + b] = kNegInf<T>;
    if (n == 0) {
      scores[b] = 0;
      return;
    }
    b_ = b, n_ = n;
    chart_.reset(cfg_, n, {-1});
    lists_.clear(), values_.clear(), ways_.clear();
    root_.assign(cfg_.S, -1);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t p = 0; p < cfg_.P; ++p)
        if (const T x = cfg_.terms(b, j)[p]; x > kNegInf<T>) {
          best_.clear();
          best_.offer(x, {int32_t(p), 0, 0, 0});
          keep(j, j, cfg_.NT + p, T(0));
        }
      for (int64_t i = j - 1; i >= 0; --i) cell(i, j);
    }
    KLargest<T, std::pair<int64_t, int64_t>> roots(k_);
    for (int64_t s = 0; s < cfg_.S; ++s) {
      const T w = cfg_.root(b, s);
      for (int64_t c = 0; root_[s] >= 0 && c < lists_[root_[s]].second; ++c)
        if (!roots.offer(values_[lists_[root_[s]].first + c] + w, {s, c})) break;
    }
    for (int64_t i = 0; i < roots.size(); ++i) {
      scores[i * B + b] = roots.value(i);
      read(roots.tag(i).first, roots.tag(i).second, y + (i * B + b) * N * N);
    }
  }

 private:
  using Chart = SparseChart<int32_t, 1>;  // numbers of lists

  // Files best_ under symbol over i..j, with `score` added.
  void keep(int64_t i, int64_t j, int64_t symbol, T score) {
    if (!best_.size() || score == kNegInf<T>) return;
    const int64_t list = int64_t(lists_.size());
    lists_.push_back({int64_t(values_.size()), best_.size()});
    for (int64_t c = 0; c < best_.size(); ++c) values_.push_back(best_.value(c) + score), ways_.push_back(best_.tag(c));
    const auto places = chart_.insert(cfg_, i, j, symbol);
    if (places.left) *places.left = int32_t(list);
    if (places.right) *places.right = int32_t(list);
    if (i == 0 && j == n_ - 1) root_[symbol] = list;
  }

  void cell(int64_t i, int64_t j) {
    const T* spans = cfg_.spans(b_, i, j);
    for (int64_t a = 0; a < cfg_.NT; ++a) {
      best_.clear();
      for (int64_t t = cfg_.args.parent_start[a]; t < cfg_.args.parent_start[a + 1]; ++t) rule(i, j, cfg_.args.parent_rules[t]);
      keep(i, j, a, spans ? spans[a] : T(0));
    }
  }
  void rule(int64_t i, int64_t j, int64_t r) {
    typename Chart::Cuts c;
    if (!chart_.cuts(i, j, cfg_.left(r), cfg_.right(r), &c)) return;
    cuts_.clear();
    for (int64_t k = c.first; k <= c.last; ++k) {
      if (c.left[k] < 0 || c.right[k] < 0) continue;
      const auto [left, lefts] = lists_[c.left[k]];
      const auto [right, rights] = lists_[c.right[k]];
      for (int64_t s = 0; s < lefts; ++s) {
        int64_t t = 0;
        while (t < rights && (s + 1) * (t + 1) <= k_ &&
               cuts_.offer(values_[left + s] + values_[right + t], {int32_t(r), int32_t(k), int32_t(s), int32_t(t)}))
          ++t;
        if (t == 0) break;
      }
    }
    const T w = cfg_.rules(b_)[r];
    for (int64_t m = 0; m < cuts_.size(); ++m)
      if (!best_.offer(cuts_.value(m) + w, cuts_.tag(m))) break;
  }

  void read(int64_t symbol, int64_t rank, int64_t* y) {
    stack_.assign(1, {0, n_ - 1, symbol, rank, root_[symbol]});
    while (!stack_.empty()) {
      const Frame f = stack_.back();
      stack_.pop_back();
      const Way& way = ways_[lists_[f.list].first + f.rank];
      y[f.i * cfg_.N + f.j] = way.rule;
      if (f.i == f.j) continue;
      typename Chart::Cuts c;
      chart_.cuts(f.i, f.j, cfg_.left(way.rule), cfg_.right(way.rule), &c);
      stack_.push_back({f.i, way.cut, cfg_.left(way.rule), way.left, c.left[way.cut]});
      stack_.push_back({way.cut + 1, f.j, cfg_.right(way.rule), way.right, c.right[way.cut]});
    }
  }

  struct Frame {
    int64_t i, j, symbol, rank, list;
  };
  const CFG<T>& cfg_;
  const int64_t k_;
  int64_t b_ = 0, n_ = 0;
  Chart chart_;
  KLargest<T, Way> cuts_, best_;
  std::vector<std::pair<int64_t, int64_t>> lists_;  // first value and number of values
  std::vector<T> values_;
  std::vector<Way> ways_;
  std::vector<int64_t> root_;
  std::vector<Frame> stack_;
};

template <class T>
int64_t kbest(const GrammarArgs* args, int64_t k, int64_t* y, T* scores) {
  const CFG<T> cfg(*args);
  cfg.for_chunks([&](int64_t, const std::vector<int64_t>& sentences) {
    RangeCheck<T> range(cfg);
    KBestDerivations<T> run(cfg, k);
    for (const int64_t b : sentences) {
      if (!range.may_overflow(b)) {
        run.sentence(b, y, scores);
        continue;
      }
      const ShrunkSentence<T> shrunk(cfg, b);
      KBestDerivations<T>(shrunk.cfg(), k).sentence(b, y, scores);
      for (int64_t i = 0; i < k; ++i) scores[i * cfg.B + b] = saturated(scores[i * cfg.B + b], shrunk.unit);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_grammar_kbest_f32(const sl::GrammarArgs* a, int64_t k, int64_t* y, float* scores) { return sl::kbest(a, k, y, scores); }
int64_t sl_grammar_kbest_f64(const sl::GrammarArgs* a, int64_t k, int64_t* y, double* scores) { return sl::kbest(a, k, y, scores); }
}
