// log Z of each sentence, its gradient, the derivative of that gradient along a direction, and draws.
#include "draw.h"
#include "grammar_dense_sum.h"
#include "grammar_sum.h"

namespace sl {
namespace {

// Gradients of a batch: those of shared potentials are summed a chunk at a time and then in the order of
// the chunks, so that the result does not depend on which thread ran when.
template <class T>
struct GrammarSums {
  const CFG<T>& cfg;
  GrammarGradient<T> out;
  std::vector<T> rules, roots;

  GrammarSums(const CFG<T>& cfg_, const GrammarGradient<T>& out_) : cfg(cfg_), out(out_) {
    if (!cfg.args.rules_b) rules.assign(cfg.chunks() * cfg.R, T(0));
    if (!cfg.args.roots_b) roots.assign(cfg.chunks() * cfg.args.root_count, T(0));
  }
  // Clears what belongs to sentence b alone and says where its derivatives go.
  GrammarGradient<T> of(int64_t chunk, int64_t b) {
    const int64_t N = cfg.N, C = cfg.args.root_count;
    GrammarGradient<T> mine;
    mine.terms = out.terms + b * N * cfg.P;
    std::fill_n(mine.terms, N * cfg.P, T(0));
    if (out.spans) mine.spans = out.spans + b * N * N * cfg.NT, std::fill_n(mine.spans, N * N * cfg.NT, T(0));
    mine.rules = rules.empty() ? out.rules + b * cfg.R : rules.data() + chunk * cfg.R;
    mine.roots = roots.empty() ? out.roots + b * C : roots.data() + chunk * C;
    if (cfg.args.rules_b) std::fill_n(mine.rules, cfg.R, T(0));
    if (cfg.args.roots_b) std::fill_n(mine.roots, C, T(0));
    return mine;
  }
  void write() {
    const auto add_up = [&](const std::vector<T>& from, int64_t size, T* to) {
      std::fill_n(to, size, T(0));
      for (int64_t k = 0; k < cfg.chunks(); ++k)
        for (int64_t i = 0; i < size; ++i) to[i] += from[k * size + i];
    };
    if (!cfg.args.rules_b) add_up(rules, cfg.R, out.rules);
    if (!cfg.args.roots_b) add_up(roots, cfg.args.root_count, out.roots);
  }
};

// By matrix products where the grammar is dense and the numbers allow it, else over the constituents that
// exist. kept: null, or (B, DenseSum::kept) numbers for backward, where the grammar is dense.
template <class T>
class Sums {
 public:
  Sums(const CFG<T>& cfg, DenseSumRules<T>& shared, bool backward) : cfg_(cfg), sparse_(cfg), dense_(cfg, cfg.args.rules_b ? own_ : shared, backward) {}

  double inside(int64_t b, T* kept) {
    FlushSubnormals flush;
    if (cfg_.args.dense && dense_.inside(b, place(b, kept))) return dense_.log_z;
    sparse_.inside(b);
    return sparse_.log_z;
  }
  // made: what inside kept for this sentence, or null to do that first.
  void outside(int64_t b, T* made, T weight, const GrammarGradient<T>& out) {
    FlushSubnormals flush;
    T* kept = cfg_.args.dense ? place(b, made) : nullptr;
    if (kept && (made ? kept[0] == 1 : dense_.inside(b, kept))) {
      dense_.outside(b, kept, weight, out);
      if (cfg_.args.rules_b) dense_.flush(out.rules);
      return;
    }
    sparse_.inside(b);
    sparse_.outside(weight, out);
  }
  void flush(T* d_rules) { dense_.flush(d_rules); }
  SparseSum<T, false>& sparse() { return sparse_; }

