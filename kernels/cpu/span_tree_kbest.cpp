// The k best trees of each sentence (span_tree_kbest.h).
#include "span_tree_kbest.h"

namespace sl {
namespace {

template <class T>
int64_t kbest(const SpanTreeArgs* args, int64_t k, int64_t* labels, T* scores) {
  const SpanTree<T> trees(*args);
  trees.for_groups([&](int64_t, const int64_t* rows, int64_t count) {
    KBestTrees<T> run(trees, k);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t b = rows[r];
      run.row(b, labels, scores);
      bool doubtful = false;
      for (int64_t j = 0; j < k && trees.length(b) && !doubtful; ++j) doubtful = is_doubtful(scores[j * trees.B + b], trees, b);
      if (doubtful) kbest_in_double(trees, b, k, labels, scores);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_span_tree_kbest_f32(const sl::SpanTreeArgs* a, int64_t k, int64_t* labels, float* scores) { return sl::kbest(a, k, labels, scores); }
int64_t sl_span_tree_kbest_f64(const sl::SpanTreeArgs* a, int64_t k, int64_t* labels, double* scores) { return sl::kbest(a, k, labels, scores); }
}
