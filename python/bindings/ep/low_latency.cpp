// SPDX-License-Identifier: Apache-2.0
// ep/low_latency.cpp: low-latency dispatch and combine: their sends and receives.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../arguments.hpp"
#include "../check.hpp"
#include "../docs.hpp"
#include "../world/world.hpp"
#include "group.hpp"
#include "options.hpp"

namespace shoal::python {
namespace {

/// The result of a dispatch. Its arrays are created on access; callers that know their addresses
/// need none of them.
class Received {
 public:
  Received(ep::LowLatencyReceived result, nb::object group, const Library* library, Stream stream)
      : result_(std::move(result)), group_(std::move(group)), library_(library), stream_(stream) {}

  template <auto kTensor>
  nb::object array() const {
    return nb::inst_ptr<Group>(group_)
        ->result(library_, or_undefined(result_.*kTensor), stream_)
        .get();
  }
  const ep::LowLatencyReceived& result() const { return result_; }
  const ep::LowLatencyHandle& handle() const { return result_.handle; }

 private:
  ep::LowLatencyReceived result_;
  nb::object group_;
  const Library* library_;
  Stream stream_;
};

/// A phase that was sent, with the arrays that it uses until it is received.
template <typename Pending>
struct Phase {
  Pending pending;
  nb::object group;
  Inputs arrays;
  nb::object out;
  const Library* library = nullptr;
  Stream stream = nullptr;
};
struct PendingDispatch : Phase<ep::PendingDispatch> {
  ep::LowLatencyHandle handle;  ///< set by receive
};
struct PendingCombine : Phase<ep::PendingCombine> {
  bool received = false;
};

ep::Reduction reduction_from(nb::handle given) {
  const auto name = argument<std::string>("low_latency_combine", "reduction", given);
  if (name == "automatic") return ep::Reduction::automatic;
  if (name == "per_rank") return ep::Reduction::per_rank;
  require(name == "exact", Code::invalid_argument,
          "reduction \"{}\"; allowed: \"automatic\", \"per_rank\", \"exact\"", name);
  return ep::Reduction::exact;
}

Group& group_from(const char* call, nb::handle self) {
  return object_from<Group>(call, "self", self, "a Group whose constructor has run");
}

PendingDispatch send_dispatch(nb::handle_t<Group> self, nb::handle x, nb::handle topk_idx,
                              const nb::kwargs& given) {
  constexpr const char* kCall = "low_latency_dispatch";
  Group& owner = group_from(kCall, self);
  PendingDispatch phase{{{}, nb::borrow(self), {}, {}, library_of(x), nullptr}, {}};
  ep::LowLatencyDispatchOptions options;
  std::optional<DataType> dtype;
  for (const auto& [key, value] : given) {
    const std::string_view name = text_of(key);
    if (name == "quantize")
      options.quantize = quantize_from(kCall, value);
    else if (name == "scale_layout")
      options.scale_layout = scale_layout_from(kCall, value);
    else if (name == "global_scale")
      options.global_scale = phase.arrays.read(value, "global_scale");
    else if (name == "expert_counts")
      options.tokens_per_expert = phase.arrays.write(value, "expert_counts");
    else if (name == "wait_ns")
      options.wait_ns = phase.arrays.write(value, "wait_ns");
    else if (name == "weights") {
      refuse_gradient(kCall, "weights", value, nullptr);
      options.weights = phase.arrays.read(value, "weights");
    } else if (name == "dtype")
      dtype = optional_dtype(kCall, value);
    else if (name == "defer_receive")
      options.defer_receive = argument<bool>(kCall, name, value);
    else
      read_launch(kCall, name, value, options.launch);
  }
  refuse_gradient(kCall, "x", x, nullptr);
  const TensorView rows = phase.arrays.read(x, "x", dtype);
  follow(options.launch, owner, phase.arrays.last());
  phase.stream = options.launch.stream;
  const TensorView indices = phase.arrays.read(topk_idx, "topk_idx");
  nb::gil_scoped_release released;
  phase.pending = owner.group.low_latency_dispatch(rows, indices, options);
  return phase;
}

PendingCombine send_combine(nb::handle_t<Group> self, nb::handle y, nb::handle topk_idx,
                            nb::handle topk_weights, nb::handle given_handle,
                            const nb::kwargs& given) {
  constexpr const char* kCall = "low_latency_combine";
  Group& owner = group_from(kCall, self);
  const auto& handle = object_from<const ep::LowLatencyHandle>(
      kCall, "handle", given_handle,
      "the LowLatencyHandle of a low-latency dispatch, LowLatencyReceived.handle");
  PendingCombine phase{{{}, nb::borrow(self), {}, nb::none(), library_of(y), nullptr}, false};
  ep::LowLatencyCombineOptions options;
  std::optional<DataType> dtype;
  for (const auto& [key, value] : given) {
    const std::string_view name = text_of(key);
    if (name == "log_fmt")
      options.log_fmt = argument<bool>(kCall, name, value);
    else if (name == "quantize")
      options.quantize = quantize_from(kCall, value);
    else if (name == "zero_copy")
      options.zero_copy = argument<bool>(kCall, name, value);
    else if (name == "reduction")
      options.reduction = reduction_from(value);
    else if (name == "unsummed")
      options.unsummed = argument<bool>(kCall, name, value);
    else if (name == "out")
      phase.out = nb::borrow(value);
    else if (name == "dtype")
      dtype = optional_dtype(kCall, value);
    else if (name == "wait_ns")
      options.wait_ns = phase.arrays.write(value, "wait_ns");
    else if (name == "defer_receive")
      options.defer_receive = argument<bool>(kCall, name, value);
    else
      read_launch(kCall, name, value, options.launch);
  }
  refuse_gradient(kCall, "y", y, nullptr);
  refuse_gradient(kCall, "topk_weights", topk_weights, nullptr);
  options.out = phase.arrays.write(phase.out, "out", dtype);
  const TensorView rows = phase.arrays.read(y, "y", dtype);
  follow(options.launch, owner, phase.arrays.last());
  phase.stream = options.launch.stream;
  const TensorView indices = phase.arrays.read(topk_idx, "topk_idx");
  TensorView weights;
  if (!options.unsummed || !topk_weights.is_none())
    weights = phase.arrays.read(topk_weights, "topk_weights");
  nb::gil_scoped_release released;
  phase.pending = owner.group.low_latency_combine(rows, indices, weights, handle, options);
  return phase;
}

Received receive_dispatch(PendingDispatch& phase) {
  const auto receive = [&] {
    const nb::gil_scoped_release released;
    return phase.pending.receive();
  };
  Received result(receive(), phase.group, phase.library, phase.stream);
  phase.handle = result.handle();
  phase.pending = {};
  phase.arrays = {};
  return result;
}

nb::object receive_combine(PendingCombine& phase) {
  Tensor result;
  {
    nb::gil_scoped_release released;
    result = phase.pending.receive();
  }
  phase.received = true;
  if (!phase.out.is_none()) return phase.out;
  return nb::inst_ptr<Group>(phase.group)
      ->result(phase.library, std::move(result), phase.stream)
      .get();
}

nb::object next_combine_buffer(Group& self, nb::handle like) {
  const Library* const library = library_like("next_combine_buffer", like);
  TensorView view;
  {
    nb::gil_scoped_release released;
    view = self.group.next_combine_buffer();
  }
  return make_array(library, keep_heap(Tensor(view, self.owner()), self.keeper), kReady);
}

void bind_received(nb::module_& module) {
  nb::class_<Received> received(
      module, "LowLatencyReceived", nb::is_generic(),
      nb::sig("class LowLatencyReceived(typing.Generic[A_co])"),
      "The result of a low-latency dispatch. The second receive after this one overwrites its "
      "arrays; on GPUs the next one may, once x and scales are released."_doc);
  refuse_numpy(received, "its x, scales or counts");
  received
      .def("__repr__",
           [](const Received& self) {
             return fmt::format("shoal.ep.LowLatencyReceived(x {}, counts {})",
                                summary_of(self.result().x), summary_of(self.result().counts));
           })
      .def_prop_ro(
          "x", &Received::array<&ep::LowLatencyReceived::x>, nb::sig("def x(self) -> A_co"),
          "float8_e4m3 or bfloat16 [max_local_experts, ranks * max tokens, hidden]; the first "
          "counts[e] rows of expert e are valid."_doc)
      .def_prop_ro(
          "scales", &Received::array<&ep::LowLatencyReceived::scales>,
          nb::sig("def scales(self) -> A_co | None"),
          "float32 [max_local_experts, rows, ceil(hidden / 128)], or int32 [.., .., ceil(hidden / 512)] "
          "of packed UE8M0; the row index runs fastest in memory. None for bfloat16."_doc)
      .def_prop_ro("counts", &Received::array<&ep::LowLatencyReceived::counts>,
                   nb::sig("def counts(self) -> A_co"), "int32 [max_local_experts]."_doc)
      .def_prop_ro("source_token", &Received::array<&ep::LowLatencyReceived::source_token>,
                   nb::sig("def source_token(self) -> A_co"),
                   "int32 [max_local_experts, rows]: index of the token at its source."_doc)
      .def_prop_ro("layout", &Received::array<&ep::LowLatencyReceived::layout>,
                   nb::sig("def layout(self) -> A_co"),
                   "int64 [max_local_experts, ranks]: (first row << 32) | rows."_doc)
      // A copy, because a reference would keep the rows alive.
      .def_prop_ro(
          "handle", [](const Received& self) { return self.handle(); }, nb::rv_policy::move,
          "For the combine."_doc);
}

void bind_pending(nb::module_& module) {
  nb::class_<PendingDispatch>(module, "PendingDispatch", nb::is_generic(),
                              nb::sig("class PendingDispatch(typing.Generic[A_co])"),
                              "A low-latency dispatch that was sent."_doc)
      .def("__repr__",
           [](const PendingDispatch& self) {
             return fmt::format("shoal.ep.PendingDispatch({})",
                                self.handle.valid() ? "received" : "sent");
           })
      .def(
          "ready", [](const PendingDispatch& self) { return self.pending.ready(); },
          nb::call_guard<nb::gil_scoped_release>(), "True if receive returns without waiting."_doc)
      .def_prop_ro(
          "handle",
          [](const PendingDispatch& self) {
            return self.handle.valid() ? nb::cast(self.handle) : nb::none();
          },
          nb::sig("def handle(self) -> LowLatencyHandle | None"),
          "For the combine; None before receive."_doc)
      .def("receive", &receive_dispatch, nb::sig("def receive(self) -> LowLatencyReceived[A_co]"),
           "Waits for the rows of all ranks; once."_doc);
  nb::class_<PendingCombine>(module, "PendingCombine", nb::is_generic(),
                             nb::sig("class PendingCombine(typing.Generic[A_co])"),
                             "A low-latency combine that was sent."_doc)
      .def("__repr__",
           [](const PendingCombine& self) {
             return fmt::format("shoal.ep.PendingCombine({})", self.received ? "received" : "sent");
           })
      .def(
          "ready", [](const PendingCombine& self) { return self.pending.ready(); },
          nb::call_guard<nb::gil_scoped_release>(), "True if receive returns without waiting."_doc)
      .def("receive", &receive_combine, nb::sig("def receive(self) -> A_co"),
           "Waits for the sums; once. Returns bfloat16 [tokens, hidden], with unsummed [tokens, "
           "top_k, hidden], or the array passed as out=."_doc);
}

void bind_calls(nb::class_<Group>& group) {
  group
      .def(
          "low_latency_dispatch", &send_dispatch, nb::arg("x").none(),
          nb::arg("topk_idx") = nb::none(), nb::arg("options"),
          nb::sig(
              "def low_latency_dispatch(self, x: A, topk_idx: shoal.typing.SupportsDLPack, *, "
              "quantize: str = 'fp8', scale_layout: str = 'automatic', global_scale: "
              "shoal.typing.SupportsDLPack | None = None, "
              "expert_counts: shoal.typing.SupportsDLPack | None = None, "
              "wait_ns: shoal.typing.SupportsDLPack | None = None, weights: "
              "shoal.typing.SupportsDLPack | None = None, dtype: shoal.typing.DType | None = None, "
              "defer_receive: bool = True, stream: shoal.typing.Stream | None = None, after: "
              "shoal.typing.Event | None = None, done: shoal.typing.Event | None = None, sms: int = "
              "0) -> PendingDispatch[A]"),
          "Sends tokens without waiting for other ranks. Collective.\n\n"
          "x: bfloat16 [tokens, hidden]. topk_idx: as for route. quantize: the form in which rows "
          "travel: none, fp8, fp8_power_of_two, fp8_ue8m0, mxfp8 or nvfp4. scale_layout: rows, "
          "columns, or tiles of 128 rows by four groups; automatic: tiles for nvfp4, else columns. "
          "global_scale: float32 [1], for nvfp4, the same on all ranks. expert_counts: int32 [max_local_experts]; "
          "the receive adds the rows received. wait_ns: int64 [ranks]; the receive adds the "
          "nanoseconds waited. weights: float32 [tokens, top_k], the weights of the combine, which "
          "then saves an exchange. dtype=\"bfloat16\" names the type of x where the array cannot "
          "(uint16 of NumPy). defer_receive=False queues the receive in this call."_doc)
      .def(
          "low_latency_combine", &send_combine, nb::arg("y").none(),
          nb::arg("topk_idx") = nb::none(), nb::arg("topk_weights") = nb::none(),
          nb::arg("handle") = nb::none(), nb::arg("options"),
          nb::sig(
              "def low_latency_combine(self, y: A, topk_idx: shoal.typing.SupportsDLPack, "
              "topk_weights: shoal.typing.SupportsDLPack | None, handle: LowLatencyHandle, *, "
              "log_fmt: bool = False, quantize: str = 'none', zero_copy: bool = False, reduction: "
              "str = 'automatic', unsummed: bool = False, out: shoal.typing.SupportsDLPack | None "
              "= None, dtype: shoal.typing.DType | None = None, "
              "wait_ns: shoal.typing.SupportsDLPack | None = None, defer_receive: bool = True, "
              "stream: shoal.typing.Stream | None = None, after: shoal.typing.Event | None = None, "
              "done: shoal.typing.Event | None = None, sms: int = 0) -> PendingCombine[A]"),
          "Sends expert output to be summed, weighted, at the sources of the tokens. "
          "Collective.\n\n"
          "y: bfloat16 [max_local_experts, ranks * max tokens, hidden]. topk_weights: float32 [tokens, "
          "top_k] of this rank's tokens. log_fmt: rows travel with 10 bits per channel: the sum of "
          "each rank, or each expert output with reduction=\"exact\", or where the receive is "
          "deferred and the dispatch had no weights. quantize: the same rows travel in e4m3 with "
          "scales instead: fp8 or mxfp8. zero_copy: y lies in next_combine_buffer(). "
          "reduction: per_rank (automatic) rounds the sum of each rank to bfloat16 first; exact "
          "rounds once. unsummed: each expert output comes back by itself, without a weight, "
          "[tokens, top_k, hidden], zeros where a slot has no expert; topk_weights may be None. "
          "dtype=\"bfloat16\" names the type of y and out where the arrays cannot."_doc)
      .def(
          "next_combine_buffer", &next_combine_buffer, nb::kw_only(), nb::arg("like") = nb::none(),
          nb::sig("@overload\n"
                  "def next_combine_buffer(self) -> shoal._core.Array: ...\n"
                  "@typing.overload\n"
                  "def next_combine_buffer(self, *, like: types.ModuleType) -> typing.Any: ...\n"
                  "@typing.overload\n"
                  "def next_combine_buffer(self, *, like: A) -> A"),
          "The memory for the y of the next low_latency_combine with zero_copy: bfloat16 [local "
          "experts, ranks * max tokens, hidden], with strided rows. like: an array of the library that "
          "the result has, or its module; None: a shoal.Array."_doc);
}

}  // namespace

void bind_low_latency(nb::module_& module, nb::class_<Group>& group) {
  nb::class_<ep::LowLatencyHandle>(module, "LowLatencyHandle",
                                   "The layout of a low-latency dispatch, for its combine."_doc)
      .def("__repr__", [](const ep::LowLatencyHandle&) { return "shoal.ep.LowLatencyHandle()"; });
  bind_received(module);
  bind_pending(module);
  bind_calls(group);
}

}  // namespace shoal::python
