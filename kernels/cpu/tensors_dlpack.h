// Tensors of torch read and made in C++ through DLPack's exchange table (version 1, torch >= 2.10), which torch.Tensor
// offers as __dlpack_c_exchange_api__: a view takes some 30 ns and a tensor 400, where data_ptr() and new_empty() called
// from Python take 60 and 1,000. Nothing here knows torch's classes, so one build serves every release.
#pragma once
#define Py_LIMITED_API 0x030B0000  // CPython 3.11 and later, in one build
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "block.h"

namespace sl {

// The layout of DLPack 1: https://dmlc.github.io/dlpack/latest
struct Type {
  uint8_t code, bits;
  uint16_t lanes;
  bool operator==(Type other) const { return code == other.code && bits == other.bits && lanes == other.lanes; }
};
constexpr Type kFloat32{2, 32, 1}, kFloat64{2, 64, 1}, kInt64{0, 64, 1};
constexpr int32_t kCPU = 1;

struct View {
  void* data;
  int32_t device, device_index, rank;
  Type type;
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
  View view;
};
struct DLExchange {
  uint32_t major, minor;
  DLExchange* older;
  void *allocate, *managed_from_object;
  int (*object_from_managed)(DLManaged*, void** object);
  int (*view_of_object)(void* object, View*);
  void* stream;
};

// A tensor's description lies before its entries, in one allocation, which the tensor gives back.
struct Description {
  DLManaged managed;
  int64_t shape[4], strides[4];
};
using Described = Block<Description>;

inline int64_t call_for_integer(PyObject* function) {
  PyObject* result = PyObject_CallNoArgs(function);
  if (!result) return -1;
  const int64_t value = PyLong_AsLongLong(result);
  Py_DecRef(result);
  return value;
}

class Tensors {
 public:
  static constexpr int kOpens = 5;  // arguments of open
  bool poison = false;              // fill what is made with NaN (-1 for integers), so that tests see what a kernel left unwritten

  // Takes the capsule of the exchange table, torch.Tensor, torch.nn.Parameter, torch.get_num_threads and
  // torch._C._len_torch_dispatch_stack. False, with an exception set, if the capsule holds another version.
  bool open(PyObject* const* args) {
    table_ = static_cast<const DLExchange*>(PyCapsule_GetPointer(args[0], "dlpack_exchange_api"));
    if (!table_) return false;
    if (table_->major != 1) {
      PyErr_Format(PyExc_ImportError, "DLPack exchange table of version %u, not 1", table_->major);
      return false;
    }
    tensor_ = args[1], parameter_ = args[2], threads_of_torch_ = args[3], dispatch_modes_ = args[4];
    for (int i = 0; i < kOpens; ++i) Py_IncRef(args[i]);
    return true;
  }

  // Where a plain CPU tensor has its entries; false for anything else, a subclass or a tensor inside torch.func among it.
  bool view(PyObject* object, View* out) const {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    if (type != tensor_ && type != parameter_) return false;
    if (table_->view_of_object(object, out) == 0) return out->device == kCPU;
    PyErr_Clear();
    return false;
  }

  // A contiguous tensor with undefined entries and, in *data, where they are; null with an exception set.
  PyObject* make(Type type, std::initializer_list<int64_t> shape, void** data) const {
    size_t bytes = type.bits / 8;
    for (const int64_t size : shape) bytes *= size_t(size);
    Described* block = Described::take(bytes);
    if (!block) return PyErr_Format(PyExc_MemoryError, kNoMemoryForResult);
    Description& head = block->head;
    head.managed = {1, 0, block, [](DLManaged* m) { Described::give_back(m->owner); }, 0, {}};
    *data = block->entries();
    if (poison) std::memset(*data, 0xff, bytes);
    head.managed.view = {*data, kCPU, 0, int32_t(shape.size()), type, head.shape, head.strides, 0};
    int i = int(shape.size());
    for (int64_t stride = 1; i-- > 0; stride *= head.shape[i] ? head.shape[i] : 1) {
      head.shape[i] = shape.begin()[i];
      head.strides[i] = stride;
    }
    void* object = nullptr;
    if (table_->object_from_managed(&head.managed, &object) == 0) return static_cast<PyObject*>(object);
    Described::give_back(block);
    return nullptr;
  }

  // How many a kernel may use now; 0 if a dispatch mode wants to see operators instead.
  int64_t threads() const { return call_for_integer(dispatch_modes_) == 0 ? call_for_integer(threads_of_torch_) : 0; }

 private:
  const DLExchange* table_ = nullptr;
  PyObject *tensor_ = nullptr, *parameter_ = nullptr, *threads_of_torch_ = nullptr, *dispatch_modes_ = nullptr;
};

}  // namespace sl
