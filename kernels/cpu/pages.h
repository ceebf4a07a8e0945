// Large outputs on large pages: filling 128 MB of untouched memory takes 65 ms in pages of 4 kB, most of
// it spent in faults, and 16 ms in pages of 2 MB.
#pragma once
#include <cstddef>
#include <cstdint>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace sl {

// Asks for large pages in the memory that the caller is about to fill; a hint, which may be refused.
template <class T>
inline void on_large_pages(T* data, int64_t count) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 4096;
  constexpr int64_t kWorthAsking = int64_t(4) << 20;
  const int64_t bytes = count * int64_t(sizeof(T));
  if (!data || bytes < kWorthAsking) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) & ~(kPage - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) & ~(kPage - 1);
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)count;
#endif
}

}  // namespace sl
