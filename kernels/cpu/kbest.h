// The k largest of a stream of candidates, equals in the order they came.
#pragma once
#include <algorithm>
#include <vector>

#include "simd.h"

namespace sl {

template <class T, class Tag>
class KLargest {
 public:
  explicit KLargest(int64_t k) : k_(k), value_(k), tag_(k) {}
  void clear() { size_ = 0; }
  int64_t size() const { return size_; }
  T value(int64_t i) const { return value_[i]; }
  const Tag& tag(int64_t i) const { return tag_[i]; }
  // False if x, and so anything not larger, has no place.
  bool offer(T x, const Tag& tag) {
    if (x == kNegInf<T> || (size_ == k_ && !(x > value_[k_ - 1]))) return false;
    int64_t place = size_ < k_ ? size_++ : k_ - 1;
    for (; place > 0 && x > value_[place - 1]; --place) value_[place] = value_[place - 1], tag_[place] = tag_[place - 1];
    value_[place] = x, tag_[place] = tag;
    return true;
  }

 private:
  int64_t k_, size_ = 0;
  std::vector<T> value_;
  std::vector<Tag> tag_;
};

// The k largest entries of so many falling lists of k, to all of whose entries a number is added; equals in the order of
// (list, rank). list(j, &step) is the j-th list, step its number; from holds j * k + rank.
template <class T, class F>
inline void merge_lists(int64_t lists, int64_t k, T* best, int32_t* from, F&& list) {
  int64_t size = 0;
  for (int64_t j = 0; j < lists; ++j) {
    T step;
    const T* values = list(j, &step);
    for (int64_t i = 0; i < k; ++i) {
      const T x = values[i] + step;
      if (x == kNegInf<T> || (size == k && !(x > best[k - 1]))) break;
      int64_t place = size < k ? size++ : k - 1;
      for (; place > 0 && x > best[place - 1]; --place) best[place] = best[place - 1], from[place] = from[place - 1];
      best[place] = x, from[place] = int32_t(j * k + i);
    }
  }
  std::fill(best + size, best + k, kNegInf<T>);
  std::fill(from + size, from + k, 0);
}

}  // namespace sl
