// Runs body(task, worker) for task in [0, tasks) on at most `threads` threads, the caller included.
// A small job uses workers that are still alert after another one, but does not wake any.
#pragma once
#include <cstdint>

extern "C" void sl_parallel(int64_t tasks, int threads, bool small, void (*body)(int64_t task, int worker, void* context), void* context);

namespace sl {
template <class F>
inline void parallel_for(int64_t tasks, int threads, F&& f, bool small = false) {
  if (tasks <= 1 || threads <= 1) {
    for (int64_t i = 0; i < tasks; ++i) f(i, 0);
    return;
  }
  sl_parallel(tasks, threads, small, [](int64_t i, int w, void* context) { (*static_cast<F*>(context))(i, w); }, &f);
}
}  // namespace sl
