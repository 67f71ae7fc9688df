// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/network.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "transport/message/address.hpp"
#include "transport/message/limits.hpp"

namespace shoal::transport::ucx {
namespace {

constexpr unsigned kMessageId = 1;
constexpr int kPollSteps = 32;  ///< bounds how long one poll holds the lock

/// Longest payload of a message: about a token row. Up to here, a copy at each end costs less than
/// the round trip of a flush.
constexpr std::size_t kPayloadBytes = 16384;

/// Longest put with a signal that is messages, one or several: the signal of an RMA write waits for
/// a flush. 256 KiB would still be faster over TCP, but not on RDMA NICs, which copy nothing.
constexpr std::size_t kPutSignalBytes = std::size_t{64} << 10;

constexpr std::uint64_t kFormat = 2;

/// Fixed part of a PE's address; three blobs follow.
struct AddressHeader {
  std::uint64_t format = kFormat;
  std::uint64_t segment = 0, scratch = 0;  ///< addresses in the PE's address space
  std::uint64_t worker_bytes = 0, segment_key_bytes = 0, scratch_key_bytes = 0;
};

/// The status of a request that was not made.
void* const kLost = UCS_STATUS_PTR(UCS_ERR_CANCELED);

/// Memory of a peer as RMA names it.
struct RemoteMemory {
  std::uint64_t base = 0;
  ucp_rkey_h key = nullptr;
};

}  // namespace

/// One peer as UCX reaches it.
struct Network::Link {
  Network& network;
  Peer& peer;
  ucp_ep_h endpoint = nullptr;
  RemoteMemory segment{}, scratch{};

  // RMA, by number.
  std::uint64_t issued = 0;
  std::uint64_t last_write = 0;
  std::uint64_t flushed = 0;  ///< all up to this one are complete at the target
  std::uint64_t flush_target = 0;
  bool flushing = false;

  struct Held {
    Outgoing* outgoing;
    std::uint64_t after;  ///< the write that must be flushed first
  };
  std::deque<Held> held{};     ///< at most the window of the peer
  bool acknowledging = false;  ///< an acknowledgement is in flight
};

/// A message that UCX may be sending from.
struct Network::Outgoing {
  Link* link = nullptr;
  Kind kind = Kind::nothing;
  std::size_t bytes = 0;
  std::array<std::byte, sizeof(Message) + kPayloadBytes> buffer;
};

/// An RMA request in flight.
struct Network::Rma {
  Link* link = nullptr;  ///< nullptr: not in flight
  Direction direction = Direction::write;
  Batch* batch = nullptr;
};

/// The functions that UCX calls back.
struct Network::Callbacks {
  static ucs_status_t on_message(void* network, const void*, std::size_t, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param) {
    // Shoal sends all messages eagerly; a rendezvous is not one of its own.
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
    auto& self = *static_cast<Network*>(network);
    self.received_ = true;
    self.engine_.receive(static_cast<const std::byte*>(data), bytes);
    return UCS_OK;
  }

  static void on_sent(void* request, ucs_status_t status, void* user_data) {
    ucp_request_free(request);
    Outgoing& outgoing = *static_cast<Outgoing*>(user_data);
    Link& link = *outgoing.link;
    if (outgoing.kind == Kind::acknowledge) link.acknowledging = false;
    link.network.free_outgoing_.push_back(&outgoing);
    if (status != UCS_OK) link.network.fail(link, "sending", status);
  }

  static void on_transferred(void* request, ucs_status_t status, void* user_data) {
    ucp_request_free(request);
    Rma& rma = *static_cast<Rma*>(user_data);
    rma.link->network.finish(rma, status);
  }

  static void on_flushed(void* request, ucs_status_t status, void* user_data) {
    ucp_request_free(request);
    Link& link = *static_cast<Link*>(user_data);
    link.flushing = false;
    if (status != UCS_OK) return link.network.fail(link, "a flush", status);
    link.flushed = link.flush_target;
    link.network.send_held(link);
  }

