// SPDX-License-Identifier: Apache-2.0
// The transport over libfabric: how each operation of Transport is carried out by the engine.
//
// Words, atomics and signals are messages, for they must agree with the atomic instructions of PEs
// that share memory with the target. Everything longer is RMA; a short put with a signal is one
// message.
#include <rdma/fabric.h>

#include <cstdio>
#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/module.hpp"
#include "transport/ofi/engine.hpp"
#include "transport/ofi/handshake.hpp"
#include "transport/ofi/progress.hpp"
#include "transport/words.hpp"

namespace shoal::transport {
namespace {

using ofi::Batch;
using ofi::Engine;
using ofi::Kind;
using ofi::Message;

class OfiTransport final : public Transport {
 public:
  explicit OfiTransport(const Context& context)
      : context_(context),
        settings_(*context.settings),
        reach_(static_cast<std::size_t>(context.n_pes)) {
    for (bool wanted : context.wanted) any_wanted_ = any_wanted_ || wanted;
    if (any_wanted_) engine_.emplace(context);
    for (Reach& reach : reach_) reach.reason = "not needed: another transport reaches it";
  }

  std::string_view name() const noexcept override { return "ofi"; }
  std::vector<std::byte> address() override {
    return engine_ ? engine_->address() : std::vector<std::byte>();
  }
  void connect(std::span<const std::vector<std::byte>> addresses) override;
  Reach reach(Pe pe) const override { return reach_[static_cast<std::size_t>(pe)]; }
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
  void fence(Pe pe) override { engine(pe, "fence").fence(pe); }
  void quiet() override {
    if (engine_) engine_->quiet();
  }
  bool progress() noexcept override { return engine_ && engine_->drive(); }
  std::size_t most_in_flight() const noexcept override {
    return engine_ ? engine_->most_in_flight() : 0;
  }
  std::span<const Ended> ended() noexcept override {
    return engine_ ? engine_->ended() : std::span<const Ended>();
  }

 private:
  Engine& engine(Pe pe, const char* operation);
  void put_part(Engine& engine, const char* operation, Pe pe, std::size_t offset,
                const void* source, std::size_t bytes, Batch* batch);
  void get_part(Engine& engine, const char* operation, void* target, Pe pe, std::size_t offset,
                std::size_t bytes, Batch* batch);
  template <typename Body>
  void blocking(Engine& engine, const char* operation, Pe pe, Body&& body);
  std::int64_t progress_core() const;

  const Context context_;  // spans and functions of it are used until connect returns
  const Settings& settings_;
  bool any_wanted_ = false;
  std::vector<Reach> reach_;
  std::optional<Engine> engine_;
  std::optional<ofi::Progress> progress_;  // ends before the engine
};

/// The core of the first PE of the host, then the next ones.
std::int64_t OfiTransport::progress_core() const {
  if (settings_.progress_core < 0) return -1;
  std::int64_t index = 0;
  for (Pe pe = 0; pe < context_.my_pe; ++pe)
    if (context_.host_of[static_cast<std::size_t>(pe)] ==
        context_.host_of[static_cast<std::size_t>(context_.my_pe)])
      ++index;
  return settings_.progress_core + index;
}

void OfiTransport::connect(std::span<const std::vector<std::byte>> addresses) {
  if (!engine_) return;
  for (Pe pe = 0; pe < context_.n_pes; ++pe) {
    const auto i = static_cast<std::size_t>(pe);
    if (!context_.wanted[i]) continue;
    reach_[i].reason = "libfabric is not to be had there";
    if (addresses[i].empty()) continue;
    try {
      engine_->add_peer(pe, addresses[i]);
      reach_[i].reason.clear();
    } catch (const Error& error) {
      reach_[i].reason = error.what();
    }
  }
  engine_->post_receives();
  progress_.emplace(*engine_, settings_, progress_core(), context_.my_pe);
  ofi::Handshake handshake(*engine_, context_.my_pe);
  // Half of the time, so that a PE whose attempts all fail is not late for the step after this one.
  handshake.run(context_.timeout / 2, context_.check);
  for (std::size_t i = 0; i < reach_.size(); ++i) {
    if (!context_.wanted[i] || !reach_[i].reason.empty()) continue;
    reach_[i].reason = handshake.reason(static_cast<Pe>(i));
    if (reach_[i].reason.empty()) reach_[i].capabilities = capability::all_operations;
  }
}

Engine& OfiTransport::engine(Pe pe, const char* operation) {
  const Reach& reach = reach_[static_cast<std::size_t>(pe)];
  require(reach.capabilities != 0, Code::unsupported,
          "{} to PE {}: transport ofi does not reach it: {}", operation, pe, reach.reason);
  return *engine_;
}

/// `body(batch)` starts operations that are complete, for this PE's memory, when this returns.
template <typename Body>
void OfiTransport::blocking(Engine& engine, const char* operation, Pe pe, Body&& body) {
  Batch batch;
  try {
    body(&batch);
    engine.finish(operation, pe, batch);
  } catch (...) {
    engine.abandon(batch);
    throw;
  }
}

/// What brings `bytes` bytes, at most kInlineBytes; what is no word follows it.
Message carrier(const void* target, std::size_t offset, const void* source, std::size_t bytes) {
  Message message;
  message.offset = offset;
  if (is_word(target, bytes)) {
    message.kind = Kind::store;
    message.width = static_cast<std::uint8_t>(bytes);
    std::memcpy(&message.operand, source, bytes);
  } else if (bytes != 0) {
    message.kind = Kind::data;
    message.compare = bytes;
  }
  return message;
}

void OfiTransport::put_part(Engine& engine, const char* operation, Pe pe, std::size_t offset,
                            const void* source, std::size_t bytes, Batch* batch) {
  const std::byte* const target = context_.segment->base() + offset;
  if (bytes == 0) return;
  if (!is_word(target, bytes)) return engine.write(operation, pe, offset, source, bytes, batch);
  engine.request(operation, pe, carrier(target, offset, source, bytes), false);
}

void OfiTransport::get_part(Engine& engine, const char* operation, void* target, Pe pe,
                            std::size_t offset, std::size_t bytes, Batch* batch) {
  if (bytes == 0) return;
  if (!is_word(context_.segment->base() + offset, bytes))
    return engine.read(operation, target, pe, offset, bytes, batch);
  Message message;
  message.kind = Kind::fetch;
  message.op = AtomicOp::fetch;
  message.width = static_cast<std::uint8_t>(bytes);
  message.offset = offset;
  engine.request(operation, pe, message, false, nullptr, target, batch);
}

void OfiTransport::put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  Engine& to = engine(pe, "put");
  if (bytes == 0) return;
  // A quiet is likely to follow: it then need not ask for the acknowledgement, which takes a round
  // trip.
  if (bytes <= ofi::kInlineBytes) {
    Message message = carrier(context_.segment->base() + offset, offset, source, bytes);
    message.flags = ofi::flag::eager;
    return to.request("put", pe, message, false, source);
  }
  blocking(to, "put", pe,
           [&](Batch* batch) { to.write("put", pe, offset, source, bytes, batch, true); });
}

void OfiTransport::get(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  Engine& from = engine(pe, "get");
  blocking(from, "get", pe,
           [&](Batch* batch) { get_part(from, "get", target, pe, offset, bytes, batch); });
}

void OfiTransport::put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  put_part(engine(pe, "put_nbi"), "put_nbi", pe, offset, source, bytes, nullptr);
}

