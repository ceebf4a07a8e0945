// log Z of each sentence, its gradient, and the derivative of that gradient along a direction.
#include "span_tree_sum.h"
#include "pages.h"

namespace sl {
namespace {

template <class T>
int64_t forward(const SpanTreeArgs* args, T* log_z, T* alpha) {
  const SpanTree<T> trees(*args);
  Diagonals whole;
  whole.set(args->N, args->group);
  const int64_t block = SpanTreeChart<T>::kArrays * whole.size();
  trees.for_groups([&](int64_t k, const int64_t* rows, int64_t count) {
    FlushSubnormals flush;
    InsideOutside<T, false> run(trees);
    run.place(rows, count);
    Buffer<T> own;
    if (!alpha) own.resize(SpanTreeChart<T>::kArrays * run.diagonals.size());
    const SpanTreeChart<T> chart(alpha ? alpha + k * block : own.data, run.diagonals.size());
    run.inside(chart);
    for (int64_t r = 0; r < count; ++r) log_z[rows[r]] = run.log_total(chart, r);
  });
  return 0;
}

template <class T>
int64_t backward(const SpanTreeArgs* args, T* alpha, const T* grad, T* d_spans) {
  on_large_pages(d_spans, args->B * args->N * args->N * args->L);
  const SpanTree<T> trees(*args);
  Diagonals whole;
  whole.set(args->N, args->group);
  const int64_t block = SpanTreeChart<T>::kArrays * whole.size();
  trees.for_groups([&](int64_t k, const int64_t* rows, int64_t count) {
    FlushSubnormals flush;
    InsideOutside<T, false> run(trees);
    run.place(rows, count);
    run.outside(SpanTreeChart<T>(alpha + k * block, run.diagonals.size()), grad, d_spans);
  });
  return 0;
}

// log Z and the gradient of sum_b log Z_b, group by group, so that what the first leaves is in the cache, and the
// exponentials wait where the gradient will be.
template <class T>
int64_t value_and_gradient(const SpanTreeArgs* args, T* log_z, T* d_spans) {
  on_large_pages(d_spans, args->B * args->N * args->N * args->L);
  const SpanTree<T> trees(*args);
  // Up to eight short sentences, which fill the vectors of their short diagonals (16 of 10 words: 11.7 us, by four 13.1),
  // in an even number of groups, whatever the number of threads: results must not depend on it. Long ones gain 5% only
  // and wait longer for a worker that is late.
  const int64_t B = args->B, pairs = (B + 15) / 16, size = B > 8 && args->N <= 32 ? (B + 2 * pairs - 1) / (2 * pairs) : args->group;
  trees.for_groups(size, 1e5, 1e6, [&](int64_t, const int64_t* rows, int64_t count) {
    FlushSubnormals flush;
    InsideOutside<T, false> run(trees);
    run.place(rows, count);
    KeptBuffer<T, 0> own;
    const SpanTreeChart<T> chart(own.resize(SpanTreeChart<T>::kArrays * run.diagonals.size()), run.diagonals.size());
    run.inside(chart, d_spans);
    for (int64_t r = 0; r < count; ++r) log_z[rows[r]] = run.log_total(chart, r);
    run.outside(chart, nullptr, d_spans);
  });
  return 0;
}

// along_b = d log Z_b . v and, if d_spans is given, sum_b weight_b (d^2 log Z_b) v.
template <class T>
int64_t second(const SpanTreeArgs* args, const T* weight, const T* v, T* along, T* d_spans) {
  const SpanTree<T> trees(*args);
  trees.for_groups([&](int64_t, const int64_t* rows, int64_t count) {
    FlushSubnormals flush;
    InsideOutside<T, true> run(trees, v);
    run.place(rows, count);
    Buffer<T> own;
    own.resize(SpanTreeChart<T>::kArrays * run.diagonals.size());
    const SpanTreeChart<T> chart(own.data, run.diagonals.size());
    run.inside(chart);
    for (int64_t r = 0; r < count; ++r) run.log_total(chart, r, along + rows[r]);
    if (d_spans) run.outside(chart, weight, d_spans);
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SUMS(suffix, T)                                                                                                \
  extern "C" int64_t sl_span_tree_forward_##suffix(const sl::SpanTreeArgs* a, T* log_z, T* alpha) {                    \
    return sl::forward<T>(a, log_z, alpha);                                                                            \
  }                                                                                                                    \
  extern "C" int64_t sl_span_tree_backward_##suffix(const sl::SpanTreeArgs* a, T* alpha, const T* grad, T* d_spans) {  \
    return sl::backward<T>(a, alpha, grad, d_spans);                                                                   \
  }                                                                                                                    \
  extern "C" int64_t sl_span_tree_value_and_gradient_##suffix(const sl::SpanTreeArgs* a, T* log_z, T* d_spans) {       \
    return sl::value_and_gradient<T>(a, log_z, d_spans);                                                               \
  }                                                                                                                    \
  extern "C" int64_t sl_span_tree_second_##suffix(const sl::SpanTreeArgs* a, const T* weight, const T* v, T* along, T* d_spans) { \
    return sl::second<T>(a, weight, v, along, d_spans);                                                                \
  }
SUMS(f32, float)
SUMS(f64, double)
