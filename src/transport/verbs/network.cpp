// SPDX-License-Identifier: Apache-2.0
// The data path of a verbs network. start.cpp has its start and its end.
#include "transport/verbs/network.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/message/limits.hpp"
#include "transport/message/pieces.hpp"

namespace shoal::transport::verbs {
namespace {

using message::kBounceBytes;
using message::kPollEntries;
using message::kPollRounds;

/// Longer transfers are cut, so that completions come often: a call without any for
/// Backoff::kYieldTime would sleep between its polls.
constexpr std::size_t kLongestRequest = std::size_t{256} << 10;
/// Polls per look for asynchronous events, which costs a system call.
constexpr std::uint32_t kPollsPerEvent = 4096;
/// A request's wr_id: the connection, then the low bits of its number.
constexpr unsigned kNumberBits = 40;
constexpr std::uint64_t kNumberMask = (std::uint64_t{1} << kNumberBits) - 1;

/// An asynchronous event of a device.
struct Event {
  enum class Of : std::uint8_t { queue_pair, device, port };
  ibv_event_type type;
  Of of;
  const char* text;       ///< what it means
  const char* name = "";  ///< of a port: as libibverbs' enumeration has it
};
constexpr Event kEvents[] = {
    {IBV_EVENT_QP_ACCESS_ERR, Event::Of::queue_pair,
     "the device refused a request of the peer: the memory or the right it names is not registered"},
    {IBV_EVENT_QP_REQ_ERR, Event::Of::queue_pair,
     "the device refused a request of the peer as invalid"},
    {IBV_EVENT_QP_FATAL, Event::Of::queue_pair,
     "the device reports a fatal error of the queue pair"},
    {IBV_EVENT_CQ_ERR, Event::Of::device, "the completion queue has overflowed or is broken"},
    {IBV_EVENT_DEVICE_FATAL, Event::Of::device, "the device reports a fatal error"},
    {IBV_EVENT_PORT_ERR, Event::Of::port, "the port is down: cable, switch, or ip link",
     "PORT_ERR"},
    {IBV_EVENT_PORT_ACTIVE, Event::Of::port, "the port is active again", "PORT_ACTIVE"},
    {IBV_EVENT_LID_CHANGE, Event::Of::port,
     "the subnet manager has given the port another LID, so packets to the old one get lost",
     "LID_CHANGE"},
    {IBV_EVENT_GID_CHANGE, Event::Of::port,
     "the port's GID table has changed, so an address that peers use may be gone", "GID_CHANGE"}};

const char* name_of(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return "a read";
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return "an atomic";
    default:
      return "a write";
  }
}

}  // namespace

bool Network::poll() {
  bool any = false;
  // Rings first: a goodbye arrives before the failures that the end of its sender causes.
  for (const auto& connection : connections_) any = read_ring(*connection) || any;
  for (const auto& line : lines_) any = read_completions(*line) || any;
  if (++polls_ % kPollsPerEvent == 0)
    for (const auto& line : lines_) read_events(*line);
  return any;
}

/// Nothing fails yet: requests are repeated until their retries end.
void Network::note_port_event(Line& line, const char* name, const char* text, bool active) {
  const std::string& label = line.port->label();
  if (active) {
    if (!line.trouble.empty())
      log::info("PE {}: {}: event {}: {}", engine_.my_pe(), label, name, text);
    line.trouble.clear();
    return;
  }
  line.trouble = fmt::format("event {} of port {}: {}", name, label, text);
  log::warn("PE {}: {}", engine_.my_pe(), line.trouble);
}

/// Reads asynchronous events: errors of the device outside requests of this PE. Port events are of
/// all ports of the device.
void Network::read_events(Line& line) {
  ibv_async_event event{};
  while (line.port->take_event(event)) {
    const auto* const known = std::ranges::find(kEvents, event.event_type, &Event::type);
    if (known == std::end(kEvents)) continue;
    if (known->of == Event::Of::port) {
      if (event.element.port_num == line.port->number())
        note_port_event(line, known->name, known->text, known->type == IBV_EVENT_PORT_ACTIVE);
      continue;
    }
    const bool of_pair = known->of == Event::Of::queue_pair;
    for (const auto& connection : connections_)
      if (&connection->line == &line && (!of_pair || connection->queue->is(event.element.qp)))
        engine_.fail_peer(connection->peer,
                          fmt::format("{}: {}", connection->queue->describe(), known->text));
  }
}

