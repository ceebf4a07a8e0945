// The node of log Z in torch's graph, in C++: one written in Python takes torch some 15 microseconds more for each
// forward and backward, of the 52 that a short chain takes then. Part of structlearn._native_torch.
#include "autograd.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "block.h"
#include "hang.h"

namespace sl {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

class Gil {
  PyGILState_STATE state_ = or_hang(PyGILState_Ensure);

 public:
  ~Gil() { PyGILState_Release(state_); }
};

// A Python reference of its own, given up in the end.
class Owned {
  PyObject* object_;

 public:
  explicit Owned(PyObject* object) : object_(object) {
    if (!object) throw_error();
  }
  ~Owned() { Py_DECREF(object_); }
  Owned(const Owned&) = delete;
  PyObject* get() const { return object_; }

  [[noreturn]] static void throw_error() {
    python_error error;
    error.persist();
    throw std::move(error);
  }
};

// The value of all entries of grad (B,), 1 if there are none; nothing where they differ.
template <class T>
std::optional<double> common_value(const at::Tensor& grad) {
  const T* x = grad.const_data_ptr<T>();
  const int64_t count = grad.size(0), step = grad.stride(0);
  for (int64_t b = 1; step && b < count; ++b)
    if (x[b * step] != x[0]) return {};
  return count ? double(x[0]) : 1.0;
}
std::optional<double> common_value(const at::Tensor& grad) {
  return grad.scalar_type() == at::kFloat ? common_value<float>(grad) : common_value<double>(grad);
}

// Has d (sum_b log Z_b) / d tensors from the forward pass. A backward pass that weights the rows differently, that asks
// for a second derivative or that comes a second time asks again(grad, *tensors, *options) in Python.
class LogPartition final : public torch::autograd::Node {
 public:
  variable_list gradient;
  std::vector<SavedVariable> tensors;
  std::vector<int64_t> options;
  PyObject* again = nullptr;  // a function that `attach` keeps for good

  std::string name() const override { return "LogPartitionBackward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    gradient.clear();
    for (SavedVariable& x : tensors) x.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    try {
      return answer(grads[0]);
    } catch (const std::bad_alloc&) {
      const Gil gil;
      PyErr_SetString(PyExc_MemoryError, kNoMemoryForResult);
      Owned::throw_error();
    }
  }

 private:
  variable_list answer(const at::Tensor& grad) {
    if (!grad.defined()) return variable_list(tensors.size());
    variable_list found, given;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      found.swap(gradient);
      if (!found.empty() && !at::GradMode::is_enabled())
        if (const auto weight = common_value(grad)) {
          if (*weight != 1)
            for (at::Tensor& x : found)
              if (x.defined()) x.mul_(*weight);
          return found;
        }
      for (const SavedVariable& x : tensors) given.push_back(x.unpack());
    }
    return ask_again(grad, given);
  }

  variable_list ask_again(const at::Tensor& grad, const variable_list& given) const {
    const Gil gil;
    const Owned args(PyTuple_New(Py_ssize_t(1 + given.size() + options.size())));
    Py_ssize_t at = 0;
    PyTuple_SET_ITEM(args.get(), at++, THPVariable_Wrap(grad));
    for (const at::Tensor& x : given) PyTuple_SET_ITEM(args.get(), at++, THPVariable_Wrap(x));  // None where undefined
    for (const int64_t option : options) PyTuple_SET_ITEM(args.get(), at++, PyLong_FromLongLong(option));
    const Owned found(or_hang([&] { return PyObject_CallObject(again, args.get()); }));
    variable_list result(given.size());
    for (size_t i = 0; i < result.size(); ++i) {
      const Owned entry(PySequence_GetItem(found.get(), Py_ssize_t(i)));
      if (entry.get() != Py_None) result[i] = THPVariable_Unpack(entry.get());
    }
    return result;
  }
};

}  // namespace

variable_list unpack(PyObject* const* objects, Py_ssize_t count) {
  variable_list found(count);
  for (Py_ssize_t i = 0; i < count; ++i)
    if (objects[i] != Py_None) found[i] = THPVariable_Unpack(objects[i]);
  return found;
}

bool attach(const at::Tensor& log_z, variable_list gradient, PyObject* again, const variable_list& tensors, std::vector<int64_t> options) {
  for (const at::Tensor& x : tensors)
    if (x.defined() && x.unsafeGetTensorImpl()->_fw_grad(0, x).defined()) return false;
  auto node = c10::make_intrusive<LogPartition>();
  torch::autograd::edge_list edges;
  edges.reserve(tensors.size()), node->tensors.reserve(tensors.size());
  for (const at::Tensor& x : tensors) {
    node->tensors.emplace_back(x, /*is_output=*/false);
    edges.push_back(x.defined() && x.requires_grad() ? torch::autograd::impl::gradient_edge(x) : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
  node->gradient = std::move(gradient);
  node->options = std::move(options);
  static std::vector<PyObject*> kept;  // under the GIL
  if (std::find(kept.begin(), kept.end(), again) == kept.end()) kept.push_back(Py_NewRef(again));
  node->again = again;
  torch::autograd::set_history(log_z, node);
  return true;
}

PyObject* attach_from_python(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  try {
    if (count != 5) return PyErr_Format(PyExc_TypeError, "attach takes 5 arguments, got %zd", count);
    PyObject *gradient = args[1], *tensors = args[3], *options = args[4];
    const Py_ssize_t inputs = PyTuple_Size(tensors), settings = PyTuple_Size(options);
    if (inputs < 0 || settings < 0) return nullptr;
    if (PyTuple_Size(gradient) != inputs) return PyErr_Format(PyExc_ValueError, "%zd gradients for %zd tensors", PyTuple_Size(gradient), inputs);
    const auto list = [&](PyObject* tuple) { return unpack(reinterpret_cast<PyTupleObject*>(tuple)->ob_item, inputs); };
    std::vector<int64_t> settings_given;
    for (Py_ssize_t i = 0; i < settings; ++i) {
      settings_given.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(options, i)));
      if (PyErr_Occurred()) return nullptr;
    }
    if (!attach(THPVariable_Unpack(args[0]), list(gradient), args[2], list(tensors), std::move(settings_given))) Py_RETURN_NONE;
    return Py_NewRef(args[0]);
  } catch (const std::bad_alloc&) {
    return PyErr_Format(PyExc_MemoryError, kNoMemoryForResult);
  }
  END_HANDLE_TH_ERRORS
}

}  // namespace sl
