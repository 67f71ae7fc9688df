// SPDX-License-Identifier: Apache-2.0
// The start and the end of a verbs network: ports, memory, queue pairs, addresses.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/message/address.hpp"
#include "transport/message/limits.hpp"
#include "transport/message/pieces.hpp"
#include "transport/verbs/network.hpp"
#include "transport/verbs/open_port.hpp"
#include "transport/verbs/order.hpp"
#include "transport/verbs/report.hpp"
#include "transport/verbs/requirements.hpp"

namespace shoal::transport::verbs {
namespace {

using message::append;
using message::kBounceBytes;
using message::kBounces;
using message::kCloseTimeout;
using message::value_at;

}  // namespace

Network::Network(message::Engine& engine, const Context& context)
    : engine_(engine),
      settings_(*context.settings),
      n_pes_(context.n_pes),
      queue_pairs_(static_cast<std::size_t>(context.settings->verbs_queue_pairs)),
      library_(load_library(context.settings->verbs_library)),
      links_(static_cast<std::size_t>(context.n_pes)) {
  const auto n_peers =
      static_cast<std::size_t>(std::count(context.wanted.begin(), context.wanted.end(), true));
  open_ports(context, n_peers);
  register_heap(context);
  create_queue_pairs(context);
  create_kernel_queues(context);
  const std::size_t connections = lines_.size() * queue_pairs_;
  traits_ = {
      .name = kName,
      .rails = connections,
      .payload_bytes = kPayloadBytes,
      .put_signal_bytes = kPayloadBytes,
      .words_are_messages = false,
      .window = static_cast<std::uint32_t>(std::min<std::int64_t>(settings_.network_depth, kSlots)),
      .probes = true,
      .says_goodbye = true,
      .hides_rma = library_->emulated,
      .polls_per_yield = 64};  // a poll reads memory alone
  // Requests without a completion may fill neither a send queue, a completion queue nor the depth.
  std::size_t interval = static_cast<std::size_t>(settings_.verbs_signal_interval);
  interval = std::min(interval, static_cast<std::size_t>(settings_.verbs_depth) / 4);
  interval =
      std::min(interval, static_cast<std::size_t>(settings_.network_depth) / (2 * connections));
  for (const auto& line : lines_)
    interval = std::min(
        interval, line->port->completions() / (2 * std::max<std::size_t>(line->queue_pairs, 1)));
  interval_ = static_cast<std::uint32_t>(std::max<std::size_t>(interval, 1));
  list_network(*this);
}

Network::~Network() {
  unlist_network(*this);
}

void Network::open_ports(const Context& context, std::size_t n_peers) {
  const std::vector<PortOffer> offers = list_ports(*library_);
  const bool only_these = !settings_.nic_list.empty() || !settings_.nic_mapping.empty();
  const PortChoice choice = choose_ports(offers, context.nics, only_these);
  require(!choice.ports.empty(), Code::unsupported, "{}", choice.reason);
  require(
      choice.ports.size() * queue_pairs_ <= kMaxConnections, Code::unsupported,
      "SHOAL-N402: {} queue pairs for each peer on each of {} ports are more than {}. Settings: "
      "SHOAL_VERBS_QUEUE_PAIRS, SHOAL_NIC_LIST",
      queue_pairs_, choice.ports.size(), kMaxConnections);
  const std::size_t queue_pairs = n_peers * queue_pairs_;
  for (const std::size_t port : choice.ports) {
    auto line = std::make_unique<Line>(Line{.index = lines_.size()});
    line->port = open_port(library_, offers[port], settings_,
                           queue_pairs * static_cast<std::size_t>(settings_.verbs_depth));
    line->limits = QueueLimits::of(*line->port, settings_, queue_pairs);
    check_demand(*line, queue_pairs);
    make_memory(*line, queue_pairs);
    lines_.push_back(std::move(line));
  }
}

/// Compares what this world needs of the port's queues with what the device has.
void Network::check_demand(Line& line, std::size_t queue_pairs) const {
  const ibv_device_attr& device = line.port->device();
  const Demand demand{
      .port = line.port->label(),
      .network_depth = static_cast<std::size_t>(settings_.network_depth),
      .depth = line.limits.depth,
      .queue_pairs = queue_pairs,
      .each = queue_pairs_,
      .most_depth = static_cast<std::size_t>(device.max_qp_wr),
      .completions = line.port->completions(),
      .most_atomics = static_cast<std::size_t>(std::max(device.max_res_rd_atom, 0))};
  const std::string reason = refusal(demand);
  require(reason.empty(), Code::unsupported, "{}", reason);
  line.limits.atomics = static_cast<std::uint8_t>(atomics_of(demand, line.limits.atomics));
  if (engine_.my_pe() != 0) return;  // all PEs have the same settings
  for (const std::string& shortfall : verbs::shortfalls(demand))
    log::warn("SHOAL-N398: transport verbs: {}", shortfall);
}

void Network::make_memory(Line& line, std::size_t connections) {
  line.layout.connections = connections;
  line.rings = allocate_pages(line.layout.bytes());
  line.bounces = allocate_pages(kBounces * kBounceBytes);
  for (std::size_t i = 0; i < kBounces; ++i)
    line.free_bounces.push_back(line.bounces.get() + i * kBounceBytes);
  const Port& port = *line.port;
  line.segment =
      port.register_memory(engine_.segment().base(), engine_.segment().size(), Peers::access);
  line.scratch =
      port.register_memory(engine_.scratch().data(), engine_.scratch().size(), Peers::access);
  line.rings_region = port.register_memory(line.rings.get(), line.layout.bytes(), Peers::access);
  line.bounces_region =
      port.register_memory(line.bounces.get(), kBounces * kBounceBytes, Peers::no_access);
}

void Network::register_heap(const Context& context) {
  if (context.device_heap == nullptr) return;
  std::vector<const Port*> ports;
  for (const auto& line : lines_) ports.push_back(line->port.get());
  heap_.emplace(context.device_heap, settings_, context.my_pe, n_pes_, std::move(ports));
  heap_address_ = heap_->add(0, context.device_heap->mapped());
}

void Network::create_queue_pairs(const Context& context) {
  const bool rotated = settings_.verbs_queue_order == "rotated";
  for (std::size_t l = 0; l < lines_.size(); ++l) {
    Line& line = *lines_[l];
    for (const Place& place : creation_order(n_pes_, context.my_pe, queue_pairs_, rotated)) {
      const auto pe = static_cast<std::size_t>(place.pe);
      if (!context.wanted[pe]) continue;
      const auto id = static_cast<std::uint32_t>(connections_.size());
      auto connection = std::make_unique<Connection>(Connection{
          .line = line, .peer = engine_.peer(place.pe), .id = id, .index = line.queue_pairs});
      const QueuePairName name{context.my_pe, place.pe, place.index, queue_pairs_};
      connection->queue = line.port->make_queue_pair(line.limits, name, line.queue_pairs);
      connection->posted.resize(line.limits.depth);
      ++line.queue_pairs;
      Link& link = links_[pe];
      link.all.resize(lines_.size() * queue_pairs_);
      link.all[l * queue_pairs_ + place.index] = connection.get();
      connections_.push_back(std::move(connection));
    }
  }
  log::debug("PE {}: transport verbs: {} queue pairs on {} ports, {} order", context.my_pe,
             connections_.size(), lines_.size(), settings_.verbs_queue_order);
}

void Network::create_kernel_queues(const Context& context) {
  if (settings_.gda == "off" || !heap_) return;
  const Line& line = *lines_.front();
  const auto sink = reinterpret_cast<std::uintptr_t>(line.rings.get() + RingLayout::sink());
  kernel_queues_.emplace(KernelQueues::Options{.settings = settings_,
                                               .port = *line.port,
                                               .heap = *heap_,
                                               .limits = line.limits,
                                               .my_pe = context.my_pe,
                                               .n_pes = n_pes_,
                                               .wanted = context.wanted,
                                               .existing = line.queue_pairs,
                                               .sink = {sink, line.rings_region.local_key()}});
}

std::vector<std::byte> Network::address() {
  std::vector<std::byte> bytes;
  AddressHeader header;
  header.ports = static_cast<std::uint32_t>(lines_.size());
  header.queue_pairs = static_cast<std::uint32_t>(queue_pairs_);
  header.n_pes = static_cast<std::uint32_t>(n_pes_);
  header.heap_bytes = static_cast<std::uint32_t>(heap_address_.size());
  if (kernel_queues_) header.kernel_queues = static_cast<std::uint32_t>(kernel_queues_->each());
  append(bytes, header);
  for (std::size_t l = 0; l < lines_.size(); ++l) {
    const Line& line = *lines_[l];
    PortAddress port;
    std::strncpy(port.name, line.port->label().c_str(), sizeof port.name - 1);
    port.path = line.port->path();
    port.segment = line.segment.remote();
    port.scratch = line.scratch.remote();
    port.rings = line.rings_region.remote();
    port.connections = line.layout.connections;
    append(bytes, port);
    for (const Link& link : links_)
      for (std::size_t q = 0; q < queue_pairs_; ++q) {
        QueueAddress queue;
        if (!link.all.empty()) {
          const Connection& connection = *link.all[l * queue_pairs_ + q];
          queue = {connection.queue->number(), connection.queue->first_packet(),
                   static_cast<std::uint32_t>(connection.index)};
        }
        append(bytes, queue);
      }
  }
  bytes.insert(bytes.end(), heap_address_.begin(), heap_address_.end());
  if (kernel_queues_)
    for (const QueueAddress& queue : kernel_queues_->addresses()) append(bytes, queue);
  return bytes;
}

void Network::open(Peer& peer, std::span<const std::byte> bytes) {
  const auto header = message::header_of<AddressHeader>(bytes);
  require(
      header.queue_pairs == queue_pairs_, Code::mismatch,
      "SHOAL-N399: it makes {} queue pairs per peer, this PE {}. Setting: SHOAL_VERBS_QUEUE_PAIRS",
      header.queue_pairs, queue_pairs_);
  const std::size_t queues = static_cast<std::size_t>(n_pes_) * queue_pairs_;
  const std::size_t port_bytes = sizeof(PortAddress) + queues * sizeof(QueueAddress);
  const std::size_t kernel_queues = static_cast<std::size_t>(n_pes_) * header.kernel_queues;
  require(header.format == AddressHeader{}.format && header.ports >= 1 &&
              header.n_pes == static_cast<std::uint32_t>(n_pes_) &&
              header.heap_bytes == heap_address_.size() &&
              bytes.size() == sizeof header + header.ports * port_bytes + header.heap_bytes +
                                  kernel_queues * sizeof(QueueAddress),
          Code::mismatch, "SHOAL-N310: its address has {} bytes for {} ports and {} PEs",
          bytes.size(), header.ports, header.n_pes);
  Link& link = this->link(peer);
  const std::size_t ports = std::min<std::size_t>(header.ports, lines_.size());
  link.all.resize(ports * queue_pairs_);
  for (std::size_t l = 0; l < ports; ++l) {
    const std::size_t at = sizeof header + l * port_bytes;
    const auto port = value_at<PortAddress>(bytes, at);
    const auto first = static_cast<std::size_t>(engine_.my_pe()) * queue_pairs_;
    for (std::size_t q = 0; q < queue_pairs_; ++q) {
      Connection& connection = *link.all[l * queue_pairs_ + q];
      const auto queue = value_at<QueueAddress>(bytes, at + sizeof port, first + q);
      connect(connection, port, queue);
    }
  }
  const std::size_t heap_at = sizeof header + header.ports * port_bytes;
  if (heap_) heap_->connect(peer.pe, bytes.subspan(heap_at, header.heap_bytes));
  if (kernel_queues_) {
    std::vector<QueueAddress> theirs;
    for (std::size_t q = 0; q < header.kernel_queues; ++q)
      theirs.push_back(value_at<QueueAddress>(
          bytes, heap_at + header.heap_bytes,
          static_cast<std::size_t>(engine_.my_pe()) * header.kernel_queues + q));
    kernel_queues_->connect(peer.pe, value_at<PortAddress>(bytes, sizeof header).path, theirs);
  }
  peer.rails = link.all.size();
}

void Network::connect(Connection& connection, const PortAddress& port, const QueueAddress& queue) {
  const Port& mine = *connection.line.port;
  require(queue.number != 0 && queue.ring < port.connections, Code::mismatch,
          "SHOAL-N310: it has no queue pair for this PE");
  require(port.path.ethernet == mine.path().ethernet, Code::mismatch,
          "SHOAL-N400: its port {} is {}, this PE's port {} is {}. Setting: SHOAL_NIC_LIST",
          port.name, port.path.ethernet != 0 ? "Ethernet" : "InfiniBand", mine.label(),
          mine.path().ethernet != 0 ? "Ethernet" : "InfiniBand");
  const RingLayout layout{port.connections};
  const auto at = [&](std::size_t offset) {
    return RemoteMemory{port.rings.base + offset, port.rings.key};
  };
  // Its device would place and read words in pieces.
  if (port.path.software != 0 || mine.is_software()) {
    traits_.words_are_messages = true;
    traits_.put_bytes = sizeof(std::uint64_t);
  }
  connection.segment = port.segment;
  connection.scratch = port.scratch;
  connection.ring = at(layout.incoming(queue.ring));
  connection.arrived = at(RingLayout::arrived(queue.ring));
  connection.freed = at(RingLayout::freed(queue.ring));
  connection.queue->connect(port.path, queue);
  connection.open = true;
}

std::vector<std::string> Network::shortfalls(const Peer& peer, std::span<const Load> loads) const {
  const Link& link = this->link(peer);
  if (link.all.empty()) return {};
  const Port& port = *link.all.front()->line.port;
  // Memory of segments and heaps, which is never copied.
  const std::size_t longest = request_bytes(peer, {.direction = Direction::write,
                                                   .local = engine_.segment().base(),
                                                   .bytes = engine_.segment().size()});
  return verbs::shortfalls(
      PeerQueues{.queue_pairs = link.all.size(),
                 .piece_bytes = longest,
                 .depth = link.all.front()->posted.size(),
                 .most_depth = static_cast<std::size_t>(port.device().max_qp_wr),
                 .network_depth = static_cast<std::size_t>(settings_.network_depth)},
      loads);
}

/// Lets the last messages leave.
void Network::close() noexcept {
  const auto deadline = message::Clock::now() + kCloseTimeout;
  Backoff backoff;
  const auto busy = [&] {
    return std::ranges::any_of(connections_, [](const auto& connection) {
      return connection->open && connection->issued != connection->completed;
    });
  };
  while (busy() && message::Clock::now() < deadline) {
    for (Link& link : links_) settle(link);
    if (!poll()) backoff();
  }
  // Requests that still arrive must not be answered.
  for (const auto& connection : connections_)
    engine_.fail_peer(connection->peer, "this PE has closed the transport");
}

std::string Network::description() const {
  std::vector<std::string> labels;
  for (const auto& line : lines_) labels.push_back(line->port->label());
  return fmt::format("{} queue pairs on {}{}", connections_.size(), fmt::join(labels, ", "),
                     settings_.verbs_interface == "devx" ? ", by device commands" : "");
}

std::string Network::route(const Peer& peer) const {
  const Link& link = this->link(peer);
  const Connection& home = *link.all[peer.home];
  return fmt::format("{}, {} requests queued", home.queue->describe(),
                     home.issued - home.completed);
}

}  // namespace shoal::transport::verbs
