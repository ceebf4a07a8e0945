// Until 3.14, Python ends a thread that wants the GIL of an interpreter that is being left by unwinding its stack. That
// would run destructors without the GIL and end the process at the first function that lets no exception pass; as in
// later releases, the thread waits for the end of the process instead.
#pragma once
#include <unistd.h>
#if __has_include(<cxxabi.h>)
#include <cxxabi.h>
#endif

namespace sl {

[[noreturn]] inline void hang() {
  for (;;) pause();
}

// f(), which takes the GIL, or calls Python.
template <class F>
auto or_hang(F&& f) {
#if defined(__GLIBC__) && defined(__GLIBCXX__)
  try {
    return f();
  } catch (abi::__forced_unwind&) {
    hang();
  }
#else
  return f();
#endif
}

}  // namespace sl
