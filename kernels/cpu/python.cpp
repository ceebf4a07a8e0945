// Python's way to the kernels that short inputs call most: arguments checked, results made and the kernel called in one
// step. Packing arguments in Python and calling through ctypes takes some ten microseconds, more than the best labels
// of 32 sentences. Whatever is not plain (subclasses, other devices, layouts that want a copy, wrong shapes) is declined
// with None or False, and structlearn/ops takes the long way, which copies or raises; so is a call that a kernel could not
// finish for want of memory.
//
// Built twice: as structlearn._native for every Python and torch, and with SL_TORCH as structlearn._native_torch for the
// release of torch that is there, which takes a third of the time that a call costs besides its kernel.
#ifdef SL_TORCH
#include <torch/csrc/Exceptions.h>

#include "autograd.h"
#include "tensors_torch.h"
#define MODULE _native_torch
#else
#include "tensors_dlpack.h"
#define MODULE _native
#endif

#include <dlfcn.h>

#include <cassert>
#include <string>

#include "calls.h"
#include "chain.h"
#include "hang.h"
#include "span_tree.h"

namespace sl {
namespace {

Tensors tensors;

// A kernel in its two precisions, which takes so many addresses: a description of its inputs, then its results. Only one
// that takes long enough for another thread to profit gives up the GIL.
struct Kernel {
  const char* name;
  int words;
  void *entry = nullptr, *f32 = nullptr, *f64 = nullptr;

