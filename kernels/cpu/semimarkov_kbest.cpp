// The k best segmentations of each sequence (semimarkov_kbest.h).
#include "semimarkov_kbest.h"

namespace sl {
namespace {

template <class T>
int64_t kbest(const SemiArgs* args, int64_t k, int64_t* codes, T* scores) {
  const Semi<T> semi(*args, false);
  const int64_t chunks = semi.workers();
  parallel_for(chunks, int(chunks), [&](int64_t chunk, int) {
    KBest<T> run(semi, k);
    for (int64_t i = chunk; i < semi.B; i += chunks) {
      const int64_t b = semi.order[i];
      run.row(b, codes, scores);
      bool doubtful = false;
      for (int64_t j = 0; j < k && semi.length(b) && !doubtful; ++j) doubtful = is_doubtful(scores[j * semi.B + b], semi, b);
      if (doubtful) kbest_in_double(semi, b, k, codes, scores);
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

extern "C" {
int64_t sl_semimarkov_kbest_f32(const sl::SemiArgs* a, int64_t k, int64_t* codes, float* scores) { return sl::kbest(a, k, codes, scores); }
int64_t sl_semimarkov_kbest_f64(const sl::SemiArgs* a, int64_t k, int64_t* codes, double* scores) { return sl::kbest(a, k, codes, scores); }
}
