// Block-coordinate ascent in the dual of a structured SVM,
//
//   max  sum_p b_p alpha_p - 1/2 |w|^2 - ridge/2 sum_i (sum_{p in i} alpha_p)^2,   w = sum_p alpha_p a_p,   alpha >= 0,
//   sum_{p in i} alpha_p <= box for each block i where box is finite.
//
// A visit takes the slopes of a block's planes from w, solves the block by pairwise steps on its own small Gram matrix,
// which is kept, and moves w once. With a box a step moves weight from the plane of lowest slope to that of highest, the
// plane (0, 0) that takes the rest of the box being one of them; without a box it moves one multiplier. Both are exact
// line searches. There is no Gram matrix between blocks: what a visit costs is the nonzeros of the block's planes.
#include "svm.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace sl {
namespace {

constexpr int64_t kNone = -1, kUnit = -2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Ascent {
  Planes planes;
  const double* b;
  const int64_t* head;        // (blocks,) newest plane of a block, -1 if none
  const int64_t* next;        // (planes,) the next older plane of the block, -1 at the end
  const int64_t* idle;        // (planes,) > 0: its alpha was 0 for that many rounds
  const int64_t* gram_start;  // (planes,) where the products of a plane with itself and its elders begin
  const double* gram;
  const int64_t* order;  // blocks to visit
  int64_t visits;
  double* alpha;
  double* w;
  double* slope;  // (blocks,) slope that a block had to gain when it was last visited
  double box, ridge, tolerance;
  int64_t passes, steps;
  int64_t most_idle;  // planes idle for longer are passed over
  double share;       // blocks with less to gain than this share of the mean are left out of three passes in four
};

// <row, w> of the terms of one block: its planes share most of them, being labellings of one input. w moves along the
// sum over planes, so that a shared row is added once.
struct Shared {
  const Planes& planes;
  std::vector<int64_t> terms;
  int64_t visit = 0;

  explicit Shared(const Planes& p) : planes(p) {}

  // Forgets products: w has moved, or is another.
  void begin() { visit = ++*planes.visit; }

  double dot(int64_t p, const double* w) {
    double total = 0;
    for (int64_t k = planes.term_start[p]; k < planes.term_start[p + 1]; ++k) {
      const int64_t key = planes.term_key[k];
      double value;
      if (key == kUnit) {
        value = w[planes.term_offset[k]];
      } else if (key < 0) {
        value = planes.row_dot(planes.term_row[k], w + planes.term_offset[k]);
      } else {
        Entry& entry = planes.entry(key);
        if (entry.seen == visit && entry.key == key) {
          value = entry.product;
        } else {
          value = planes.row_dot(planes.term_row[k], w + planes.term_offset[k]);
          if (entry.touched != visit) entry.product = value, entry.key = key, entry.seen = visit;
        }
      }
      total += planes.term_coefficient[k] * value;
    }
    return total;
  }
  void add(int64_t p, double scale, double* w) {
    for (int64_t k = planes.term_start[p]; k < planes.term_start[p + 1]; ++k) {
      const int64_t key = planes.term_key[k];
      const double c = scale * planes.term_coefficient[k];
      if (key == kUnit) {
        w[planes.term_offset[k]] += c;
      } else if (key < 0) {
        planes.add_row(k, c, w);
      } else {
        Entry& entry = planes.entry(key);
        if (entry.touched != visit) {
          if (entry.key != key) entry.key = key, entry.seen = 0;
          entry.moved = 0;
          entry.touched = visit;
          terms.push_back(k);
        }
        if (entry.key == key) entry.moved += c;
        else planes.add_row(k, c, w);
      }
    }
  }
  void flush(double* w) {
    for (int64_t k : terms)
      if (const double moved = planes.entry(planes.term_key[k]).moved; moved != 0) planes.add_row(k, moved, w);
    terms.clear();
  }
};

// The planes of one block, newest first; place counts all of them.
struct Block {
  std::vector<int64_t> plane, place;
  std::vector<double> slope, alpha, before;
  const Ascent* s = nullptr;

