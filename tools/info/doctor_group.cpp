// SPDX-License-Identifier: Apache-2.0
// Checks of what an expert-parallel group takes: requests in flight, heap, memory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/check.hpp"
#include "ep/host/group/loads.hpp"
#include "info/doctor.hpp"
#include "info/text.hpp"
#include "shoal/ep/options.hpp"
#include "transport/verbs/requirements.hpp"

namespace shoal::info {
namespace {

ep::GroupOptions options_of(const EpShape& shape) {
  ep::GroupOptions options;
  options.max_tokens = options.low_latency_max_tokens = shape.tokens;
  options.hidden = shape.hidden;
  options.top_k = shape.top_k;
  options.experts = shape.experts;
  return options;
}

/// Nodes of the group: hosts of as many PEs as this one has, or emulated nodes.
std::int32_t nodes_of(const Subject& subject) {
  const std::int64_t split = subject.settings.node_size;
  const std::int64_t each = split > 0 ? split : subject.pes;
  const std::int32_t ranks = subject.group.ranks;
  return ranks > each && ranks % each == 0 ? static_cast<std::int32_t>(ranks / each) : 1;
}

std::string shown(const Subject& subject) {
  const EpShape& shape = subject.group;
  return fmt::format("{} of {} tokens, {} channels, top {} of {} experts, {} on {}",
                     shape.given ? "group" : "assumed group (--ep names another)", shape.tokens,
                     shape.hidden, shape.top_k, shape.experts, count_text(shape.ranks, "rank"),
                     count_text(nodes_of(subject), "node"));
}

/// A fault of the group that the user has named; of another one, a program may do without.
Finding too_small(const Subject& subject, std::string name, std::string found, std::string remedy) {
  return {std::move(name), subject.group.given ? State::fault : State::warning, std::move(found),
          std::move(remedy)};
}

DeviceKind heap_of(const Subject& subject) {
  return subject.settings.heap_on_gpu() ? DeviceKind::cuda : DeviceKind::host;
}

Finding group_queue_depth(const Subject& subject) {
  const std::string name = "group queue depth";
  const std::int32_t nodes = nodes_of(subject);
  if (nodes < 2) return not_applicable(name, shown(subject) + ": no rank is on another node");
  const Settings& settings = subject.settings;
  const auto shape = ep::detail::make_shape(options_of(subject.group), subject.group.ranks, nodes);
  const ep::host::GroupLayout layout(shape, settings);
  const auto loads = ep::host::internode_loads(shape, layout);
  constexpr std::size_t kMostDepth = 32'768;  // of SHOAL_VERBS_DEPTH
  const auto shortfalls = transport::verbs::shortfalls(
      transport::verbs::PeerQueues{
          .queue_pairs = static_cast<std::size_t>(settings.verbs_queue_pairs),
          .piece_bytes = settings.network_chunk,
          .depth = static_cast<std::size_t>(settings.verbs_depth),
          .most_depth = kMostDepth,
          .network_depth = static_cast<std::size_t>(settings.network_depth)},
      loads);
  if (shortfalls.empty())
    return ok(name, fmt::format("{}: SHOAL_NETWORK_DEPTH={} and SHOAL_VERBS_DEPTH={} hold it",
                                shown(subject), settings.network_depth, settings.verbs_depth));
  return warning(name, fmt::format("{}: {}", shown(subject), fmt::join(shortfalls, "; ")),
                 "the settings that the sentences name; the group works all the same, and waits");
}

Finding group_heap(const Subject& subject) {
  const std::string name = "group heap";
  const ep::SizeHint hint = ep::size_hint(options_of(subject.group), subject.group.ranks,
                                          heap_of(subject), nodes_of(subject));
  const std::size_t heap = subject.settings.symmetric_size;
  const std::size_t larger = hint.control + std::max(hint.normal, hint.low_latency);
  const std::string found =
      fmt::format("{}: normal mode takes {}, low-latency mode {} of a heap of {}", shown(subject),
                  bytes_text(hint.control + hint.normal),
                  bytes_text(hint.control + hint.low_latency), bytes_text(heap));
  const std::string remedy = fmt::format("SHOAL_SYMMETRIC_SIZE={}M", (hint.total() >> 20) + 64);
  if (hint.total() <= heap) return ok(name, found);
  if (larger <= heap)
    return warning(name, found + ": each mode fits, both together do not", remedy);
  return too_small(subject, name, found, remedy);
}

Finding group_memory(const Subject& subject) {
  const std::string name = "group memory";
  const std::int32_t nodes = nodes_of(subject);
  const ep::SizeHint hint =
      ep::size_hint(options_of(subject.group), subject.group.ranks, heap_of(subject), nodes);
  const std::int64_t here = std::min<std::int64_t>(subject.pes, subject.group.ranks / nodes);
  std::uint64_t there = 0, need = static_cast<std::uint64_t>(here) * hint.total();
  std::string of;
  if (!subject.settings.heap_on_gpu()) {
    there = host_memory(subject.system);
    of = "host memory";
  } else if (!subject.gpus.gpus.empty()) {
    const auto gpus = static_cast<std::int64_t>(subject.gpus.gpus.size());
    there = std::ranges::min(subject.gpus.gpus, {}, &memory::GpuInfo::memory).memory;
    need = static_cast<std::uint64_t>((here + gpus - 1) / gpus) * hint.total();
    of = "the memory of a GPU";
  }
  if (there == 0) return not_applicable(name, "the size of the memory is not known");
  const std::string found =
      fmt::format("{}: {} of {} ({})", shown(subject), bytes_text(need), bytes_text(there), of);
  if (need <= there) return ok(name, found);
  return too_small(subject, name, found,
                   "fewer tokens for a rank, or more ranks on other nodes or GPUs");
}

}  // namespace

EpShape ep_shape_from(const std::string& text) {
  std::vector<std::int64_t> numbers;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::int64_t number = 0;
    const auto [rest, error] = std::from_chars(text.data() + at, text.data() + end, number);
    require(error == std::errc{} && rest == text.data() + end && number > 0 &&
                number <= std::numeric_limits<std::int32_t>::max(),
            Code::invalid_argument,
            "--ep is \"{}\"; allowed: TOKENS,HIDDEN,TOPK,EXPERTS,RANKS, such as 128,7168,8,256,64",
            text);
    numbers.push_back(number);
    at = end + 1;
  }
  require(numbers.size() == 5, Code::invalid_argument,
          "--ep is \"{}\" with {} numbers; allowed: TOKENS,HIDDEN,TOPK,EXPERTS,RANKS", text,
          numbers.size());
  EpShape shape{numbers[0],
                numbers[1],
                static_cast<std::int32_t>(numbers[2]),
                static_cast<std::int32_t>(numbers[3]),
                static_cast<std::int32_t>(numbers[4]),
                true};
  (void)ep::size_hint(options_of(shape), shape.ranks);  // throws where there is no such group
  return shape;
}

EpShape assumed_ep_shape(std::int32_t pes) {
  constexpr std::int32_t kExperts = 256;
  EpShape shape{128, 7168, 8, kExperts, 2 * pes, false};
  shape.experts = (kExperts + shape.ranks - 1) / shape.ranks * shape.ranks;
  return shape;
}

std::vector<Check> group_checks() {
  return {group_queue_depth, group_heap, group_memory};
}

}  // namespace shoal::info
