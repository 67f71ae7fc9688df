// SPDX-License-Identifier: Apache-2.0
// Prints the memory map of an example group as JSON, from the layout code of both backends. Input
// of draw.py.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ep/cuda/layout.hpp"
#include "ep/host/layout.hpp"

namespace {

using shoal::ep::detail::DeviceLayout;
using shoal::ep::detail::Shape;
using shoal::ep::host::GroupLayout;

struct Area {
  const char* name;
  std::size_t offset;
  const char* part;
};

/// The areas in memory order. An area ends where the next one starts; empty ones are left out.
nlohmann::json map_of(const char* name, std::vector<Area> areas, std::size_t total) {
  std::ranges::stable_sort(areas, {}, &Area::offset);
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < areas.size(); ++i) {
    const std::size_t end = i + 1 < areas.size() ? areas[i + 1].offset : total;
    if (end == areas[i].offset) continue;
    list.push_back({{"name", areas[i].name},
                    {"offset", areas[i].offset},
                    {"bytes", end - areas[i].offset},
                    {"part", areas[i].part}});
  }
  return {{"name", name}, {"total", total}, {"areas", list}};
}

nlohmann::json host_map(const Shape& shape) {
  const GroupLayout at(shape);
  return map_of("Host memory",
                {{"entered", at.entered, "control"},
                 {"finished", at.finished, "control"},
                 {"slots_sent", at.slots_sent, "control"},
                 {"slots_read", at.slots_read, "control"},
                 {"combine_ready", at.combine_ready, "control"},
                 {"combine_read", at.combine_read, "control"},
                 {"failed", at.failed, "control"},
                 {"notices", at.notices, "control"},
                 {"dispatch_notices", at.dispatch_notices, "control"},
                 {"combine_notices", at.combine_notices, "control"},
                 {"arena", at.arena, "normal"},
                 {"staging", at.staging, "normal"},
                 {"staging_weights", at.staging_weights, "normal"},
                 {"slots", at.slots, "low_latency"},
                 {"outbox", at.outbox, "low_latency"},
                 {"combine_rows", at.combine_rows, "low_latency"}},
                at.total);
}

nlohmann::json device_map(const Shape& shape) {
  const DeviceLayout at(shape);
  return map_of("GPU memory",
                {{"entered", at.entered, "control"},
                 {"finished", at.finished, "control"},
                 {"dispatch_read", at.dispatch_read, "control"},
                 {"combine_read", at.combine_read, "control"},
                 {"failed", at.failed, "control"},
                 {"notices", at.notices, "control"},
                 {"low_latency_notices", at.low_latency_notices, "control"},
                 {"slot_headers", at.slot_headers, "control"},
                 {"slot_counts", at.slot_counts, "control"},
                 {"slot_ready", at.slot_ready, "control"},
                 {"combine_flags", at.combine_flags, "control"},
                 {"arena", at.arena, "normal"},
                 {"staging", at.staging, "normal"},
                 {"staging_weights", at.staging_weights, "normal"},
                 {"slot_weights", at.slot_weights, "low_latency"},
                 {"slots", at.slots, "low_latency"},
                 {"combine_weights", at.combine_weights, "low_latency"},
                 {"combine_rows", at.combine_rows, "low_latency"}},
                at.total);
}

}  // namespace

int main() {
  shoal::ep::GroupOptions options;
  options.max_tokens = 4096;
  options.low_latency_max_tokens = 128;
  options.hidden = 7168;
  options.top_k = 8;
  options.experts = 256;
  const Shape shape = shoal::ep::detail::make_shape(options, 8);
  const nlohmann::json result = {
      {"title",
       fmt::format("{} ranks, {} tokens of {} channels, top-{} of {} experts, low latency: {} "
                   "tokens",
                   shape.ranks, options.max_tokens, options.hidden, options.top_k, options.experts,
                   options.low_latency_max_tokens)},
      {"layouts", {host_map(shape), device_map(shape)}}};
  fmt::print("{}\n", result.dump());
}
