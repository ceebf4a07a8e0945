// Tensors of torch read and made through torch's own classes: a view takes some 3 ns and a tensor 100, where DLPack's
// exchange table (tensors_dlpack.h) takes 30 and 400. One build serves one release of torch.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <new>

#include "block.h"

namespace sl {

using Type = at::ScalarType;
constexpr Type kFloat32 = at::kFloat, kFloat64 = at::kDouble, kInt64 = at::kLong;

struct View {
  const void* data;
  int64_t rank;
  Type type;
  const int64_t *shape, *strides;  // strides in elements

  template <class T>
  T* begin() const { return static_cast<T*>(data); }
};

class Memory final : public c10::Allocator {
  struct Nothing {};
  using Entries = Block<Nothing>;

 public:
  c10::DataPtr allocate(size_t bytes) override {
    Entries* block = Entries::take(bytes);
    if (!block) throw std::bad_alloc();
    return {block->entries(), block, &Entries::give_back, c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

class Tensors {
 public:
  static constexpr int kOpens = 0;  // arguments of open
  bool poison = false;              // fill what is made with NaN (-1 for integers), so that tests see what a kernel left unwritten

  bool open(PyObject* const*) { return true; }

  // Where a plain CPU tensor has its entries; false for anything else, a subclass or a tensor inside torch.func among it.
  bool view(PyObject* object, View* out) const {
    if (!THPVariable_CheckExact(object)) return false;
    const c10::TensorImpl* x = THPVariable_Unpack(object).unsafeGetTensorImpl();
    if (!plain().has_all(x->key_set()) || !x->has_storage()) return false;
    const void* begin = x->storage().data();
    if (!begin && x->numel()) return false;
    const auto type = c10::typeMetaToScalarType(x->dtype());
    *out = {static_cast<const char*>(begin) + x->storage_offset() * int64_t(x->itemsize()), x->dim(), type, x->sizes().data(), x->strides().data()};
    return true;
  }

  // A contiguous tensor with undefined entries and, in *data, where they are.
  at::Tensor make_tensor(Type type, std::initializer_list<int64_t> shape, void** data) {
    at::Tensor made(at::detail::empty_generic({shape.begin(), shape.size()}, &memory_, c10::DispatchKeySet(c10::DispatchKey::CPU), type, {}));
    const c10::Storage& storage = made.storage();
    *data = storage.mutable_data();
    if (poison) std::memset(*data, 0xff, storage.nbytes());
    return made;
  }
  // The same for Python; null with an exception set.
  PyObject* make(Type type, std::initializer_list<int64_t> shape, void** data) {
    try {
      return THPVariable_Wrap(make_tensor(type, shape, data));
    } catch (const std::bad_alloc&) {
      return PyErr_Format(PyExc_MemoryError, kNoMemoryForResult);
    }
  }

  // Whether torch records what is done with these arguments, None among them, and no transformation of torch.func is
  // under way, whose gradients take other ways.
  static bool recording(PyObject* const* objects, int count) {
    if (!at::GradMode::is_enabled() || c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) return false;
    return std::any_of(objects, objects + count, [](PyObject* x) { return x != Py_None && THPVariable_Unpack(x).requires_grad(); });
  }

  // How many a kernel may use now; 0 if a dispatch mode wants to see operators instead.
  int64_t threads() const { return c10::impl::TorchDispatchModeTLS::stack_len() ? 0 : at::get_num_threads(); }

 private:
  Memory memory_;

  static c10::DispatchKeySet plain() {
    using c10::BackendComponent;
    static const c10::DispatchKeySet keys = c10::DispatchKeySet(c10::DispatchKey::CPU) | c10::getAutogradRelatedKeySetFromBackend(BackendComponent::CPUBit) |
                                            c10::getAutocastRelatedKeySetFromBackend(BackendComponent::CPUBit);
    return keys;
  }
};

}  // namespace sl
