// SPDX-License-Identifier: Apache-2.0
// The ucx transport as the core sees it: operations in terms of the engine's messages and
// transfers.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/check.hpp"
#include "transport/module.hpp"
#include "transport/ucx/engine.hpp"

namespace shoal::transport {
namespace {

using ucx::Engine;
using ucx::Header;
using ucx::Kind;
using ucx::Message;
using ucx::Operation;
using ucx::Peer;

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(const Context& context) {
    try {
      engine_ = std::make_unique<Engine>(context);
    } catch (const Error& error) {
      reason_ = error.reason();
    }
  }

  std::string_view name() const noexcept override { return "ucx"; }
  std::vector<std::byte> address() override {
    return engine_ ? engine_->address() : std::vector<std::byte>();
  }
  void connect(std::span<const std::vector<std::byte>> addresses) override;
  Reach reach(Pe pe) const override;
  std::byte* base(Pe) const noexcept override { return nullptr; }

  void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override;
  void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) override;
  void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override;
  void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) override;
  void put_strided(Pe pe, std::size_t offset, std::size_t target_stride, const void* source,
                   std::size_t source_stride, std::size_t element, std::size_t count) override;
  void get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                   std::size_t source_stride, std::size_t element, std::size_t count) override;
  std::uint64_t atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                       std::uint64_t compare, std::size_t width) override;
  void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) override;
  void put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                  std::size_t signal_offset, SignalOp op, std::uint64_t value) override;
  void fence(Pe pe) override;
  void quiet() override;
  bool progress() noexcept override { return engine_ && engine_->drive(); }
  std::span<const Ended> ended() noexcept override;

 private:
  /// One operation on one peer, with the lock held.
  struct Call {
    Operation operation;
    Engine& engine;
    Engine::Lock lock;
    Peer& peer;

    Call(UcxTransport& transport, Pe pe, const char* name, std::size_t bytes)
        : operation{name, bytes},
          engine(*transport.engine_),
          lock(engine),
          peer(engine.open_peer(pe, operation)) {}
    Message& message(Kind kind) { return engine.begin_message(lock, peer, kind, operation); }
  };

  Message& put_message(Call& call, std::size_t offset, const void* source, std::size_t bytes);
  std::uint64_t request_bytes(Call& call, void* target, std::size_t offset, std::size_t bytes,
                              bool awaited);
  void check_usable(const char* operation) const {
    require(engine_ != nullptr, Code::unsupported, "{}: transport ucx: {}", operation, reason_);
  }

  /// The longest transfer that goes as a message.
  std::size_t message_bytes() const { return engine_ ? engine_->message_bytes() : 0; }

  std::unique_ptr<Engine> engine_;
  std::string reason_;  ///< why there is no engine
};

void UcxTransport::connect(std::span<const std::vector<std::byte>> addresses) {
  if (!engine_) return;
  Engine::Lock lock(*engine_);
  engine_->connect(lock, addresses);
}

Reach UcxTransport::reach(Pe pe) const {
  if (!engine_) return {0, reason_};
  const Engine::Lock lock(*engine_);
  const Peer& peer = engine_->peers()[static_cast<std::size_t>(pe)];
  if (peer.connected && !peer.ended) return {capability::all_operations, ""};
  return {0, peer.reason};
}

Message& UcxTransport::put_message(Call& call, std::size_t offset, const void* source,
                                   std::size_t bytes) {
  Message& message = call.message(Kind::put);
  Header& header = message.header;
  header.offset = offset;
  header.element = header.payload = static_cast<std::uint32_t>(bytes);
  header.count = 1;
  std::memcpy(message.payload.data(), source, bytes);
  return message;
}

void UcxTransport::put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  check_usable("put");
  Call call(*this, pe, "put", bytes);
  if (bytes > message_bytes())
    return call.engine.put(call.lock, call.peer, offset, source, bytes, true);
  call.engine.post(put_message(call, offset, source, bytes));
}

void UcxTransport::put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  check_usable("put_nbi");
  Call call(*this, pe, "put_nbi", bytes);
  if (bytes > message_bytes())
    return call.engine.put(call.lock, call.peer, offset, source, bytes, false);
  call.engine.post(put_message(call, offset, source, bytes));
}

std::uint64_t UcxTransport::request_bytes(Call& call, void* target, std::size_t offset,
                                          std::size_t bytes, bool awaited) {
  Message& message = call.message(Kind::get);
  message.header.offset = offset;
  message.header.element = static_cast<std::uint32_t>(bytes);
  message.header.count = 1;
  return call.engine.post_request(message, {.target = static_cast<std::byte*>(target),
                                            .element = bytes,
                                            .count = 1,
                                            .awaited = awaited});
}

void UcxTransport::get(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  check_usable("get");
  Call call(*this, pe, "get", bytes);
  if (bytes > message_bytes())
    return call.engine.get(call.lock, call.peer, offset, target, bytes, true);
  call.engine.await(call.lock, call.peer, request_bytes(call, target, offset, bytes, true),
                    call.operation);
}

