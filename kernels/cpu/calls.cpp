#include "calls.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "hang.h"

namespace sl {
namespace {

constexpr size_t kMostWords = 20;

Python python;

class Text {
  char text_[200] = "";

 public:
  void set(const char* text) { std::strncpy(text_, text, sizeof text_ - 1); }
  const char* get() const { return text_; }
};

template <class... Words>
Word guarded(Text* text, void* kernel, Words... words) noexcept {
  try {
    return reinterpret_cast<Word (*)(Words...)>(kernel)(words...);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::length_error&) {  // more entries than a vector could ever have
    return kNoMemory;
  } catch (const std::exception& error) {
    if (text) text->set(error.what());
  } catch (...) {
  }
  return kBroken;
}

template <class... Words>
Word plain(void* kernel, Words... words) noexcept {
  return guarded(nullptr, kernel, words...);
}

template <class... Words>
Word for_python(void* kernel, Words... words) {
  Text text;
  void* state = python.save_thread();
  const Word result = guarded(&text, kernel, words...);
  or_hang([&] { python.restore_thread(state); });
  if (result <= kBroken) python.call(python.failed, "Lis", static_cast<long long>(reinterpret_cast<intptr_t>(kernel)), int(result == kNoMemory), text.get());
  return result;
}

template <size_t>
using WordAt = Word;

template <size_t... I>
void* entry(bool from_python, std::index_sequence<I...>) {
  return from_python ? reinterpret_cast<void*>(&for_python<WordAt<I>...>) : reinterpret_cast<void*>(&plain<WordAt<I>...>);
}

template <size_t... Counts>
void* entry_for(size_t words, bool from_python, std::index_sequence<Counts...>) {
  void* found = nullptr;
  ((Counts == words ? void(found = entry(from_python, std::make_index_sequence<Counts>())) : void()), ...);
  return found;
}

pthread_t leaving;
std::terminate_handler terminate_before;

// Where Python ends a daemon thread by pthread_exit, which unwinds its stack, C++ ends the process at the first function
// on it that lets no exception pass; torch's own are among them. Such an end has no exception of C++.
void terminate_or_hang() {
  if (!pthread_equal(pthread_self(), leaving) && !std::current_exception()) hang();
  if (terminate_before) terminate_before();
  std::abort();
}

}  // namespace
}  // namespace sl

extern "C" void sl_open(const sl::Python* python) { sl::python = *python; }
extern "C" void* sl_entry(int64_t words, int64_t for_python) {
  return sl::entry_for(size_t(words), for_python != 0, std::make_index_sequence<sl::kMostWords + 1>());
}
extern "C" void sl_leave() {
  sl::leaving = pthread_self();
  sl::terminate_before = std::set_terminate(sl::terminate_or_hang);
}
