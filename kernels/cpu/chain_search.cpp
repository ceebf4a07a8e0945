// The most violated labelling under a Hamming cost by lambda-search (losses/search.py states the
// bound): rounds of cost-augmented Viterbi over the rows that are not decided yet, each with its own
// rate, and count-augmented Viterbi for rows that the bound cannot decide. Limited by Viterbi.
#include <cmath>

#include "chain_count.h"
#include "chain_viterbi.h"

namespace sl {
namespace {

template <class T>
struct SearchArgs {
  const int64_t* gold;      // (B, N)
  const T* discount;        // (B, N) cost of a mistake; null: 1
  const int32_t* weight;    // (B, N) the same as a count; null: 1
  const T* levels;          // (B, S) cost of each count
  const T* gold_score;      // (B,)
  int64_t size, slack, squared, rounds, most_weight;
  int64_t *labels, *proven;  // (B, N) and (B,): 1 decided by the bound, 2 by counting
};

template <class T>
class Search {
 public:
  Search(const ChainArgs& args, const SearchArgs<T>& search) : s_(search), trial_(args.B * args.N), score_(args.B), rate_(args.B), viterbi_(args, trial_.data(), score_.data()) {
    viterbi_.gold = search.gold;
    viterbi_.discount = search.discount;
    viterbi_.scale = rate_.data();
  }

  // Decides rows order[first], order[first + step], ...
  void run(int64_t first, int64_t step) {
    const Chain<T>& chain = viterbi_.chain;
    std::vector<int64_t> rows;
    for (int64_t i = first; i < chain.B; i += step) rows.push_back(chain.order[i]);
    const int64_t group = Viterbi<T>::most_rows(chain.args);
    std::vector<Row> state(chain.B);
    for (const int64_t b : rows) {
      state[b].upper.assign(s_.size, std::numeric_limits<T>::infinity());
      for (int64_t t = 0; t < chain.N; ++t) s_.labels[b * chain.N + t] = t < chain.length(b) ? s_.gold[b * chain.N + t] : kPadLabel;
      s_.proven[b] = chain.length(b) == 0;
      rate_[b] = 0;
    }
    rows.erase(std::remove_if(rows.begin(), rows.end(), [&](int64_t b) { return s_.proven[b]; }), rows.end());
    std::vector<int64_t> left;
    for (int64_t round = 0; round < s_.rounds && !rows.empty(); ++round) {
      for (size_t i = 0; i < rows.size(); i += group) viterbi_.decode(rows.data() + i, int(std::min<size_t>(group, rows.size() - i)));
      left.clear();
      for (const int64_t b : rows)
        if (!update(b, state[b])) left.push_back(b);
      rows.swap(left);
    }
    for (int64_t i = first; i < chain.B; i += step)
      if (!s_.proven[chain.order[i]]) count(chain.order[i]);
  }

 private:
  struct Row {
    std::vector<T> upper;
    T best = 0, wanted = std::numeric_limits<T>::infinity();
  };

  T size_of(T cost) const { return s_.squared ? std::sqrt(cost) : cost; }
  T worth(T x, T h) const { return s_.slack ? size_of(x) * h : size_of(x) + h - 1; }
  T slope(T x, T h) const {
    x = std::max(x, std::numeric_limits<T>::min());
    if (s_.slack) return s_.squared ? h / (2 * x) : h / x;
    return s_.squared ? 1 / (2 * std::sqrt(x)) : T(1);
  }

