// SPDX-License-Identifier: Apache-2.0
// ep/torch_calls.cpp: dispatch and combine of shoal.torch, one binding call each, gradients
// included: torch is called only to record a gradient.
#include <initializer_list>
#include <utility>

#include "../docs.hpp"
#include "normal_calls.hpp"
#include "torch_layouts.hpp"

namespace shoal::python {
namespace {

PyObject* interned(const char* name) {
  return PyUnicode_InternFromString(name);
}

nb::object attribute_of(nb::handle object, PyObject* name) {
  nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!value.is_valid()) nb::raise_python_error();
  return value;
}

nb::object result_of(PyObject* result) {
  if (result == nullptr) nb::raise_python_error();
  return nb::steal(result);
}

nb::object tuple_of(std::initializer_list<nb::handle> items) {
  nb::object tuple = result_of(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  Py_ssize_t next = 0;
  for (const nb::handle item : items) PyTuple_SET_ITEM(tuple.ptr(), next++, item.inc_ref().ptr());
  return tuple;
}

bool is_true(nb::handle value) {
  const int result = PyObject_IsTrue(value.ptr());
  if (result < 0) nb::raise_python_error();
  return result != 0;
}

/// The NormalCalls of a group; nullptr before eager.py has made them, and for other objects.
NormalCalls* calls_of(nb::handle group) {
  Group* found = nullptr;
  if (!nb::try_cast(group, found) || found == nullptr || !found->torch_calls.is_valid())
    return nullptr;
  return nb::inst_ptr<NormalCalls>(found->torch_calls);
}

class TorchCalls {
 public:
  /// received: shoal.torch.Received. flags: pairs of a module and the name of its attribute, and
  /// stacks: functions; where one is true or not None, a tracer or profiler needs operators.
  /// records: torch.is_grad_enabled. apply_dispatch, apply_sum: of the classes in eager.py.
  TorchCalls(nb::type_object received, nb::tuple flags, nb::tuple stacks, nb::object records,
             nb::object apply_dispatch, nb::object apply_sum)
      : received_(std::move(received)),
        flags_(std::move(flags)),
        stacks_(std::move(stacks)),
        records_(std::move(records)),
        apply_dispatch_(std::move(apply_dispatch)),
        apply_sum_(std::move(apply_sum)) {}

  nb::object try_dispatch(nb::handle group, nb::handle x, nb::handle topk_idx, nb::handle weights,
                          nb::handle worst_case_rows, nb::handle copy_out) const {
    NormalCalls* const calls = calls_of(group);
    if (calls == nullptr || !PyLong_CheckExact(worst_case_rows.ptr()) ||
        !PyBool_Check(copy_out.ptr()) || is_observed())
      return nb::none();
    const std::int64_t rows = PyLong_AsLongLong(worst_case_rows.ptr());
    if (rows == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return nb::none();
    }
    const bool gradient = Py_TYPE(x.ptr()) == calls->tensors().type() &&
                          Py_TYPE(weights.ptr()) == calls->tensors().type() && is_recording() &&
                          (requires_grad(x) || requires_grad(weights));
    const bool copies = copy_out.is(Py_True);
    std::optional<CallReceived> sent = calls->try_exchange(x, topk_idx, weights, rows, copies);
    if (!sent) return nb::none();
    TorchLayout layout{nb::borrow(group), std::move(sent->layout.handle), rows, copies};
    const nb::object tokens = nb::int_(layout.handle.tokens());
    layout.topk_idx = sent->topk_idx;
    layout.topk_idx_version = version_of(sent->topk_idx);
    const nb::object handle =
        torch_handle(reinterpret_cast<PyObject*>(calls->tensors().type()), std::move(layout));
    nb::object sent_x = std::move(sent->x), sent_weights = std::move(sent->topk_weights);
    if (gradient) {
      const nb::object sent_now = tuple_of({handle, sent_x, sent_weights});
      const nb::object recorded = result_of(
          PyObject_Call(apply_dispatch_.ptr(), tuple_of({x, weights, sent_now}).ptr(), nullptr));
      sent_x = nb::borrow(PyTuple_GET_ITEM(recorded.ptr(), 0));
      sent_weights = nb::borrow(PyTuple_GET_ITEM(recorded.ptr(), 1));
    }
    return received({sent_x, sent->topk_idx, sent_weights, sent->layout.side, handle, tokens});
  }

  nb::object try_combine(nb::handle group, nb::handle y, nb::handle received) const {
    if (Py_TYPE(received.ptr()) != type()) return nb::none();
    NormalCalls* const calls = calls_of(group);
    if (calls == nullptr || is_observed()) return nb::none();
    const nb::handle handle = PyTuple_GET_ITEM(received.ptr(), kHandle);
    const TorchLayout* const layout = torch_layout(calls->tensors(), handle);
    if (layout == nullptr) return nb::none();
    nb::object sums = calls->try_sum(y, layout->handle);
    if (!sums.is_valid()) return nb::none();
    if (!requires_grad(y) || !is_recording()) return sums;
    return result_of(
        PyObject_Call(apply_sum_.ptr(), tuple_of({y, tuple_of({handle, sums})}).ptr(), nullptr));
  }

 private:
  static constexpr Py_ssize_t kFields = 6, kHandle = 4;

  PyTypeObject* type() const { return reinterpret_cast<PyTypeObject*>(received_.ptr()); }

  /// A Received, which is a tuple of named fields: its constructor takes ten times as long.
  nb::object received(const std::initializer_list<nb::handle> fields) const {
    nb::object tuple = result_of(type()->tp_alloc(type(), kFields));
    Py_ssize_t next = 0;
    for (const nb::handle one : fields) PyTuple_SET_ITEM(tuple.ptr(), next++, one.inc_ref().ptr());
    return tuple;
  }

  bool is_observed() const {
    for (const nb::handle pair : flags_)
      if (is_true(attribute_of(PyTuple_GET_ITEM(pair.ptr(), 0), PyTuple_GET_ITEM(pair.ptr(), 1))))
        return true;
    for (const nb::handle stack : stacks_) {
      const nb::object found = result_of(PyObject_CallNoArgs(stack.ptr()));
      if (is_true(found)) return true;
    }
    return false;
  }

  bool is_recording() const { return result_of(PyObject_CallNoArgs(records_.ptr())).is(Py_True); }

  /// tensor._version; -1 for tensors of torch.inference_mode, which have none.
  static std::int64_t version_of(nb::handle tensor) {
    static PyObject* const kIsInference = interned("is_inference");
    static PyObject* const kVersion = interned("_version");
    const nb::object inference = result_of(PyObject_CallMethodNoArgs(tensor.ptr(), kIsInference));
    return inference.is(Py_True) ? -1 : nb::cast<std::int64_t>(attribute_of(tensor, kVersion));
  }

  static bool requires_grad(nb::handle tensor) {
    static PyObject* const kName = interned("requires_grad");
    return attribute_of(tensor, kName).is(Py_True);
  }

  nb::object received_;
  nb::tuple flags_, stacks_;
  nb::object records_, apply_dispatch_, apply_sum_;
};

}  // namespace

void bind_torch_calls(nb::module_& module) {
  nb::class_<TorchCalls>(
      module, "TorchCalls",
      "dispatch and combine of shoal.torch with the least host time.\n\n"
      "A call returns None and has no effect where an argument is not an ordinary tensor of the "
      "dtype and shape that Group's call documents, or where torch observes calls."_doc)
      .def(
          nb::init<nb::type_object, nb::tuple, nb::tuple, nb::object, nb::object, nb::object>(),
          nb::arg("received"), nb::arg("flags"), nb::arg("stacks"), nb::arg("records"),
          nb::arg("apply_dispatch"), nb::arg("apply_sum"),
          nb::sig("def __init__(self, received: type, flags: tuple, stacks: tuple, records: "
                  "typing.Any, apply_dispatch: typing.Any, apply_sum: typing.Any) -> None"),
          "received: shoal.torch.Received. flags: pairs (module, name), and stacks: functions; "
          "torch observes calls where one is true. records: a function that returns whether torch "
          "records gradients. apply_dispatch(x, weights, (handle, received x, received weights)) and "
          "apply_sum(y, (handle, sums)) record a gradient."_doc)
      .def("try_dispatch", &TorchCalls::try_dispatch, nb::arg("group"), nb::arg("x").none(),
           nb::arg("topk_idx").none(), nb::arg("topk_weights").none(),
           nb::arg("worst_case_rows").none(), nb::arg("copy_out").none(),
           nb::sig(
               "def try_dispatch(self, group: typing.Any, x: typing.Any, topk_idx: typing.Any, "
               "topk_weights: typing.Any, worst_case_rows: int, copy_out: bool) -> tuple | None"),
           "shoal.torch.dispatch."_doc)
      .def("try_combine", &TorchCalls::try_combine, nb::arg("group"), nb::arg("y").none(),
           nb::arg("received").none(),
           nb::sig("def try_combine(self, group: typing.Any, y: typing.Any, received: typing.Any) "
                   "-> typing.Any | None"),
           "shoal.torch.combine."_doc);
}

}  // namespace shoal::python