  bool load(void* library) {
    const auto find_entry = reinterpret_cast<decltype(&sl_entry)>(dlsym(library, "sl_entry"));
    if (!find_entry) return false;
    entry = find_entry(words, /*for_python=*/0);
    f32 = dlsym(library, (std::string(name) + "_f32").c_str());
    f64 = dlsym(library, (std::string(name) + "_f64").c_str());
    return f32 && f64;
  }
  // `cells`: some ten take a nanosecond.
  template <class... Pointers>
  int64_t operator()(Type type, int64_t cells, const void* args, Pointers... results) const {
    assert(sizeof...(results) + 1 == size_t(words));
    const auto function = reinterpret_cast<int64_t (*)(void*, const void*, Pointers...)>(entry);
    void* kernel = type == kFloat32 ? f32 : f64;
    constexpr int64_t kShort = 100000;
    if (cells < kShort) return function(kernel, args, results...);
    PyThreadState* state = PyEval_SaveThread();
    const int64_t result = function(kernel, args, results...);
    or_hang([&] { PyEval_RestoreThread(state); });
    return result;
  }
};
Kernel best_labels{"sl_chain_viterbi", 3}, chain_log_z{"sl_chain_value_and_gradient", 6};
Kernel best_trees{"sl_span_tree_best", 3}, tree_log_z{"sl_span_tree_value_and_gradient", 3};
constexpr void* kNoScores = nullptr;

// open(handle of the kernels' library, what Tensors::open takes)
PyObject* open(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 1 + Tensors::kOpens) return PyErr_Format(PyExc_TypeError, "open takes %d arguments, got %zd", 1 + Tensors::kOpens, count);
  void* library = PyLong_AsVoidPtr(args[0]);
  if (PyErr_Occurred() || !tensors.open(args + 1)) return nullptr;
  for (Kernel* kernel : {&best_labels, &chain_log_z, &best_trees, &tree_log_z})
    if (!kernel->load(library)) return PyErr_Format(PyExc_ImportError, "the library of kernels was built from other sources: no %s", kernel->name);
  Py_IncRef(Py_None);
  return Py_None;
}

PyObject* boolean(bool value) { return PyBool_FromLong(value); }
PyObject* decline() {
  Py_IncRef(Py_None);
  return Py_None;
}

bool floating(Type type) { return type == kFloat32 || type == kFloat64; }

// One axis without gaps, unless there is nothing to step over.
bool dense(const View& x, int axis) { return x.shape[axis] <= 1 || x.strides[axis] == 1; }

// None, or lengths (B,) within 0..N.
bool read_lengths(PyObject* object, int64_t B, int64_t N, const int64_t** out) {
  *out = nullptr;
  if (object == Py_None) return true;
  View x;
  if (!tensors.view(object, &x) || !(x.type == kInt64) || x.rank != 1 || x.shape[0] != B || !dense(x, 0)) return false;
  *out = x.begin<const int64_t>();
  int64_t outside = 0;
  for (int64_t b = 0; b < B; ++b) outside |= (*out)[b] | (N - (*out)[b]);
  return outside >= 0;
}

// unary, transition, start, end, lengths as the kernels take them; threads are left alone.
bool read_chain(PyObject* const* objects, ChainArgs* out, Type* type) {
  View u, t;
  if (!tensors.view(objects[0], &u) || u.rank != 3 || !floating(u.type)) return false;
  const int64_t B = u.shape[0], N = u.shape[1], C = u.shape[2];
  if (C == 0 || !dense(u, 2)) return false;
  if (!tensors.view(objects[1], &t) || !(t.type == u.type) || (t.rank != 2 && t.rank != 4)) return false;
  const bool shared = t.rank == 2;
  const int last = t.rank - 1;
  if (t.shape[last] != C || t.shape[last - 1] != C || !(C == 1 || (t.strides[last] == 1 && t.strides[last - 1] == C))) return false;
  if (!shared && (t.shape[0] != B || t.shape[1] != (N > 1 ? N - 1 : 0))) return false;
  const void* edges[2] = {};
  for (int i = 0; i < 2; ++i) {
    if (objects[2 + i] == Py_None) continue;
    View e;
    if (!tensors.view(objects[2 + i], &e) || !(e.type == u.type) || e.rank != 1 || e.shape[0] != C || !dense(e, 0)) return false;
    edges[i] = e.begin<const void>();
  }
  *type = u.type;
  *out = {u.begin<const void>(), t.begin<const void>(), edges[0], edges[1], nullptr, B, N, C, u.strides[0], u.strides[1],
          shared ? 0 : t.strides[0], shared ? 0 : t.strides[1], shared, 1};
  return read_lengths(objects[4], B, N, &out->lengths);
}

// spans, lengths.
bool read_spans(PyObject* const* objects, SpanTreeArgs* out, Type* type) {
  View x;
  if (!tensors.view(objects[0], &x) || x.rank != 4 || !floating(x.type)) return false;
  const int64_t B = x.shape[0], N = x.shape[1], L = x.shape[3];
  if (x.shape[2] != N || L == 0 || !dense(x, 3) || !(N <= 1 || x.strides[2] == L)) return false;
  *type = x.type;
  *out = {x.begin<const void>(), nullptr, B, N, L, x.strides[0], x.strides[1], sentences_together(B, N), 1};
  return read_lengths(objects[1], B, N, &out->lengths);
}

int64_t cells(const ChainArgs& a) { return a.B * a.N * a.C * a.C; }
int64_t cells(const SpanTreeArgs& a) { return a.B * a.N * a.N * (a.N + 3 * a.L); }

bool ready(int64_t* threads) { return (*threads = tensors.threads()) > 0; }

// The results of a call: all of them, or none and an exception.
class Results {
 public:
  ~Results() {
    for (int i = 0; i < count_; ++i) Py_DecRef(objects_[i]);
  }
  void* add(Type type, std::initializer_list<int64_t> shape) {
    void* data = nullptr;
    if (failed_) return data;
    PyObject* object = tensors.make(type, shape, &data);
    if (object) objects_[count_++] = object;
    else failed_ = true;
    return data;
  }
  void* absent() {
    Py_IncRef(Py_None);
    objects_[count_++] = Py_None;
    return nullptr;
  }
  bool failed() const { return failed_; }
  PyObject* tuple() {
    PyObject* all = PyTuple_New(count_);
    for (int i = 0; all && i < count_; ++i) PyTuple_SetItem(all, i, objects_[i]);
    if (all) count_ = 0;
    return all;
  }
  PyObject* only() {
    count_ = 0;
    return objects_[0];
  }

