// out[r][c] = (+)_p a[r][p] (x) E[p][c]: one step of a chain for R sequences at once, as a
// register-blocked matrix product over (max, +) or (+, x).
//
// Blocking over R sequences loads each vector of E once for R uses; kRows x kPanel accumulators,
// kPanel vectors of E and one broadcast fit the register file (32 registers with AVX-512, 16 below).
#pragma once
#include <pthread.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "simd.h"

namespace sl {

#if defined(__AVX512F__)
constexpr int kRows = 8, kPanel = 3;
#else
constexpr int kRows = 4, kPanel = 3;
#endif

// a is one number for all lanes, or a vector.
struct MaxPlus {
  template <class T>
  static Vec<T> zero() { return splat<T>(kNegInf<T>); }
  template <class T>
  static Vec<T> join(Vec<T> a, Vec<T> b) { return vmax(a, b); }
  template <class T, class A>
  static Vec<T> accumulate(Vec<T> acc, A a, Vec<T> e) { return vmax(acc, e + a); }
};
struct SumProduct {
  template <class T>
  static Vec<T> zero() { return Vec<T>{}; }
  template <class T>
  static Vec<T> join(Vec<T> a, Vec<T> b) { return a + b; }
  template <class T, class A>
  static Vec<T> accumulate(Vec<T> acc, A a, Vec<T> e) { return acc + e * a; }
};

template <class T>
struct Buffer {
  std::vector<T> store;
  T* data = nullptr;
  void resize(int64_t n) {
    store.resize(n + kBytes / sizeof(T));
    data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(store.data()) + kBytes - 1) / kBytes * kBytes);
  }
};

// The same without the zeros, for storage that is written before it is read and as large as the batch.
template <class T>
struct RawBuffer {
  std::unique_ptr<T[]> store;
  int64_t capacity = 0;
  T* data = nullptr;
  void resize(int64_t n) {
    if (n < 0) throw std::bad_array_new_length();  // a size beyond 64 bits
    if (n <= capacity) return;
    store.reset(), data = nullptr, capacity = 0;
    store.reset(new T[n + kBytes / sizeof(T)]);
    capacity = n;
    data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(store.get()) + kBytes - 1) / kBytes * kBytes);
  }
};

// The buffers that a thread keeps from call to call. Not thread_local: the C library ends the process where memory for
// a thread's first use of such a variable runs out.
class ThreadsBuffers {
 public:
  static constexpr int kCount = 24;
  RawBuffer<char> buffers[kCount];

  // Of this thread; null if it has none yet.
  static ThreadsBuffers* find() { return static_cast<ThreadsBuffers*>(pthread_getspecific(key())); }
  static ThreadsBuffers& get() {
    if (ThreadsBuffers* found = find()) return *found;
    auto made = std::make_unique<ThreadsBuffers>();
    if (pthread_setspecific(key(), made.get()) != 0) throw std::bad_alloc();
    return *made.release();
  }

 private:
  static pthread_key_t key() {
    static const pthread_key_t made = [] {
      pthread_key_t key;
      if (pthread_key_create(&key, [](void* kept) { delete static_cast<ThreadsBuffers*>(kept); }) != 0) throw std::bad_alloc();
      return key;
    }();
    return made;
  }
};

// A RawBuffer that a thread keeps from call to call up to a size, since giving memory back and having the
// system clear it again takes a third of the time of a call of a millisecond. Those of one `which` and of numbers of
// one size and kind are the same memory.
template <class T, int which>
class KeptBuffer {
 public:
  KeptBuffer() : buffer_(ThreadsBuffers::get().buffers[kPlace]) {}
  ~KeptBuffer() {
    if (buffer_.capacity > kMostBytes) buffer_ = RawBuffer<char>();
  }
  KeptBuffer(const KeptBuffer&) = delete;
  T* resize(int64_t n) {
    if (n < 0 || n > std::numeric_limits<int64_t>::max() / int64_t(2 * sizeof(T))) throw std::bad_array_new_length();
    buffer_.resize(n * int64_t(sizeof(T)));
    return reinterpret_cast<T*>(buffer_.data);
  }

 private:
  static constexpr int64_t kMostBytes = 4 << 20;
  static constexpr int kSize = sizeof(T) == 8 ? 3 : sizeof(T) == 4 ? 2 : sizeof(T) == 2 ? 1 : 0;
  static constexpr int kPlace = (2 * kSize + std::is_floating_point_v<T>) * 3 + which;
  static_assert(which >= 0 && which < 3 && kPlace < ThreadsBuffers::kCount);
  RawBuffer<char>& buffer_;
};