void UcxTransport::get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  check_usable("get_nbi");
  Call call(*this, pe, "get_nbi", bytes);
  if (bytes > message_bytes())
    return call.engine.get(call.lock, call.peer, offset, target, bytes, false);
  request_bytes(call, target, offset, bytes, false);
}

void UcxTransport::put_strided(Pe pe, std::size_t offset, std::size_t target_stride,
                               const void* source, std::size_t source_stride, std::size_t element,
                               std::size_t count) {
  const auto* const from = static_cast<const std::byte*>(source);
  if (element > message_bytes()) {
    for (std::size_t i = 0; i < count; ++i)
      put(pe, offset + i * target_stride, from + i * source_stride, element);
    return;
  }
  if (element == 0 || count == 0) return;
  check_usable("put_strided");
  Call call(*this, pe, "put_strided", element * count);
  const std::size_t at_once = message_bytes() / element;
  for (std::size_t first = 0; first < count; first += at_once) {
    const std::size_t n = std::min(at_once, count - first);
    Message& message = call.message(Kind::put);
    Header& header = message.header;
    header.offset = offset + first * target_stride;
    header.stride = target_stride;
    header.element = static_cast<std::uint32_t>(element);
    header.count = static_cast<std::uint32_t>(n);
    header.payload = static_cast<std::uint32_t>(element * n);
    for (std::size_t i = 0; i < n; ++i)
      std::memcpy(message.payload.data() + i * element, from + (first + i) * source_stride,
                  element);
    call.engine.post(message);
  }
}

void UcxTransport::get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                               std::size_t source_stride, std::size_t element, std::size_t count) {
  auto* const to = static_cast<std::byte*>(target);
  if (element > message_bytes()) {
    for (std::size_t i = 0; i < count; ++i)
      get(to + i * target_stride, pe, offset + i * source_stride, element);
    return;
  }
  if (element == 0 || count == 0) return;
  check_usable("get_strided");
  Call call(*this, pe, "get_strided", element * count);
  const std::size_t at_once = message_bytes() / element;
  for (std::size_t first = 0; first < count; first += at_once) {
    const std::size_t n = std::min(at_once, count - first);
    Message& message = call.message(Kind::get);
    message.header.offset = offset + first * source_stride;
    message.header.stride = source_stride;
    message.header.element = static_cast<std::uint32_t>(element);
    message.header.count = static_cast<std::uint32_t>(n);
    const std::uint64_t request =
        call.engine.post_request(message, {.target = to + first * target_stride,
                                           .stride = target_stride,
                                           .element = element,
                                           .count = n,
                                           .awaited = true});
    call.engine.await(call.lock, call.peer, request, call.operation);
  }
}

std::uint64_t UcxTransport::atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                                   std::uint64_t compare, std::size_t width) {
  check_usable("atomic");
  Call call(*this, pe, "atomic", width);
  Message& message = call.message(Kind::atomic);
  message.header.atomic = op;
  message.header.offset = offset;
  message.header.operand = operand;
  message.header.compare = compare;
  message.header.width = static_cast<std::uint8_t>(width);
  return call.engine.await(call.lock, call.peer,
                           call.engine.post_request(message, {.awaited = true}), call.operation);
}

void UcxTransport::signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  check_usable("signal");
  Call call(*this, pe, "signal", sizeof value);
  Message& message = call.message(Kind::signal);
  message.header.signal_offset = offset;
  message.header.signal = op;
  message.header.operand = value;
  call.engine.post(message, call.peer.last_put);
}

void UcxTransport::put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                              std::size_t signal_offset, SignalOp op, std::uint64_t value) {
  if (bytes == 0 || bytes > message_bytes()) {
    put(pe, offset, source, bytes);
    return signal(pe, signal_offset, op, value);
  }
  check_usable("put_signal");
  Call call(*this, pe, "put_signal", bytes);
  Message& message = put_message(call, offset, source, bytes);
  message.header.then_signal = true;
  message.header.signal_offset = signal_offset;
  message.header.signal = op;
  message.header.operand = value;
  call.engine.post(message, call.peer.last_put);
}

void UcxTransport::fence(Pe pe) {
  if (!engine_) return;
  const Engine::Lock lock(*engine_);
  Peer& peer = engine_->peers()[static_cast<std::size_t>(pe)];
  peer.fenced_messages = peer.sent;
  peer.fenced_transfers = peer.last_put;
}

void UcxTransport::quiet() {
  if (!engine_) return;
  Engine::Lock lock(*engine_);
  engine_->quiet(lock);
}

std::span<const Transport::Ended> UcxTransport::ended() noexcept {
  return engine_ ? engine_->ended() : std::span<const Ended>();
}

std::unique_ptr<Transport> make_ucx(const Context& context) {
  return std::make_unique<UcxTransport>(context);
}

const char* library_name() noexcept {
  static char text[64];
  std::snprintf(text, sizeof text, "UCX %s", ucp_get_version_string());
  return text;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const Module shoal_transport_module;
const Module shoal_transport_module = {kModuleVersion, "ucx", library_name(), &make_ucx};
}

}  // namespace shoal::transport
