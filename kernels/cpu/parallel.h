// Runs body(task, worker) for task in [0, tasks) on at most `threads` threads, the caller included.
// A small job uses workers that are still alert after another one; it wakes them only where small jobs come in close
// succession. Where the system gives fewer threads, fewer work. What a task throws, the caller throws.
#pragma once
#include <cstdint>
#include <type_traits>

extern "C" void sl_parallel(int64_t tasks, int threads, bool small, void (*body)(int64_t task, int worker, void* context), void* context);

namespace sl {
// One copy of every task's code, whoever runs it: a second one, inlined where there is no other thread, may round
// differently (products and sums are contracted as each copy allows) and takes as long to compile again.
#if defined(__GNUC__) && !defined(__clang__)
#define SL_ONE_COPY __attribute__((noinline, noclone))
#else
#define SL_ONE_COPY __attribute__((noinline))
#endif
template <class F>
SL_ONE_COPY void run_task(int64_t task, int worker, void* context) {
  (*static_cast<F*>(context))(task, worker);
}

template <class F>
inline void parallel_for(int64_t tasks, int threads, F&& f, bool small = false) {
  using Task = std::remove_reference_t<F>;
  if (tasks <= 1 || threads <= 1) {
    for (int64_t i = 0; i < tasks; ++i) run_task<Task>(i, 0, &f);
    return;
  }
  sl_parallel(tasks, threads, small, run_task<Task>, &f);
}
}  // namespace sl
