// SPDX-License-Identifier: Apache-2.0
// ep/hooked.cpp: the fast path of deep_ep's low-latency calls.
//
// A model makes such a call twice per layer, so host time counts. The caller knows the addresses of
// results and receives in a hook (or at once). A call compares its arguments with what they must be
// and creates nothing that only errors need. For any other argument it returns None and has no
// effect; the caller then takes the general path (ep/low_latency.cpp), which accepts more kinds of
// arrays and explains errors.
#include <nanobind/stl/string.h>

#include <array>
#include <stdexcept>

#include "../docs.hpp"
#include "group.hpp"
#include "options.hpp"
#include "shoal/world.hpp"
#include "tensors.hpp"

namespace shoal::python {
namespace {

/// The arrays of a phase, kept until its receive is done, or queued on a GPU.
using Kept = std::array<nb::object, 6>;

/// A dispatch that was sent. Calling it receives.
struct HookedDispatch {
  ep::PendingDispatch pending;
  Kept kept;
  const void* rows;  ///< the address at which the rows must arrive
  std::int64_t tokens;
  ep::LowLatencyHandle handle;  ///< set by receive

  void receive() {
    ep::LowLatencyReceived result;
    {
      nb::gil_scoped_release released;
      result = pending.receive();
    }
    handle = result.handle;
    pending = {};
    kept = {};
    if (result.x.data != rows)
      throw std::runtime_error(
          "Assertion exception (deep_ep): low_latency_dispatch: the result lies outside the two "
          "sets "
          "of receive arrays");
  }
};

/// A combine that was sent. Calling it receives.
struct HookedCombine {
  ep::PendingCombine pending;
  Kept kept;

  void receive() {
    {
      nb::gil_scoped_release released;
      (void)pending.receive();
    }
    pending = {};
    kept = {};
  }
};

/// The calls of one group with one quantization.
class HookedCalls {
 public:
  /// rows, other_rows: the tensors over the two sets of receive arrays. Arguments must have their
  /// type and device.
  HookedCalls(nb::handle_t<Group> group, ep::Quantize quantize, nb::handle rows,
              nb::handle other_rows)
      : keeper_(nb::borrow(group)),
        group_(nb::cast<Group&>(group).group),
        tensors_(nb::cast<Group&>(group).group.team().world().heap().device(), rows.type()),
        quantize_(quantize),
        hidden_(group_.options().hidden),
        top_k_(group_.options().top_k),
        max_tokens_(group_.options().low_latency_max_tokens),
        local_experts_(group_.local_experts()),
        ranks_(group_.team().size()) {
    if (!tensors_.usable()) return;
    for (const auto& [half, tensor] : {std::pair{0, rows}, std::pair{1, other_rows}}) {
      const auto view = exchange_view(tensor);
      places_[half] = static_cast<std::byte*>(view->data) + view->byte_offset;
    }
  }

  nb::object dispatch(nb::handle x, nb::handle topk_idx, unsigned half, nb::handle expert_counts,
                      nb::handle wait_ns, bool defer_receive) const {
    TensorView rows, indices;
    ep::LowLatencyDispatchOptions options;
    options.quantize = quantize_;
    options.defer_receive = defer_receive;
    if (!tensors_.usable() || !tensors_.take(rows, x, DataType::bfloat16, {kAny, hidden_}) ||
        rows.shape[0] > max_tokens_ ||
        !tensors_.take(indices, topk_idx, DataType::int64, {rows.shape[0], top_k_}) ||
        !tensors_.take_optional(options.expert_counts, expert_counts, DataType::int32,
                                {local_experts_}) ||
        !tensors_.take_optional(options.wait_ns, wait_ns, DataType::int64, {ranks_}) ||
        !tensors_.follow(options.launch))
      return nb::none();
    HookedDispatch sent{{},
                        {keeper_, nb::borrow(x), nb::borrow(topk_idx), nb::borrow(expert_counts),
                         nb::borrow(wait_ns)},
                        places_[half & 1],
                        rows.shape[0],
                        {}};
    {
      nb::gil_scoped_release released;
      sent.pending = group_.low_latency_dispatch(rows, indices, options);
    }
    return nb::cast(std::move(sent));
  }