std::uint64_t Network::counter(const Connection& connection, std::size_t offset) const noexcept {
  auto& word = *reinterpret_cast<std::uint64_t*>(connection.line.rings.get() + offset);
  return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire);
}

/// Delivers the messages that the counter covers. Returns false if there are none.
bool Network::read_ring(Connection& connection) {
  if (!connection.open) return false;
  const std::uint64_t arrived = counter(connection, RingLayout::arrived(connection.index));
  if (arrived == connection.read) return tell_freed(connection), false;
  const std::byte* const ring =
      connection.line.rings.get() + connection.line.layout.incoming(connection.index);
  while (connection.read != arrived && connection.open) {
    const auto& slot =
        *reinterpret_cast<const RingSlot*>(ring + connection.read % kSlots * sizeof(RingSlot));
    ++connection.read;
    if (arrived - connection.read >= kSlots || slot.bytes > sizeof slot.data) {
      engine_.fail_peer(connection.peer,
                        fmt::format("SHOAL-N319: its message {} of {} bytes is not valid",
                                    connection.read, slot.bytes));
      return true;
    }
    engine_.receive(slot.data, slot.bytes);
  }
  tell_freed(connection);
  return true;
}

/// Returns slots to the peer, half a ring at a time.
void Network::tell_freed(Connection& connection) {
  const std::uint64_t freed = connection.read - connection.freed_told;
  if (freed < kSlots / 2 || !connection.open || !has_room(connection, 1)) return;
  ibv_send_wr request{};
  ibv_sge sink{};
  fill_atomic(connection, request, sink, connection.freed, freed);
  add(connection, request, {}, Completion::own);
  if (submit(connection, request, 1)) connection.freed_told = connection.read;
}

bool Network::read_completions(Line& line) {
  bool any = false;
  for (int round = 0; round < kPollRounds; ++round) {
    ibv_wc completions[kPollEntries];
    const int count = line.port->poll(completions);
    for (int i = 0; i < count; ++i)
      handle(*connections_[completions[i].wr_id >> kNumberBits], completions[i]);
    any = any || count > 0;
    if (count < kPollEntries) break;
  }
  return any;
}

/// A completion covers all earlier requests of its queue pair.
void Network::handle(Connection& connection, const ibv_wc& completion) {
  const std::uint64_t ahead = (completion.wr_id - connection.completed) & kNumberMask;
  if (ahead >= connection.issued - connection.completed) return;  // of a request that was dropped
  const std::uint64_t number = connection.completed + ahead;
  if (completion.status == IBV_WC_SUCCESS) return retire(connection, number + 1, false);
  retire(connection, number, false);
  read_events(connection.line);  // they may have the cause
  const std::string& trouble = connection.line.trouble;
  engine_.fail_peer(
      connection.peer,
      fmt::format("SHOAL-N388: {} is in error: {} (status {}, vendor {:#x}){}{}. Settings: "
                  "SHOAL_VERBS_TIMEOUT, SHOAL_VERBS_RETRIES",
                  connection.queue->describe(), library_->wc_status_str(completion.status),
                  static_cast<int>(completion.status), completion.vendor_err,
                  trouble.empty() ? "" : "; ", trouble));
  retire(connection, number + 1, true);
}

void Network::retire(Connection& connection, std::uint64_t end, bool failed) {
  while (connection.completed != end) {
    const Posted posted = connection.posted[connection.completed % connection.posted.size()];
    ++connection.completed;
    --connection.line.in_flight;
    finish(connection, posted, failed);
  }
}

void Network::finish(Connection& connection, const Posted& posted, bool failed) {
  using Use = Posted::Use;
  if (posted.use == Use::probe) connection.peer.probing = false;
  if (posted.use == Use::write || posted.use == Use::read) {
    const bool write = posted.use == Use::write;
    if (write) --connection.writes;
    if (failed && posted.batch != nullptr) posted.batch->failed = true;
    connection.peer.finish(write ? Direction::write : Direction::read, posted.batch);
  }
  if (posted.bounce == nullptr) return;
  if (posted.target != nullptr && !failed) std::memcpy(posted.target, posted.bounce, posted.bytes);
  connection.line.free_bounces.push_back(posted.bounce);
}

bool Network::has_room(const Connection& connection, std::size_t requests) const noexcept {
  return connection.issued - connection.completed + requests <= connection.posted.size() &&
         connection.line.in_flight + requests <= connection.line.port->completions();
}

