// log Z of each sentence, its gradient, the derivative of that gradient along a direction, entropies, and draws.
#include "draw.h"
#include "grammar_sum_batch.h"

namespace sl {
namespace {

// kept: null, or where to leave what the gradient can use.
template <class T>
int64_t forward(const GrammarArgs* args, T* out, T* kept) {
  const CFG<T> cfg(*args);
  DenseSumRules<T> shared;
  if (args->dense && !args->rules_b && cfg.B) shared.pack(cfg, 0, false, cfg.chunks());
  cfg.for_chunks([&](int64_t chunk, const std::vector<int64_t>& sentences) {
    Sums<T> run(cfg, shared);
    run.log_z = out, run.kept = kept;
    run.run(chunk, sentences);
  });
  return 0;
}

// Z itself.
template <class T>
int64_t plain(const GrammarArgs* args, T* out) {
  const CFG<T> cfg(*args);
  cfg.for_chunks([&](int64_t, const std::vector<int64_t>& sentences) {
    SparseSum<T> run(cfg);
    for (const int64_t b : sentences) {
      run.inside(b);
      out[b] = T(std::ldexp(double(run.total.m), int(std::max(run.total.e, T(-2000)))));
    }
  });
  return 0;
}

// The gradient, weighted by grad where given, from what forward kept or from scratch; with log_z, the values too.
template <class T>
int64_t backward(const GrammarArgs* args, T* log_z, T* kept, const T* grad, const GrammarGradient<T>& out) {
  const CFG<T> cfg(*args);
  DenseSumRules<T> shared;
  if (args->dense && !args->rules_b && cfg.B) shared.pack(cfg, 0, true, cfg.chunks());
  GrammarSums<T> sums(cfg, out);
  cfg.for_chunks([&](int64_t chunk, const std::vector<int64_t>& sentences) {
    Sums<T> run(cfg, shared);
    run.log_z = log_z, run.kept = kept, run.made = kept, run.grad = grad, run.sums = &sums;
    run.run(chunk, sentences);
  });
  sums.write(&shared);
  return 0;
}

// along_b = d log Z_b . v and sum_b weight_b (d^2 log Z_b) v; or, with kShares, the entropies or their gradient.
template <class T, Carry C, bool Gradient>
int64_t carried(const GrammarArgs* args, const T* weight, const GrammarDirection<T>& v, T* carry, const GrammarGradient<T>& out) {
  const CFG<T> cfg(*args);
  GrammarSums<T> sums(cfg, out);
  cfg.for_chunks([&](int64_t chunk, const std::vector<int64_t>& sentences) {
    ExactSums<T, C> run(cfg);
    for (const int64_t b : sentences)
      run(b, v, [&](auto& exact) {
        if (carry) carry[b] = T(C == Carry::kShares ? std::max(0.0, -exact.z.r) : exact.z.r);
        if (!Gradient) return;
        GrammarGradient<T> mine = sums.of(chunk, b);
        mine.rules = sums.rules_of(chunk, b);
        exact.outside(C == Carry::kShares ? -weight[b] : weight[b], mine);
      });
  });
  if (Gradient) sums.write();
  return 0;
}

// Draws by inverse CDF from the whole sentence down: the root, then for every constituent in preorder
// its rule and its cut, each the lowest whose cumulative weight exceeds the given uniform number. The
// root uses the pair of numbers of the last constituent of a tree over N words.
template <class T>
class Sampler {
 public:
  explicit Sampler(const CFG<T>& cfg) : cfg_(cfg), sparse_(cfg), exact_(cfg) {}

  void sentence(int64_t b, const T* uniform, int64_t draws, int64_t* y) {
    const auto with = [&](auto& sums) {
      const int64_t N = cfg_.N, numbers = (2 * N - 1) * 2;
      for (int64_t s = 0; s < draws; ++s) {
        int64_t* to = y + (s * cfg_.B + b) * N * N;
        std::fill_n(to, N * N, kPadLabel);
        if (sums.words() && sums.feasible()) draw(sums, uniform + (s * cfg_.B + b) * numbers, to);
      }
    };
    if (sparse_.inside(b)) with(sparse_);
    else exact_(b, {}, with);
  }