  nb::object combine(nb::handle y, nb::handle topk_idx, nb::handle topk_weights, nb::handle sent,
                     nb::handle out, nb::handle wait_ns, nb::handle log_fmt,
                     bool defer_receive) const {
    if (!tensors_.usable() || !PyBool_Check(log_fmt.ptr()) || !nb::isinstance<HookedDispatch>(sent))
      return nb::none();
    const auto& dispatch = nb::cast<const HookedDispatch&>(sent);
    TensorView rows, indices, weights;
    ep::LowLatencyCombineOptions options;
    options.log_fmt = log_fmt.is(Py_True);
    options.defer_receive = defer_receive;
    if (!dispatch.handle.valid() ||
        !tensors_.take(indices, topk_idx, DataType::int64, {dispatch.tokens, top_k_}) ||
        !tensors_.take(weights, topk_weights, DataType::float32, {dispatch.tokens, top_k_}) ||
        !tensors_.take(rows, y, DataType::bfloat16,
                       {local_experts_, ranks_ * max_tokens_, hidden_}) ||
        !tensors_.take(options.out, out, DataType::bfloat16, {dispatch.tokens, hidden_}) ||
        !tensors_.take_optional(options.wait_ns, wait_ns, DataType::int64, {ranks_}) ||
        !tensors_.follow(options.launch))
      return nb::none();
    HookedCombine hook{{},
                       {keeper_, nb::borrow(y), nb::borrow(topk_idx), nb::borrow(topk_weights),
                        nb::borrow(out), nb::borrow(wait_ns)}};
    {
      nb::gil_scoped_release released;
      hook.pending = group_.low_latency_combine(rows, indices, weights, dispatch.handle, options);
    }
    return nb::cast(std::move(hook));
  }

 private:
  static constexpr std::int64_t kAny = PlainTensors::kAny;

  nb::object keeper_;
  ep::Group& group_;
  PlainTensors tensors_;
  ep::Quantize quantize_;
  std::int64_t hidden_, top_k_, max_tokens_, local_experts_, ranks_;
  std::array<const void*, 2> places_{};
};

}  // namespace

void bind_hooked(nb::module_& module) {
  nb::class_<HookedDispatch>(module, "HookedDispatch",
                             "A dispatch of HookedCalls that was sent."_doc)
      .def("__call__", &HookedDispatch::receive, "Receives; once."_doc)
      .def_ro("tokens", &HookedDispatch::tokens, "Tokens of this rank."_doc)
      .def_prop_ro(
          "handle",
          [](const HookedDispatch& self) {
            return self.handle.valid() ? nb::cast(self.handle) : nb::none();
          },
          nb::sig("def handle(self) -> LowLatencyHandle | None"),
          "For Group.low_latency_combine; None before the receive."_doc);
  nb::class_<HookedCombine>(module, "HookedCombine", "A combine of HookedCalls that was sent."_doc)
      .def("__call__", &HookedCombine::receive, "Receives; once."_doc);
  nb::class_<HookedCalls>(
      module, "HookedCalls",
      "Low-latency calls of one group with the least host time, for callers "
      "that know the addresses of the results.\n\n"
      "A call returns None and has no effect where an argument is not a "
      "contiguous tensor of the type, device, dtype and shape that Group's call "
      "documents. Group's call then accepts the argument or explains the "
      "error."_doc)
      .def(
          "__init__",
          [](HookedCalls* self, nb::handle_t<Group> group, nb::handle quantize, nb::handle rows,
             nb::handle other_rows) {
            new (self) HookedCalls(group, quantize_from("HookedCalls", quantize), rows, other_rows);
          },
          nb::arg("group"), nb::arg("quantize"), nb::arg("rows"), nb::arg("other_rows"),
          nb::sig("def __init__(self, group: Group, quantize: str, rows: typing.Any, other_rows: "
                  "typing.Any) -> None"),
          "rows, other_rows: the tensors over the two sets of receive arrays, used in turn."_doc)
      .def("dispatch", &HookedCalls::dispatch, nb::arg("x").none(), nb::arg("topk_idx").none(),
           nb::arg("half"), nb::arg("expert_counts").none(), nb::arg("wait_ns").none(),
           nb::arg("defer_receive"),
           nb::sig("def dispatch(self, x: typing.Any, topk_idx: typing.Any, half: int, "
                   "expert_counts: typing.Any, wait_ns: typing.Any, defer_receive: bool) -> "
                   "HookedDispatch | None"),
           "Group.low_latency_dispatch, with topk_idx of int64 only. half: 0 for a result in rows, "
           "1 in other_rows."_doc)
      .def("combine", &HookedCalls::combine, nb::arg("y").none(), nb::arg("topk_idx").none(),
           nb::arg("topk_weights").none(), nb::arg("sent").none(), nb::arg("out").none(),
           nb::arg("wait_ns").none(), nb::arg("log_fmt").none(), nb::arg("defer_receive"),
           nb::sig("def combine(self, y: typing.Any, topk_idx: typing.Any, topk_weights: "
                   "typing.Any, sent: HookedDispatch | None, out: typing.Any, wait_ns: typing.Any, "
                   "log_fmt: bool, defer_receive: bool) -> HookedCombine | None"),
           "Group.low_latency_combine. sent: the received dispatch."_doc);
}

}  // namespace shoal::python
