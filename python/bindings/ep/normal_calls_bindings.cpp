// SPDX-License-Identifier: Apache-2.0
// ep/normal_calls_bindings.cpp: the Python classes of normal_calls.hpp.
#include <nanobind/stl/vector.h>

#include "../docs.hpp"
#include "normal_calls.hpp"

namespace shoal::python {
namespace {

void bind_layouts(nb::module_& module) {
  const nb::class_<CallRouting> routing(module, "CallRouting", "A routing of NormalCalls."_doc);
  nb::class_<CallLayout>(module, "CallLayout",
                         "The layout of a dispatch of NormalCalls. Tensors are int32; None for a "
                         "dispatch along another layout."_doc)
      .def_ro("handle", &CallLayout::handle, nb::rv_policy::copy,
              "For combine, and for dispatches of the same layout."_doc)
      .def_ro("worst_case_rows", &CallLayout::worst_case_rows, "The passed value."_doc)
      .def_prop_ro(
          "rows", [](const CallLayout& self) { return self.handle.result_rows(); },
          "Rows of the result, unused ones included."_doc)
      .def_prop_ro(
          "received",
          [](const CallLayout& self) { return self.handle.received_rows().value_or(-1); },
          "Rows with tokens; -1 on GPUs with worst_case_rows."_doc)
      .def_prop_ro(
          "tokens", [](const CallLayout& self) { return self.handle.tokens(); },
          "Tokens that this rank sent."_doc)
      .def_prop_ro(
          "side",
          [](const CallLayout& self) { return self.side.is_valid() ? self.side : nb::none(); },
          nb::sig("def side(self) -> typing.Any"), "The tensor of which the others are parts."_doc)
      .def_prop_ro("source_ends", &CallLayout::source_ends,
                   nb::sig("def source_ends(self) -> typing.Any"),
                   "[ranks]: rows from ranks 0 to i."_doc)
      .def_prop_ro("expert_counts", &CallLayout::expert_counts,
                   nb::sig("def expert_counts(self) -> typing.Any"),
                   "[local experts]: tokens of each."_doc)
      .def_prop_ro("expert_ends", &CallLayout::expert_ends,
                   nb::sig("def expert_ends(self) -> typing.Any"),
                   "[local experts]: sums of the aligned counts."_doc)
      .def_prop_ro("source_token", &CallLayout::source_token,
                   nb::sig("def source_token(self) -> typing.Any"),
                   "[rows]: index of the token at its source."_doc);
}

void bind_received(nb::module_& module) {
  nb::class_<ExpertMajorLayout>(module, "ExpertMajorLayout",
                                "The layout of an expert-major dispatch of NormalCalls."_doc)
      .def_ro("tokens_per_expert", &ExpertMajorLayout::tokens_per_expert,
              "Rows of each local expert."_doc)
      .def_ro("rows", &ExpertMajorLayout::rows, "Expert-major rows."_doc)
      .def_prop_ro(
          "tokens", [](const ExpertMajorLayout& self) { return self.layout.handle.tokens(); },
          "Tokens that this rank sent."_doc);
  nb::class_<CallReceived>(module, "CallReceived", "The result of a dispatch of NormalCalls."_doc)
      .def_rw("x", &CallReceived::x, nb::for_getter(nb::sig("def x(self) -> typing.Any")),
              nb::for_setter(nb::sig("def x(self, value: typing.Any, /) -> None")),
              "[rows, hidden], in the group's memory or a copy."_doc)
      .def_ro("scales", &CallReceived::scales, nb::sig("def scales(self) -> typing.Any"),
              "[rows, n] or None."_doc)
      .def_ro("topk_idx", &CallReceived::topk_idx, nb::sig("def topk_idx(self) -> typing.Any"),
              "int64 [rows, top_k]: local experts, -1 elsewhere; None along another layout."_doc)
      .def_ro("topk_weights", &CallReceived::topk_weights,
              nb::sig("def topk_weights(self) -> typing.Any"), "float32 [rows, top_k] or None."_doc)
      .def_ro("layout", &CallReceived::layout, nb::rv_policy::copy,
              "Handle for the combine. Does not keep the rows."_doc)
      .def_prop_ro(
          "handle", [](const CallReceived& self) { return self.layout.handle; },
          nb::rv_policy::move, "That of the layout."_doc)
      .def_prop_ro(
          "source_token", [](const CallReceived& self) { return self.layout.source_token(); },
          nb::sig("def source_token(self) -> typing.Any"), "That of the layout."_doc);
}

void bind_general(nb::class_<NormalCalls>& calls) {
  calls
      .def("route", nb::overload_cast<nb::handle, std::uintptr_t>(&NormalCalls::route, nb::const_),
           nb::arg("topk_idx"), nb::arg("stream"),
           nb::sig("def route(self, topk_idx: typing.Any, stream: int) -> CallRouting"),
           "Group.route."_doc)
      .def("dispatch", &NormalCalls::dispatch, nb::arg("x"), nb::arg("layout"),
           nb::arg("weights").none(), nb::arg("worst_case_rows"), nb::arg("stays"),
           nb::arg("clear_unused"), nb::arg("stream"),
           nb::sig("def dispatch(self, x: typing.Any, layout: CallRouting | Handle, weights: "
                   "typing.Any, worst_case_rows: int, stays: bool, clear_unused: bool, stream: "
                   "int) -> CallReceived"),
           "Group.dispatch and Group.unpack. stays: x may lie in the group's memory. clear_unused: "
           "rows without a token become 0."_doc)
      .def("combine", &NormalCalls::combine, nb::arg("y"), nb::arg("handle"),
           nb::arg("weights").none(), nb::arg("topk_idx").none(), nb::arg("stream"),
           nb::sig("def combine(self, y: typing.Any, handle: Handle, weights: typing.Any, "
                   "topk_idx: typing.Any, stream: int) -> tuple"),
           "Group.combine: (sums, sums of weights or None). topk_idx: weights of top-k slots with "
           "-1 count as 0."_doc)
      .def("dispatch_expert_major", &NormalCalls::dispatch_expert_major, nb::arg("x"),
           nb::arg("layout"), nb::arg("weights").none(), nb::arg("stream"),
           nb::sig("def dispatch_expert_major(self, x: typing.Any, layout: CallRouting | "
                   "ExpertMajorLayout, weights: typing.Any, stream: int) -> tuple"),
           "A dispatch of a row for each expert of a token: (rows, their weights or None, "
           "layout)."_doc)
      .def("combine_expert_major", &NormalCalls::combine_expert_major, nb::arg("y"),
           nb::arg("layout"), nb::arg("weights").none(), nb::arg("stream"),
           nb::sig("def combine_expert_major(self, y: typing.Any, layout: ExpertMajorLayout, "
                   "weights: typing.Any, stream: int) -> tuple"),
           "(sums, sums of weights by top-k slot or None). weights: [rows of y]."_doc);
}

}  // namespace

void bind_normal_calls(nb::module_& module) {
  bind_layouts(module);
  bind_received(module);
  nb::class_<NormalCalls> calls(
      module, "NormalCalls",
      "Normal-mode calls of one group with the least host time.\n\n"
      "tensor_type: the type of tensors. empty: a function (shape, strides, dtype) that allocates "
      "results. dtypes: the library's bool, int32, int64 and float32. capturing: a function that "
      "returns whether the current stream is captured, or None. stream: a cudaStream_t, 0 on the "
      "host. Arguments and errors are otherwise those of Group's calls; optional arrays are "
      "None."_doc);
  calls
      .def(nb::init<nb::handle_t<Group>, nb::handle, nb::object, nb::tuple, nb::object>(),
           nb::arg("group"), nb::arg("tensor_type"), nb::arg("empty"), nb::arg("dtypes"),
           nb::arg("capturing").none(),
           nb::sig("def __init__(self, group: Group, tensor_type: type, empty: typing.Any, dtypes: "
                   "tuple, capturing: typing.Any) -> None"))
      .def_prop_ro("held", &NormalCalls::held, "Results in the group's memory that are in use."_doc)
      .def("set_most_held", &NormalCalls::set_most_held, nb::arg("most"),
           "Results of deep_ep that may lie in the group's memory; 0 at first."_doc);
  bind_general(calls);
}

}  // namespace shoal::python