 private:
  T* place(int64_t b, T* kept) {
    const int64_t size = DenseSum<T>::kept(cfg_.args);
    if (kept) return kept + b * size;
    scratch_.resize(size);
    return scratch_.data;
  }
  const CFG<T>& cfg_;
  DenseSumRules<T> own_;
  SparseSum<T, false> sparse_;
  DenseSum<T> dense_;
  Buffer<T> scratch_;
};

template <class T>
int64_t forward(const GrammarArgs* args, T* out, T* kept) {
  const CFG<T> cfg(*args);
  DenseSumRules<T> shared;
  if (args->dense && !args->rules_b && cfg.B) shared.pack(cfg, 0, false);
  cfg.for_chunks([&](int64_t, const std::vector<int64_t>& sentences) {
    Sums<T> run(cfg, shared, false);
    for (const int64_t b : sentences) out[b] = T(run.inside(b, kept));
  });
  return 0;
}

// Z itself.
template <class T>
int64_t plain(const GrammarArgs* args, T* out) {
  const CFG<T> cfg(*args);
  cfg.for_chunks([&](int64_t, const std::vector<int64_t>& sentences) {
    SparseSum<T, false> run(cfg);
    for (const int64_t b : sentences) {
      run.inside(b);
      out[b] = T(std::ldexp(double(run.total.m), int(std::max(run.total.e, T(-2000)))));
    }
  });
  return 0;
}

template <class T>
int64_t backward(const GrammarArgs* args, T* kept, const T* grad, const GrammarGradient<T>& out) {
  const CFG<T> cfg(*args);
  DenseSumRules<T> shared;
  if (args->dense && !args->rules_b && cfg.B) shared.pack(cfg, 0, true);
  GrammarSums<T> sums(cfg, out);
  cfg.for_chunks([&](int64_t chunk, const std::vector<int64_t>& sentences) {
    Sums<T> run(cfg, shared, true);
    GrammarGradient<T> mine;
    for (const int64_t b : sentences) mine = sums.of(chunk, b), run.outside(b, kept, grad[b], mine);
    if (!args->rules_b && !sentences.empty()) run.flush(mine.rules);
  });
  sums.write();
  return 0;
}

// along_b = d log Z_b . v and sum_b weight_b (d^2 log Z_b) v.
template <class T>
int64_t second(const GrammarArgs* args, const T* weight, const GrammarDirection<T>& v, T* along, const GrammarGradient<T>& out) {
  const CFG<T> cfg(*args);
  GrammarSums<T> sums(cfg, out);
  cfg.for_chunks([&](int64_t chunk, const std::vector<int64_t>& sentences) {
    SparseSum<T, true> run(cfg, v);
    for (const int64_t b : sentences) {
      const GrammarGradient<T> mine = sums.of(chunk, b);
      run.inside(b);
      along[b] = T(run.along);
      run.outside(weight[b], mine);
    }
  });
  sums.write();
  return 0;
}

template <class T>
int64_t entropy(const GrammarArgs* args, const GrammarDirection<T>& v, T* out) {
  const CFG<T> cfg(*args);
  cfg.for_chunks([&](int64_t, const std::vector<int64_t>& sentences) {
    SparseSum<T, true> run(cfg, v);
    for (const int64_t b : sentences) {
      run.inside(b);
      out[b] = run.log_z > kNegInf<double> ? T(run.log_z - run.along) : T(0);
    }
  });
  return 0;
}

// Draws by inverse CDF from the whole sentence down: the root, then for every constituent in preorder
// its rule and its cut, each the lowest whose cumulative weight exceeds the given uniform number. The
// root uses the pair of numbers of the last constituent of a tree over N words.
template <class T>
class Sampler {
 public:
  explicit Sampler(const CFG<T>& cfg) : cfg_(cfg), run_(cfg) {}

  void sentence(int64_t b, const T* uniform, int64_t draws, int64_t* y) {
    const int64_t N = cfg_.N, numbers = (2 * N - 1) * 2;
    run_.inside(b);
    for (int64_t s = 0; s < draws; ++s) {
      int64_t* to = y + (s * cfg_.B + b) * N * N;
      std::fill_n(to, N * N, kPadLabel);
      if (run_.words() && run_.log_z > kNegInf<double>) draw(b, uniform + (s * cfg_.B + b) * numbers, to);
    }
  }