  // Takes in the answer for row b; true if the row needs no further round.
  bool update(int64_t b, Row& row) {
    const Chain<T>& chain = viterbi_.chain;
    const int64_t n = chain.length(b), N = chain.N;
    const int64_t* y = trial_.data() + b * N;
    if (y[0] == kPadLabel) return s_.proven[b] = 1, true;  // no output is allowed: there is none worse than gold
    T x = 0;
    for (int64_t t = 0; t < n; ++t)
      if (y[t] != s_.gold[b * N + t]) x += s_.discount ? s_.discount[b * N + t] : T(1);
    const T h = from_units<T>(in_units(T(1)) + chain.difference(b, y, s_.gold + b * N));
    const T value = worth(x, h), v = h + rate_[b] * x;
    if (value > row.best) {
      row.best = value;
      std::copy_n(y, n, s_.labels + b * N);
    }
    T bound = kNegInf<T>;
    int64_t at = 0;
    for (int64_t g = 0; g < s_.size; ++g) {
      const T level = s_.levels[b * s_.size + g];
      row.upper[g] = std::min(row.upper[g], v - rate_[b] * level);
      const T w = worth(level, row.upper[g]);
      if (w > bound) bound = w, at = g;
    }
    const T tolerance = 64 * std::numeric_limits<T>::epsilon() * (1 + std::abs(row.best) + std::abs(s_.gold_score[b]));
    if (bound <= row.best + tolerance) return s_.proven[b] = 1, true;
    if (v >= row.wanted - tolerance) return true;
    const T level = s_.levels[b * s_.size + at];
    rate_[b] = slope(level, row.upper[at]);
    row.wanted = row.upper[at] + rate_[b] * level;
    return false;
  }

  void count(int64_t b) {
    const Chain<T>& chain = viterbi_.chain;
    const int64_t N = chain.N, C = chain.C, S = s_.size;
    std::vector<int32_t> steps(N * C);
    for (int64_t t = 0; t < chain.length(b); ++t)
      for (int64_t c = 0; c < C; ++c) steps[t * C + c] = c == s_.gold[b * N + t] ? 0 : (s_.weight ? s_.weight[b * N + t] : 1);
    if (offset_.empty()) {
      const int64_t B = chain.B;
      offset_.resize(B * S), slope_.resize(B * S), table_.resize(B * S), value_.resize(B), index_.resize(B);
      args_ = {nullptr, nullptr, nullptr, nullptr, 0, 1, S, offset_.data(), slope_.data(), s_.labels, index_.data(), value_.data(), table_.data(), s_.most_weight};
      counted_.emplace_back(chain, args_);
    }
    for (int64_t g = 0; g < S; ++g) {
      const T size = size_of(s_.levels[b * S + g]);
      offset_[b * S + g] = s_.slack ? size * (1 - s_.gold_score[b]) : size - s_.gold_score[b];
      slope_[b * S + g] = s_.slack ? size : T(1);
    }
    counted_.front().run(b, steps.data());
    s_.proven[b] = 2;
  }

  const SearchArgs<T>& s_;
  std::vector<int64_t> trial_;
  std::vector<T> score_, rate_;
  Viterbi<T> viterbi_;
  CountArgs<T> args_{};
  std::vector<CountedRow<T>> counted_;  // at most one, made when first needed
  std::vector<T> offset_, slope_, table_, value_;
  std::vector<int64_t> index_;
};

template <class T>
int64_t search(const ChainArgs* args, const SearchArgs<T>& s) {
  const Chain<T> chain(*args, 1);
  const int64_t passes = s.rounds ? 8 : s.size;  // of work a row: some rounds of Viterbi, or one pass a count
  const int64_t chunks = workers_for(chain.work * passes, args->threads, chain.B);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    // One search a chunk: rates, trial labels and scratch are its own.
    ChainArgs own = *args;
    own.threads = 1;
    Search<T> run(own, s);
    run.run(chunk, chunks);
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SEARCH(suffix, T)                                                                                              \
  extern "C" int64_t sl_chain_search_##suffix(                                                                         \
      const sl::ChainArgs* a, const int64_t* gold, const T* discount, const int32_t* weight, const T* levels,          \
      const T* gold_score, int64_t size, int64_t slack, int64_t squared, int64_t rounds, int64_t most_weight,          \
      int64_t* labels, int64_t* proven) {                                                                              \
    return sl::search<T>(a, {gold, discount, weight, levels, gold_score, size, slack, squared, rounds, most_weight,    \
                             labels, proven});                                                                         \
  }
SEARCH(f32, float)
SEARCH(f64, double)