 private:
  PyObject* objects_[5];
  int count_ = 0;
  bool failed_ = false;
};

PyObject* poison(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  if (count != 1) return PyErr_Format(PyExc_TypeError, "poison takes 1 argument, got %zd", count);
  tensors.poison = PyObject_IsTrue(objects[0]) == 1;
  return decline();
}

// The common value of all entries of x (B,), 1 if there are none, or None.
PyObject* common_value(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  View x;
  if (count != 1 || !tensors.view(objects[0], &x) || x.rank != 1 || !floating(x.type)) return decline();
  const auto look = [&](auto zero) {
    const auto* entries = x.begin<const decltype(zero)>();
    for (int64_t b = 1; b < x.shape[0]; ++b)
      if (entries[b * x.strides[0]] != entries[0]) return decline();
    return PyFloat_FromDouble(x.shape[0] ? double(entries[0]) : 1.0);
  };
  return x.type == kFloat32 ? look(float(0)) : look(double(0));
}

PyObject* chain_fits(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  ChainArgs args;
  Type type;
  return boolean(count == 5 && read_chain(objects, &args, &type));
}

PyObject* chain_best(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  ChainArgs args;
  Type type;
  if (count != 5 || !read_chain(objects, &args, &type) || !ready(&args.threads)) return decline();
  Results results;
  void* labels = results.add(kInt64, {args.B, args.N});
  if (results.failed()) return nullptr;
  return best_labels(type, cells(args), &args, labels, kNoScores) ? decline() : results.only();
}

PyObject* chain_value_and_gradient(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  ChainArgs args;
  Type type;
  if (count != 5 || !read_chain(objects, &args, &type) || !ready(&args.threads)) return decline();
  const int64_t B = args.B, N = args.N, C = args.C;
  Results results;
  void* log_z = results.add(type, {B});
  void* unary = results.add(type, {B, N, C});
  void* transition = args.shared ? results.add(type, {C, C}) : results.add(type, {B, N > 1 ? N - 1 : 0, C, C});
  void* start = args.start ? results.add(type, {C}) : results.absent();
  void* end = args.end ? results.add(type, {C}) : results.absent();
  if (results.failed()) return nullptr;
  return chain_log_z(type, cells(args), &args, log_z, unary, transition, start, end) ? decline() : results.tuple();
}

#ifdef SL_TORCH
// log Z of a structure as a function of objects[0..inputs), None where the kernel or torch's graph wants another way;
// objects[inputs] is the Python function for other gradients. `fill(log_z, gradient)` calls the kernel: 0 if all is well.
template <class F>
PyObject* recorded(Type type, int64_t B, PyObject* const* objects, int inputs, F&& fill) {
  HANDLE_TH_ERRORS
  try {
    if (!tensors.recording(objects, inputs)) return decline();
    void* values;
    const at::Tensor log_z = tensors.make_tensor(type, {B}, &values);
    std::vector<at::Tensor> gradient(inputs);
    if (fill(values, gradient) || !attach(log_z, std::move(gradient), objects[inputs], unpack(objects, inputs))) return decline();
    return THPVariable_Wrap(log_z);
  } catch (const std::bad_alloc&) {
    return PyErr_Format(PyExc_MemoryError, kNoMemoryForResult);
  }
  END_HANDLE_TH_ERRORS
}

PyObject* chain_log_partition(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  ChainArgs args;
  Type type;
  if (count != 6 || !read_chain(objects, &args, &type) || !ready(&args.threads)) return decline();
  return recorded(type, args.B, objects, 5, [&](void* log_z, std::vector<at::Tensor>& gradient) {
    const int64_t B = args.B, N = args.N, C = args.C;
    void *unary, *transition, *start = nullptr, *end = nullptr;
    gradient[0] = tensors.make_tensor(type, {B, N, C}, &unary);
    gradient[1] = args.shared ? tensors.make_tensor(type, {C, C}, &transition) : tensors.make_tensor(type, {B, N > 1 ? N - 1 : 0, C, C}, &transition);
    if (args.start) gradient[2] = tensors.make_tensor(type, {C}, &start);
    if (args.end) gradient[3] = tensors.make_tensor(type, {C}, &end);
    return chain_log_z(type, cells(args), &args, log_z, unary, transition, start, end);
  });
}

PyObject* span_tree_log_partition(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  SpanTreeArgs args;
  Type type;
  if (count != 3 || !read_spans(objects, &args, &type) || !ready(&args.threads)) return decline();
  return recorded(type, args.B, objects, 2, [&](void* log_z, std::vector<at::Tensor>& gradient) {
    void* spans;
    gradient[0] = tensors.make_tensor(type, {args.B, args.N, args.N, args.L}, &spans);
    return tree_log_z(type, cells(args), &args, log_z, spans);
  });
}
#endif

PyObject* span_tree_fits(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  SpanTreeArgs args;
  Type type;
  return boolean(count == 2 && read_spans(objects, &args, &type));
}

PyObject* span_tree_best(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  SpanTreeArgs args;
  Type type;
  if (count != 2 || !read_spans(objects, &args, &type) || !ready(&args.threads)) return decline();
  Results results;
  void* labels = results.add(kInt64, {args.B, args.N, args.N});
  if (results.failed()) return nullptr;
  return best_trees(type, cells(args), &args, labels, kNoScores) ? decline() : results.only();
}

PyObject* span_tree_value_and_gradient(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  SpanTreeArgs args;
  Type type;
  if (count != 2 || !read_spans(objects, &args, &type) || !ready(&args.threads)) return decline();
  Results results;
  void* log_z = results.add(type, {args.B});
  void* spans = results.add(type, {args.B, args.N, args.N, args.L});
  if (results.failed()) return nullptr;
  return tree_log_z(type, cells(args), &args, log_z, spans) ? decline() : results.tuple();
}

template <class F>
constexpr PyMethodDef method(const char* name, F function, const char* text) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, text};
}

}  // namespace
}  // namespace sl

