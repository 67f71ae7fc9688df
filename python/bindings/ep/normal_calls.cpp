// SPDX-License-Identifier: Apache-2.0
// ep/normal_calls.cpp: the fast path of deep_ep's normal-mode calls.
//
// A model makes such calls for every layer, so host time counts: arguments are positional, the
// caller names the stream and allocates results with the allocator of its library, and only the
// rows lie in the group's memory.
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <utility>

#include "../arrays/exchange.hpp"
#include "../docs.hpp"
#include "group.hpp"
#include "normal.hpp"
#include "options.hpp"
#include "shoal/world.hpp"

namespace shoal::python {
namespace {

/// What the tensors of results share with the group that made them.
struct Results {
  std::shared_ptr<ep::Group> group;
  std::shared_ptr<void> heap;
  PyTypeObject* type;   ///< of tensors; exchange_of keeps it alive, and this needs no GIL
  std::int32_t device;  ///< index of the GPU
  decltype(Exchange::current_stream) find_stream;
  std::atomic<int> held = 0;  ///< tensors in the group's memory
};

/// Keeps a tensor in the group's memory. Once it is released, in any thread, later calls may write
/// there. They are ordered after the stream of the dispatch, and after the stream that is current
/// for the library when the tensor is released, on which it may have been read.
struct HeldResult {  // destroyed in reverse order: the memory before the heap
  std::shared_ptr<Results> results;
  void* stream;
  std::shared_ptr<void> memory;

  HeldResult(std::shared_ptr<Results> of, void* on, std::shared_ptr<void> owned)
      : results(std::move(of)), stream(on), memory(std::move(owned)) {
    ++results->held;
  }
  HeldResult(const HeldResult&) = delete;
  HeldResult& operator=(const HeldResult&) = delete;
  ~HeldResult() {
    if (stream != nullptr) {
      results->group->order_after(stream);
      if (void* const current = current_stream(); current != stream)
        results->group->order_after(current);
    }
    memory.reset();
    --results->held;
  }

 private:
  /// `stream` where the library does not report one. Needs no GIL: the table is C.
  void* current_stream() const noexcept {
    void* current = nullptr;
    if (results->find_stream == nullptr ||
        results->find_stream(nb::device::cuda::value, results->device, &current) != 0)
      return stream;
    return current == nullptr ? reinterpret_cast<void*>(kLegacyStream) : current;
  }
};

std::int32_t device_of(nb::handle group) {
  return nb::cast<Group&>(group).group.team().world().heap().device().index;
}
decltype(Exchange::current_stream) stream_function(nb::handle tensor_type) {
  return exchange_of(reinterpret_cast<PyTypeObject*>(tensor_type.ptr())).current_stream;
}

TensorView view_of(nb::handle array, const char* what) {
  return array.is_none() ? TensorView{} : input(array, what).view;
}

ep::Launch launch_on(std::uintptr_t stream, std::int32_t sms = 0) {
  ep::Launch launch;
  launch.stream = reinterpret_cast<void*>(stream);
  launch.sms = sms;
  return launch;
}

struct CallRouting {
  ep::Routing routing;
};

/// A dispatch. `x` is given away once.
struct CallResult {
  std::shared_ptr<Results> results;
  void* stream;
  ep::Dispatched received;

  nb::object take_x() {
    Tensor x = std::exchange(received.x, {});
    x.owner = std::make_shared<HeldResult>(results, stream, std::move(x.owner));
    nb::object tensor = exchange_object(results->type, x);
    return tensor.is_valid() ? tensor : output(std::move(x), kReady);
  }
};

class NormalCalls {
 public:
  NormalCalls(nb::handle_t<Group> group, nb::handle tensor_type)
      : keeper_(nb::borrow(group)),
        group_(nb::cast<Group&>(group).group),
        results_(std::make_shared<Results>(nb::cast<Group&>(group).owner(),
                                           nb::cast<Group&>(group).keeper,
                                           reinterpret_cast<PyTypeObject*>(tensor_type.ptr()),
                                           device_of(group), stream_function(tensor_type))) {}

  int held() const { return results_->held; }

