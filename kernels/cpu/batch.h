// How a ragged batch is ordered, and among how many threads it is worth sharing.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace sl {

// Rows by falling length, those of equal length in their order; lengths null: as they stand. By counting, since
// there are no more lengths than positions.
inline std::vector<int64_t> by_falling_length(const int64_t* lengths, int64_t B, int64_t N) {
  std::vector<int64_t> order(B);
  if (!lengths || B == 1) {
    std::iota(order.begin(), order.end(), int64_t(0));
    return order;
  }
  std::vector<int64_t> place(N + 2);
  for (int64_t b = 0; b < B; ++b) ++place[N - lengths[b] + 1];
  for (int64_t n = 0; n < N; ++n) place[n + 1] += place[n];
  for (int64_t b = 0; b < B; ++b) order[place[N - lengths[b]]++] = b;
  return order;
}

// f(g) for the groups of one of `chunks` chunks. Groups come by falling length: dealt out there and back by turns, the
// chunks get about the same work (8 % less for the longest of two with lengths N/2..N).
template <class F>
inline void for_groups_of(int64_t chunk, int64_t chunks, int64_t groups, F&& f) {
  for (int64_t first = 0, back = 0; first < groups; first += chunks, back = !back) {
    const int64_t g = first + (back ? chunks - 1 - chunk : chunk);
    if (g < groups) f(g);
  }
}

// Cells of a recurrence, some ten a nanosecond, below which waking a worker takes longer than it saves.
constexpr int64_t kWorthWaking = 150000;

inline int workers_for(int64_t cells, int64_t threads, int64_t rows, int64_t least = kWorthWaking) {
  return cells < least ? 1 : int(std::max<int64_t>(1, std::min(threads, rows)));
}

}  // namespace sl
