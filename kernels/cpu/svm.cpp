// Block-coordinate ascent in the dual of a structured SVM,
//
//   max  sum_p b_p alpha_p - 1/2 |w|^2 - ridge/2 sum_i (sum_{p in i} alpha_p)^2,   w = sum_p alpha_p a_p,   alpha >= 0,
//   sum_{p in i} alpha_p <= box for each block i where box is finite.
//
// With a box a step moves weight from the plane with the lowest slope to the one with the highest, the plane (0, 0)
// that takes the rest of the box being one of them; without a box it moves one multiplier. Both are exact line searches.
// w is kept beside alpha, so that no Gram matrix is ever made: a step costs the nonzeros of two planes.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "svm.h"

namespace sl {
namespace {

struct Ascent {
  Planes planes;
  const double* b;
  const int64_t* head;   // (blocks,) first plane of a block, -1 if none
  const int64_t* next;   // (planes,) the following plane of the block, -1 at the end
  const int64_t* order;  // blocks to visit
  int64_t visits;
  double* alpha;
  double* w;
  double* scratch;  // (d,), zero on entry and exit
  double* gap;      // (blocks,) slope left in a block when it was last visited
  double box, ridge, tolerance;
  int64_t passes, steps;
};

constexpr int64_t kNone = -1;

struct Choice {
  int64_t up = kNone, down = kNone;
  double high = 0, low = 0;
};

// The planes with the highest slope, and with the lowest among those that hold weight; kNone is the plane (0, 0).
template <class Slope>
Choice choose(const Ascent& s, int64_t block, double rest, Slope&& slope) {
  Choice c;
  c.low = rest > 0 ? 0.0 : std::numeric_limits<double>::infinity();
  for (int64_t p = s.head[block]; p != kNone; p = s.next[p]) {
    const double g = slope(p);
    if (g > c.high) c.high = g, c.up = p;
    if (s.alpha[p] > 0 && g < c.low) c.low = g, c.down = p;
  }
  return c;
}

// Moves along a_up - a_down by the exact line search, at most `most`; returns how far.
double move(const Ascent& s, int64_t up, int64_t down, double slope, double extra, double most) {
  const Planes& planes = s.planes;
  if (up != kNone) planes.add(up, 1, s.scratch);
  if (down != kNone) planes.add(down, -1, s.scratch);
  // Terms may meet in one coordinate: the scratch vector has their sum, and <v, v> is v's terms against it.
  double square = extra;
  if (up != kNone) square += planes.dot(up, s.scratch);
  if (down != kNone) square -= planes.dot(down, s.scratch);
  const double wanted = square > 0 ? slope / square : std::numeric_limits<double>::infinity();
  const double step = wanted < most ? wanted : most;
  if (std::isfinite(step)) {
    if (up != kNone) planes.add(up, step, s.w);
    if (down != kNone) planes.add(down, -step, s.w);
  }
  if (up != kNone) planes.each(up, [&](int64_t at, double) { s.scratch[at] = 0; });
  if (down != kNone) planes.each(down, [&](int64_t at, double) { s.scratch[at] = 0; });
  return step;
}

double total(const Ascent& s, int64_t block) {
  double sum = 0;
  for (int64_t p = s.head[block]; p != kNone; p = s.next[p]) sum += s.alpha[p];
  return sum;
}

// One visit with a box; returns the slope difference found first.
double visit_boxed(const Ascent& s, int64_t block) {
  double found = 0;
  for (int64_t step = 0; step < s.steps; ++step) {
    double rest = s.box - total(s, block);
    if (rest < 1e-14 * s.box) rest = 0;
    const Choice c = choose(s, block, rest, [&](int64_t p) { return s.b[p] - s.planes.dot(p, s.w); });
    const double slope = c.high - c.low;
    if (step == 0) found = slope > 0 ? slope : 0;
    if (!(slope > s.tolerance)) break;
    const double moved = move(s, c.up, c.down, slope, 0, c.down == kNone ? rest : s.alpha[c.down]);
    if (c.up != kNone) s.alpha[c.up] += moved;
    if (c.down != kNone) s.alpha[c.down] = moved >= s.alpha[c.down] ? 0 : s.alpha[c.down] - moved;
  }
  return found;
}

double visit_free(const Ascent& s, int64_t block) {
  double found = 0;
  for (int64_t step = 0; step < s.steps; ++step) {
    const double held = s.ridge * total(s, block);
    const Choice c = choose(s, block, 0, [&](int64_t p) { return s.b[p] - s.planes.dot(p, s.w) - held; });
    const bool grow = c.down == kNone || c.high >= -c.low;
    const double slope = grow ? c.high : -c.low;
    if (step == 0) found = slope > 0 ? slope : 0;
    if (!(slope > s.tolerance)) break;
    if (grow) {
      const double moved = move(s, c.up, kNone, slope, s.ridge, std::numeric_limits<double>::infinity());
      if (!std::isfinite(moved)) return moved;  // a constraint 0 >= b > 0: the dual is unbounded
      s.alpha[c.up] += moved;
    } else {
      const double moved = move(s, kNone, c.down, slope, s.ridge, s.alpha[c.down]);
      s.alpha[c.down] = moved >= s.alpha[c.down] ? 0 : s.alpha[c.down] - moved;
    }
  }
  return found;
}

int64_t ascend(const Ascent& s) {
  const bool boxed = std::isfinite(s.box);
  for (int64_t pass = 0; pass < s.passes; ++pass) {
    double worst = 0;
    for (int64_t v = 0; v < s.visits; ++v) {
      const int64_t block = s.order[v];
      if (s.head[block] == kNone) continue;
      const double found = boxed ? visit_boxed(s, block) : visit_free(s, block);
      s.gap[block] = found;
      if (found > worst) worst = found;
      if (std::isinf(found)) return -1;
    }
    if (worst <= s.tolerance) return pass + 1;
  }
  return s.passes;
}

}  // namespace
}  // namespace sl

// Returns the number of passes made, -1 where the dual is unbounded.
extern "C" int64_t sl_svm_ascend_f64(const sl::Ascent* s) { return sl::ascend(*s); }

// out[p] = <w, a_p> for planes from..to-1.
extern "C" int64_t sl_svm_dots_f64(const sl::Planes* planes, int64_t from, int64_t to, const double* w, double* out) {
  for (int64_t p = from; p < to; ++p) out[p - from] = planes->dot(p, w);
  return 0;
}

// w += sum_p scale_p a_p for planes from..to-1.
extern "C" int64_t sl_svm_combine_f64(const sl::Planes* planes, int64_t from, int64_t to, const double* scale, double* w) {
  for (int64_t p = from; p < to; ++p)
    if (scale[p - from] != 0) planes->add(p, scale[p - from], w);
  return 0;
}
