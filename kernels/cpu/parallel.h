// Runs body(task, worker) for task in [0, tasks) on at most `threads` threads, the caller included.
#pragma once
#include <cstdint>

extern "C" void sl_parallel(int64_t tasks, int threads, void (*body)(int64_t task, int worker, void* context), void* context);

namespace sl {
template <class F>
inline void parallel_for(int64_t tasks, int threads, F&& f) {
  if (tasks <= 1 || threads <= 1) {
    for (int64_t i = 0; i < tasks; ++i) f(i, 0);
    return;
  }
  sl_parallel(tasks, threads, [](int64_t i, int w, void* context) { (*static_cast<F*>(context))(i, w); }, &f);
}
}  // namespace sl