// Of a matrix with `cols` columns, how many rows share a vector in the columns past the last whole vector: 4 if those
// are at most a quarter of a vector, 2 if at most half: 50 columns take 52 multiply-adds, not 64, and a shuffle for each
// past the 48, two thirds of the time of a whole vector. 1: the last vector of a row is like the others.
template <class T>
constexpr int64_t rows_in_tail([[maybe_unused]] int64_t cols) {
#if defined(__AVX512F__)
  const int64_t rest = cols % kLanes<T>;
  if (sizeof(T) == 4 && cols > kLanes<T> && rest) return rest <= kLanes<T> / 4 ? 4 : rest <= kLanes<T> / 2 ? 2 : 1;
#endif
  return 1;
}

// A (C, C) matrix cut into panels of at most kPanel vectors of columns; inside a panel row p is
// contiguous, so a step streams through it. After the panels comes the tail, if any.
template <class T>
struct Panels {
  int64_t rows = 0, cols = 0, vectors = 0, count = 0;
  int64_t tail = 1;  // rows_in_tail
  T fill = 0;
  RawBuffer<T> buffer;

  int64_t first(int64_t i) const { return i * (vectors / count) + std::min(i, vectors % count); }
  int width(int64_t i) const { return int(first(i + 1) - first(i)); }
  const T* panel(int64_t i) const { return buffer.data + first(i) * kLanes<T> * rows; }

  // Row p of the matrix stands at e + p * stride; columns past the end are `fill`.
  void pack(int64_t rows_, int64_t cols_, T fill_, const T* e, int64_t stride) {
    rows = rows_, cols = cols_, fill = fill_;
    tail = rows_in_tail<T>(cols);
    vectors = tail > 1 ? cols / kLanes<T> : padded<T>(cols) / kLanes<T>;
    count = (vectors + kPanel - 1) / kPanel;
    const int64_t in_tail = tail > 1 ? (rows + 3) / 4 * 4 : 0;
    buffer.resize((vectors * rows + in_tail / tail) * kLanes<T>);
    T* out = buffer.data;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t p = 0; p < rows; ++p)
        for (int64_t v = first(i); v < first(i + 1); ++v, out += kLanes<T>) store(out, load_row(e + p * stride, v * kLanes<T>, cols, fill));
    for (int64_t p = 0; p < in_tail; ++p)
      for (int64_t c = vectors * kLanes<T>; c < vectors * kLanes<T> + kLanes<T> / tail; ++c) *out++ = p < rows && c < cols ? e[p * stride + c] : fill;
  }
};

template <class Op, class T, int R, int NV, class F>
inline void step_panel(const T* const* a, const T* panel, int64_t size, int64_t stride, int64_t c0, F&& finish) {
  Vec<T> acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[r][v] = Op::template zero<T>();
  for (int64_t p = 0; p < size; ++p, panel += stride) {
    Vec<T> e[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) e[v] = load(panel + v * kLanes<T>);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const T x = a[r][p];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[r][v] = Op::template accumulate<T>(acc[r][v], x, e[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) finish(r, c0 + v * kLanes<T>, acc[r][v]);
}

#if defined(__AVX512F__)
// The columns of the tail, four rows p at a time: G of them in each vector. A row of `a` is not read past its end.
template <class Op, int G, int R, class F>
inline void step_tail(const float* const* a, const Panels<float>& e, F&& finish) {
  constexpr int kVectors = 4 / G, kWidth = 16 / G;
  __m512i pick[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    alignas(64) int32_t row[16];
    for (int j = 0; j < 16; ++j) row[j] = v * G + j / kWidth;
    pick[v] = _mm512_load_si512(row);
  }
  Vec<float> acc[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) acc[r] = Op::template zero<float>();
  const float* matrix = e.panel(e.count);
  const auto four = [&](int64_t p, const auto& read) {
    Vec<float> x[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) x[v] = load(matrix + p * kWidth + v * 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 spread = _mm512_broadcast_f32x4(read(a[r] + p));
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) acc[r] = Op::template accumulate<float>(acc[r], (Vec<float>)_mm512_permutevar_ps(spread, pick[v]), x[v]);
    }
  };
  const int64_t whole = e.rows & ~int64_t(3);
  for (int64_t p = 0; p < whole; p += 4) four(p, [](const float* x) { return _mm_loadu_ps(x); });
  if (whole < e.rows) four(whole, [&](const float* x) { return _mm_maskz_loadu_ps(__mmask8((1 << (e.rows & 3)) - 1), x); });
  const int64_t c0 = e.vectors * 16;
  const __mmask16 valid = __mmask16((1u << (e.cols - c0)) - 1);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const auto swapped = [](Vec<float> x, auto order) { return (Vec<float>)_mm512_shuffle_f32x4((__m512)x, (__m512)x, decltype(order)::value); };
    acc[r] = Op::template join<float>(acc[r], swapped(acc[r], std::integral_constant<int, 0x4e>()));
    if (G == 4) acc[r] = Op::template join<float>(acc[r], swapped(acc[r], std::integral_constant<int, 0xb1>()));
    finish(r, c0, (Vec<float>)_mm512_mask_mov_ps(_mm512_set1_ps(e.fill), valid, (__m512)acc[r]));
  }
}
#endif

