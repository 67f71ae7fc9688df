// SPDX-License-Identifier: Apache-2.0
// network_transport.hpp: the Transport over a message core: which operation is a message and which
// is RMA.
//
// Words, atomics and signals are messages, because they must agree with the atomic instructions of
// PEs that share memory with the target. Short data are messages as far as the network's traits
// say so. Everything else is RMA.
#pragma once

#include <memory>
#include <optional>

#include "base/check.hpp"
#include "transport/message/engine.hpp"
#include "transport/message/network_heap_rma.hpp"
#include "transport/message/progress_thread.hpp"
#include "transport/transport.hpp"

namespace shoal::transport::message {

class NetworkTransport final : public Transport, public PolledOperations {
 public:
  /// `heap`: nullptr without access to heaps in GPU memory.
  NetworkTransport(const Context& context, std::unique_ptr<Engine> engine, const Traits& traits,
                   HeapRegistration* heap);
  ~NetworkTransport() override;

  std::string_view name() const noexcept override { return traits_.name; }
  std::vector<std::byte> address() override { return engine_->address(); }
  void open(std::span<const std::vector<std::byte>> addresses) override;
  void connect(std::span<const std::vector<std::byte>> addresses) override;
  Reach reach(Pe pe) const override { return reach_[static_cast<std::size_t>(pe)]; }

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
  void update(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
              std::size_t width) override;
  void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) override;
  void raise_flag(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) override;
  void put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                  std::size_t signal_offset, SignalOp op, std::uint64_t value) override;
  void fence(Pe pe) override;
  void quiet() override { engine_->quiet(); }
  PolledOperations& polled() override { return *this; }
  bool has_room(Pe pe) override { return engine(pe, "put_nbi").has_room(pe); }
  void atomic_nbi(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                  std::uint64_t compare, std::size_t width, std::uint64_t* before) override;
  bool reached(Pe pe, Point& point) override { return engine(pe, "quiet").reached(pe, point); }
  bool progress() noexcept override { return engine_->progress(); }
  int polls_per_yield() const noexcept override { return engine_->polls_per_yield(); }
  std::vector<std::string> shortfalls(Pe pe, std::span<const Load> loads) const override {
    return engine_->shortfalls(pe, loads);
  }
  GpuAccess gpu_access() noexcept override {
    return {heap_ ? &*heap_ : nullptr, engine_->device_queues()};
  }
  std::size_t most_in_flight() const noexcept override { return engine_->most_in_flight(); }
  std::span<const Ended> ended() noexcept override { return engine_->ended(); }

 private:
  Engine& engine(Pe pe, const char* operation) const;
  template <typename Body>
  void blocking(const Operation& operation, Pe pe, Body&& body);
  bool is_word_at(std::size_t offset, std::size_t bytes) const;
  Request put_request(std::size_t offset, const void* source, std::size_t bytes) const;
  void start_get(const Operation& operation, void* target, Pe pe, std::size_t offset,
                 std::size_t bytes, Batch* batch);
  static Request atomic_request(AtomicOp op, std::size_t offset, std::uint64_t operand,
                                std::uint64_t compare, std::size_t width, void* before);
  std::int64_t progress_core() const;

  const Context context_;
  const Traits& traits_;  ///< of the engine's network, which may change them until it is connected
  std::vector<Reach> reach_;  ///< by PE
  bool opened_ = false;
  const std::unique_ptr<Engine> engine_;
  std::optional<NetworkHeapRma> heap_;
  std::optional<ProgressThread> progress_;  ///< ends before the engine
};

/// The transport over `N`, a Network with a constructor N(Engine&, const Context&) and the
/// constants kName and kMaxRails. Throws what the constructor throws.
template <typename N>
std::unique_ptr<Transport> make_network_transport(const Context& context) {
  bool wanted = false;
  for (const bool pe : context.wanted) wanted = wanted || pe;
  require(wanted, Code::unsupported, "SHOAL-N317: not needed: another transport reaches it");
  auto engine = std::make_unique<Engine>(context, N::kMaxRails);
  auto network = std::make_unique<N>(*engine, context);
  const Traits& traits = network->traits();
  HeapRegistration* const heap = network->heap_registration();
  engine->attach(std::move(network));
  return std::make_unique<NetworkTransport>(context, std::move(engine), traits, heap);
}

}  // namespace shoal::transport::message
