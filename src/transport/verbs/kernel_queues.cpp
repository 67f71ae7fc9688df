// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/kernel_queues.hpp"

#include <algorithm>
#include <bit>

#include "base/align.hpp"
#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/verbs/order.hpp"

namespace shoal::transport::verbs {
namespace {

/// Most inline bytes of a request of one block, as requests of kernels are.
constexpr std::uint32_t kInlineBytes =
    mlx5::kBlockBytes - 2 * mlx5::kSegmentBytes - mlx5::kInlineHeader;
constexpr std::uint32_t kLargestMessage = 1U << 30;  ///< bytes
/// With fewer, normal mode between nodes waits for signals behind chunks
/// (docs/decisions/nic-as-a-gpu-kernel.md).
constexpr std::int64_t kDefaultQueuePairs = 4;

}  // namespace

KernelQueues::KernelQueues(const Options& options)
    : required_(options.settings.gda == "on"),
      port_(dynamic_cast<const devx::CommandPort*>(&options.port)),
      heap_(options.heap),
      sink_(options.sink),
      peers_(static_cast<std::size_t>(options.n_pes)) {
  try {
    require(
        port_ != nullptr, Code::unsupported,
        "SHOAL-N386: kernels cannot drive the queues of libibverbs; SHOAL_VERBS_INTERFACE is {}, "
        "allowed with SHOAL_GDA: devx",
        options.settings.verbs_interface);
    const std::int64_t chosen = options.settings.gda_queue_pairs;
    const auto each = static_cast<std::size_t>(chosen != 0 ? chosen : kDefaultQueuePairs);
    create(options, each);
    each_ = each;
  } catch (const Error& error) {
    if (required_) throw;
    obstacle_ = error.reason();
    for (Peer& peer : peers_) peer.lines.clear();
    log::info("PE {}: transport verbs: no queue pairs for kernels: {}", options.my_pe, obstacle_);
  }
}

void KernelQueues::create(const Options& options, std::size_t each) {
  QueueLimits limits = options.limits;
  limits.inline_bytes = kInlineBytes;
  const std::uint32_t slots = devx::ring_blocks(port_->commands(), limits);
  const bool rotated = options.settings.verbs_queue_order == "rotated";
  std::size_t existing = options.existing;
  for (const Place& place : creation_order(options.n_pes, options.my_pe, each, rotated)) {
    if (!options.wanted[static_cast<std::size_t>(place.pe)]) continue;
    Line line;
    line.completions =
        std::make_unique<devx::CompletionQueue>(port_->commands(), slots, devx::Overrun::ignored);
    line.queue = std::make_unique<devx::CommandQueuePair>(
        *port_, limits, QueuePairName{options.my_pe, place.pe, place.index, each}, existing++,
        *line.completions);
    peer(place.pe).lines.push_back(std::move(line));
  }
}

std::vector<QueueAddress> KernelQueues::addresses() const {
  std::vector<QueueAddress> all;
  for (const Peer& peer : peers_)
    for (std::size_t i = 0; i < each_; ++i) {
      QueueAddress address;
      if (i < peer.lines.size()) {
        address.number = peer.lines[i].queue->number();
        address.first_packet = peer.lines[i].queue->first_packet();
      }
      all.push_back(address);
    }
  return all;
}

void KernelQueues::connect(Pe pe, const PathAddress& path, std::span<const QueueAddress> theirs) {
  Peer& to = peer(pe);
  if (theirs.size() != each_ || each_ == 0) {
    if (each_ != 0)
      to.obstacle = fmt::format(
          "SHOAL-N387: PE {} has {} queue pairs for kernels per peer, this PE {}; "
          "settings: SHOAL_GDA, SHOAL_GDA_QUEUE_PAIRS",
          pe, theirs.size(), each_);
  } else {
    for (std::size_t i = 0; i < to.lines.size(); ++i) to.lines[i].queue->connect(path, theirs[i]);
    to.connected = true;
  }
  const std::string why = obstacle(pe);
  require(
      why.empty() || !required_, Code::unsupported,
      "SHOAL-N403: SHOAL_GDA is on, but kernels do not reach PE {}: {}; allowed: off, automatic, "
      "on",
      pe, why);
}

std::string KernelQueues::obstacle(Pe pe) const {
  const Peer& to = peer(pe);
  if (!obstacle_.empty()) return obstacle_;
  if (!to.obstacle.empty()) return to.obstacle;
  if (!to.connected) return "the PE is not connected by this network";
  return heap_.first_step(pe) == 0 ? "data pass " + heap_.describe(pe) : "";
}

std::vector<DeviceQueues::Range> KernelQueues::memory() const {
  std::vector<Range> ranges;
  for (const Peer& peer : peers_)
    for (const Line& line : peer.lines)
      for (const devx::QueueMemory* const memory :
           {&line.completions->memory(), &line.queue->memory()})
        ranges.push_back({memory->at(0), memory->bytes(), false});
  if (ranges.empty()) return ranges;
  const auto doorbell = reinterpret_cast<std::uintptr_t>(port_->commands().doorbell());
  auto* const page = reinterpret_cast<std::byte*>(doorbell / kPageBytes * kPageBytes);
  ranges.push_back({page, kPageBytes, !port_->library().emulated});
  return ranges;
}

DeviceQueues::Route KernelQueues::route(Pe pe) const {
  Route route;
  route.obstacle = obstacle(pe);
  if (!route.obstacle.empty()) return route;
  for (const Line& line : peer(pe).lines)
    route.queues.push_back({line.queue->sends(), line.completions->ring()});
  const RemoteMemory there = heap_.remote(pe, 0, 0);
  route.heap = {there.base, there.key};
  route.local_key = heap_.local_key(heap_.base(), 0);
  route.heap_bytes = heap_.first_step(pe);
  route.sink = sink_;
  route.largest_message = std::min(kLargestMessage, port_->attributes().max_msg_sz);
  return route;
}

std::string KernelQueues::describe(Pe pe) const {
  const std::string why = obstacle(pe);
  if (!why.empty()) return "no queue pairs for kernels: " + why;
  const std::size_t count = peer(pe).lines.size();
  return fmt::format("{} queue pair{} for kernels on {}", count, count == 1 ? "" : "s",
                     port_->label());
}

}  // namespace shoal::transport::verbs
