// SPDX-License-Identifier: Apache-2.0
#include "low_latency_group.hpp"

#include <nanobind/stl/vector.h>

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
      rows_(group_->team().size() * options_.low_latency_max_tokens) {
  constexpr std::int64_t kChannels = 64;  // of which all forms take multiples
  for (std::size_t form = 0; form < kForms; ++form)
    for (Arrays& arrays : arrays_[form]) {
      if (form != 0 && options_.hidden % kChannels != 0) continue;
      arrays = receive_empty(form, reinterpret_cast<Stream>(stream));
    }
}

LowLatencyGroup::Arrays LowLatencyGroup::receive_empty(std::size_t form, Stream stream) {
  const auto nothing = [&](DataType dtype, std::int64_t columns) {
    TensorView view(nullptr, dtype, {0, columns});
    view.device = group_->team().world().heap().device();
    return view;
  };
  ep::LowLatencyDispatchOptions options;
  options.quantize = python::kForms[form];
  options.launch.stream = stream;
  ++sent_;
  ep::LowLatencyReceived received;
  {
    const nb::gil_scoped_release released;
    received = group_
                   ->low_latency_dispatch(nothing(DataType::bfloat16, options_.hidden),
                                          nothing(DataType::int64, options_.top_k), options)
                   .receive();
  }
  const void* const x = received.x.data;
  const bool scaled = received.scales.has_value();
  const auto tensor = [&](Tensor& of) {
    return nb::object(
        from_dlpack_(nb::cast<Group&>(owner_).result(nullptr, std::move(of), stream).get()));
  };
  Arrays arrays{tensor(received.x), tensor(received.counts), {}, x};
  if (options.quantize == ep::Quantize::nvfp4)
    arrays.rows = nvfp4_rows(arrays.rows, tensor(*received.scales));
  else if (scaled)
    arrays.rows = nb::make_tuple(arrays.rows, tensor(*received.scales));
  // The tuple that a handle is made of, in a tuple of arguments.
  arrays.entries = nb::make_tuple(
      nb::make_tuple(tensor(received.source_token), tensor(received.layout),
                     options_.low_latency_max_tokens, options_.hidden, options_.experts));
  return arrays;
}

const LowLatencyGroup::Arrays& LowLatencyGroup::next_arrays(ep::Quantize quantize) {
  return arrays_[form_of(quantize)][sent_++ & 1];
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
  arrays_ = {};
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
                "low_latency_dispatch: the result lies outside the two sets of receive arrays");
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
