// Viterbi decoding, plain and augmented with a Hamming cost (chain_viterbi.h).
#include "chain_viterbi.h"

#include "chain_viterbi_row.h"

namespace sl {
namespace {

// Returns how many rows have no allowed output. scores may be null.
template <class T>
int64_t viterbi(const ChainArgs* args, int64_t* labels, T* scores) {
  constexpr int64_t kFew = 256;  // rows whose scores fit the stack
  T few[kFew];
  std::vector<T> many(scores || args->B <= kFew ? 0 : args->B);
  if (!scores) scores = args->B <= kFew ? few : many.data();
  if (ViterbiRow<T>::fits(*args)) {
    const ChainScores<T> chain(*args);
    const int workers = workers_for(chain.B * chain.N * chain.C * chain.C, args->threads, chain.B);
    parallel_for(chain.B, workers, [&](int64_t b, int) { scores[b] = ViterbiRow<T>::decode(chain, b, labels + b * chain.N); });
  } else {
    Viterbi<T> run(*args, labels, scores);
    parallel_for(run.chain.groups, run.chain.workers(), [&](int64_t g, int) { run.group(g); });
  }
  return std::count(scores, scores + args->B, kNegInf<T>);
}

// value_b = max_y [cost + s(y)] - s(gold), never below 0 since gold is among the y, and that y in
// labels. Returns the place of the first gold label out of range, or -1; -2 if gold is forbidden in
// some row.
template <class T>
int64_t margin(const ChainArgs* args, const int64_t* gold, const T* discount, int64_t* labels, T* value) {
  Viterbi<T> run(*args, labels, value);
  const Chain<T>& chain = run.chain;
  const int64_t B = chain.B, N = chain.N, C = chain.C;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < chain.length(b); ++t)
      if (uint64_t(gold[b * N + t]) >= uint64_t(C)) return b * N + t;
  run.gold = gold;
  run.discount = discount;
  parallel_for(chain.groups, chain.workers(), [&](int64_t g, int) { run.group(g); });
  int64_t status = -1;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t n = chain.length(b), *z = gold + b * N;
    int64_t* y = labels + b * N;
    double sum = value[b] == kNegInf<T> ? -kNegInf<double> : chain.difference(b, y, z);
    for (int64_t t = 0; t < n && sum < -kNegInf<double>; ++t)
      if (y[t] != z[t]) sum += in_units(discount ? discount[b * N + t] : T(1));
    if (sum == -kNegInf<double>) status = -2;
    if (sum < 0) sum = 0, std::copy_n(z, n, y);
    value[b] = from_units<T>(sum);
  }
  return status;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_chain_viterbi_f32(const sl::ChainArgs* a, int64_t* labels, float* scores) { return sl::viterbi(a, labels, scores); }
int64_t sl_chain_viterbi_f64(const sl::ChainArgs* a, int64_t* labels, double* scores) { return sl::viterbi(a, labels, scores); }
int64_t sl_chain_margin_f32(const sl::ChainArgs* a, const int64_t* gold, const float* discount, int64_t* labels, float* value) { return sl::margin(a, gold, discount, labels, value); }
int64_t sl_chain_margin_f64(const sl::ChainArgs* a, const int64_t* gold, const double* discount, int64_t* labels, double* value) { return sl::margin(a, gold, discount, labels, value); }
}
