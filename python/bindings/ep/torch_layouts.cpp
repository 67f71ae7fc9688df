// SPDX-License-Identifier: Apache-2.0
#include "torch_layouts.hpp"

#include <memory>
#include <unordered_map>
#include <utility>

#include "../docs.hpp"

namespace shoal::python {
namespace {

using Layouts = std::unordered_map<std::int64_t, TorchLayout>;

/// Never destroyed: handles may be released while the process ends.
Layouts& layouts() {
  static auto& table = *new Layouts;
  return table;
}

void erase(std::int64_t number) {
  // The entry ends after the table has let go of it: its tensors may own other handles.
  const auto released = layouts().extract(number);
}

const TorchLayout* find(std::int64_t number) {
  const auto found = layouts().find(number);
  return found == layouts().end() ? nullptr : &found->second;
}

}  // namespace

nb::object torch_handle(nb::handle tensor_type, TorchLayout layout) {
  static std::int64_t last = 0;  // the GIL is held
  const auto release = [](const std::int64_t* number) {
    if (nb::is_alive()) {  // else the interpreter has ended: its objects stay
      const nb::gil_scoped_acquire acquired;
      const nb::error_scope kept;
      erase(*number);
    }
    delete number;
  };
  const std::shared_ptr<std::int64_t> number(new std::int64_t(++last), release);
  layouts().emplace(*number, std::move(layout));
  Tensor tensor(TensorView(number.get(), DataType::int64, {}), number);
  nb::object made =
      exchange_object(reinterpret_cast<PyTypeObject*>(tensor_type.ptr()), std::move(tensor));
  return made.is_valid() ? made : nb::none();
}

const TorchLayout* torch_layout(const PlainTensors& tensors, nb::handle handle) {
  const auto number = tensors.host_scalar(handle);
  return number ? find(*number) : nullptr;
}

void bind_torch_layouts(nb::module_& module) {
  nb::class_<TorchLayout>(module, "TorchLayout", "The layout of a dispatch of shoal.torch."_doc)
      .def(
          "__init__",
          [](TorchLayout* self, nb::handle_t<Group> group, const ep::Handle& handle,
             std::int64_t worst_case_rows, bool copy_out, nb::object elsewhere, nb::object topk_idx,
             std::int64_t version) {
            new (self) TorchLayout{
                nb::borrow(group),   handle, worst_case_rows, copy_out, std::move(elsewhere),
                std::move(topk_idx), version};
          },
          nb::arg("group"), nb::arg("handle"), nb::arg("worst_case_rows"), nb::arg("copy_out"),
          nb::arg("elsewhere").none() = nb::none(), nb::arg("topk_idx").none() = nb::none(),
          nb::arg("topk_idx_version") = 0,
          nb::sig(
              "def __init__(self, group: Group, handle: Handle, worst_case_rows: int, copy_out: bool, "
              "elsewhere: typing.Any = None, topk_idx: typing.Any = None, topk_idx_version: "
              "int = 0) -> None"))
      .def_ro("group", &TorchLayout::group, nb::for_getter(nb::sig("def group(self) -> Group")))
      .def_ro("handle", &TorchLayout::handle, nb::rv_policy::copy)
      .def_ro("worst_case_rows", &TorchLayout::worst_case_rows)
      .def_ro("copy_out", &TorchLayout::copy_out)
      .def_ro("elsewhere", &TorchLayout::elsewhere,
              nb::for_getter(nb::sig("def elsewhere(self) -> typing.Any | None")),
              "bool [rows, top_k]: top-k slots without a local expert; None: see topk_idx."_doc)
      .def_ro("topk_idx", &TorchLayout::topk_idx,
              nb::for_getter(nb::sig("def topk_idx(self) -> typing.Any | None")),
              "The result of the dispatch, for sums of weights; or None."_doc)
      .def_ro("topk_idx_version", &TorchLayout::topk_idx_version,
              "topk_idx._version after the dispatch; -1: unknown."_doc);
  module.def("torch_handle", &torch_handle, nb::arg("tensor_type"), nb::arg("layout"),
             nb::sig("def torch_handle(tensor_type: type, layout: TorchLayout) -> typing.Any"),
             "An int64 scalar tensor on the host, the number of a layout that lives as long as its "
             "memory; None where the library has no exchange table of DLPack."_doc);
  module.def(
      "torch_layout",
      [](std::int64_t number) {
        const TorchLayout* const found = find(number);
        return found == nullptr ? nb::none() : nb::cast(*found);
      },
      nb::arg("number"), nb::sig("def torch_layout(number: int) -> TorchLayout | None"),
      "The layout of a number, None for other numbers."_doc);
  module.def("count_torch_layouts", [] { return layouts().size(); }, "Layouts that are kept."_doc);
  module.def(
      "keep_torch_layout",
      [](std::int64_t number, const TorchLayout& layout) { layouts().emplace(number, layout); },
      nb::arg("number"), nb::arg("layout"),
      "Keeps a layout under a number below 0, until drop_torch_layout."_doc);
  module.def(
      "drop_torch_layout", [](std::int64_t number) { erase(number); }, nb::arg("number"),
      "No effect for numbers without a layout."_doc);
}

}  // namespace shoal::python
