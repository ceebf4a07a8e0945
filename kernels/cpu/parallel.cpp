// A small pool instead of OpenMP: libgomp hangs in a forked child (DataLoader workers fork) once the
// parent has used it, and torch ships a copy of its own. The pool is rebuilt in a child, is used by
// one caller at a time (a second caller, or a nested call, runs its tasks on its own thread). After
// a job its workers look out for the next one for a while before they sleep, since waking a sleeping
// thread takes longer than many batches. They do not yield: a thread that does may stay on its caller's
// core for a quarter of a second, since the scheduler sees no need to move it.
#include "parallel.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kAlert{300};  // what a training step does between two calls, at the least

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks at ready() for kAlert at most; whether it became true.
template <class F>
bool soon(F&& ready) {
  const auto until = Clock::now() + kAlert;
  do {
    for (int i = 0; i < 64; ++i, relax())
      if (ready()) return true;
  } while (Clock::now() < until);
  return false;
}

struct Job {
  void (*body)(int64_t, int, void*);
  void* context;
  int64_t tasks;
  std::atomic<int64_t> next{0};

  std::atomic<bool> failed{false};
  std::exception_ptr error{};  // read when no thread runs the job any more

  // What a task throws is kept for the caller, and no further task starts.
  void run(int worker) noexcept {
    try {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(i, worker, context);
    } catch (...) {
      next.store(tasks, std::memory_order_relaxed);
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }
};

class Pool {
 public:
  bool alert() const { return alert_.load(std::memory_order_relaxed) > 0; }

  // Whether a small job may have workers: those that are alert, or woken ones where jobs follow each other so closely
  // that they will be alert at the next. Waking them takes the caller as long as a small job gains.
  bool ready_for_small() {
    const auto now = Clock::now().time_since_epoch();
    return now - Clock::duration(last_small_.exchange(now.count(), std::memory_order_relaxed)) < kAlert || alert();
  }

  void run(Job& job, int helpers) {
    helpers = std::min(helpers, grow(helpers));
    if (helpers == 0) return job.run(0);
    keep_off_this_core();
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
    if (active_) {
      lock.unlock();
      soon([&] { return active_ == 0; });
      lock.lock();
    }
    done_.wait(lock, [&] { return active_ == 0; });
    job_ = nullptr;
  }

  std::mutex in_use;

 private:
  // Up to so many workers, or as many as the system allows; how many there are.
  int grow(int helpers) {
    try {
      workers_.reserve(helpers);
      for (; int(workers_.size()) < helpers; core_ = -1) {
        std::thread worker([this] { work(); });
        workers_.push_back(worker.native_handle());
        worker.detach();
      }
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
    return int(workers_.size());
  }

  // A sleeping worker is often woken on the core of its caller although another one is idle: either may then wait for
  // the other until the scheduler looks at them again, longer than most jobs last. Many workers mean many cores, of
  // which one in common is no loss, and a system call for each of them.
  void keep_off_this_core() {
#if defined(__linux__)
    constexpr size_t kMany = 8;
    const int core = sched_getcpu();
    cpu_set_t allowed;
    if (workers_.size() > kMany || core < 0 || core == core_ || core >= CPU_SETSIZE) return;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    core_ = core;
    CPU_CLR(core, &allowed);
    if (CPU_COUNT(&allowed) == 0) return;
    for (const pthread_t worker : workers_) pthread_setaffinity_np(worker, sizeof allowed, &allowed);
#endif
  }

  void work() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (generation_ == seen) {
        lock.unlock();
        ++alert_;
        soon([&] { return generation_ != seen; });
        --alert_;
        lock.lock();
        wake_.wait(lock, [&] { return generation_ != seen; });
      }
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
  int wanted_ = 0, core_ = -1;      // core_: where workers may not run
  std::vector<pthread_t> workers_;  // they never end
  std::atomic<int> active_{0};  // written under the mutex, like the next
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> alert_{0};  // workers that look out for a job
  std::atomic<Clock::rep> last_small_{0};
};

// Leaked on purpose: detached workers may outlive static destruction, and a forked child must not
// touch the parent's mutexes, so it simply gets a fresh pool.
std::atomic<Pool*> pool{nullptr};
const int at_fork = pthread_atfork(nullptr, nullptr, [] { pool = nullptr; });

// Null if there is no memory for one.
Pool* current_pool() {
  Pool* found = pool.load(std::memory_order_acquire);
  if (found || at_fork != 0) return found;
  Pool* made = new (std::nothrow) Pool;
  if (pool.compare_exchange_strong(found, made)) return made;
  delete made;
  return found;
}

}  // namespace

extern "C" void sl_parallel(int64_t tasks, int threads, bool small, void (*body)(int64_t, int, void*), void* context) {
  Job job{body, context, tasks};
  const int helpers = int(tasks < threads ? tasks : threads) - 1;
  Pool* p = helpers > 0 ? current_pool() : nullptr;
  if (p && p->in_use.try_lock()) {
    if (small && !p->ready_for_small()) job.run(0);
    else p->run(job, helpers);
    p->in_use.unlock();
  } else {
    job.run(0);
  }
  if (job.error) std::rethrow_exception(job.error);
}
