// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "ep/cuda/layout/device_layout.hpp"
#include "ep/cuda/layout/rail_layout.hpp"
#include "ep/cuda/layout/result_layout.hpp"
#include "ep/host/group/layout.hpp"
#include "shoal/settings.hpp"

namespace shoal::ep {

SizeHint size_hint(const GroupOptions& options, std::int32_t ranks, DeviceKind heap,
                   std::int32_t nodes) {
  require(ranks >= 1, Code::invalid_argument,
          "SHOAL-N531: size_hint for {} ranks; at least 1 is needed", ranks);
  require(nodes >= 1 && ranks % nodes == 0, Code::invalid_argument,
          "SHOAL-N531: size_hint for {} ranks on {} nodes; they must be equally many on each",
          ranks, nodes);
  const detail::Shape shape = detail::make_shape(options, ranks, nodes);
  if (heap == DeviceKind::cuda) {
    const detail::DeviceLayout layout(shape);
    std::size_t rails = 0;
    if (nodes > 1 && options.max_tokens > 0) {
      const Settings settings;
      const detail::RailLayout rail(
          shape, layout.notice_bytes, layout.total,
          detail::option_or(shape.chunk_bytes, settings.ep_chunk),
          detail::chunk_depth(shape.chunks_in_flight, settings.ep_depth, true));
      rails = rail.end - rail.start;
    }
    return {layout.control_end, layout.normal_end - layout.control_end + rails,
            layout.total - layout.normal_end,
            options.low_latency_max_tokens > 0 ? detail::first_result_bytes(shape) : 0};
  }
  const host::GroupLayout layout(shape);
  return {layout.control_end, layout.normal_end - layout.control_end,
          layout.total - layout.normal_end};
}

std::size_t low_latency_size_hint(std::int64_t max_tokens, std::int64_t hidden, std::int32_t ranks,
                                  std::int32_t experts, std::int32_t top_k, DeviceKind heap) {
  GroupOptions options;
  options.low_latency_max_tokens = max_tokens;
  options.hidden = hidden;
  options.experts = experts;
  options.top_k = top_k;
  return size_hint(options, ranks, heap).low_latency;
}

}  // namespace shoal::ep