/// Numbers a request and records what it is for. Room has been checked.
void Network::add(Connection& connection, ibv_send_wr& request, const Posted& posted,
                  Completion when) {
  connection.posted[connection.issued % connection.posted.size()] = posted;
  request.wr_id = std::uint64_t{connection.id} << kNumberBits | (connection.issued & kNumberMask);
  ++connection.issued;
  ++connection.line.in_flight;
  ++connection.unsignalled;
  const bool due = when == Completion::due && connection.unsignalled >= interval_;
  if (when != Completion::own && !due) return;
  request.send_flags |= IBV_SEND_SIGNALED;
  connection.unsignalled = 0;
}

/// Posts a chain of `count` requests that were added, with one doorbell.
bool Network::submit(Connection& connection, ibv_send_wr& first, std::size_t count) {
  const int code = connection.queue->post(first);
  if (code == 0) return true;
  connection.issued -= count;
  connection.line.in_flight -= count;
  engine_.fail_peer(connection.peer,
                    fmt::format("SHOAL-N407: {} takes no {}: {}", connection.queue->describe(),
                                name_of(first.opcode), error_text(code)));
  return false;
}

void Network::fill_atomic(const Connection& connection, ibv_send_wr& request, ibv_sge& sink,
                          RemoteMemory counter, std::uint64_t add) const noexcept {
  sink.addr = reinterpret_cast<std::uintptr_t>(connection.line.rings.get() + RingLayout::sink());
  sink.length = sizeof(std::uint64_t);
  sink.lkey = connection.line.rings_region.local_key();
  request.sg_list = &sink;
  request.num_sge = 1;
  request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  request.wr.atomic.remote_addr = counter.base;
  request.wr.atomic.rkey = counter.key;
  request.wr.atomic.compare_add = add;
}

bool Network::send(Peer& peer, const Message& message, const Payload& payload, After after) {
  Link& link = this->link(peer);
  const bool handshake = message.kind == Kind::hello || message.kind == Kind::welcome;
  if (after == After::writes && !handshake && !follows_writes(peer)) return settle(link), false;
  Connection& connection = *link.all[handshake ? message.offset : peer.home];
  const std::uint64_t freed = counter(connection, RingLayout::freed(connection.index));
  if (!connection.open || connection.sent - freed >= kSlots || !has_room(connection, 2))
    return false;
  const std::size_t slot = connection.sent % kSlots * sizeof(RingSlot);
  auto& out = *reinterpret_cast<RingSlot*>(
      connection.line.rings.get() + connection.line.layout.outgoing(connection.index) + slot);
  Message stamped = message;
  engine_.stamp(peer, stamped);
  out.bytes = sizeof stamped + payload.bytes();
  std::memcpy(out.data, &stamped, sizeof stamped);
  payload.pack(out.data + sizeof stamped);

  ibv_send_wr write{}, arrive{};
  ibv_sge source{}, sink{};
  source.addr = reinterpret_cast<std::uintptr_t>(&out);
  source.length = static_cast<std::uint32_t>(offsetof(RingSlot, data) + out.bytes);
  source.lkey = connection.line.rings_region.local_key();
  write.next = &arrive;
  write.sg_list = &source;
  write.num_sge = 1;
  write.opcode = IBV_WR_RDMA_WRITE;
  write.wr.rdma.remote_addr = connection.ring.base + slot;
  write.wr.rdma.rkey = connection.ring.key;
  if (source.length <= connection.queue->inline_bytes()) write.send_flags |= IBV_SEND_INLINE;
  fill_atomic(connection, arrive, sink, connection.arrived, 1);
  const bool probe = message.kind == Kind::probe;  // its completion says whether the peer lives
  add(connection, write, {}, Completion::none);    // the atomic's covers it
  add(connection, arrive, {.use = probe ? Posted::Use::probe : Posted::Use::message},
      probe ? Completion::own : Completion::due);
  if (!submit(connection, write, 2)) return false;
  ++connection.sent;
  engine_.sent(peer, stamped);
  return true;
}

/// True if a message on the home connection arrives after all writes that are in flight.
bool Network::follows_writes(const Peer& peer) const noexcept {
  const Link& link = this->link(peer);
  return peer.writes == link.all[peer.home]->writes;
}

bool Network::is_complete(Peer& peer, std::uint64_t /*newest*/) {
  if (peer.writes + peer.reads != 0) settle(link(peer));  // quiet waits for reads too
  return peer.writes == 0;
}

