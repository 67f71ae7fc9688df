// SPDX-License-Identifier: Apache-2.0
#include "transport/staged/staged.hpp"

#include <optional>

#include "base/check.hpp"
#include "memory/device_heap.hpp"
#include "transport/staged/agent.hpp"
#include "transport/staged/requester.hpp"

namespace shoal::transport {
namespace {

std::byte* bytes_of(const void* memory) {
  return static_cast<std::byte*>(const_cast<void*>(memory));
}

class StagedTransport final : public Transport {
 public:
  StagedTransport(const Context& context, std::unique_ptr<Transport> own)
      : context_(context),
        heap_(context.device_heap),
        layout_(context.n_pes, *context.settings),
        copies_(heap_->device()),
        own_(std::move(own)),
        requester_(context, layout_, copies_) {}
  ~StagedTransport() override {
    agent_.reset();
    copies_.unpin();
  }

  std::string_view name() const noexcept override { return "staged"; }
  std::vector<std::byte> address() override { return own_->address(); }
  void connect(std::span<const std::vector<std::byte>> addresses) override {
    own_->connect(addresses);
  }
  Reach reach(Pe pe) const override {
    if (pe == context_.my_pe) return {0, "the PE itself"};
    if (heap_->obstacle(pe).empty() && !heap_->atomics(pe))
      return {0, "the GPUs reach each other, except for atomics"};
    return {capability::all_operations, ""};
  }
  void carry(std::span<const Pe> pes) override {
    if (pes.empty()) return;
    copies_.pin(context_.segment->base() + context_.staging + layout_.chunks(),
                layout_.bytes() - layout_.chunks());
    agent_.emplace(context_, layout_, *own_, pes);
  }

  void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override {
    put_nbi(pe, offset, source, bytes);
    requester_.finish(pe);
  }
  void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) override {
    requester_.get(pe, offset, {bytes_of(target), bytes, 1, bytes}, bytes);
  }
  void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override {
    requester_.put(pe, offset, {bytes_of(source), bytes, 1, bytes}, bytes);
  }
  void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) override {
    requester_.start_get(pe, offset, {bytes_of(target), bytes, 1, bytes}, bytes);
  }
  void put_strided(Pe pe, std::size_t offset, std::size_t target_stride, const void* source,
                   std::size_t source_stride, std::size_t element, std::size_t count) override {
    requester_.put(pe, offset, {bytes_of(source), element, count, source_stride}, target_stride);
    requester_.finish(pe);
  }
  void get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                   std::size_t source_stride, std::size_t element, std::size_t count) override {
    requester_.get(pe, offset, {bytes_of(target), element, count, target_stride}, source_stride);
  }

  std::uint64_t atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                       std::uint64_t compare, std::size_t width) override {
    return requester_.atomic(pe, op, offset, operand, compare, width);
  }
  void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) override {
    requester_.signal(pe, offset, op, value);
    requester_.finish(pe);
  }
  void put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                  std::size_t signal_offset, SignalOp op, std::uint64_t value) override {
    put_nbi(pe, offset, source, bytes);
    signal(pe, signal_offset, op, value);
  }

  void fence(Pe) override {}  // the other PE serves requests in order
  void quiet() override { requester_.quiet(); }
  bool has_room(Pe pe) override { return requester_.has_room(pe); }
  bool reached(Pe pe, Point& point) override { return requester_.reached(pe, point); }

 private:
  const Context context_;
  const std::shared_ptr<memory::DeviceHeap> heap_;
  const staged::Layout layout_;
  staged::Copies copies_;
  const std::unique_ptr<Transport> own_;
  staged::Requester requester_;
  std::optional<staged::Agent> agent_;  ///< after carry() with PEs
};

}  // namespace

std::size_t staged_bytes(Pe n_pes, const Settings& settings) {
  return staged::Layout(n_pes, settings).bytes();
}

std::unique_ptr<Transport> make_staged(const Context& context, std::unique_ptr<Transport> own) {
  return std::make_unique<StagedTransport>(context, std::move(own));
}

}  // namespace shoal::transport
