// Best derivation of each sentence: by matrix products over (max, +) where most triples of
// nonterminals are rules (grammar_dense.h), over the constituents that exist otherwise (grammar_max.h).
#include "grammar_dense_max.h"
#include "grammar_max.h"

namespace sl {
namespace {

template <class T>
int64_t best(const GrammarArgs* args, int64_t* y, T* scores) {
  const CFG<T> cfg(*args);
  const int64_t square = cfg.N * cfg.N;
  DenseMaxRules<T> shared;
  if (args->dense && !args->rules_b && cfg.B) shared.pack(cfg, 0);
  cfg.for_chunks([&](int64_t, const std::vector<int64_t>& sentences) {
    RangeCheck<T> range(cfg);
    const auto all = [&](auto&& run) {
      for (const int64_t b : sentences) {
        std::fill_n(y + b * square, square, kPadLabel);
        if (!range.may_overflow(b)) {
          scores[b] = run.run(b, y + b * square);
          continue;
        }
        const ShrunkSentence<T> shrunk(cfg, b);
        scores[b] = saturated(SparseMax<T>(shrunk.cfg()).run(b, y + b * square), shrunk.unit);
      }
    };
    if (args->dense) {
      DenseMaxRules<T> own;
      all(DenseMax<T>(cfg, args->rules_b ? own : shared));
    } else {
      all(SparseMax<T>(cfg));
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_grammar_best_f32(const sl::GrammarArgs* a, int64_t* y, float* scores) { return sl::best(a, y, scores); }
int64_t sl_grammar_best_f64(const sl::GrammarArgs* a, int64_t* y, double* scores) { return sl::best(a, y, scores); }
}
