// Memory of a result: entries on a cache line of their own, behind a head that describes them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace sl {

constexpr char kNoMemoryForResult[] = "result of a kernel: expected memory for it, got none; free some, or give fewer or shorter inputs at a time";

template <class Head>
struct Block {
  Head head;
  size_t bytes;

  // Not by std::aligned_alloc, which takes four times as long as malloc.
  void* entries() { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(this + 1) + kLine - 1) / kLine * kLine); }

  // Null if there is no memory. Above kMapped the C library maps memory anew for every request and unmaps it in the end.
  // Having its pages cleared takes a sixth to a third of the time of log Z with its gradient, so the block given back last
  // waits for the next request of its size: the next step of training.
  static Block* take(size_t bytes) {
    if (bytes >= kMapped)
      if (Block* kept = spare().exchange(nullptr)) {
        if (kept->bytes == bytes) return kept;
        std::free(kept);
      }
    Block* block = static_cast<Block*>(std::malloc(sizeof(Block) + kLine + bytes));
    if (block) block->bytes = bytes;
    return block;
  }
  static void give_back(void* given) {
    Block* block = static_cast<Block*>(given);
    if (block->bytes >= kMapped && block->bytes <= kMostKept) block = spare().exchange(block);
    std::free(block);
  }

 private:
  static constexpr size_t kLine = 64, kMapped = size_t(32) << 20, kMostKept = size_t(256) << 20;
  static std::atomic<Block*>& spare() {
    static std::atomic<Block*> kept{nullptr};
    return kept;
  }
};

}  // namespace sl
