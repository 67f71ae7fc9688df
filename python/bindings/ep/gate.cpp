// SPDX-License-Identifier: Apache-2.0
// ep/gate.cpp: the gate and the size hints, the functions of shoal.ep that need no group.
#include "shoal/ep/gate.hpp"

#include <nanobind/stl/string.h>

#include "../arguments.hpp"
#include "../arrays/streams.hpp"
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
  parts["results"] = hint.results;
  return parts;
}

std::size_t low_latency_size_hint(std::int64_t max_tokens, std::int64_t hidden, std::int32_t ranks,
                                  std::int32_t experts, std::int32_t top_k, nb::handle heap) {
  return ep::low_latency_size_hint(max_tokens, hidden, ranks, experts, top_k,
                                   heap_from("low_latency_size_hint", heap));
}

/// The arrays that `out` names are filled; in stream order on GPUs.
nb::object gate_into(const Input& logits, const Input& bias, const ep::GateOptions& options,
                     const nb::object& out, nb::handle stream) {
  require(nb::isinstance<nb::tuple>(out) && nb::len(out) == 2, Code::invalid_argument,
          "gate: out is {}; a tuple (topk_idx, topk_weights) is wanted",
          nb::cast<std::string>(nb::str(out.type())));
  const Input topk_idx = writable_input(out[0], "out[0]"),
              weights = writable_input(out[1], "out[1]");
  Stream on = stream_from("gate", stream);
  if (on == nullptr && logits.stream != kReady) on = reinterpret_cast<Stream>(logits.stream);
  {
    nb::gil_scoped_release released;
    ep::gate(logits.view, bias.view, options,
             {.topk_idx = topk_idx.view, .topk_weights = weights.view, .stream = on});
  }
  return out;
}

nb::object gate(nb::handle logits, nb::handle bias, std::int32_t top_k, std::int32_t groups,
                std::int32_t groups_kept, const std::string& score, bool normalize,
                float routed_scaling, const nb::object& out, nb::handle stream) {
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
  if (!out.is_none()) return gate_into(scores, shift, options, out, stream);
  ep::Gated chosen = ep::gate(scores.view, shift.view, options);
  const Library* const library = library_of(logits);
  return nb::make_tuple(make_array(library, std::move(chosen.topk_idx), kReady),
                        make_array(library, std::move(chosen.topk_weights), kReady));
}

}  // namespace

void bind_gate(nb::module_& module) {
  module.def(
      "size_hint", &size_hint, nb::arg("ranks"), nb::arg("options"),
      nb::sig(
          "def size_hint(ranks: int, *, heap: str = 'host', nodes: int = 1, hidden: int, top_k:"
          " int, experts: int, first_expert: collections.abc.Sequence[int] | None = None, none_expert: int "
          "= -1, max_tokens: int = 0, dtype: shoal.typing.DType = 'bfloat16', "
          "max_scales: int = 0, live_results: int = 2, low_latency_max_tokens: int = 0, "
          "preinitialize: bool = False, mask_failed: bool = False, timeout: float | "
          "datetime.timedelta = 0.0, threads: int = 0, combine_staging: bool = True, "
          "chunk_bytes: int = 0, chunks_in_flight: int = 0) -> dict[str, int]"),
      "Bytes of the heap that a group of `ranks` ranks with Group's options takes on each of "
      "them: control, normal, low_latency and total. results: bytes outside the heap, on GPUs."_doc);
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
      nb::arg("out") = nb::none(), nb::arg("stream") = nb::none(),
      nb::sig("def gate(logits: A, bias: shoal.typing.SupportsDLPack | None = None, *, top_k: int, "
              "groups: int = 1, groups_kept: int = 1, score: str = 'sigmoid', normalize: bool = "
              "True, routed_scaling: float = 1.0, out: tuple[shoal.typing.SupportsDLPack, "
              "shoal.typing.SupportsDLPack] | None = None, stream: shoal.typing.Stream | None = "
              "None) -> tuple[A, A]"),
      "Selects experts from router logits as DeepSeek-V3 does.\n\n"
      "logits: float32 [tokens, experts]. bias: float32 [experts], affects the selection but "
      "not the weights. Of `groups` groups of experts, only the best `groups_kept` are "
      "considered. Returns (topk_idx int64, topk_weights float32), [tokens, top_k] each.\n"
      "out: arrays (topk_idx, topk_weights) to fill, which logits in GPU memory need; stream: the "
      "stream of the kernel, by default the one on which logits are ready, or CUDA's default "
      "stream. shoal.torch.gate allocates them. A token with a NaN or +infinity on a GPU gets "
      "indices of -1 and weights of NaN; on the host it raises InvalidArgumentError."_doc);
}

}  // namespace shoal::python
