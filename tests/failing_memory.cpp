// Preloaded, makes what the kernels ask the system for fail: their k-th allocation from now on, or threads.
//
// fail_memory(k): the k-th allocation made by the kernels' libraries fails, once; 0 disarms. fail_threads(k): of the
// threads started from now on the k-th and all later ones fail; 0 disarms. failed(): how many calls have failed since.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

static std::atomic<long> memory_left{0}, threads_left{0}, failures{0};

extern "C" {
void* __libc_malloc(size_t);
void fail_memory(long k) { memory_left = k, failures = 0; }
void fail_threads(long k) { threads_left = k, failures = 0; }
long failed() { return failures; }
}

static bool is_in(void* caller, const char* library) {
  Dl_info info;
  return dladdr(caller, &info) && info.dli_fname && std::strstr(info.dli_fname, library);
}

static bool fails(void* caller) {
  if (memory_left.load(std::memory_order_relaxed) <= 0) return false;
  if (!is_in(caller, "/_kernels_") && !is_in(caller, "/_native")) return false;
  if (memory_left.fetch_sub(1) != 1) return false;
  ++failures;
  return true;
}

void* operator new(size_t size) {
  if (!fails(__builtin_return_address(0)))
    if (void* made = __libc_malloc(size ? size : 1)) return made;
  throw std::bad_alloc();
}
void* operator new[](size_t size) {
  if (!fails(__builtin_return_address(0)))
    if (void* made = __libc_malloc(size ? size : 1)) return made;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(size ? size : 1);
}
void operator delete(void* x) noexcept { std::free(x); }
void operator delete[](void* x) noexcept { std::free(x); }
void operator delete(void* x, size_t) noexcept { std::free(x); }
void operator delete[](void* x, size_t) noexcept { std::free(x); }

extern "C" void* malloc(size_t size) {
  if (!fails(__builtin_return_address(0))) return __libc_malloc(size);
  errno = ENOMEM;
  return nullptr;
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*), void* given) {
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  // std::thread's; torch ends the process for want of its own.
  const long left = is_in(__builtin_return_address(0), "libstdc++") ? threads_left.load() : 0;
  if (left == 1) {
    ++failures;
    return EAGAIN;
  }
  if (left > 1) --threads_left;
  return next(thread, how, run, given);
}
