// Second derivatives of log Z: for a direction v, along_b = d log Z_b . v and, with weights g,
// sum_b g_b (d^2 log Z_b) v, from one forward and one backward pass that carry their own derivative
// (alignment_exact.h). This is the gradient of the gradient, and the gradient of the entropy.
#include <memory>

#include "alignment_exact.h"

namespace sl {
namespace {

template <class T>
int64_t second(const AlignmentArgs* args, const T* weight, const AlignmentDirection<T>& v, T* along, T* d_match, T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) {
  struct Scratch {
    Pair<T> pair;
    ExactPair<T, true> exact;
  };
  std::vector<std::unique_ptr<Scratch>> scratch(std::max<int64_t>(1, args->threads));
  for_pairs(*args, 200, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Scratch>();
    Scratch& s = *scratch[worker];
    s.pair.set(*args, b);
    s.exact.forward(s.pair, args->open_x, v);
    along[b] = T(s.exact.z.r);
    s.exact.backward(weight[b], {*args, b, d_match, d_gap_x, d_gap_y, d_open_x, d_open_y});
  });
  return 0;
}

// log Z - E[s(y)], the expected score being the derivative of log Z along the potentials v themselves.
template <class T>
int64_t entropy(const AlignmentArgs* args, const AlignmentDirection<T>& v, T* out) {
  struct Scratch {
    Pair<T> pair;
    ExactPair<T, true> exact;
  };
  std::vector<std::unique_ptr<Scratch>> scratch(std::max<int64_t>(1, args->threads));
  for_pairs(*args, 200, [&](int64_t b, int worker) {
    if (!scratch[worker]) scratch[worker] = std::make_unique<Scratch>();
    Scratch& s = *scratch[worker];
    s.pair.set(*args, b);
    const Wide z = s.exact.forward(s.pair, args->open_x, v);
    out[b] = z.m > 0 ? T(std::max(0.0, z.log() - s.exact.z.r)) : T(0);
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SECOND(suffix, T)                                                                                                 \
  extern "C" int64_t sl_alignment_second_##suffix(const sl::AlignmentArgs* a, const T* weight, const T* v_match,          \
                                                  const T* v_gap_x, const T* v_gap_y, const T* v_open_x, const T* v_open_y, \
                                                  T* along, T* d_match, T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) { \
    return sl::second<T>(a, weight, {v_match, v_gap_x, v_gap_y, v_open_x, v_open_y}, along, d_match, d_gap_x, d_gap_y,    \
                         d_open_x, d_open_y);                                                                             \
  }
#define ENTROPY(suffix, T)                                                                                                \
  extern "C" int64_t sl_alignment_entropy_##suffix(const sl::AlignmentArgs* a, const T* match, const T* gap_x,            \
                                                   const T* gap_y, const T* open_x, const T* open_y, T* out) {            \
    return sl::entropy<T>(a, {match, gap_x, gap_y, open_x, open_y}, out);                                                 \
  }
ENTROPY(f32, float)
ENTROPY(f64, double)
SECOND(f32, float)
SECOND(f64, double)
