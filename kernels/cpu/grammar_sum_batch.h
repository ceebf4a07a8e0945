// Sums over a batch: which sentences go through matrix products and in which groups, and where gradients add up.
#pragma once
#include "grammar_dense_sum.h"
#include "grammar_sum.h"

namespace sl {

// Gradients of a batch: those of shared potentials are summed a chunk at a time and then in the order of
// the chunks, so that the result does not depend on which thread ran when.
template <class T>
struct GrammarSums {
  const CFG<T>& cfg;
  GrammarGradient<T> out;
  std::vector<std::vector<T>> rules;  // by chunk; empty where a chunk has none
  std::vector<T> roots;
  std::vector<DenseTable<T>> dense;   // by chunk, what DenseSumRules makes gradients of
  std::vector<char> filled;           // whether it has any

  GrammarSums(const CFG<T>& cfg_, const GrammarGradient<T>& out_) : cfg(cfg_), out(out_), rules(cfg.chunks()), dense(cfg.chunks()), filled(cfg.chunks(), 0) {
    if (!cfg.args.roots_b) roots.assign(cfg.chunks() * cfg.args.root_count, T(0));
  }
  // Clears what belongs to sentence b alone and says where its derivatives go, but for rules.
  GrammarGradient<T> of(int64_t chunk, int64_t b) {
    const int64_t N = cfg.N, C = cfg.args.root_count;
    GrammarGradient<T> mine;
    mine.terms = out.terms + b * N * cfg.P;
    std::fill_n(mine.terms, N * cfg.P, T(0));
    if (out.spans) mine.spans = out.spans + b * N * N * cfg.NT, std::fill_n(mine.spans, N * N * cfg.NT, T(0));
    mine.roots = roots.empty() ? out.roots + b * C : roots.data() + chunk * C;
    if (cfg.args.roots_b) std::fill_n(mine.roots, C, T(0));
    return mine;
  }
  T* rules_of(int64_t chunk, int64_t b) {
    if (cfg.args.rules_b) return std::fill_n(out.rules + b * cfg.R, cfg.R, T(0)) - cfg.R;
    if (rules[chunk].empty()) rules[chunk].assign(cfg.R, T(0));
    return rules[chunk].data();
  }
  // weights: of the shared rules, where a chunk was dense.
  void write(const DenseSumRules<T>* weights = nullptr) {
    const int64_t chunks = cfg.chunks();
    if (!cfg.args.roots_b) {
      std::fill_n(out.roots, cfg.args.root_count, T(0));
      for (int64_t i = 0; i < int64_t(roots.size()); ++i) out.roots[i % cfg.args.root_count] += roots[i];
    }
    if (cfg.args.rules_b) return;
    std::vector<const DenseTable<T>*> parts;
    bool sparse = false;
    for (int64_t k = 0; k < chunks; ++k) {
      if (filled[k]) parts.push_back(&dense[k]);
      sparse |= !rules[k].empty();
    }
    if (sparse || parts.empty()) std::fill_n(out.rules, cfg.R, T(0));
    for (const std::vector<T>& from : rules)
      for (int64_t i = 0; i < int64_t(from.size()); ++i) out.rules[i] += from[i];
    if (!parts.empty()) weights->gradient(cfg, parts, sparse, chunks, out.rules);
  }
};

// By matrix products where the grammar is dense and the numbers allow it, else over the constituents that
// exist.
template <class T>
class Sums {
 public:
  T* log_z = nullptr;               // (B,), or null
  T* kept = nullptr;                // (B, DenseSum::kept), where the grammar is dense, or null
  bool made = false;                // kept is filled already
  const T* grad = nullptr;          // weights of the gradients, 1 if null
  GrammarSums<T>* sums = nullptr;   // where gradients go, or null

  Sums(const CFG<T>& cfg, const DenseSumRules<T>& shared) : cfg_(cfg), rules_(cfg.args.rules_b ? own_ : shared), words_(rules_), dense_(cfg, rules_, words_), sparse_(cfg), exact_(cfg) {}

