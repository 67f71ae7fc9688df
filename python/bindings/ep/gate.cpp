// SPDX-License-Identifier: Apache-2.0
// ep/gate.cpp: the gate and the size hints, the functions of shoal.ep that need no group.
#include "shoal/ep/gate.hpp"

#include <nanobind/stl/string.h>

#include "../arguments.hpp"
#include "../check.hpp"
#include "../docs.hpp"
#include "group.hpp"
#include "options.hpp"

namespace shoal::python {
namespace {

nb::dict size_hint(std::int32_t ranks, const nb::kwargs& given) {
  nb::kwargs options;
  DeviceKind heap = DeviceKind::host;
  std::int32_t nodes = 1;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "heap")
      heap = heap_from("size_hint", value);
    else if (name == "nodes")
      nodes = argument<std::int32_t>("size_hint", name, value);
    else
      options[key] = value;
  }
  const ep::SizeHint hint =
      ep::size_hint(group_options_from("size_hint", options), ranks, heap, nodes);
  nb::dict parts;
  parts["control"] = hint.control;
  parts["normal"] = hint.normal;
  parts["low_latency"] = hint.low_latency;
  parts["total"] = hint.total();
  return parts;
}

std::size_t low_latency_size_hint(std::int64_t max_tokens, std::int64_t hidden, std::int32_t ranks,
                                  std::int32_t experts, std::int32_t top_k, nb::handle heap) {
  return ep::low_latency_size_hint(max_tokens, hidden, ranks, experts, top_k,
                                   heap_from("low_latency_size_hint", heap));
}

nb::tuple gate(nb::handle logits, nb::handle bias, std::int32_t top_k, std::int32_t groups,
               std::int32_t groups_kept, const std::string& score, bool normalize,
               float routed_scaling) {
  refuse_gradient("gate", "logits", logits, nullptr);
  const Input scores = input(logits, "logits"), shift = optional_input(bias, "bias");
  require(score == "sigmoid" || score == "softmax", Code::invalid_argument,
          "score \"{}\"; allowed: \"sigmoid\", \"softmax\"", score);
  ep::GateOptions options;
  options.experts = scores.view.rank == 2 ? static_cast<std::int32_t>(scores.view.shape[1]) : 0;
  options.groups = groups;
  options.groups_kept = groups_kept;
  options.top_k = top_k;
  options.score = score == "sigmoid" ? ep::GateScore::sigmoid : ep::GateScore::softmax;
  options.normalize = normalize;
  options.routed_scaling = routed_scaling;
  ep::Gated chosen = ep::gate(scores.view, shift.view, options);
  return nb::make_tuple(output(std::move(chosen.topk_idx)), output(std::move(chosen.topk_weights)));
}

}  // namespace

void bind_gate(nb::module_& module) {
  module.def(
      "size_hint", &size_hint, nb::arg("ranks"), nb::arg("options"),
      nb::sig("def size_hint(ranks: int, *, heap: str = 'host', nodes: int = 1, "
              "**options: typing.Any) -> dict[str, int]"),
      "Bytes of the heap that a group of `ranks` ranks with Group's options takes on each of "
      "them: control, normal, low_latency and total."_doc);
  module.def("low_latency_size_hint", &low_latency_size_hint, nb::arg("max_tokens"),
             nb::arg("hidden"), nb::arg("ranks"), nb::arg("experts"), nb::arg("top_k") = 8,
             nb::arg("heap") = "host",
             nb::sig("def low_latency_size_hint(max_tokens: int, hidden: int, ranks: int, experts: "
                     "int, top_k: int = 8, heap: str = 'host') -> int"),
             "The low-latency part of size_hint, in bytes."_doc);
  module.def(
      "gate", &gate, nb::arg("logits"), nb::arg("bias") = nb::none(), nb::kw_only(),
      nb::arg("top_k"), nb::arg("groups") = 1, nb::arg("groups_kept") = 1,
      nb::arg("score") = "sigmoid", nb::arg("normalize") = true, nb::arg("routed_scaling") = 1.0F,
      "Selects experts from router logits as DeepSeek-V3 does; on the host.\n\n"
      "logits: float32 [tokens, experts]. bias: float32 [experts], affects the selection but "
      "not the weights. Of `groups` groups of experts, only the best `groups_kept` are "
      "considered. Returns (topk_idx int64, topk_weights float32), [tokens, top_k] each."_doc);
}

}  // namespace shoal::python
