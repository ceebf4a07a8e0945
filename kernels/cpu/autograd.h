// A value of a kernel as a node of torch's graph (autograd.cpp).
#pragma once
#include <torch/csrc/python_headers.h>
#include <torch/headeronly/version.h>

namespace sl {
PyObject* attach(PyObject*, PyObject* const* args, Py_ssize_t count);
}