 private:
  void clear() { choices_.clear(), weights_.clear(); }
  void offer(int64_t choice, T weight) { choices_.push_back(choice), weights_.push_back(weight); }
  int64_t pick(T uniform) const { return choices_.empty() ? 0 : choices_[sl::draw(weights_.data(), int64_t(weights_.size()), uniform)]; }
  template <class Sums>
  void draw(Sums& sums, const T* uniform, int64_t* y) {
    const int64_t N = cfg_.N, n = sums.words();
    clear();
    std::vector<std::pair<int64_t, T>> roots;
    sums.root_shares([&](int64_t symbol, T share) { roots.emplace_back(symbol, share); });
    std::sort(roots.begin(), roots.end());
    for (const auto& [symbol, share] : roots) offer(symbol, share);
    stack_.assign(1, {0, n - 1, pick(uniform[(2 * N - 2) * 2 + 1])});
    for (; !stack_.empty(); uniform += 2) {
      const Frame f = stack_.back();
      stack_.pop_back();
      if (f.i == f.j) {
        y[f.i * N + f.j] = f.symbol - cfg_.NT;
        continue;
      }
      clear();
      sums.ways(f.i, f.j, f.symbol, [&](int64_t r, T w) { offer(r, w); });
      const int64_t r = pick(uniform[0]);
      y[f.i * N + f.j] = r;
      clear();
      sums.cuts_of(f.i, f.j, r, [&](int64_t k, T w) { offer(k, w); });
      const int64_t k = pick(uniform[1]);
      stack_.push_back({k + 1, f.j, cfg_.right(r)});
      stack_.push_back({f.i, k, cfg_.left(r)});
    }
  }

  struct Frame {
    int64_t i, j, symbol;
  };
  const CFG<T>& cfg_;
  SparseSum<T> sparse_;
  ExactSums<T, Carry::kNothing> exact_;
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
    return sl::backward<T>(a, nullptr, kept, grad, {d_terms, d_rules, d_roots, d_spans});                              \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_value_and_gradient_##suffix(const sl::GrammarArgs* a, T* log_z, T* d_terms,            \
                                                            T* d_rules, T* d_roots, T* d_spans) {                      \
    return sl::backward<T>(a, log_z, nullptr, nullptr, {d_terms, d_rules, d_roots, d_spans});                          \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_second_##suffix(const sl::GrammarArgs* a, const T* weight, const T* v_terms,           \
                                                const T* v_rules, const T* v_roots, const T* v_spans, T* along,        \
                                                T* d_terms, T* d_rules, T* d_roots, T* d_spans) {                      \
    return sl::carried<T, sl::Carry::kTangent, true>(a, weight, {v_terms, v_rules, v_roots, v_spans}, along,                 \
                                               {d_terms, d_rules, d_roots, d_spans});                                  \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_entropy_##suffix(const sl::GrammarArgs* a, T* out) {                                   \
    return sl::carried<T, sl::Carry::kShares, false>(a, nullptr, {}, out, {});                                                \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_entropy_backward_##suffix(const sl::GrammarArgs* a, const T* weight, T* d_terms,       \
                                                          T* d_rules, T* d_roots, T* d_spans) {                        \
    return sl::carried<T, sl::Carry::kShares, true>(a, weight, {}, nullptr, {d_terms, d_rules, d_roots, d_spans});           \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_sample_##suffix(const sl::GrammarArgs* a, const T* uniform, int64_t draws, int64_t* y) { \
    return sl::sample<T>(a, uniform, draws, y);                                                                        \
  }
SUMS(f32, float)
SUMS(f64, double)
