// Count-augmented Viterbi with any counter (chain_count.h).
#include "chain_count.h"

namespace sl {
namespace {

template <class T>
int64_t best_by_count(const ChainArgs* args, const int32_t* unary_step, CountArgs<T> count) {
  const Chain<T> chain(*args, 1);
  const int64_t cells = chain.N * chain.C;
  if (unary_step && chain.B * cells > 0) count.most_unary_step = *std::max_element(unary_step, unary_step + chain.B * cells);
  const int64_t chunks = workers_for(chain.work * count.size, args->threads, chain.B);
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    CountedRow<T> row(chain, count);
    for (int64_t i = chunk; i < chain.B; i += chunks) row.run(chain.order[i], unary_step ? unary_step + chain.order[i] * cells : nullptr);
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define COUNT(suffix, T)                                                                                               \
  extern "C" int64_t sl_chain_best_by_count_##suffix(                                                                  \
      const sl::ChainArgs* a, const int32_t* unary_step, const int32_t* classes, const int32_t* following,             \
      const int32_t* step, const int32_t* last, int64_t kinds, int64_t states, int64_t size, const T* offset,          \
      const T* slope, int64_t* labels, int64_t* index, T* value, T* table) {                                           \
    return sl::best_by_count<T>(a, unary_step, {classes, following, step, last, kinds, states, size, offset, slope,    \
                                    labels, index, value, table, 0});                                                     \
  }
COUNT(f32, float)
COUNT(f64, double)