template <class Op, class T, int R, class F>
inline void step_rows(const T* const* a, const Panels<T>& e, F&& finish) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    if (e.tail == 4) step_tail<Op, 4, R>(a, e, finish);
    else if (e.tail == 2) step_tail<Op, 2, R>(a, e, finish);
  }
#endif
  for (int64_t i = 0; i < e.count; ++i) {
    const int64_t c0 = e.first(i) * kLanes<T>;
    switch (e.width(i)) {
      case 1: step_panel<Op, T, R, 1>(a, e.panel(i), e.rows, kLanes<T>, c0, finish); break;
      case 2: step_panel<Op, T, R, 2>(a, e.panel(i), e.rows, 2 * kLanes<T>, c0, finish); break;
      default: step_panel<Op, T, R, 3>(a, e.panel(i), e.rows, 3 * kLanes<T>, c0, finish); break;
    }
  }
}

// f(std::integral_constant<int, rows>) for rows in 1..kRows, so that f can unroll over them.
template <class F>
inline void with_rows(int rows, F&& f) {
  switch (rows) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
#if defined(__AVX512F__)
    case 4: return f(std::integral_constant<int, 4>());
    case 5: return f(std::integral_constant<int, 5>());
    case 6: return f(std::integral_constant<int, 6>());
    case 7: return f(std::integral_constant<int, 7>());
#endif
    default: return f(std::integral_constant<int, kRows>());
  }
}

// Asks for a row that will be read, or with `write` overwritten, a step from now. Inlined at once, and so must be what
// only calls this: GCC removes a call of a function that does nothing but prefetch.
#define SL_FETCH [[gnu::always_inline]] inline
template <bool write, class T>
SL_FETCH void fetch_row(const T* x, int64_t size) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t c = 0; c < size; c += kLine) __builtin_prefetch(x + c, write);
}

// Calls finish(r, c, vector) for every row r < rows and every vector of columns starting at c.
template <class Op, class T, class F>
inline void step(int rows, const T* const* a, const Panels<T>& e, F&& finish) {
  with_rows(rows, [&](auto r) { step_rows<Op, T, decltype(r)::value>(a, e, finish); });
}

// The same for a matrix (size, cols) in rows `stride` apart, readable and writable up to whole
// vectors; packing it would not pay because it is used for few rows.
template <class Op, class T, class F>
inline void step_strided(int rows, const T* const* a, const T* e, int64_t size, int64_t stride, int64_t cols, F&& finish) {
  with_rows(rows, [&](auto r) {
    constexpr int R = decltype(r)::value;
    int64_t c = 0;
    for (; c + 2 * kLanes<T> < cols; c += 3 * kLanes<T>) step_panel<Op, T, R, 3>(a, e + c, size, stride, c, finish);
    if (c + kLanes<T> < cols) step_panel<Op, T, R, 2>(a, e + c, size, stride, c, finish);
    else if (c < cols) step_panel<Op, T, R, 1>(a, e + c, size, stride, c, finish);
  });
}

