// A small pool instead of OpenMP: libgomp hangs in a forked child (DataLoader workers fork) once the
// parent has used it, and torch ships a copy of its own. The pool is rebuilt in a child, is used by
// one caller at a time (a second caller, or a nested call, runs its tasks on its own thread), and
// its workers sleep between jobs.
#include "parallel.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace {

struct Job {
  void (*body)(int64_t, int, void*);
  void* context;
  int64_t tasks;
  std::atomic<int64_t> next{0};

  void run(int worker) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(i, worker, context);
  }
};

class Pool {
 public:
  void run(Job& job, int helpers) {
    grow(helpers);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      wanted_ = helpers;
      active_ = 0;
      ++generation_;
    }
    wake_.notify_all();
    job.run(0);
    std::unique_lock<std::mutex> lock(mutex_);
    wanted_ = 0;  // workers that have not started yet find nothing left to do
    done_.wait(lock, [&] { return active_ == 0; });
    job_ = nullptr;
  }

  std::mutex in_use;

 private:
  void grow(int helpers) {
    for (; threads_ < helpers; ++threads_) std::thread([this] { work(); }).detach();
  }

  void work() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (wanted_ <= 0) continue;
      const int slot = wanted_--;  // 1 .. helpers, so per-worker storage needs no more than that
      ++active_;
      Job* job = job_;
      lock.unlock();
      job->run(slot);
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  int wanted_ = 0, active_ = 0, threads_ = 0;
  uint64_t generation_ = 0;
};

// Leaked on purpose: detached workers may outlive static destruction, and a forked child must not
// touch the parent's mutexes, so it simply gets a fresh pool.
std::atomic<Pool*> pool{nullptr};

Pool* current_pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
  });
  return pool.load();
}

}  // namespace

extern "C" void sl_parallel(int64_t tasks, int threads, void (*body)(int64_t, int, void*), void* context) {
  Job job{body, context, tasks};
  const int helpers = int(tasks < threads ? tasks : threads) - 1;
  Pool* p = current_pool();
  if (helpers <= 0 || !p->in_use.try_lock()) {
    job.run(0);
    return;
  }
  p->run(job, helpers);
  p->in_use.unlock();
}
