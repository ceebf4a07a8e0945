// Sequential minimal optimisation of the same dual given as a Gram matrix,
//
//   max  <b, alpha> - 1/2 alpha^T J alpha,   alpha >= 0,   sum of alpha over each group <= box where box is finite,
//
// J (m, m) with any ridge already in it, variables sorted by group. A step takes the best pair of one group, or the
// best single variable without a box, over all groups, and brings all m slopes up to date.
#include <cmath>
#include <cstdint>
#include <limits>

namespace sl {
namespace {

struct Smo {
  const double* gram;
  const double* b;
  const int64_t* group;  // (groups + 1,)
  double* alpha;
  double* slope;  // (m,)
  double* held;   // (groups,) sum of alpha
  double box, tolerance;
  int64_t m, groups, steps;
};

struct Pair {
  int64_t up = -1, down = -1, group = -1;
  double gain = 0, slope = 0, most = 0;
};

Pair best_boxed(const Smo& s) {
  Pair best;
  for (int64_t g = 0; g < s.groups; ++g) {
    double rest = s.box - s.held[g];
    if (rest < 1e-14 * s.box) rest = 0;
    int64_t up = -1, down = -1;
    double high = 0, low = rest > 0 ? 0 : std::numeric_limits<double>::infinity();
    for (int64_t p = s.group[g]; p < s.group[g + 1]; ++p) {
      if (s.slope[p] > high) high = s.slope[p], up = p;
      if (s.alpha[p] > 0 && s.slope[p] < low) low = s.slope[p], down = p;
    }
    if (high - low > best.slope) best = {up, down, g, 0, high - low, down < 0 ? rest : s.alpha[down]};
  }
  if (best.slope <= s.tolerance) return best;
  // Second choice by gain: of the planes that hold weight in that group, the one whose exchange with `up` gains most.
  const int64_t g = best.group, up = best.up;
  const double high = up < 0 ? 0 : s.slope[up];
  double rest = s.box - s.held[g];
  if (rest < 1e-14 * s.box) rest = 0;
  auto gain = [&](int64_t down) {
    const double slope = high - (down < 0 ? 0 : s.slope[down]), most = down < 0 ? rest : s.alpha[down];
    double square = 0;
    if (up >= 0) square += s.gram[up * s.m + up];
    if (down >= 0) square += s.gram[down * s.m + down];
    if (up >= 0 && down >= 0) square -= 2 * s.gram[up * s.m + down];
    if (slope <= 0 || most <= 0) return;
    const double wanted = square > 0 ? slope / square : most, step = wanted < most ? wanted : most;
    const double value = slope * step - 0.5 * step * step * (square > 0 ? square : 0);
    if (value > best.gain) best.gain = value, best.down = down, best.most = step;
  };
  gain(-1);
  for (int64_t p = s.group[g]; p < s.group[g + 1]; ++p)
    if (s.alpha[p] > 0) gain(p);
  return best;
}

Pair best_free(const Smo& s) {
  Pair best;
  for (int64_t p = 0; p < s.m; ++p) {
    const double slope = s.alpha[p] > 0 ? std::fabs(s.slope[p]) : s.slope[p];
    if (slope <= 0) continue;
    const double square = s.gram[p * s.m + p];
    const bool grow = s.slope[p] > 0;
    const double most = grow ? std::numeric_limits<double>::infinity() : s.alpha[p];
    const double wanted = square > 0 ? slope / square : std::numeric_limits<double>::infinity();
    const double step = wanted < most ? wanted : most;
    if (slope > best.slope) best.slope = slope;
    const double gain = std::isfinite(step) ? slope * step - 0.5 * step * step * square : step;
    if (slope > s.tolerance && gain > best.gain) {
      best.gain = gain;
      best.up = grow ? p : -1;
      best.down = grow ? -1 : p;
      best.most = step;
    }
  }
  return best;
}

int64_t smo(const Smo& s) {
  const bool boxed = std::isfinite(s.box);
  for (int64_t step = 0; step < s.steps; ++step) {
    const Pair best = boxed ? best_boxed(s) : best_free(s);
    if (best.slope <= s.tolerance || best.gain <= 0) return step;
    if (!std::isfinite(best.most)) return -1;
    const double moved = best.most;
    if (best.up >= 0) s.alpha[best.up] += moved;
    if (best.down >= 0) s.alpha[best.down] = moved >= s.alpha[best.down] ? 0 : s.alpha[best.down] - moved;
    if (boxed) s.held[best.group] += (best.up >= 0 ? moved : 0) - (best.down >= 0 ? moved : 0);
    const double* up = best.up < 0 ? nullptr : s.gram + best.up * s.m;
    const double* down = best.down < 0 ? nullptr : s.gram + best.down * s.m;
    if (up && down)
      for (int64_t j = 0; j < s.m; ++j) s.slope[j] -= moved * (up[j] - down[j]);
    else if (up)
      for (int64_t j = 0; j < s.m; ++j) s.slope[j] -= moved * up[j];
    else if (down)
      for (int64_t j = 0; j < s.m; ++j) s.slope[j] += moved * down[j];
  }
  return s.steps;
}

}  // namespace
}  // namespace sl

// Returns the number of steps made, -1 where the dual is unbounded.
extern "C" int64_t sl_svm_smo_f64(const sl::Smo* s) { return sl::smo(*s); }
