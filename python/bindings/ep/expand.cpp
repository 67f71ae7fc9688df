// SPDX-License-Identifier: Apache-2.0
// ep/expand.cpp: shoal._core.ep.expand, for deep_ep.
#include "../docs.hpp"
#include "group.hpp"
#include "options.hpp"

namespace shoal::python {
namespace {

void expand(nb::handle_t<Group> group, nb::handle x, nb::handle topk_idx, nb::handle row_count,
            nb::handle expert_counts, nb::handle expert_ends, nb::handle weights, nb::handle scales,
            nb::handle topk_rows, bool numbered, nb::handle out, nb::handle out_weights,
            nb::handle out_scales, nb::handle block_ends, bool zero_padding,
            std::uintptr_t stream) {
  Inputs arrays;
  ep::ExpandOptions options;
  options.x = arrays.read(x, "x");
  options.topk_idx = arrays.read(topk_idx, "topk_idx");
  options.row_count = arrays.read(row_count, "row_count");
  options.expert_counts = arrays.read(expert_counts, "expert_counts");
  options.expert_ends = arrays.read(expert_ends, "expert_ends");
  options.weights = arrays.read(weights, "weights");
  options.scales = arrays.read(scales, "scales");
  options.topk_rows = arrays.write(topk_rows, "topk_rows");
  options.numbered = numbered;
  options.out = arrays.write(out, "out");
  options.out_weights = arrays.write(out_weights, "out_weights");
  options.out_scales = arrays.write(out_scales, "out_scales");
  options.block_ends = arrays.write(block_ends, "block_ends");
  options.zero_padding = zero_padding;
  options.launch.stream = reinterpret_cast<void*>(stream);
  ep::Group& target = nb::cast<Group&>(group).group;
  const nb::gil_scoped_release released;
  target.expand(options);
}

}  // namespace

void bind_expand(nb::module_& module) {
  module.def("expand", &expand, nb::arg("group"), nb::arg("x"), nb::arg("topk_idx"),
             nb::arg("row_count").none(), nb::arg("expert_counts"), nb::arg("expert_ends"),
             nb::arg("weights").none(), nb::arg("scales").none(), nb::arg("topk_rows"),
             nb::arg("numbered"), nb::arg("out"), nb::arg("out_weights").none(),
             nb::arg("out_scales").none(), nb::arg("block_ends").none(), nb::arg("zero_padding"),
             nb::arg("stream"),
             nb::sig("def expand(group: Group, x: typing.Any, topk_idx: typing.Any, row_count: "
                     "typing.Any, expert_counts: typing.Any, expert_ends: typing.Any, weights: "
                     "typing.Any, scales: typing.Any, topk_rows: typing.Any, numbered: bool, out: "
                     "typing.Any, out_weights: typing.Any, out_scales: typing.Any, block_ends: "
                     "typing.Any, zero_padding: bool, stream: int) -> None"),
             "Copies rank-major rows to expert-major order (shoal::ep::ExpandOptions). stream: a "
             "cudaStream_t, 0 on the host."_doc);
}

}  // namespace shoal::python