  static void on_error(void* user_data, ucp_ep_h, ucs_status_t status) {
    Link& link = *static_cast<Link*>(user_data);
    link.network.engine_.fail_peer(link.peer, text_of(status));
  }
};

Network::Network(message::Engine& engine, const Context& context)
    : engine_(engine),
      chunk_(context.settings->network_chunk),
      library_(context),
      segment_(library_, engine.segment().base(), engine.segment().size()),
      scratch_(library_, engine.scratch().data(), engine.scratch().size()) {
  const std::size_t message_bytes = std::min(kPayloadBytes, chunk_);
  traits_ = {.name = kName,
             .payload_bytes = message_bytes,
             .put_bytes = message_bytes,
             .put_signal_bytes = kPutSignalBytes,
             .put_nbi_bytes = message_bytes,
             .get_bytes = message_bytes,
             .window = static_cast<std::uint32_t>(context.settings->network_depth),
             .reorders = true,
             .says_goodbye = true,
             .polls_per_yield = context.crowded ? 1 : message::kPollsPerYield};
  for (Pe pe = 0; pe < context.n_pes; ++pe)
    links_.emplace_back(new Link{.network = *this, .peer = engine.peer(pe)});
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &Callbacks::on_message;
  handler.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(library_.worker(), &handler);
  require(status == UCS_OK, Code::unsupported,
          "SHOAL-N370: UCX has no active messages: {}. Settings: {}", text_of(status),
          library_.selection());
}

Network::~Network() = default;

std::vector<std::byte> Network::address() {
  const std::vector<std::byte> worker = library_.address();
  const std::vector<std::byte> segment_key = segment_.packed_key();
  const std::vector<std::byte> scratch_key = scratch_.packed_key();
  AddressHeader header;
  header.segment = reinterpret_cast<std::uint64_t>(engine_.segment().base());
  header.scratch = reinterpret_cast<std::uint64_t>(engine_.scratch().data());
  header.worker_bytes = worker.size();
  header.segment_key_bytes = segment_key.size();
  header.scratch_key_bytes = scratch_key.size();
  std::vector<std::byte> bytes;
  message::append(bytes, header);
  for (const auto* const blob : {&worker, &segment_key, &scratch_key})
    bytes.insert(bytes.end(), blob->begin(), blob->end());
  return bytes;
}

void Network::open(Peer& peer, std::span<const std::byte> address) {
  const auto header = message::header_of<AddressHeader>(address);
  require(header.format == kFormat, Code::mismatch,
          "SHOAL-N373: its address has format {}, expected {}", header.format, kFormat);
  address = address.subspan(sizeof header);
  const auto take = [&](std::uint64_t length) {
    require(length <= address.size(), Code::mismatch, "SHOAL-N373: its address is cut off");
    const auto part = address.first(length);
    address = address.subspan(length);
    return std::vector<std::byte>(part.begin(), part.end());
  };
  Link& link = this->link(peer);
  create_endpoint(link, take(header.worker_bytes));
  const auto unpack = [&](const std::vector<std::byte>& key) {
    ucp_rkey_h unpacked = nullptr;
    const ucs_status_t status = ucp_ep_rkey_unpack(link.endpoint, key.data(), &unpacked);
    require(status == UCS_OK, Code::unsupported,
            "SHOAL-N370: UCX cannot use the keys of its memory: {}. Settings: {}", text_of(status),
            library_.selection());
    return unpacked;
  };
  link.segment = {header.segment, unpack(take(header.segment_key_bytes))};
  link.scratch = {header.scratch, unpack(take(header.scratch_key_bytes))};
}

void Network::create_endpoint(Link& link, const std::vector<std::byte>& worker) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_USER_DATA;
  params.address = reinterpret_cast<const ucp_address_t*>(worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&Callbacks::on_error, &link};
  params.user_data = &link;
  ucs_status_t status = ucp_ep_create(library_.worker(), &params, &link.endpoint);
  if (status != UCS_OK) {  // without notice of a peer's end, the deadlines of the world remain
    params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    status = ucp_ep_create(library_.worker(), &params, &link.endpoint);
  }
  if (status != UCS_OK) link.endpoint = nullptr;
  require(status == UCS_OK, Code::unsupported,
          "SHOAL-N370: UCX makes no connection: {}. Settings: {}", text_of(status),
          library_.selection());
}

/// call(), which calls UCX; `otherwise` after UCX has found an inconsistency, now or before. The
/// outermost call catches it: UCX's functions between two calls must not continue.
template <typename Call>
auto Network::call_ucx(Call&& call, decltype(call()) otherwise) -> decltype(call()) {
  if (library_.abandoned()) return otherwise;
  const bool nested = FatalErrorsThrown::active();
  try {
    const FatalErrorsThrown thrown;
    return call();
  } catch (const FatalError& error) {
    if (nested) throw;
    abandon_ucx(error.text);
    return otherwise;
  }
}

