// The k largest of a stream of candidates, equals in the order they came.
#pragma once
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

}  // namespace sl