  double product(size_t i, size_t j) const {
    if (i > j) std::swap(i, j);
    return s->gram[s->gram_start[plane[i]] + place[j] - place[i]];
  }
  void read(const Ascent& ascent, Shared& shared, int64_t block) {
    s = &ascent;
    shared.begin();
    plane.clear(), place.clear(), slope.clear(), alpha.clear();
    int64_t at = 0;
    for (int64_t p = s->head[block]; p != kNone; p = s->next[p], ++at) {
      if (s->alpha[p] == 0 && s->idle[p] > s->most_idle) continue;
      plane.push_back(p);
      place.push_back(at);
      alpha.push_back(s->alpha[p]);
      slope.push_back(s->b[p] - shared.dot(p, s->w));
    }
    before = alpha;
  }
  // Slopes after alpha_i += step.
  void moved(size_t i, double step) {
    for (size_t j = 0; j < plane.size(); ++j) slope[j] -= step * product(i, j);
  }
  void write(Shared& shared) {
    for (size_t i = 0; i < plane.size(); ++i) {
      if (alpha[i] == before[i]) continue;
      shared.add(plane[i], alpha[i] - before[i], s->w);
      s->alpha[plane[i]] = alpha[i];
    }
    shared.flush(s->w);
  }
};

// Steps within a box; returns the slope difference found first.
double solve_boxed(const Ascent& s, Block& k) {
  double found = 0;
  const size_t m = k.plane.size();
  for (int64_t step = 0; step < s.steps; ++step) {
    double rest = s.box;
    for (double a : k.alpha) rest -= a;
    if (rest < 1e-12 * s.box) rest = 0;
    size_t up = m, down = m;  // m stands for the plane (0, 0)
    double high = 0, low = rest > 0 ? 0.0 : kInfinity;
    for (size_t i = 0; i < m; ++i) {
      if (k.slope[i] > high) high = k.slope[i], up = i;
      if (k.alpha[i] > 0 && k.slope[i] < low) low = k.slope[i], down = i;
    }
    const double gain = high - low;
    if (step == 0) found = gain > 0 ? gain : 0;
    if (!(gain > s.tolerance)) break;
    double square = 0;
    if (up < m) square += k.product(up, up);
    if (down < m) square += k.product(down, down);
    if (up < m && down < m) square -= 2 * k.product(up, down);
    const double most = down < m ? k.alpha[down] : rest;
    const double size = square > 0 && gain / square < most ? gain / square : most;
    if (up < m) k.alpha[up] += size, k.moved(up, size);
    if (down < m) k.alpha[down] = size >= most ? 0 : k.alpha[down] - size, k.moved(down, -size);
  }
  return found;
}

// Steps without a box; infinite where a constraint 0 >= b > 0 makes the dual unbounded.
double solve_free(const Ascent& s, Block& k) {
  double found = 0;
  const size_t m = k.plane.size();
  double held = 0;
  for (double a : k.alpha) held += a;
  for (int64_t step = 0; step < s.steps; ++step) {
    size_t at = m;
    double gain = 0;
    for (size_t i = 0; i < m; ++i) {
      const double g = k.slope[i] - s.ridge * held, size = k.alpha[i] > 0 ? std::fabs(g) : g;
      if (size > gain) gain = size, at = i;
    }
    if (step == 0) found = gain;
    if (at == m || !(gain > s.tolerance)) break;
    const double square = k.product(at, at) + s.ridge;
    if (!(square > 0)) return kInfinity;
    double size = (k.slope[at] - s.ridge * held) / square;
    if (size < -k.alpha[at]) size = -k.alpha[at];
    k.alpha[at] += size;
    held += size;
    k.moved(at, size);
  }
  return found;
}

int64_t ascend(const Ascent& s) {
  const bool boxed = std::isfinite(s.box);
  Block block;
  Shared shared(s.planes);
  for (int64_t pass = 0; pass < s.passes; ++pass) {
    double worst = 0, mean = 0;
    for (int64_t v = 0; v < s.visits; ++v) mean += s.slope[s.order[v]] / static_cast<double>(s.visits);
    const bool whole = pass % 4 == 0;
    for (int64_t v = 0; v < s.visits; ++v) {
      if (s.head[s.order[v]] == kNone || (!whole && s.slope[s.order[v]] < s.share * mean)) continue;
      block.read(s, shared, s.order[v]);
      const double found = boxed ? solve_boxed(s, block) : solve_free(s, block);
      if (std::isinf(found)) return -1;
      block.write(shared);
      s.slope[s.order[v]] = found;
      if (found > worst) worst = found;
    }
    if (whole && worst <= s.tolerance) return pass + 1;
  }
  return s.passes;
}

}  // namespace
}  // namespace sl

// Returns the number of passes made, -1 where the dual is unbounded.
extern "C" int64_t sl_svm_ascend_f64(const sl::Ascent* s) { return sl::ascend(*s); }

// The products of planes from..to-1 with themselves and with their elders in the block, at gram + gram_start[p].
extern "C" int64_t sl_svm_products_f64(const sl::Planes* planes, int64_t from, int64_t to, const int64_t* next,
                                       const int64_t* gram_start, double* scratch, double* gram) {
  sl::Shared shared(*planes);
  for (int64_t p = from; p < to; ++p) {
    shared.begin();
    planes->add(p, 1, scratch);  // terms may meet in one place: their sum is what counts
    double* out = gram + gram_start[p];
    for (int64_t q = p; q != sl::kNone; q = next[q]) *out++ = shared.dot(q, scratch);
    planes->clear(p, scratch);
  }
  return 0;
}

// out[v] = max(0, max over the planes of block order[v] of b - <w, a>), but for planes idle for longer than most_idle.
extern "C" int64_t sl_svm_slacks_f64(const sl::Planes* planes, const double* b, const int64_t* head, const int64_t* next,
                                     const int64_t* order, int64_t visits, const double* w, double* out,
                                     const int64_t* idle, int64_t most_idle) {
  sl::Shared shared(*planes);
  for (int64_t v = 0; v < visits; ++v) {
    shared.begin();
    double most = 0;
    for (int64_t p = head[order[v]]; p != sl::kNone; p = next[p]) {
      if (idle[p] > most_idle) continue;
      const double h = b[p] - shared.dot(p, w);
      if (h > most) most = h;
    }
    out[v] = most;
  }
  return 0;
}

// out[p] = <w, a_p> for planes from..to-1.
extern "C" int64_t sl_svm_dots_f64(const sl::Planes* planes, int64_t from, int64_t to, const double* w, double* out) {
  sl::Shared shared(*planes);
  shared.begin();
  for (int64_t p = from; p < to; ++p) out[p - from] = shared.dot(p, w);
  return 0;
}

// w += sum_p scale_p a_p for planes from..to-1.
extern "C" int64_t sl_svm_combine_f64(const sl::Planes* planes, int64_t from, int64_t to, const double* scale, double* w) {
  for (int64_t p = from; p < to; ++p)
    if (scale[p - from] != 0) planes->add(p, scale[p - from], w);
  return 0;
}
