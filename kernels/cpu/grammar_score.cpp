// Scores of given derivations and their gradients: look-ups and counts, limited by reading the (N, N)
// charts and by clearing the dense gradients.
#include "grammar.h"

namespace sl {
namespace {

// Walks the constituents of the derivation y (N, N) of n words: f(i, j, entry). Returns the root symbol,
// or -1 - what is wrong: the place i N + j of an entry that is no rule or preterminal, N N + i N + j of a
// rule without a cut into its children, 2 N N of entries that belong to no derivation.
template <class T, class F>
int64_t walk(const CFG<T>& cfg, const int64_t* y, int64_t n, std::vector<std::pair<int64_t, int64_t>>& stack, F&& f) {
  const int64_t N = cfg.N;
  int64_t entries = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i; j < n; ++j) entries += y[i * N + j] != kPadLabel;
  const auto symbol = [&](int64_t i, int64_t j) -> int64_t {
    const int64_t x = y[i * N + j];
    if (x == kPadLabel || uint64_t(x) >= uint64_t(i == j ? cfg.P : cfg.R)) return -1;
    return i == j ? cfg.NT + x : cfg.parent(x);
  };
  stack.assign(1, {0, n - 1});
  while (!stack.empty()) {
    const auto [i, j] = stack.back();
    stack.pop_back();
    if (symbol(i, j) < 0) return -1 - (i * N + j);
    f(i, j, y[i * N + j]);
    --entries;
    if (i == j) continue;
    const int64_t r = y[i * N + j];
    int64_t k = i;
    while (k < j && (y[i * N + k] == kPadLabel || y[(k + 1) * N + j] == kPadLabel)) ++k;
    if (k < j && (symbol(i, k) < 0 || symbol(k + 1, j) < 0)) return -1 - (symbol(i, k) < 0 ? i * N + k : (k + 1) * N + j);
    if (k == j || symbol(i, k) != cfg.left(r) || symbol(k + 1, j) != cfg.right(r)) return -1 - (N * N + i * N + j);
    stack.push_back({k + 1, j});
    stack.push_back({i, k});
  }
  return entries ? -1 - 2 * N * N : symbol(0, n - 1);
}

// Returns -1, or what walk found in chart number k B + b, plus 3 N N times that number. With `missing`,
// a chart without an entry for the whole sentence scores -inf instead.
template <class T>
int64_t score(const GrammarArgs* args, const int64_t* y, int64_t K, int64_t missing, T* out) {
  const CFG<T> cfg(*args);
  std::vector<std::pair<int64_t, int64_t>> stack;
  for (int64_t at = 0; at < K * cfg.B; ++at) {
    const int64_t b = at % cfg.B, N = cfg.N, n = cfg.length(b);
    const int64_t* chart = y + at * N * N;
    out[at] = 0;
    if (n == 0) continue;
    if (missing && chart[n - 1] == kPadLabel) {
      out[at] = kNegInf<T>;
      continue;
    }
    const auto sum_in = [&](T unit) {
      T sum = 0;
      const int64_t root = walk(cfg, chart, n, stack, [&](int64_t i, int64_t j, int64_t x) {
        if (i == j) {
          sum += cfg.terms(b, i)[x] / unit;
        } else {
          sum += cfg.rules(b)[x] / unit;
          if (cfg.args.spans) sum += cfg.spans(b, i, j)[cfg.parent(x)] / unit;
        }
      });
      if (root >= 0) out[at] = sum + cfg.root(b, root) / unit;
      return root;
    };
    if (const int64_t root = sum_in(T(1)); root < 0) return at * 3 * N * N - 1 - root;
    if (!std::isfinite(out[at])) {
      constexpr T unit = T(int64_t(1) << 62);  // longer sentences do not fit into memory
      sum_in(unit);
      out[at] = saturated(out[at], unit);
    }
  }
  return -1;
}

template <class T>
int64_t score_backward(const GrammarArgs* args, const int64_t* y, int64_t K, const T* grad, T* d_terms, T* d_rules, T* d_roots, T* d_spans) {
  const CFG<T> cfg(*args);
  const int64_t B = cfg.B, N = cfg.N, C = args->root_count;
  std::fill_n(d_terms, B * N * cfg.P, T(0));
  std::fill_n(d_rules, (args->rules_b ? B : 1) * cfg.R, T(0));
  std::fill_n(d_roots, (args->roots_b ? B : 1) * C, T(0));
  if (d_spans) std::fill_n(d_spans, B * N * N * cfg.NT, T(0));
  std::vector<std::pair<int64_t, int64_t>> stack;
  for (int64_t at = 0; at < K * B; ++at) {
    const int64_t b = at % B, n = cfg.length(b);
    const int64_t* chart = y + at * N * N;
    if (n == 0 || chart[n - 1] == kPadLabel) continue;
    const T g = grad[at];
    const int64_t root = walk(cfg, chart, n, stack, [&](int64_t i, int64_t j, int64_t x) {
      if (i == j) d_terms[(b * N + i) * cfg.P + x] += g;
      else {
        d_rules[(args->rules_b ? b * cfg.R : 0) + x] += g;
        if (d_spans) d_spans[((b * N + i) * N + j) * cfg.NT + cfg.parent(x)] += g;
      }
    });
    if (root >= 0 && root < C) d_roots[(args->roots_b ? b * C : 0) + root] += g;
  }
  return 0;
}

}  // namespace
}  // namespace sl

#define SCORE(suffix, T)                                                                                               \
  extern "C" int64_t sl_grammar_score_##suffix(const sl::GrammarArgs* a, const int64_t* y, int64_t K, int64_t missing, T* out) { \
    return sl::score<T>(a, y, K, missing, out);                                                                        \
  }                                                                                                                    \
  extern "C" int64_t sl_grammar_score_backward_##suffix(const sl::GrammarArgs* a, const int64_t* y, int64_t K,         \
                                                        const T* grad, T* d_terms, T* d_rules, T* d_roots, T* d_spans) { \
    return sl::score_backward<T>(a, y, K, grad, d_terms, d_rules, d_roots, d_spans);                                   \
  }
SCORE(f32, float)
SCORE(f64, double)