/// Gives the newest requests a completion, so that waiting for them ends.
void Network::settle(Link& link) {
  for (Connection* const connection : link.all) {
    if (!connection->open || connection->unsignalled == 0 || !has_room(*connection, 1)) continue;
    ibv_send_wr nothing{};
    nothing.opcode = IBV_WR_RDMA_WRITE;
    nothing.wr.rdma.remote_addr = connection->segment.base;
    nothing.wr.rdma.rkey = connection->segment.key;
    add(*connection, nothing, {}, Completion::own);
    submit(*connection, nothing, 1);
  }
}

std::size_t Network::request_bytes(const Peer& peer, const Transfer& transfer) const {
  std::size_t longest = std::min<std::size_t>(settings_.network_chunk, kLongestRequest);
  for (const auto& line : lines_)
    longest = std::min<std::size_t>(longest, line->port->attributes().max_msg_sz);
  if (!in_heap(transfer.local) && !engine_.in_segment(transfer.local, transfer.bytes))
    longest = std::min(longest, kBounceBytes);
  return message::piece_bytes(transfer.bytes, peer.rails, longest);
}

std::uint32_t Network::local_key(const Line& line, const Transfer& transfer) const noexcept {
  // The handshake's local memory is scratch also where it reads the segment.
  if (transfer.rail != Transfer::kAnyRail) return line.scratch.local_key();
  if (in_heap(transfer.local)) return heap_->local_key(transfer.local, line.index);
  return line.segment.local_key();
}

RemoteMemory Network::target(const Connection& connection,
                             const Transfer& transfer) const noexcept {
  if (transfer.region == message::Region::heap)
    return heap_->remote(connection.peer.pe, transfer.offset, connection.line.index);
  const bool scratch = transfer.region == message::Region::scratch;
  const RemoteMemory& memory = scratch ? connection.scratch : connection.segment;
  return {memory.base + transfer.offset, memory.key};
}

bool Network::transfer(Peer& peer, const Transfer& transfer) {
  const std::size_t chosen = transfer.rail_to(peer);
  Connection& connection = *link(peer).all[chosen];
  Line& line = connection.line;
  const bool write = transfer.direction == Direction::write;
  const bool gpu = in_heap(transfer.local);  // processors do not read it
  const bool inlined = write && !gpu && transfer.bytes <= connection.queue->inline_bytes();
  const bool bounced = !inlined && !gpu && transfer.rail == Transfer::kAnyRail &&
                       !engine_.in_segment(transfer.local, transfer.bytes);
  if (!connection.open || !has_room(connection, 1) || (bounced && line.free_bounces.empty()))
    return false;
  Posted posted{.use = write ? Posted::Use::write : Posted::Use::read,
                .batch = write && (inlined || bounced) ? nullptr : transfer.batch,
                .bytes = transfer.bytes};
  ibv_sge local{reinterpret_cast<std::uintptr_t>(transfer.local),
                static_cast<std::uint32_t>(transfer.bytes), local_key(line, transfer)};
  if (bounced) {
    posted.bounce = line.free_bounces.back();
    posted.target = write ? nullptr : transfer.local;
    line.free_bounces.pop_back();
    if (write) std::memcpy(posted.bounce, transfer.local, transfer.bytes);
    local.addr = reinterpret_cast<std::uintptr_t>(posted.bounce);
    local.lkey = line.bounces_region.local_key();
  }
  const RemoteMemory remote = target(connection, transfer);
  ibv_send_wr request{};
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
  request.send_flags = inlined ? IBV_SEND_INLINE : 0;
  request.wr.rdma.remote_addr = remote.base;
  request.wr.rdma.rkey = remote.key;
  // A call that waits for its memory is complete soon, and a quiet after it needs nothing more.
  // Nor does one after a lone put. Puts that follow each other share completions.
  const bool alone = connection.issued == connection.completed;
  add(connection, request, posted,
      alone || transfer.batch != nullptr ? Completion::own : Completion::due);
  if (!submit(connection, request, 1)) {
    if (bounced) line.free_bounces.push_back(posted.bounce);
    return false;
  }
  peer.start(transfer.direction, posted.batch);
  if (write) ++connection.writes;
  if (transfer.is_spread()) peer.newest_spread = chosen;
  return true;
}

void Network::abandon(Batch& batch) noexcept {
  for (const auto& connection : connections_)
    for (Posted& posted : connection->posted)
      if (posted.batch == &batch) {
        posted.batch = nullptr;
        posted.target = nullptr;
      }
}

void Network::drop(Peer& peer) noexcept {
  for (Connection* const connection : link(peer).all) {
    if (!connection->open) continue;
    connection->open = false;
    connection->queue->stop();
  }
}

}  // namespace shoal::transport::verbs