 private:
  void clear() { choices_.clear(), weights_.clear(); }
  void offer(int64_t choice, T weight) { choices_.push_back(choice), weights_.push_back(weight); }
  int64_t pick(T uniform) const { return choices_.empty() ? 0 : choices_[sl::draw(weights_.data(), int64_t(weights_.size()), uniform)]; }
  void draw(int64_t b, const T* uniform, int64_t* y) {
    const int64_t N = cfg_.N, n = run_.words();
    clear();
    std::vector<std::pair<int64_t, T>> found;
    run_.roots([&](int64_t symbol, const Scaled<T>& x, T) {
      const Scaled<T> w = Scaled<T>::exp(cfg_.root(b, symbol));
      found.emplace_back(symbol, x.m * w.m * power2(std::min(x.e + w.e - run_.total.e, T(2))));
    });
    std::sort(found.begin(), found.end());
    for (const auto& [symbol, weight] : found) offer(symbol, weight);
    stack_.assign(1, {0, n - 1, pick(uniform[(2 * N - 2) * 2 + 1])});
    for (; !stack_.empty(); uniform += 2) {
      const Frame f = stack_.back();
      stack_.pop_back();
      if (f.i == f.j) {
        y[f.i * N + f.j] = f.symbol - cfg_.NT;
        continue;
      }
      clear();
      run_.ways(f.i, f.j, f.symbol, [&](int64_t r, T w) { offer(r, w); });
      const int64_t r = pick(uniform[0]);
      y[f.i * N + f.j] = r;
      clear();
      run_.cuts_of(f.i, f.j, r, [&](int64_t k, T w) { offer(k, w); });
      const int64_t k = pick(uniform[1]);
      stack_.push_back({k + 1, f.j, cfg_.right(r)});
      stack_.push_back({f.i, k, cfg_.left(r)});
    }
  }

  struct Frame {
    int64_t i, j, symbol;
  };
  const CFG<T>& cfg_;
  SparseSum<T, false> run_;
  std::vector<int64_t> choices_;
  std::vector<T> weights_;
  std::vector<Frame> stack_;
};

template <class T>
int64_t sample(const GrammarArgs* args, const T* uniform, int64_t draws, int64_t* y) {
  const CFG<T> cfg(*args);
  cfg.for_chunks([&](int64_t, const std::vector<int64_t>& sentences) {
    Sampler<T> run(cfg);
    for (const int64_t b : sentences) run.sentence(b, uniform, draws, y);
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SUMS(suffix, T)                                                                                                \
  extern "C" int64_t sl_grammar_forward_##suffix(const sl::GrammarArgs* a, T* out, T* kept) {                          \
    return sl::forward<T>(a, out, kept);                                                                               \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_plain_##suffix(const sl::GrammarArgs* a, T* out) { return sl::plain<T>(a, out); }      \
  extern "C" int64_t sl_grammar_backward_##suffix(const sl::GrammarArgs* a, T* kept, const T* grad, T* d_terms,        \
                                                  T* d_rules, T* d_roots, T* d_spans) {                                \
    return sl::backward<T>(a, kept, grad, {d_terms, d_rules, d_roots, d_spans});                                       \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_second_##suffix(const sl::GrammarArgs* a, const T* weight, const T* v_terms,           \
                                                const T* v_rules, const T* v_roots, const T* v_spans, T* along,        \
                                                T* d_terms, T* d_rules, T* d_roots, T* d_spans) {                      \
    return sl::second<T>(a, weight, {v_terms, v_rules, v_roots, v_spans}, along, {d_terms, d_rules, d_roots, d_spans}); \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_entropy_##suffix(const sl::GrammarArgs* a, const T* v_terms, const T* v_rules,         \
                                                 const T* v_roots, const T* v_spans, T* out) {                         \
    return sl::entropy<T>(a, {v_terms, v_rules, v_roots, v_spans}, out);                                               \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_sample_##suffix(const sl::GrammarArgs* a, const T* uniform, int64_t draws, int64_t* y) { \
    return sl::sample<T>(a, uniform, draws, y);                                                                        \
  }
SUMS(f32, float)
SUMS(f64, double)