void OfiTransport::get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  get_part(engine(pe, "get_nbi"), "get_nbi", target, pe, offset, bytes, nullptr);
}

void OfiTransport::put_strided(Pe pe, std::size_t offset, std::size_t target_stride,
                               const void* source, std::size_t source_stride, std::size_t element,
                               std::size_t count) {
  Engine& to = engine(pe, "put_strided");
  const auto* const from = static_cast<const std::byte*>(source);
  blocking(to, "put_strided", pe, [&](Batch* batch) {
    for (std::size_t i = 0; i < count; ++i)
      put_part(to, "put_strided", pe, offset + i * target_stride, from + i * source_stride, element,
               batch);
  });
}

void OfiTransport::get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                               std::size_t source_stride, std::size_t element, std::size_t count) {
  Engine& from = engine(pe, "get_strided");
  auto* const to = static_cast<std::byte*>(target);
  blocking(from, "get_strided", pe, [&](Batch* batch) {
    for (std::size_t i = 0; i < count; ++i)
      get_part(from, "get_strided", to + i * target_stride, pe, offset + i * source_stride, element,
               batch);
  });
}

std::uint64_t OfiTransport::atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                                   std::uint64_t compare, std::size_t width) {
  Engine& at = engine(pe, "atomic");
  Message message;
  message.kind = Kind::fetch;
  message.op = op;
  message.width = static_cast<std::uint8_t>(width);
  message.offset = offset;
  message.operand = operand;
  message.compare = compare;
  std::uint64_t before = 0;
  blocking(at, "atomic", pe, [&](Batch* batch) {
    at.request("atomic", pe, message, false, nullptr, &before, batch);
  });
  return before;
}

/// Makes a message carry a signal.
Message with_signal(Message message, std::size_t offset, SignalOp op, std::uint64_t value) {
  message.flags |= op == SignalOp::set ? ofi::flag::signal_set : ofi::flag::signal_add;
  message.signal_offset = offset;
  message.signal_value = value;
  return message;
}

void OfiTransport::signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  engine(pe, "signal").request("signal", pe, with_signal({}, offset, op, value), true);
}

void OfiTransport::put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                              std::size_t signal_offset, SignalOp op, std::uint64_t value) {
  Engine& to = engine(pe, "put_signal");
  if (bytes <= ofi::kInlineBytes) {
    const Message message = carrier(context_.segment->base() + offset, offset, source, bytes);
    return to.request("put_signal", pe, with_signal(message, signal_offset, op, value), true,
                      source);
  }
  blocking(to, "put_signal", pe, [&](Batch* batch) {
    to.write("put_signal", pe, offset, source, bytes, batch);
    to.request("put_signal", pe, with_signal({}, signal_offset, op, value), true);
  });
}

std::unique_ptr<Transport> make_ofi(const Context& context) {
  return std::make_unique<OfiTransport>(context);
}

/// "libfabric 1.17"
const char* library_name() noexcept {
  static char name[32];
  std::snprintf(name, sizeof name, "libfabric %u.%u", FI_MAJOR(fi_version()),
                FI_MINOR(fi_version()));
  return name;
}

}  // namespace
}  // namespace shoal::transport

extern "C" __attribute__((visibility("default")))
const shoal::transport::Module shoal_transport_module = {shoal::transport::kModuleVersion, "ofi",
                                                         shoal::transport::library_name(),
                                                         shoal::transport::make_ofi};