// The same for one sequence whose matrix is used only once, so packing it would cost as much as the
// step: e is (size, size), row-major, read with partial loads at the right edge.
template <class Op, class T, class F>
inline void step_once(const T* a, const T* e, int64_t size, F&& finish) {
  constexpr int NV = 4;
  for (int64_t c0 = 0; c0 < size; c0 += NV * kLanes<T>) {
    const int nv = int(std::min<int64_t>(NV, (size - c0 + kLanes<T> - 1) / kLanes<T>));
    Vec<T> acc[NV];
    for (int v = 0; v < NV; ++v) acc[v] = Op::template zero<T>();
    if (nv == NV && c0 + NV * kLanes<T> <= size) {
      for (int64_t p = 0; p < size; ++p)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v)
          acc[v] = Op::template accumulate<T>(acc[v], a[p], load(e + p * size + c0 + v * kLanes<T>));
    } else {
      for (int64_t p = 0; p < size; ++p)
        for (int v = 0; v < nv; ++v)
          acc[v] = Op::template accumulate<T>(acc[v], a[p], load_row(e + p * size, c0 + v * kLanes<T>, size, T(0)));
    }
    for (int v = 0; v < nv; ++v) finish(c0 + v * kLanes<T>, acc[v]);
  }
}

// Lowest p with the largest a[p] + matrix[p][c], for a (C, C) matrix used once; 0 if all are -inf.
template <class T>
inline int64_t argmax_column(const T* a, const T* matrix, int64_t C, int64_t c) {
  int64_t arg = 0;
  T best = kNegInf<T>;
  for (int64_t p = 0; p < C; ++p) {
    const T x = a[p] + matrix[p * C + c];
    if (x > best) best = x, arg = p;
  }
  return arg;
}

// The lowest lane that is set, or -1.
template <class T>
inline int first_set(IVec<T> x) {
#if defined(__AVX512F__)
  unsigned mask;
  if constexpr (sizeof(T) == 4) mask = _mm512_movepi32_mask((__m512i)x);
  else mask = _mm512_movepi64_mask((__m512i)x);
  return mask ? __builtin_ctz(mask) : -1;
#elif defined(__AVX2__)
  unsigned mask;
  if constexpr (sizeof(T) == 4) mask = _mm256_movemask_ps((__m256)x);
  else mask = _mm256_movemask_pd((__m256d)x);
  return mask ? __builtin_ctz(mask) : -1;
#else
  for (int j = 0; j < kLanes<T>; ++j)
    if (x[j]) return j;
  return -1;
#endif
}

// The lowest lane of x that equals `value`, or -1.
template <class T>
inline int first_equal(Vec<T> x, T value) {
#if defined(__AVX512F__)  // first_set of a comparison would go from a mask to a vector and back
  unsigned mask;
  if constexpr (sizeof(T) == 4) mask = _mm512_cmpeq_ps_mask((__m512)x, _mm512_set1_ps(value));
  else mask = _mm512_cmpeq_pd_mask((__m512d)x, _mm512_set1_pd(value));
  return mask ? __builtin_ctz(mask) : -1;
#else
  return first_set<T>(x == splat(value));
#endif
}

// Lowest index of the largest of n sums a[i] + b[i]; both rows are padded to whole vectors, with
// -inf in the padding of a. An all -inf row gives 0.
template <class T>
inline int64_t argmax_sum(const T* a, const T* b, int64_t n, T* best) {
  Vec<T> m = splat<T>(kNegInf<T>);
  for (int64_t i = 0; i < n; i += kLanes<T>) m = vmax(load(a + i) + load(b + i), m);
  *best = hmax(m);
  for (int64_t i = 0; i < n; i += kLanes<T>)
    if (const int j = first_equal<T>(load(a + i) + load(b + i), *best); j >= 0) return i + j;
  return 0;
}

// Lowest index of the entry that equals `best` among n, which need no padding; 0 if none does.
template <class T>
inline int64_t first_equal(const T* x, int64_t n, T best) {
  for (int64_t i = 0; i < n; i += kLanes<T>)
    if (const int j = first_equal<T>(load_row(x, i, n, kNegInf<T>), best); j >= 0) return i + j;
  return 0;
}

// Lowest index of the largest of n entries, which need no padding; 0 if all are -inf.
template <class T>
inline int64_t argmax_row(const T* x, int64_t n) {
  Vec<T> m = splat<T>(kNegInf<T>);
  for (int64_t i = 0; i < n; i += kLanes<T>) m = vmax(load_row(x, i, n, kNegInf<T>), m);
  return first_equal(x, n, hmax(m));
}

}  // namespace sl
