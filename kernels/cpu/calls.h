// The one way from outside into a kernel. What a kernel throws ends here, and becomes a number or a Python exception.
#pragma once
#include <cstdint>

namespace sl {

using Word = int64_t;  // an integer or an address: both pass alike
constexpr Word kNoMemory = INT64_MIN, kBroken = INT64_MIN + 1;  // no kernel returns these

// What the library needs of Python, which it is not linked with.
struct Python {
  void* (*save_thread)();
  void (*restore_thread)(void*);
  void* (*call)(void* callable, const char* format, ...);
  void* failed;  // failed(kernel's address, whether memory ran out, text) raises
};

}  // namespace sl

extern "C" {
void sl_open(const sl::Python* python);
// The function (kernel, word, ...) that calls a kernel of so many words. It returns what the kernel returns, or kNoMemory
// or kBroken; the one for_python is called with the GIL, gives it up meanwhile, and then raises besides.
void* sl_entry(int64_t words, int64_t for_python);
// For the end of the interpreter: threads that Python ends by unwinding their stacks stop where they are instead.
void sl_leave();
}
