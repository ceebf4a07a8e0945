// log Z of each sentence, its gradient, and the derivative of that gradient along a direction.
#include "pages.h"
#include "span_tree_log.h"
#include "span_tree_sum.h"

namespace sl {
namespace {

// The sentences of a group that the scaled numbers do not do: log Z and, unless null, weight * P (null: 1 * P).
template <class T>
void do_lost(const SpanTree<T>& trees, const InsideOutside<T>& run, const SpanTreeChart<T>& chart, const int64_t* rows, int64_t count, T* log_z,
             const T* weight, T* d_spans) {
  for (int64_t r = 0; r < count; ++r) {
    if (!run.is_lost(chart, r)) continue;
    SpanTreeLog<T, Along::kNothing> careful(trees);
    careful.inside(rows[r]);
    if (log_z) log_z[rows[r]] = saturated<T>(careful.log_z);
    if (d_spans) careful.outside(weight ? weight[rows[r]] : T(1), d_spans + rows[r] * trees.N * trees.N * trees.L);
  }
}

template <class T>
int64_t forward(const SpanTreeArgs* args, T* log_z, T* alpha) {
  const SpanTree<T> trees(*args);
  Diagonals whole;
  whole.set(args->N, args->group);
  const int64_t block = SpanTreeChart<T>::kArrays * whole.size();
  trees.for_groups([&](int64_t k, const int64_t* rows, int64_t count) {
    FlushSubnormals flush;
    InsideOutside<T> run(trees);
    run.place(rows, count);
    Buffer<T> own;
    if (!alpha) own.resize(SpanTreeChart<T>::kArrays * run.diagonals.size());
    const SpanTreeChart<T> chart(alpha ? alpha + k * block : own.data, run.diagonals.size());
    run.inside(chart);
    for (int64_t r = 0; r < count; ++r) log_z[rows[r]] = run.log_total(chart, r);
    do_lost<T>(trees, run, chart, rows, count, log_z, nullptr, nullptr);
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
    InsideOutside<T> run(trees);
    run.place(rows, count);
    const SpanTreeChart<T> chart(alpha + k * block, run.diagonals.size());
    run.outside(chart, grad, d_spans);
    do_lost<T>(trees, run, chart, rows, count, nullptr, grad, d_spans);
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
    InsideOutside<T> run(trees);
    run.place(rows, count);
    KeptBuffer<T, 0> own;
    const SpanTreeChart<T> chart(own.resize(SpanTreeChart<T>::kArrays * run.diagonals.size()), run.diagonals.size());
    run.inside(chart, d_spans);
    for (int64_t r = 0; r < count; ++r) log_z[rows[r]] = run.log_total(chart, r);
    run.outside(chart, nullptr, d_spans);
    do_lost<T>(trees, run, chart, rows, count, log_z, nullptr, d_spans);
  });
  return 0;
}

// Along v: values_b = d log Z_b . v and sum_b weight_b (d^2 log Z_b) v. Along log p, whose slope is minus the entropy and
// differs from the scores by a constant of all trees: the entropies and their gradient. Either may be null.
template <class T, Along along>
int64_t second(const SpanTreeArgs* args, const T* weight, const T* v, T* values, T* d_spans) {
  constexpr double sign = along == Along::kLogProbability ? -1 : 1;
  const SpanTree<T> trees(*args);
  trees.for_groups([&](int64_t, const int64_t* rows, int64_t count) {
    SpanTreeLog<T, along> run(trees, v);
    for (int64_t r = 0; r < count; ++r) {
      run.inside(rows[r]);
      if (values) values[rows[r]] = T(sign * run.slope + 0.0);
      if (d_spans) run.outside(T(sign) * weight[rows[r]], d_spans + rows[r] * trees.N * trees.N * trees.L);
    }
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
    return sl::second<T, sl::Along::kDirection>(a, weight, v, along, d_spans);                                         \
  }                                                                                                                    \
  extern "C" int64_t sl_span_tree_entropy_##suffix(const sl::SpanTreeArgs* a, T* out) {                                \
    return sl::second<T, sl::Along::kLogProbability>(a, nullptr, nullptr, out, nullptr);                               \
  }                                                                                                                    \
  extern "C" int64_t sl_span_tree_entropy_backward_##suffix(const sl::SpanTreeArgs* a, const T* weight, T* d_spans) {  \
    return sl::second<T, sl::Along::kLogProbability>(a, weight, nullptr, nullptr, d_spans);                            \
  }
SUMS(f32, float)
SUMS(f64, double)