  void run(int64_t chunk, const std::vector<int64_t>& sentences) {
    FlushSubnormals flush;
    if (!cfg_.args.dense) {
      for (const int64_t b : sentences) sparse(chunk, b);
      return;
    }
    // Sentences whose words are multiplied by the rules together; those with rules of their own cannot be.
    const int64_t most = cfg_.args.rules_b ? 0 : DenseWords<T>::most(cfg_.args);
    for (size_t at = 0; at < sentences.size();) {
      int64_t words = 0;
      group_.clear();
      do words += cfg_.length(sentences[at]), group_.push_back({sentences[at], 0, nullptr, false});
      while (++at < sentences.size() && words + cfg_.length(sentences[at]) <= most);
      group(chunk, words);
    }
  }

 private:
  struct Member {
    int64_t b, first;
    T* kept;
    bool dense;
  };

  void group(int64_t chunk, int64_t words) {
    if (cfg_.args.rules_b) own_.pack(cfg_, group_[0].b, sums, 1);
    const int64_t size = DenseSum<T>::kept(cfg_.args);
    if (!kept) scratch_.resize(int64_t(group_.size()) * size);
    bool any = false;
    if (rules_.usable) words_.start(words);
    for (Member& m : group_) {
      m.kept = kept ? kept + m.b * size : scratch_.data + (&m - group_.data()) * size;
      m.first = words_.count();
      m.dense = rules_.usable && !(made && m.kept[0] == 0) && DenseSum<T>::add(cfg_, m.b, words_, m.kept);
      any |= m.dense;
    }
    if (any) words_.multiply_out(!made);
    for (Member& m : group_) {
      if (made) continue;
      m.dense = m.dense && dense_.inside(m.b, m.first, m.kept);
      m.kept[0] = m.dense;
      if (m.dense && log_z) log_z[m.b] = T(dense_.log_z);
    }
    if (any && sums) gradient(chunk);
    for (const Member& m : group_)
      if (!m.dense) sparse(chunk, m.b);
  }
  void gradient(int64_t chunk) {
    DenseTable<T>& d = sums->dense[chunk];
    char& filled = sums->filled[chunk];
    if (cfg_.args.rules_b) filled = 0;
    if (!filled) d.shape(cfg_.args), std::fill_n(d.inner.data, d.inner_size(), T(0));
    words_.start_gradient();
    GrammarGradient<T> mine;
    for (const Member& m : group_)
      if (m.dense) mine = sums->of(chunk, m.b), dense_.outside(m.b, m.first, m.kept, grad ? grad[m.b] : T(1), mine, d);
    words_.gradient(d, filled);
    filled = 1;
    for (const Member& m : group_) {
      if (!m.dense) continue;
      for (int64_t i = 0; i < cfg_.length(m.b); ++i) words_.d_terms(m.first + i, sums->out.terms + (m.b * cfg_.N + i) * cfg_.P);
      if (cfg_.args.rules_b) rules_.gradient(cfg_, {&d}, false, 1, sums->out.rules + m.b * cfg_.R);
    }
  }
  void sparse(int64_t chunk, int64_t b) {
    const T weight = grad ? grad[b] : T(1);
    GrammarGradient<T> mine;
    if (sums) mine = sums->of(chunk, b), mine.rules = sums->rules_of(chunk, b);
    T value;
    if (sparse_.inside(b)) {
      value = T(sparse_.log_z);
      if (sums) sparse_.outside(weight, mine);
    } else {
      value = exact_(b, {}, [&](auto& exact) {
        if (sums) exact.outside(weight, mine);
      });
    }
    if (log_z) log_z[b] = value;
  }

  const CFG<T>& cfg_;
  DenseSumRules<T> own_;
  const DenseSumRules<T>& rules_;
  DenseWords<T> words_;
  DenseSum<T> dense_;
  SparseSum<T> sparse_;
  ExactSums<T, Carry::kNothing> exact_;
  std::vector<Member> group_;
  RawBuffer<T> scratch_;
};

}  // namespace sl