#define JOINED(a, b) a##b
#define INIT(name) JOINED(PyInit_, name)
#define TEXT(name) #name
#define NAME(name) TEXT(name)
PyMODINIT_FUNC INIT(MODULE)() {
  static PyMethodDef methods[] = {
      sl::method("open", sl::open, nullptr),
      sl::method("poison", sl::poison, nullptr),
      sl::method("common_value", sl::common_value, nullptr),
      sl::method("chain_fits", sl::chain_fits, nullptr),
      sl::method("chain_best", sl::chain_best, nullptr),
      sl::method("chain_value_and_gradient", sl::chain_value_and_gradient, nullptr),
      sl::method("span_tree_fits", sl::span_tree_fits, nullptr),
      sl::method("span_tree_best", sl::span_tree_best, nullptr),
      sl::method("span_tree_value_and_gradient", sl::span_tree_value_and_gradient, nullptr),
#ifdef SL_TORCH
      sl::method("attach", sl::attach_from_python, nullptr),
      sl::method("chain_log_partition", sl::chain_log_partition, nullptr),
      sl::method("span_tree_log_partition", sl::span_tree_log_partition, nullptr),
#endif
      {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, NAME(MODULE), "Kernels called on tensors without ctypes.", -1, methods, nullptr, nullptr, nullptr, nullptr};
  PyObject* made = PyModule_Create(&module);
#ifdef SL_TORCH
  if (made && PyModule_AddStringConstant(made, "TORCH_VERSION", TORCH_VERSION) < 0) Py_CLEAR(made);
#endif
  return made;
}
