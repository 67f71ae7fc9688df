// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/internode/kernels.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "device/device_side.hpp"
#include "ep/cuda/group/relaxed_capture.hpp"
#include "ep/cuda/layout/regions.hpp"
#include "ep/cuda/low_latency/internode/ranks.hpp"
#include "ep/group/block_map.hpp"
#include "fabric/fabric.hpp"
#include "memory/cuda/driver.hpp"
#include "memory/device.hpp"
#include "pe/memory.hpp"

namespace shoal::ep::cuda {
namespace {

/// Shape for which the block of the kernels has room.
detail::Shape low_latency_shape(const GroupState& state) {
  detail::Shape shape = state.shape;
  shape.max_tokens = 0;
  shape.combine_staging = false;
  shape.internode = true;
  return shape;
}

/// Indexed by rank: equal numbers where loads and stores reach.
std::vector<std::int32_t> domains_of(const GroupState& state) {
  const auto& of_pe = state.world->fabric().heap_domains();
  std::vector<std::int32_t> domains;
  for (std::int32_t rank = 0; rank < state.shape.ranks; ++rank)
    domains.push_back(of_pe[static_cast<std::size_t>(state.world_pe(rank))]);
  return domains;
}

/// Outboxes of the rank with the most ranks in other domains: memory has the same size on all.
std::size_t most_outboxes(const std::vector<std::int32_t>& domains) {
  std::size_t most = 0;
  for (const std::int32_t domain : domains)
    most = std::max<std::size_t>(
        most, domains.size() - std::count(domains.begin(), domains.end(), domain));
  return most;
}

}  // namespace

std::optional<std::string> why_no_kernels(const GroupState& state) {
  const auto& world = *state.world;
  if (world.settings().ep_between_nodes == "staged")
    return std::string("SHOAL_EP_BETWEEN_NODES is staged");
  if (state.shape.ranks > detail::kMaxDeviceRanks)
    return fmt::format("a group with kernels has at most {} ranks; this one has {}",
                       detail::kMaxDeviceRanks, state.shape.ranks);
  if (world.device_side() == nullptr || world.device_side()->world().proxy == nullptr)
    return fmt::format("PE {} has no proxy (SHOAL_PROXY_SLOTS is {})", world.my_pe(),
                       world.settings().proxy_slots);
  return std::nullopt;
}

NetworkPath path_of(const GroupState& state, const void* memory, std::size_t bytes) {
  auto& world = *state.world;
  const std::size_t offset = world.heap().offset_of(static_cast<const std::byte*>(memory));
  for (std::int32_t rank = 0; rank < state.shape.ranks; ++rank) {
    const Pe pe = state.world_pe(rank);
    if (world.fabric().peer_base(pe) == nullptr &&
        !world.device_side()->nic_reaches(pe, offset, bytes))
      return NetworkPath::proxy;
  }
  return NetworkPath::nic;
}

bool driver_moves_rows(const GroupState& state, NetworkPath path) {
  if (path == NetworkPath::nic) return false;
  auto& world = *state.world;
  for (std::int32_t rank = 0; rank < state.shape.ranks; ++rank) {
    const Pe pe = state.world_pe(rank);
    if (world.fabric().peer_base(pe) != nullptr) continue;
    const auto name = world.fabric().heap_route(pe, transport::capability::put).transport.name();
    if (name == "cuda_p2p" || name == "staged") return true;
  }
  return false;
}

Kernels::Kernels(GroupState& state) : group(state) {
  if (state.shape.low_latency_max_tokens > 0) low_latency.emplace(group, true);
  if (state.shape.max_tokens == 0) return;
  std::vector<Pe> pes;
  for (std::int32_t rank = 0; rank < state.shape.ranks; ++rank) pes.push_back(state.world_pe(rank));
  try {
    const detail::Nodes nodes = detail::make_nodes(domains_of(state), pes, state.me);
    // Sums are rounded by node, as the staged backend sees nodes.
    if (nodes.node_of != state.nodes.node_of)
      why_not_normal = "ranks of one host do not reach each other's GPUs";
    else
      why_not_normal = Internode::why_not(state.shape, nodes).value_or("");
    if (why_not_normal.empty()) normal = std::make_unique<NormalKernels>(state, nodes);
  } catch (const Error& error) {  // unequal nodes, or more than this mode has room for
    if (error.code() != Code::unsupported) throw;
    why_not_normal = error.what();
  }
}

void Kernels::open() {
  const GroupState& state = group.state;
  auto& world = *state.world;
  const auto domains = domains_of(state);
  const detail::Shape shape = low_latency_shape(state);
  const detail::DeviceLayout layout(shape);
  const std::size_t outboxes = most_outboxes(domains);
  memory_ = static_cast<std::byte*>(world.heap().malloc((1 + outboxes) * layout.total));
  const std::size_t offset = world.heap().offset_of(memory_);
  InternodeRanks remote{};
  remote.world = world.device_side()->world();
  remote.path = group.network = path_of(state, memory_, (1 + outboxes) * layout.total);
  group.driver_moves_rows = driver_moves_rows(state, group.network);
  group.loads_lazily = memory::cuda::loads_lazily();
  std::vector<std::byte*> blocks, reached;  // reached: nullptr where there is an outbox
  for (std::int32_t rank = 0; rank < state.shape.ranks; ++rank) {
    const Pe pe = state.world_pe(rank);
    if (domains[rank] == domains[state.me]) {
      blocks.push_back(world.fabric().peer_base(pe) + offset);
      reached.push_back(blocks.back());
      continue;
    }
    reached.push_back(nullptr);
    blocks.push_back(memory_ + (1 + static_cast<std::size_t>(remote.count)) * layout.total);
    remote_ranks.push_back(rank);
    remote.rank[remote.count] = static_cast<std::int16_t>(rank);
    remote.pe[remote.count++] = static_cast<std::int16_t>(pe);
  }
  world.memory().cuda()->activate();
  for (std::size_t box = 1; box <= outboxes; ++box)
    check(cudaMemsetAsync(memory_ + box * layout.total, 0, layout.control_end, group.stream),
          "outboxes of an ep::Group");
  group.open(layout, blocks);
  map_ = detail::show_block(state, "heap", offset, (1 + outboxes) * layout.total, reached,
                            detail::regions_of(layout, outboxes, shape));
  remote.world.timeout_ns = group.device.timeout_ns;
  preload_quiet();
  if (low_latency) low_latency->connect(remote);
  if (!normal) return;
  try {
    normal->open();
  } catch (const Error& error) {
    if (error.code() != Code::exhausted) throw;
    why_not_normal = error.what();
    normal.reset();
  }
  if (!normal || !low_latency || state.options.mask_failed) return;
  group.show(normal->group);
  normal->group.show(group);
}

void Kernels::drain() {
  const RelaxedCapture relaxed(*group.state.world->memory().cuda());
  if (normal) normal->drain();
  group.drain();
  launch_quiet(group.state.world->device_side()->world(), group.network, group.stream);
  check(cudaStreamSynchronize(group.stream), "end of an ep::Group's transfers");
}

void Kernels::release() {
  if (normal) normal->release();
  map_ = {};
  if (memory_ != nullptr) group.state.world->heap().free(memory_);
  memory_ = nullptr;
}

}  // namespace shoal::ep::cuda
