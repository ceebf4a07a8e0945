// Scores of given paths and their gradients: look-ups and counts, limited by memory latency and by
// writing the dense (B, N, M) gradient once.
#include <utility>

#include "alignment.h"
#include "pages.h"

namespace sl {
namespace {

struct Walk {
  int64_t n, m, mode, low, high;

  Walk(const AlignmentArgs& a, int64_t b) : mode(a.mode) {
    n = a.x_lengths ? a.x_lengths[b] : a.N, m = a.y_lengths ? a.y_lengths[b] : a.M;
    low = a.band < 0 ? -n - m : std::min<int64_t>(0, m - n) - a.band;
    high = a.band < 0 ? n + m : std::max<int64_t>(0, m - n) + a.band;
  }

  // Calls visit(op, opens, i, j) for every operation that is paid for, (i, j) the node in front of it.
  // Returns the place of the first operation that is none or consumes too much, or -1; *leaves says
  // whether the path meets a node outside the band.
  template <class F>
  int64_t run(const int64_t* path, bool* leaves, F&& visit) const {
    int64_t i = 0, j = 0, first = -1, last = -1, length = 0;
    for (; i < n || j < m; ++length) {
      const int64_t op = path[length];
      if (uint64_t(op) > 2 || i + (op != 2) > n || j + (op != 1) > m) return length;
      if (op == 0) first = first < 0 ? length : first, last = length;
      i += op != 2, j += op != 1;
    }
    *leaves = false;
    i = j = 0;
    for (int64_t t = 0; t < length; ++t) {
      const int64_t op = path[t];
      const bool outside = mode == kLocal && (t < first || t > last || first < 0);
      const bool free = mode == kSemiglobal && ((op == 1 && (j == 0 || j == m)) || (op == 2 && (i == 0 || i == n)));
      if (!outside && !free) visit(op, t == 0 || path[t - 1] != op, i, j);
      i += op != 2, j += op != 1;
      if (!outside && (j - i < low || j - i > high)) *leaves = true;
    }
    return -1;
  }
};

// Returns the flat place (k * B + b) * (N + M) + t of the first bad operation, or -1.
template <class T>
int64_t score(const AlignmentArgs* args, const int64_t* paths, int64_t K, T* out) {
  const AlignmentArgs& a = *args;
  const int64_t width = a.N + a.M;
  for (int64_t b = 0; b < a.B; ++b) {
    const T* match = static_cast<const T*>(a.match) + b * a.match_b;
    const auto at = [&](const void* base, int64_t stride_b, int64_t stride, int64_t k) {
      return static_cast<const T*>(base)[b * stride_b + k * stride];
    };
    const Walk walk(a, b);
    for (int64_t k = 0; k < K; ++k) {
      bool leaves = false;
      // The sum of the scores times `share`, a power of two, and the place of an operation that is none.
      const auto sum_of = [&](T share) {
        T sum = 0;
        const int64_t place = walk.run(paths + (k * a.B + b) * width, &leaves, [&](int64_t op, bool opens, int64_t i, int64_t j) {
          opens = opens && a.affine;
          if (op == 0) sum += match[i * a.match_n + j] * share;
          else if (op == 1) sum += (opens ? at(a.open_x, a.open_x_b, a.open_x_n, i) : at(a.gap_x, a.gap_x_b, a.gap_x_n, i)) * share;
          else sum += (opens ? at(a.open_y, a.open_y_b, a.open_y_m, j) : at(a.gap_y, a.gap_y_b, a.gap_y_m, j)) * share;
        });
        return std::pair{sum, place};
      };
      auto [sum, place] = sum_of(T(1));
      if (place >= 0) return (k * a.B + b) * width + place;
      if (!std::isfinite(sum)) {
        constexpr T unit = T(int64_t(1) << 62);  // longer paths do not fit into memory
        sum = saturated(sum_of(1 / unit).first, unit);
      }
      out[k * a.B + b] = leaves ? kNegInf<T> : sum;
    }
  }
  return -1;
}

// Paths that begin with padding (no feasible output) or leave the band contribute nothing.
template <class T>
int64_t score_backward(const AlignmentArgs* args, const int64_t* paths, int64_t K, const T* grad, T* d_match, T* d_gap_x, T* d_gap_y, T* d_open_x, T* d_open_y) {
  on_large_pages(d_match, args->B * args->N * args->M);
  const AlignmentArgs& a = *args;
  const int64_t width = a.N + a.M;
  parallel_for(a.B, a.B * a.N * a.M < 200000 ? 1 : int(a.threads), [&](int64_t b, int) {
    T* match = d_match + b * a.N * a.M;
    T *gap_x = d_gap_x + b * a.N, *gap_y = d_gap_y + b * a.M;
    T *open_x = a.affine ? d_open_x + b * a.N : gap_x, *open_y = a.affine ? d_open_y + b * a.M : gap_y;
    std::fill_n(match, a.N * a.M, T(0));
    std::fill_n(gap_x, a.N, T(0));
    std::fill_n(gap_y, a.M, T(0));
    std::fill_n(open_x, a.N, T(0)), std::fill_n(open_y, a.M, T(0));
    const Walk walk(a, b);
    for (int64_t k = 0; k < K; ++k) {
      const int64_t* path = paths + (k * a.B + b) * width;
      const T g = grad[k * a.B + b];
      bool leaves = false;
      if (walk.run(path, &leaves, [](int64_t, bool, int64_t, int64_t) {}) >= 0 || leaves) continue;
      walk.run(path, &leaves, [&](int64_t op, bool opens, int64_t i, int64_t j) {
        if (op == 0) match[i * a.M + j] += g;
        else if (op == 1) (opens ? open_x : gap_x)[i] += g;
        else (opens ? open_y : gap_y)[j] += g;
      });
    }
  });
  return 0;
}

}  // namespace
}  // namespace sl

#define SCORE(suffix, T)                                                                                                  \
  extern "C" int64_t sl_alignment_score_##suffix(const sl::AlignmentArgs* a, const int64_t* paths, int64_t K, T* out) {   \
    return sl::score<T>(a, paths, K, out);                                                                                \
  }                                                                                                                       \
  extern "C" int64_t sl_alignment_score_backward_##suffix(const sl::AlignmentArgs* a, const int64_t* paths, int64_t K,    \
                                                          const T* grad, T* d_match, T* d_gap_x, T* d_gap_y, T* d_open_x, \
                                                          T* d_open_y) {                                                  \
    return sl::score_backward<T>(a, paths, K, grad, d_match, d_gap_x, d_gap_y, d_open_x, d_open_y);                       \
  }
SCORE(f32, float)
SCORE(f64, double)
