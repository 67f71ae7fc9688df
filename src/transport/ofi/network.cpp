// SPDX-License-Identifier: Apache-2.0
#include "transport/ofi/network.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/message/address.hpp"
#include "transport/message/limits.hpp"
#include "transport/message/pieces.hpp"
#include "transport/ofi/window.hpp"

namespace shoal::transport::ofi {
namespace {

using message::kBounceBytes;
using message::kBounces;
using message::kPollEntries;
using message::kPollRounds;

/// Longer puts are RMA, unless a signal goes with them, or over TCP: there an RMA request, its
/// completion and the request for an acknowledgement are system calls of their own, so a short
/// put with its quiet is faster as a message. Gets take the same time either way.
constexpr std::size_t kPutBytes = 192;
constexpr std::size_t kSenders = 64;  ///< per rail
/// Receive buffers of an endpoint over TCP without ofi_rxm, whose queue grows; its attribute says
/// 256. As many as ofi_rxm takes.
constexpr std::size_t kTcpReceives = 2048;

/// Objects that networks leave open until the process ends.
struct LeftOpen {
  std::vector<std::unique_ptr<Rail>> rails;
  std::vector<Registered> regions;
};
LeftOpen& left_open() {
  static LeftOpen& left = *new LeftOpen;
  return left;
}

}  // namespace

Network::Network(message::Engine& engine, const Context& context)
    : engine_(engine), links_(static_cast<std::size_t>(context.n_pes)) {
  open_rails(context);
  make_pools();
  register_heap(context);
}

void Network::register_heap(const Context& context) {
  if (context.device_heap == nullptr) return;
  std::vector<Rail*> rails;
  for (const Line& line : lines_) rails.push_back(line.rail.get());
  heap_.emplace(context.device_heap, *context.settings, context.my_pe, context.n_pes,
                std::move(rails));
  heap_address_ = heap_->add(0, context.device_heap->mapped());
}

void Network::open_rails(const Context& context) {
  Provider provider = choose_provider(context);
  provider_ = provider.name;
  const auto depth = static_cast<std::size_t>(context.settings->network_depth);
  const auto n_peers =
      static_cast<std::size_t>(std::count(context.wanted.begin(), context.wanted.end(), true));
  if (provider.rails.size() > kMaxRails) provider.rails.resize(kMaxRails);
  std::size_t receive_size = SIZE_MAX, requests = 0;
  for (const Info& info : provider.rails) {
    const std::size_t size = info->rx_attr->size;
    receive_size = std::min(receive_size, grows() ? std::max(size, kTcpReceives) : size);
    requests += info->tx_attr->size;
  }
  const std::size_t window = window_of(receive_size, n_peers, depth, kSpareMessages);
  const std::size_t payload = payload_of(static_cast<std::size_t>(context.n_pes));
  message_bytes_ = sizeof(Message) + payload;
  traits_ = {.name = kName,
             .rails = provider.rails.size(),
             .payload_bytes = payload,
             .put_bytes = over_tcp() ? payload : kPutBytes,
             .put_signal_bytes = payload,
             .window = static_cast<std::uint32_t>(window),
             .probes = true,
             .polls_per_yield = context.crowded ? 1 : message::kPollsPerYield};
  requests = std::clamp<std::size_t>(depth * n_peers, 16, std::max<std::size_t>(requests, 16));
  requests_.resize(requests);
  for (Request& request : requests_) free_.give(&request);
  const std::size_t receives = n_peers * (window + depth + kSpareMessages);
  ordered_ = true;
  for (Info& info : provider.rails) {
    Line line;
    line.rail = std::make_unique<Rail>(std::move(info), requests + receives + kSenders);
    ordered_ = ordered_ && line.rail->messages_after_writes();
    // Over TCP the target's polls do it, whatever the attributes of provider net say.
    traits_.hides_rma = traits_.hides_rma || line.rail->target_progresses() || over_tcp();
    local_registration_ = local_registration_ || line.rail->local_registration();
    line.segment = line.rail->register_memory(engine_.segment().base(), engine_.segment().size(),
                                              Peers::access);
    line.scratch = line.rail->register_memory(engine_.scratch().data(), engine_.scratch().size(),
                                              Peers::access);
    lines_.push_back(std::move(line));
  }
  delivery_ = !ordered_ || lines_.size() > 1;
}

void Network::make_pools() {
  for (std::size_t r = 0; r < lines_.size(); ++r) {
    Line& line = lines_[r];
    const auto pool = [&](std::vector<Request>& requests, std::vector<std::byte>& memory,
                          Registered& region, std::size_t count, std::size_t bytes,
                          FreeList& list) {
      memory.resize(count * bytes);
      requests.resize(count);
      for (std::size_t i = 0; i < count; ++i) {
        requests[i].buffer = memory.data() + i * bytes;
        requests[i].rail = static_cast<std::uint8_t>(r);
        list.give(&requests[i]);
      }
      if (local_registration_)
        region = line.rail->register_memory(memory.data(), memory.size(), Peers::no_access);
    };
    pool(line.sending, line.outgoing, line.outgoing_region, kSenders, message_bytes_, line.senders);
    if (local_registration_)
      pool(line.bouncing, line.bounces, line.bounces_region, kBounces, kBounceBytes, line.bouncers);
  }
}

/// True if libfabric crashes when an endpoint closes between the start and the end of a read's
/// reply. The tcp provider before 1.18 then completes the read twice, the second time without its
/// context (https://github.com/ofiwg/libfabric/pull/8660).
bool Network::completes_reads_twice() const noexcept {
  return FI_VERSION_LT(fi_version(), FI_VERSION(1, 18)) && over_tcp();
}

Network::~Network() {
  heap_.reset();  // nothing polls, so nothing accesses it
  if (reading_ != 0 && completes_reads_twice()) {
    // Only a failure leaves reads in flight. Nothing polls these endpoints any more, so they access
    // no memory. Their sockets stay open until the process ends.
    log::debug("PE {}: transport ofi: leaves its endpoints open: {} reads are in flight",
               engine_.my_pe(), reading_);
    for (Line& line : lines_) {
      for (Registered* const region : regions(line))
        left_open().regions.push_back(std::move(*region));
      left_open().rails.push_back(std::move(line.rail));
    }
    return;
  }
  // Regions before endpoints, endpoints before the memory that they receive into.
  for (Line& line : lines_) {
    for (Registered* const region : regions(line)) region->region.reset();
    line.rail.reset();
  }
}

std::vector<std::byte> Network::address() {
  AddressHeader header;
  header.rails = lines_.size();
  header.heap_bytes = heap_address_.size();
  std::strncpy(header.provider, provider_.c_str(), sizeof header.provider - 1);
  std::vector<std::byte> bytes;
  message::append(bytes, header);
  for (const Line& line : lines_) {
    RailAddress address;
    address.segment = line.segment.remote;
    address.scratch = line.scratch.remote;
    line.rail->name(address);
    message::append(bytes, address);
  }
  bytes.insert(bytes.end(), heap_address_.begin(), heap_address_.end());
  return bytes;
}

void Network::open(Peer& peer, std::span<const std::byte> bytes) {
  auto header = message::header_of<AddressHeader>(bytes);
  header.provider[sizeof header.provider - 1] = '\0';
  require(header.heap_bytes == heap_address_.size(), Code::mismatch,
          "SHOAL-N310: its address has {} bytes about a heap in GPU memory, this PE's {}",
          header.heap_bytes, heap_address_.size());
  require(
      header.rails >= 1 && header.rails <= kMaxRails &&
          bytes.size() == sizeof header + header.rails * sizeof(RailAddress) + header.heap_bytes,
      Code::mismatch, "SHOAL-N310: its address has {} bytes for {} rails", bytes.size(),
      header.rails);
  require(header.provider == provider_, Code::mismatch,
          "SHOAL-N332: it uses provider {}, this PE {}", header.provider, provider_);
  Link& link = this->link(peer);
  peer.rails = std::min<std::size_t>(header.rails, lines_.size());
  for (std::size_t r = 0; r < peer.rails; ++r) {
    const auto address = message::value_at<RailAddress>(bytes, sizeof header, r);
    link.rails.push_back({lines_[r].rail->insert(address), address.segment, address.scratch, 0});
  }
  if (heap_) heap_->connect(peer.pe, bytes.last(header.heap_bytes));
}

void Network::listen(std::span<const Peer> peers) {
  for (std::size_t r = 0; r < lines_.size(); ++r) {
    Line& line = lines_[r];
    std::size_t count = 0;
    for (const Peer& peer : peers)
      if (peer.known) count += kSpareMessages + (peer.home == r ? traits_.window + peer.window : 0);
    line.messages.resize(count * message_bytes_);
    line.receiving.resize(count);
    if (local_registration_ && count != 0)
      line.messages_region =
          line.rail->register_memory(line.messages.data(), line.messages.size(), Peers::no_access);
    for (std::size_t i = 0; i < count; ++i) {
      Request& request = line.receiving[i];
      request = Request{};
      request.use = Request::Use::receive;
      request.rail = static_cast<std::uint8_t>(r);
      request.buffer = line.messages.data() + i * message_bytes_;
      post_receive(line, request);
    }
  }
}

void Network::post_receive(Line& line, Request& request) {
  const ssize_t code = fi_recv(line.rail->endpoint(), request.buffer, message_bytes_,
                               line.messages_region.descriptor, FI_ADDR_UNSPEC, &request.context);
  if (code == 0) return;
  line.unposted.push_back(&request);
  if (code != -FI_EAGAIN)
    log::warn("SHOAL-N333: PE {}: transport ofi: fi_recv on {} failed: {}", engine_.my_pe(),
              line.rail->domain(), error_text(code));
}

bool Network::poll() {
  bool any = false;
  for (std::size_t r = 0; r < lines_.size(); ++r) {
    Line& line = lines_[r];
    for (int round = 0; round < kPollRounds; ++round) {
      fi_cq_msg_entry entries[kPollEntries];
      const ssize_t count = line.rail->poll(entries);
      for (ssize_t i = 0; i < count; ++i) handle(line, entries[i]);
      if (count == -FI_EAVAIL) handle_fault(r);
      any = any || count != 0;
      if (count < kPollEntries && count != -FI_EAVAIL) break;
    }
    if (!line.unposted.empty()) {
      std::vector<Request*> again;
      again.swap(line.unposted);
      for (Request* const request : again) post_receive(line, *request);
    }
  }
  return any;
}

void Network::handle(Line& line, const fi_cq_msg_entry& entry) {
  Request& request = *static_cast<Request*>(entry.op_context);
  if (request.use != Request::Use::receive) return complete(request);
  engine_.receive(request.buffer, entry.len);
  post_receive(line, request);
}

void Network::handle_fault(std::size_t rail) {
  Line& line = lines_[rail];
  const Rail::Fault fault = line.rail->fault();
  if (fault.code == 0) return;
  const std::string text = fmt::format("{} on rail {} ({}) of provider {}", fault.text, rail,
                                       line.rail->domain(), provider_);
  auto* const request = static_cast<Request*>(fault.context);
  if (request == nullptr)
    return log::warn("SHOAL-N333: PE {}: transport ofi: {}", engine_.my_pe(), text);
  if (request->use == Request::Use::receive) {
    log::warn("SHOAL-N333: PE {}: transport ofi: could not receive a message: {}", engine_.my_pe(),
              text);
    return post_receive(line, *request);
  }
  engine_.fail_peer(engine_.peer(request->pe), text);
  request->target = nullptr;  // nothing was read
  if (request->use != Request::Use::send && request->batch != nullptr)
    request->batch->failed = true;
  complete(*request);
}

void Network::complete(Request& request) {
  Peer& peer = engine_.peer(request.pe);
  Line& line = lines_[request.rail];
  if (request.use == Request::Use::send) {
    if (request.probe) peer.probing = false;
    return line.senders.give(&request);
  }
  const bool write = request.use == Request::Use::write;
  peer.finish(write ? Direction::write : Direction::read, request.batch);
  if (write)
    --link(peer).rails[request.rail].writes;
  else
    --reading_;
  if (request.target != nullptr) std::memcpy(request.target, request.buffer, request.bytes);
  if (request.bounce != nullptr) line.bouncers.give(request.bounce);
  free_.give(&request);
}

void Network::fail(Peer& peer, long code, std::size_t rail) {
  engine_.fail_peer(peer, fmt::format("{} on rail {} ({}) of provider {}", error_text(code), rail,
                                      lines_[rail].rail->domain(), provider_));
}

bool Network::send(Peer& peer, const Message& message, const Payload& payload, After after) {
  Link& link = this->link(peer);
  const bool handshake = message.kind == Kind::hello || message.kind == Kind::welcome;
  if (after == After::writes && !handshake && !follows_writes(peer)) return false;
  const std::size_t rail = handshake ? message.offset : peer.home;
  Line& line = lines_[rail];
  const fi_addr_t to = link.rails[rail].address;
  const std::size_t length = sizeof message + payload.bytes();
  const bool probe = message.kind == Kind::probe;  // its completion says whether the peer lives
  const bool inject = length <= line.rail->inject_limit() && !probe;
  Request* const request = inject ? nullptr : line.senders.take();
  if (!inject && request == nullptr) return false;
  std::byte injected[sizeof(Message) + kLongestPayload];
  std::byte* const buffer = inject ? injected : request->buffer;
  Message stamped = message;
  engine_.stamp(peer, stamped);
  std::memcpy(buffer, &stamped, sizeof stamped);
  payload.pack(buffer + sizeof stamped);
  ssize_t code = 0;
  if (inject) {
    code = fi_inject(line.rail->endpoint(), buffer, length, to);
  } else {
    request->use = Request::Use::send;
    request->probe = probe;
    request->pe = peer.pe;
    code = fi_send(line.rail->endpoint(), buffer, length, line.outgoing_region.descriptor, to,
                   &request->context);
    if (code != 0) line.senders.give(request);
  }
  if (code != 0) {
    if (code != -FI_EAGAIN) fail(peer, code, rail);
    return false;
  }
  engine_.sent(peer, stamped);
  if (message::is_request(message.kind)) link.written = false;  // covered by its acknowledgement
  return true;
}

/// True if a message on the home rail arrives after all writes that are in flight.
bool Network::follows_writes(const Peer& peer) const noexcept {
  if (!delivery_ || peer.writes == 0) return true;
  const Link& link = this->link(peer);
  return ordered_ && peer.writes == link.rails[peer.home].writes;
}

bool Network::writing(const Peer& peer) const noexcept {
  return peer.writes != 0 || link(peer).written;
}

bool Network::needs_acknowledgement(const Peer& peer) const noexcept {
  return link(peer).written;
}

/// True if the provider needs a registered buffer in place of the local memory.
bool Network::bounces(const Transfer& transfer) const noexcept {
  return local_registration_ && transfer.region != message::Region::scratch &&
         !engine_.in_segment(transfer.local, transfer.bytes) && !in_heap(transfer);
}

/// True if the caller may free the local memory while the request is in flight.
bool Network::copies(const Transfer& transfer) const noexcept {
  return !local_registration_ && transfer.batch != nullptr &&
         transfer.region != message::Region::scratch &&
         !engine_.in_segment(transfer.local, transfer.bytes) && !in_heap(transfer) &&
         (transfer.direction == Direction::read || transfer.bytes <= kBounceBytes);
}

std::size_t Network::request_bytes(const Peer& peer, const Transfer& transfer) const {
  std::size_t longest = engine_.settings().network_chunk;
  for (const Line& line : lines_) longest = std::min(longest, line.rail->longest());
  if (bounces(transfer) || copies(transfer)) longest = std::min(longest, kBounceBytes);
  return message::piece_bytes(transfer.bytes, peer.rails, longest);
}

/// Registration of memory that is used as it is.
const Registered& Network::local_region(const Line& line, std::size_t rail,
                                        const Transfer& transfer) const noexcept {
  if (transfer.region == message::Region::scratch) return line.scratch;
  return in_heap(transfer) ? heap_->region(transfer.local, rail) : line.segment;
}

RemoteMemory Network::remote_memory(const Peer& peer, std::size_t rail,
                                    const Transfer& transfer) const noexcept {
  const Link::OnRail& on = link(peer).rails[rail];
  RemoteMemory memory = transfer.region == message::Region::scratch ? on.scratch : on.segment;
  if (transfer.region == message::Region::heap)
    return heap_->remote(peer.pe, transfer.offset, rail);
  memory.base += transfer.offset;
  return memory;
}

bool Network::transfer(Peer& peer, const Transfer& transfer) {
  Link& link = this->link(peer);
  const std::size_t rail = transfer.rail_to(peer);
  Line& line = lines_[rail];
  const bool write = transfer.direction == Direction::write;
  const bool bounced = bounces(transfer), copied = copies(transfer);
  if (free_.empty() || (bounced && line.bouncers.empty())) return false;
  Request& request = *free_.take();
  request.use = write ? Request::Use::write : Request::Use::read;
  request.probe = false;
  request.rail = static_cast<std::uint8_t>(rail);
  request.pe = peer.pe;
  if (copied && request.copy == nullptr)
    request.copy = std::make_unique_for_overwrite<std::byte[]>(kBounceBytes);
  const bool buffered = bounced || copied;
  request.bounce = bounced ? line.bouncers.take() : nullptr;
  request.buffer = bounced ? request.bounce->buffer : copied ? request.copy.get() : nullptr;
  request.target = buffered && !write ? transfer.local : nullptr;
  request.bytes = transfer.bytes;
  // A write from a buffer does not use the caller's memory any more.
  request.batch = write && buffered ? nullptr : transfer.batch;
  if (write && buffered) std::memcpy(request.buffer, transfer.local, transfer.bytes);
  std::byte* const memory = buffered ? request.buffer : transfer.local;
  const Registered& region = bounced ? line.bounces_region : local_region(line, rail, transfer);
  Link::OnRail& on = link.rails[rail];
  const RemoteMemory remote = remote_memory(peer, rail, transfer);
  const ssize_t code =
      write ? line.rail->write(on.address, remote, memory, transfer.bytes, region.descriptor,
                               delivery_, &request.context)
            : fi_read(line.rail->endpoint(), memory, transfer.bytes, region.descriptor, on.address,
                      remote.base, remote.key, &request.context);
  if (code != 0) {
    if (bounced) line.bouncers.give(request.bounce);
    free_.give(&request);
    if (code != -FI_EAGAIN) fail(peer, code, rail);
    return false;
  }
  peer.start(transfer.direction, request.batch);
  if (write) {
    ++on.writes;
    link.written = !delivery_;
  } else {
    ++reading_;
  }
  if (transfer.is_spread()) peer.newest_spread = rail;
  return true;
}

void Network::abandon(Batch& batch) noexcept {
  for (Request& request : requests_)
    if (request.batch == &batch) {
      request.batch = nullptr;
      request.target = nullptr;
    }
}

std::string Network::route(const Peer& peer) const {
  return fmt::format("rail {}, {}", peer.home, lines_[peer.home].rail->domain());
}

}  // namespace shoal::transport::ofi