void Network::abandon_ucx(const std::string& reason) {
  library_.abandon();
  for (const auto& link : links_) {
    link->flushing = link->acknowledging = false;
    engine_.fail_peer(link->peer, fmt::format("SHOAL-N374: UCX failed on this PE: {}", reason));
  }
  // Their callbacks never come.
  for (const auto& rma : rma_)
    if (rma->link != nullptr) finish(*rma, UCS_ERR_CANCELED);
}

/// Ends with a message: a caller may wait for it, and the next step looks at the sockets once more.
bool Network::poll() {
  bool any = false;
  received_ = false;
  for (int step = 0; step < kPollSteps && !received_; ++step) {
    if (call_ucx([&] { return ucp_worker_progress(library_.worker()); }, 0U) == 0) break;
    any = true;
  }
  return any;
}

void Network::fail(Link& link, const char* what, ucs_status_t status) {
  engine_.fail_peer(link.peer, fmt::format("{} failed: {}", what, text_of(status)));
}

void Network::drop(Peer& peer) noexcept {
  Link& link = this->link(peer);
  for (const Link::Held& held : link.held) free_outgoing_.push_back(held.outgoing);
  link.held.clear();
}

Network::Outgoing& Network::take_outgoing(Link& link) {
  if (free_outgoing_.empty()) {
    outgoing_.push_back(std::make_unique<Outgoing>());
    free_outgoing_.reserve(outgoing_.size());
    free_outgoing_.push_back(outgoing_.back().get());
  }
  Outgoing& outgoing = *free_outgoing_.back();
  free_outgoing_.pop_back();
  outgoing.link = &link;
  return outgoing;
}

bool Network::send(Peer& peer, const Message& message, const Payload& payload, After after) {
  Link& link = this->link(peer);
  const bool acknowledge = message.kind == Kind::acknowledge;
  if (acknowledge && link.acknowledging) return false;
  Outgoing& outgoing = take_outgoing(link);
  outgoing.kind = message.kind;
  outgoing.bytes = sizeof message + payload.bytes();
  std::memcpy(outgoing.buffer.data(), &message, sizeof message);
  payload.pack(outgoing.buffer.data() + sizeof message);
  if (message::is_request(message.kind) || after == After::writes) {
    link.held.push_back({&outgoing, after == After::writes ? link.last_write : 0});
    send_held(link);
  } else {
    if (acknowledge) link.acknowledging = true;
    transmit(outgoing);
  }
  return peer.failure.empty();
}

void Network::send_held(Link& link) {
  while (link.peer.failure.empty() && !link.held.empty()) {
    const auto [outgoing, after] = link.held.front();
    if (after > link.flushed) {
      if (!link.flushing) flush(link);
      if (link.flushing) return;  // on_flushed calls again
      continue;
    }
    link.held.pop_front();
    transmit(*outgoing);
  }
}

void Network::transmit(Outgoing& outgoing) {
  Link& link = *outgoing.link;
  Message message;
  std::memcpy(&message, outgoing.buffer.data(), sizeof message);
  engine_.stamp(link.peer, message);
  std::memcpy(outgoing.buffer.data(), &message, sizeof message);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.send = &Callbacks::on_sent;
  param.user_data = &outgoing;
  void* const status = call_ucx(
      [&] {
        return ucp_am_send_nbx(link.endpoint, kMessageId, nullptr, 0, outgoing.buffer.data(),
                               outgoing.bytes, &param);
      },
      kLost);
  engine_.sent(link.peer, message);
  if (UCS_PTR_IS_PTR(status)) return;
  if (outgoing.kind == Kind::acknowledge) link.acknowledging = false;
  free_outgoing_.push_back(&outgoing);
  if (UCS_PTR_IS_ERR(status)) fail(link, "sending", UCS_PTR_STATUS(status));
}

