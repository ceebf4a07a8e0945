// Tensors of torch read and made in C++ through DLPack's exchange table (version 1, torch >= 2.10), which torch.Tensor
// offers as __dlpack_c_exchange_api__: a view takes some 30 ns and a tensor 300, where data_ptr() and new_empty() called
// from Python take 60 and 1,000. Nothing here knows torch's classes, so one build serves every release.
#pragma once
#define Py_LIMITED_API 0x030B0000  // CPython 3.11 and later, in one build
#include <Python.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace sl {

// The layout of DLPack 1: https://dmlc.github.io/dlpack/latest
struct DLType {
  uint8_t code, bits;
  uint16_t lanes;
  bool operator==(DLType other) const { return code == other.code && bits == other.bits && lanes == other.lanes; }
};
constexpr DLType kFloat32{2, 32, 1}, kFloat64{2, 64, 1}, kInt64{0, 64, 1};
constexpr int32_t kCPU = 1;

struct DLView {
  void* data;
  int32_t device, device_index, rank;
  DLType type;
  int64_t *shape, *strides;  // strides in elements
  uint64_t byte_offset;

  template <class T>
  T* begin() const { return reinterpret_cast<T*>(static_cast<char*>(data) + byte_offset); }
};
struct DLManaged {
  uint32_t major, minor;
  void* owner;
  void (*free)(DLManaged*);
  uint64_t flags;
  DLView view;
};
struct DLExchange {
  uint32_t major, minor;
  DLExchange* older;
  void *allocate, *managed_from_object;
  int (*object_from_managed)(DLManaged*, void** object);
  int (*view_of_object)(void* object, DLView*);
  void* stream;
};

// A tensor's description and, behind it, its entries: one allocation, which the tensor gives back.
struct Block {
  DLManaged managed;
  size_t bytes;
  int64_t shape[4], strides[4];

  // On a cache line of its own. Not by std::aligned_alloc, which takes four times as long as malloc.
  void* entries() { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(this + 1) + kLine - 1) / kLine * kLine); }

  // Above kMapped the C library maps memory anew for every request and unmaps it in the end. Having its pages cleared
  // takes a sixth to a third of the time of log Z with its gradient, so the block given back last waits for the next
  // request of its size: the next step of training.
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
  static void give_back(Block* block) {
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

class Tensors {
 public:
  bool poison = false;  // fill what is made with NaN (-1 for integers), so that tests see what a kernel left unwritten

  // False, with an exception set, if the capsule holds another version.
  bool open(PyObject* capsule, PyObject* tensor, PyObject* parameter) {
    table_ = static_cast<const DLExchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (!table_) return false;
    if (table_->major != 1) {
      PyErr_Format(PyExc_ImportError, "DLPack exchange table of version %u, not 1", table_->major);
      return false;
    }
    tensor_ = tensor, parameter_ = parameter;
    return true;
  }

  // The memory of a plain CPU tensor; false for anything else, a subclass or a tensor inside torch.func among it.
  bool view(PyObject* object, DLView* out) const {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    if (type != tensor_ && type != parameter_) return false;
    if (table_->view_of_object(object, out) == 0) return out->device == kCPU;
    PyErr_Clear();
    return false;
  }

  // A contiguous tensor with undefined entries and, in *data, where they are; null with an exception set.
  template <class T>
  PyObject* make(DLType type, std::initializer_list<int64_t> shape, T** data) const {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    Block* block = Block::take(size_t(count) * sizeof(T));
    if (!block) return PyErr_NoMemory();
    DLManaged& managed = block->managed;
    managed = {1, 0, block, [](DLManaged* m) { Block::give_back(static_cast<Block*>(m->owner)); }, 0, {}};
    *data = static_cast<T*>(block->entries());
    if (poison) std::memset(*data, 0xff, size_t(count) * sizeof(T));
    managed.view = {*data, kCPU, 0, int32_t(shape.size()), type, block->shape, block->strides, 0};
    int i = int(shape.size());
    for (int64_t stride = 1; i-- > 0; stride *= block->shape[i] ? block->shape[i] : 1) {
      block->shape[i] = shape.begin()[i];
      block->strides[i] = stride;
    }
    void* object = nullptr;
    if (table_->object_from_managed(&managed, &object) == 0) return static_cast<PyObject*>(object);
    Block::give_back(block);
    return nullptr;
  }

 private:
  const DLExchange* table_ = nullptr;
  PyObject *tensor_ = nullptr, *parameter_ = nullptr;
};

}  // namespace sl