  CallRouting route(nb::handle topk_idx, nb::handle in_rank, nb::handle per_rank,
                    nb::handle per_expert, std::uintptr_t stream) const {
    const TensorView indices = view_of(topk_idx, "topk_idx");
    const ep::RouteOptions options{.is_token_in_rank = view_of(in_rank, "in_rank"),
                                   .tokens_per_rank = view_of(per_rank, "per_rank"),
                                   .tokens_per_expert = view_of(per_expert, "per_expert"),
                                   .launch = launch_on(stream)};
    const nb::gil_scoped_release released;
    return {group_.route(indices, options)};
  }

  /// layout: a CallRouting, or a Handle.
  CallResult dispatch(nb::handle x, nb::handle layout, nb::handle weights, nb::handle scales,
                      std::int32_t alignment, std::int64_t worst_case_rows, bool all_weights,
                      std::uintptr_t stream, std::int32_t sms) const {
    const TensorView rows = view_of(x, "x");
    ep::DispatchOptions options;
    options.weights = view_of(weights, "weights");
    options.scales = view_of(scales, "scales");
    options.expert_alignment = alignment;
    options.worst_case_rows = worst_case_rows;
    options.all_weights = all_weights;
    options.launch = launch_on(stream, sms);
    const CallRouting* const routing =
        nb::isinstance<CallRouting>(layout) ? &nb::cast<const CallRouting&>(layout) : nullptr;
    const ep::Handle* const handle =
        routing == nullptr ? &nb::cast<const ep::Handle&>(layout) : nullptr;
    const nb::gil_scoped_release released;
    return {results_, options.launch.stream,
            routing != nullptr ? group_.dispatch(rows, routing->routing, options)
                               : group_.dispatch(rows, *handle, options)};
  }

  void unpack(const CallResult& result, nb::handle scales, nb::handle topk_idx,
              nb::handle topk_weights, nb::handle source_token, nb::handle expert_counts,
              nb::handle expert_ends, nb::handle source_ends) const {
    const ep::UnpackOptions to{
        .scales = view_of(scales, "scales"),
        .topk_idx = view_of(topk_idx, "topk_idx"),
        .topk_weights = view_of(topk_weights, "topk_weights"),
        .source_token = view_of(source_token, "source_token"),
        .expert_counts = view_of(expert_counts, "expert_counts"),
        .expert_ends = view_of(expert_ends, "expert_ends"),
        .source_ends = view_of(source_ends, "source_ends"),
        .launch = launch_on(reinterpret_cast<std::uintptr_t>(result.stream))};
    const nb::gil_scoped_release released;
    group_.unpack(result.received, to);
  }

  void combine(nb::handle y, const ep::Handle& handle, nb::handle weights, nb::handle topk_idx,
               nb::handle topk_rows, nb::handle biases, nb::handle out, nb::handle out_weights,
               std::uintptr_t stream, std::int32_t sms) const {
    const TensorView rows = view_of(y, "y");
    ep::CombineOptions options;
    options.weights = view_of(weights, "weights");
    options.topk_idx = view_of(topk_idx, "topk_idx");
    options.topk_rows = view_of(topk_rows, "topk_rows");
    for (const nb::handle bias : biases) options.bias.push_back(view_of(bias, "bias"));
    options.out = view_of(out, "out");
    options.out_weights = view_of(out_weights, "out_weights");
    options.launch = launch_on(stream, sms);
    const nb::gil_scoped_release released;
    (void)group_.combine(rows, handle, options);
  }