bool Network::transfer(Peer& peer, const Transfer& transfer) {
  Link& link = this->link(peer);
  if (free_rma_.empty()) {
    rma_.push_back(std::make_unique<Rma>());
    free_rma_.reserve(rma_.size());
    free_rma_.push_back(rma_.back().get());
  }
  Rma& rma = *free_rma_.back();
  free_rma_.pop_back();
  rma = {nullptr, transfer.direction, transfer.batch};
  const bool write = transfer.direction == Direction::write;
  const RemoteMemory& remote =
      transfer.region == message::Region::segment ? link.segment : link.scratch;
  const std::uint64_t at = remote.base + transfer.offset;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &Callbacks::on_transferred;
  param.user_data = &rma;
  ++link.issued;
  if (write) link.last_write = link.issued;
  void* const status = call_ucx(
      [&] {
        return write ? ucp_put_nbx(link.endpoint, transfer.local, transfer.bytes, at, remote.key,
                                   &param)
                     : ucp_get_nbx(link.endpoint, transfer.local, transfer.bytes, at, remote.key,
                                   &param);
      },
      kLost);
  if (UCS_PTR_IS_PTR(status)) {
    rma.link = &link;
    peer.start(transfer.direction, transfer.batch);
    return true;
  }
  free_rma_.push_back(&rma);
  if (UCS_PTR_IS_ERR(status)) fail(link, "RMA", UCS_PTR_STATUS(status));
  return peer.failure.empty();
}

void Network::finish(Rma& rma, ucs_status_t status) {
  Link& link = *std::exchange(rma.link, nullptr);
  if (status != UCS_OK && rma.batch != nullptr) rma.batch->failed = true;
  link.peer.finish(rma.direction, rma.batch);
  free_rma_.push_back(&rma);
  if (status != UCS_OK) fail(link, "RMA", status);
}

void Network::abandon(Batch& batch) noexcept {
  for (const auto& rma : rma_)
    if (rma->batch == &batch) rma->batch = nullptr;
}

bool Network::writing(const Peer& peer) const noexcept {
  return link(peer).flushed < link(peer).last_write;  // reads are counted by Peer::reads
}

std::uint64_t Network::newest(const Peer& peer) const noexcept {
  return link(peer).last_write;
}

bool Network::is_complete(Peer& peer, std::uint64_t newest) {
  Link& link = this->link(peer);
  if (link.flushed < newest) flush(link);
  return link.flushed >= newest;
}

void Network::flush(Link& link) {
  if (link.flushing || !link.peer.failure.empty()) return;
  link.flush_target = link.issued;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &Callbacks::on_flushed;
  param.user_data = &link;
  void* const status = call_ucx([&] { return ucp_ep_flush_nbx(link.endpoint, &param); }, kLost);
  if (UCS_PTR_IS_PTR(status)) {
    link.flushing = true;
  } else if (UCS_PTR_IS_ERR(status)) {
    fail(link, "a flush", UCS_PTR_STATUS(status));
  } else {
    link.flushed = link.flush_target;
  }
}

std::string Network::route(const Peer& peer) const {
  return fmt::format("{} held until a flush", link(peer).held.size());
}

/// Polls until `done()`, at most for message::kCloseTimeout.
template <typename Done>
void Network::poll_until(Done&& done) {
  const auto deadline = message::Clock::now() + message::kCloseTimeout;
  Backoff backoff;
  while (!done() && message::Clock::now() < deadline) {
    if (poll()) {
      backoff.reset();
    } else {
      backoff();
    }
  }
}

/// Lets the last messages leave, then closes all endpoints.
void Network::close() noexcept {
  for (const auto& link : links_)
    if (link->endpoint != nullptr) flush(*link);
  poll_until([&] {
    return std::none_of(links_.begin(), links_.end(), [](const auto& link) {
      return link->flushing && link->peer.failure.empty();
    });
  });
  // Requests that still arrive must not be replied to on a closed endpoint.
  for (const auto& link : links_) engine_.fail_peer(link->peer, "this PE has closed the transport");
  (void)call_ucx([&] { return close_endpoints(); }, false);
}

bool Network::close_endpoints() {
  std::vector<void*> closing;
  for (const auto& link : links_) {
    if (link->endpoint == nullptr) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* const status = ucp_ep_close_nbx(link->endpoint, &param);
    if (UCS_PTR_IS_PTR(status)) closing.push_back(status);
  }
  poll_until([&] {
    std::erase_if(closing, [](void* request) {
      if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
      ucp_request_free(request);
      return true;
    });
    return closing.empty();
  });
  for (const auto& link : links_)
    for (ucp_rkey_h key : {link->segment.key, link->scratch.key})
      if (key != nullptr) ucp_rkey_destroy(key);
  return true;
}

}  // namespace shoal::transport::ucx
