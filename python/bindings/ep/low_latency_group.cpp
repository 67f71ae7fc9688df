// SPDX-License-Identifier: Apache-2.0
#include "low_latency_group.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>

#include "../docs.hpp"
#include "../world/symmetric_array.hpp"
#include "shoal/world.hpp"

namespace shoal::python {
namespace {

constexpr std::array kForms{ep::Quantize::none, ep::Quantize::fp8, ep::Quantize::fp8_ue8m0,
                            ep::Quantize::nvfp4};

std::size_t form_of(ep::Quantize quantize) {
  if (quantize == ep::Quantize::none) return 0;
  if (quantize == ep::Quantize::nvfp4) return 3;
  return quantize == ep::Quantize::fp8_ue8m0 ? 2 : 1;
}

/// NVFP4 rows as DeepEP's branches return them: values [rows, hidden / 2, experts] and scales [32,
/// 4, row tiles, 4, group tiles, experts], contiguous by expert.
nb::tuple nvfp4_rows(const nb::object& values, const nb::object& scales) {
  const auto shape = nb::cast<std::vector<std::int64_t>>(scales.attr("shape"));
  const nb::object tiles = scales.attr("view")(shape[0], shape[1], shape[2], 32, 4, 4);
  return nb::make_tuple(values.attr("permute")(1, 2, 0), tiles.attr("permute")(3, 4, 1, 5, 2, 0));
}

}  // namespace

LowLatencyGroup::LowLatencyGroup(nb::handle_t<Group> group, const nb::object& from_dlpack,
                                 std::uintptr_t stream)
    : owner_(nb::borrow(group)),
      from_dlpack_(from_dlpack),
      group_(&nb::cast<Group&>(group).group),
      options_(group_->options()),
      local_experts_(group_->max_local_experts()),
      rows_(group_->team().size() * options_.low_latency_max_tokens),
      stream_(reinterpret_cast<Stream>(stream)) {
  constexpr std::int64_t kChannels = 64;  // of which all forms take multiples
  for (std::size_t form = 0; form < kForms && !known_; ++form)
    for (Arrays& arrays : in_turn_[form]) {
      if (form != 0 && options_.hidden % kChannels != 0) continue;
      ep::PendingDispatch pending = send_empty(form);
      known_ = pending.result() != nullptr;
      ep::LowLatencyReceived received;
      {
        const nb::gil_scoped_release released;
        received = pending.receive();
      }
      if (known_) break;
      arrays = make_arrays(received, form);
    }
}

ep::PendingDispatch LowLatencyGroup::send_empty(std::size_t form) {
  const auto nothing = [&](DataType dtype, std::int64_t columns) {
    TensorView view(nullptr, dtype, {0, columns});
    view.device = group_->team().world().heap().device();
    return view;
  };
  ep::LowLatencyDispatchOptions options;
  options.quantize = python::kForms[form];
  options.launch.stream = stream_;
  ++sent_;
  const nb::gil_scoped_release released;
  return group_->low_latency_dispatch(nothing(DataType::bfloat16, options_.hidden),
                                      nothing(DataType::int64, options_.top_k), options);
}

/// The tensor has no order of streams, because only a receive fills it.
nb::object LowLatencyGroup::tensor(Tensor of) const {
  const Group& owner = nb::cast<Group&>(owner_);
  return from_dlpack_(output(keep_heap(std::move(of), owner.keeper), kReady));
}

nb::object LowLatencyGroup::rows_of(const ep::LowLatencyReceived& received,
                                    std::size_t form) const {
  nb::object x = tensor(received.x);
  if (!received.scales) return x;
  const nb::object scales = tensor(*received.scales);
  if (python::kForms[form] == ep::Quantize::nvfp4) return nvfp4_rows(x, scales);
  return nb::make_tuple(x, scales);
}

LowLatencyGroup::Arrays LowLatencyGroup::make_arrays(const ep::LowLatencyReceived& received,
                                                     std::size_t form) const {
  Arrays arrays{
      rows_of(received, form), tensor(received.counts), {}, received.x.data, received.counts.data};
  // The tuple that a handle is made of, in a tuple of arguments.
  arrays.entries = nb::make_tuple(
      nb::make_tuple(tensor(received.source_token), tensor(received.layout),
                     options_.low_latency_max_tokens, options_.hidden, options_.experts));
  return arrays;
}

LowLatencyGroup::Arrays LowLatencyGroup::arrays_of(const ep::PendingDispatch& pending,
                                                   ep::Quantize quantize) {
  const std::size_t form = form_of(quantize), parity = sent_++ & 1;
  if (!known_) return in_turn_[form][parity];
  const ep::LowLatencyReceived& result = *pending.result();
  const bool lasts = quantize != ep::Quantize::none;  // the tensors of its rows
  last_rows_ = lasts ? result.x : Tensor();
  std::vector<Arrays>& seen = seen_[form];
  const auto found = std::ranges::find_if(seen, [&](const Arrays& arrays) {
    return arrays.counts_at == result.counts.data && (!lasts || arrays.x == result.x.data);
  });
  if (found == seen.end()) {
    const Arrays made = make_arrays(result, form);
    seen.push_back(made);
    if (!lasts) seen.back().rows = {};
    return made;
  }
  Arrays arrays = *found;
  if (!lasts) arrays.rows = rows_of(result, form);
  arrays.x = result.x.data;
  return arrays;
}

nb::object LowLatencyGroup::next_combine_buffer() {
  const Group& owner = nb::cast<Group&>(owner_);
  TensorView view;
  {
    const nb::gil_scoped_release released;
    view = group_->next_combine_buffer();
  }
  combine_buffer_ = view;
  return from_dlpack_(output(keep_heap(Tensor(view, owner.owner()), owner.keeper), kReady));
}

void LowLatencyGroup::close() {
  in_turn_ = {};
  seen_ = {};
  last_rows_ = {};
  Group& owner = nb::cast<Group&>(owner_);
  const nb::gil_scoped_release released;
  owner.close();
}

void SentDispatch::receive() {
  ep::LowLatencyReceived result;
  {
    const nb::gil_scoped_release released;
    result = pending.receive();
  }
  handle = result.handle;
  pending = {};
  kept = {};
  native_assert(result.x.data == x,
                "low_latency_dispatch: the result lies outside the arrays that were returned");
}

void SentCombine::receive() {
  {
    const nb::gil_scoped_release released;
    (void)pending.receive();
  }
  pending = {};
  kept = {};
}

void bind_low_latency_group(nb::module_& module) {
  nb::class_<LowLatencyGroup>(
      module, "LowLatencyGroup",
      "A Group in low-latency mode with its receive arrays as tensors, for deep_ep."_doc)
      .def(nb::init<nb::handle_t<Group>, const nb::object&, std::uintptr_t>(), nb::arg("group"),
           nb::arg("from_dlpack"), nb::arg("stream"),
           nb::sig("def __init__(self, group: Group, from_dlpack: typing.Any, stream: int) -> "
                   "None"),
           "Collective."_doc)
      .def_prop_ro("group", &LowLatencyGroup::owner, nb::sig("def group(self) -> Group"),
                   "The Group."_doc)
      .def("close", &LowLatencyGroup::close, "Frees the memory. Collective."_doc);
  nb::class_<SentDispatch>(module, "SentDispatch", "A low-latency dispatch of deep_ep."_doc)
      .def("__call__", &SentDispatch::receive, "Receives; once."_doc);
  nb::class_<SentCombine>(module, "SentCombine", "A low-latency combine of deep_ep."_doc)
      .def("__call__", &SentCombine::receive, "Receives; once."_doc);
}

}  // namespace shoal::python