 private:
  nb::object keeper_;
  ep::Group& group_;
  std::shared_ptr<Results> results_;
};

}  // namespace

void bind_normal_calls(nb::module_& module) {
  nb::class_<CallRouting>(module, "CallRouting", "A routing of NormalCalls."_doc)
      .def_prop_ro(
          "tokens_per_rank", [](const CallRouting& self) { return self.routing.tokens_per_rank; },
          "Empty on GPUs."_doc);
  nb::class_<CallResult>(module, "CallResult", "A dispatch of NormalCalls."_doc)
      .def("take_x", &CallResult::take_x, nb::sig("def take_x(self) -> typing.Any"),
           "The rows, a tensor in the group's memory; once."_doc)
      .def_prop_ro(
          "rows", [](const CallResult& self) { return self.received.handle.result_rows(); },
          "Rows of the result, unused ones included."_doc)
      .def_prop_ro(
          "rows_per_source", [](const CallResult& self) { return self.received.rows_per_source; },
          "[ranks]; empty on GPUs with worst_case_rows."_doc)
      .def_prop_ro(
          "tokens_per_expert",
          [](const CallResult& self) { return self.received.tokens_per_expert; },
          "[local experts], aligned; empty with worst_case_rows."_doc)
      .def_prop_ro(
          "handle", [](const CallResult& self) { return self.received.handle; },
          nb::rv_policy::move, "For combine, and for dispatches of the same layout."_doc);
  nb::class_<NormalCalls>(
      module, "NormalCalls",
      "Normal-mode calls of one group with the least host time, for callers that know the stream "
      "and allocate the results.\n\n"
      "tensor_type: the type of tensors. stream: a cudaStream_t, 0 on the host. Arguments and "
      "errors are otherwise those of Group's calls; optional arrays are None."_doc)
      .def(nb::init<nb::handle_t<Group>, nb::handle>(), nb::arg("group"), nb::arg("tensor_type"),
           nb::sig("def __init__(self, group: Group, tensor_type: type) -> None"))
      .def_prop_ro("held", &NormalCalls::held, "Results of take_x that are in use."_doc)
      .def("route", &NormalCalls::route, nb::arg("topk_idx"), nb::arg("in_rank").none(),
           nb::arg("per_rank").none(), nb::arg("per_expert").none(), nb::arg("stream"),
           nb::sig("def route(self, topk_idx: typing.Any, in_rank: typing.Any, per_rank: "
                   "typing.Any, per_expert: typing.Any, stream: int) -> CallRouting"),
           "Group.route. Fills in_rank (bool [tokens, ranks]), per_rank (int32 [ranks]) and "
           "per_expert (int32 [experts])."_doc)
      .def("dispatch", &NormalCalls::dispatch, nb::arg("x"), nb::arg("layout"),
           nb::arg("weights").none(), nb::arg("scales").none(), nb::arg("alignment"),
           nb::arg("worst_case_rows"), nb::arg("all_weights"), nb::arg("stream"), nb::arg("sms"),
           nb::sig("def dispatch(self, x: typing.Any, layout: CallRouting | Handle, weights: "
                   "typing.Any, scales: typing.Any, alignment: int, worst_case_rows: int, "
                   "all_weights: bool, stream: int, sms: int) -> CallResult"),
           "Group.dispatch. all_weights: weights of top-k slots with experts elsewhere travel "
           "too."_doc)
      .def("unpack", &NormalCalls::unpack, nb::arg("result"), nb::arg("scales").none(),
           nb::arg("topk_idx").none(), nb::arg("topk_weights").none(),
           nb::arg("source_token").none(), nb::arg("expert_counts").none(),
           nb::arg("expert_ends").none(), nb::arg("source_ends").none(),
           nb::sig("def unpack(self, result: CallResult, scales: typing.Any, topk_idx: typing.Any, "
                   "topk_weights: typing.Any, source_token: typing.Any, expert_counts: typing.Any, "
                   "expert_ends: typing.Any, source_ends: typing.Any) -> None"),
           "Copies what travelled beside the rows to these arrays, on the stream of the "
           "dispatch. The last three are for GPUs."_doc)
      .def("combine", &NormalCalls::combine, nb::arg("y"), nb::arg("handle"),
           nb::arg("weights").none(), nb::arg("topk_idx").none(), nb::arg("topk_rows").none(),
           nb::arg("biases"), nb::arg("out"), nb::arg("out_weights").none(), nb::arg("stream"),
           nb::arg("sms"),
           nb::sig("def combine(self, y: typing.Any, handle: Handle, weights: typing.Any, "
                   "topk_idx: typing.Any, topk_rows: typing.Any, biases: tuple, out: typing.Any, "
                   "out_weights: typing.Any, stream: int, sms: int) -> None"),
           "Group.combine into out and out_weights. topk_idx: weights of top-k slots with -1 count "
           "as 0. topk_rows (int32 [rows, top_k]): the rows of y that are added for each received "
           "row."_doc);
}

}  // namespace shoal::python
