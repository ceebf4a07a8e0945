// A value of a kernel as a node of torch's graph (autograd.cpp).
#pragma once
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/python_headers.h>
#include <torch/headeronly/version.h>

#include <vector>

namespace sl {

// Tensors of Python, undefined where there is None.
torch::autograd::variable_list unpack(PyObject* const* objects, Py_ssize_t count);

// log_z as a function of the tensors, of which some may be undefined; gradient has an entry for each, d (sum_b log Z_b) /
// d tensor or undefined. Other backward passes call the Python function again(grad, *tensors, *options), which is kept for
// good. False, and log_z as it was, where a tensor carries a tangent of forward-mode differentiation.
bool attach(const at::Tensor& log_z, torch::autograd::variable_list gradient, PyObject* again, const torch::autograd::variable_list& tensors, std::vector<int64_t> options = {});

// The same for Python: attach(log_z, gradient, again, tensors, options) returns log_z, or None.
PyObject* attach_from_python(PyObject*, PyObject* const* args, Py_ssize_t count);

}  // namespace sl
