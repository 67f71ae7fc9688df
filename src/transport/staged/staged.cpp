// SPDX-License-Identifier: Apache-2.0
#include "transport/staged/staged.hpp"

#include <optional>

#include "base/check.hpp"
#include "memory/device_heap.hpp"
#include "transport/heap_rma.hpp"
#include "transport/polled.hpp"
#include "transport/staged/agent.hpp"
#include "transport/staged/requester.hpp"

namespace shoal::transport {
namespace {

std::byte* bytes_of(const void* memory) {
  return static_cast<std::byte*>(const_cast<void*>(memory));
}

class StagedTransport final : public HeapTransport, public PolledOperations {
 public:
  StagedTransport(const Context& context, std::unique_ptr<Transport> own)
      : context_(context),
        heap_(context.device_heap),
        layout_(context.n_pes, *context.settings),
        copies_(heap_->device()),
        own_(std::move(own)),
        requester_(context, layout_, copies_),
        direct_(static_cast<std::size_t>(context.n_pes)) {}
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
    for (const Pe pe : pes)
      direct_[static_cast<std::size_t>(pe)] = context_.host_route(pe).gpu_access().heaps;
    copies_.pin(context_.segment->base() + context_.staging + layout_.chunks(),
                layout_.bytes() - layout_.chunks());
    agent_.emplace(context_, layout_, *own_, pes);
  }

  std::string note(Pe pe) const override {
    HeapRma* const rma = direct_[static_cast<std::size_t>(pe)];
    if (rma != nullptr) return "data " + rma->describe(pe);
    const std::string_view network = context_.host_route(pe).name();
    if (network == "shm") return "";  // no NIC takes part
    return fmt::format("data through host memory: transport {} does not access GPU memory",
                       network);
  }

  void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override {
    if (HeapRma* const rma = direct(pe, offset, source, bytes))
      return rma->put(pe, offset, source, bytes);
    put_nbi(pe, offset, source, bytes);
    requester_.finish(pe);
  }
  void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) override {
    if (HeapRma* const rma = direct(pe, offset, target, bytes))
      return rma->get(target, pe, offset, bytes);
    requester_.get(pe, offset, {bytes_of(target), bytes, 1, bytes}, bytes);
  }
  void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override {
    if (HeapRma* const rma = direct(pe, offset, source, bytes))
      return rma->put_nbi(pe, offset, source, bytes);
    requester_.put(pe, offset, {bytes_of(source), bytes, 1, bytes}, bytes);
  }
  void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) override {
    if (HeapRma* const rma = direct(pe, offset, target, bytes))
      return rma->get_nbi(target, pe, offset, bytes);
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

  /// The other PE serves requests in order, and a request follows the data that a network wrote.
  /// Only data after a request have to wait.
  void fence(Pe pe) override {
    if (direct_[static_cast<std::size_t>(pe)] == nullptr) return;
    requester_.finish(pe);
    context_.host_route(pe).fence(pe);
  }
  void quiet() override {
    requester_.quiet();
    for (Pe pe = 0; pe < context_.n_pes; ++pe)
      if (direct_[static_cast<std::size_t>(pe)] != nullptr)
        return context_.host_route(pe).quiet();  // of all PEs
  }

  PolledOperations& polled() override { return *this; }
  bool has_room(Pe pe) override {
    return requester_.has_room(pe) && context_.host_route(pe).polled().has_room(pe);
  }
  void atomic_nbi(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                  std::uint64_t compare, std::size_t width, std::uint64_t* before) override {
    *before = requester_.atomic(pe, op, offset, operand, compare, width);
  }
  /// Requests and, where the network writes to the heap itself, its writes.
  /// SHOAL_STAGED_DEPTH bounds it.
  std::size_t most_in_flight() const noexcept override { return requester_.most_in_flight(); }

  bool reached(Pe pe, Point& point) override {
    const bool served = requester_.reached(pe, point);
    return (direct_[static_cast<std::size_t>(pe)] == nullptr ||
            context_.host_route(pe).polled().reached(pe, point)) &&
           served;
  }

 private:
  /// The network that copies these bytes itself; nullptr: they pass through chunks. Words are the
  /// business of the other PE's GPU, as atomics are.
  HeapRma* direct(Pe pe, std::size_t offset, const void* local, std::size_t bytes) const {
    HeapRma* const rma = direct_[static_cast<std::size_t>(pe)];
    const bool word = (bytes == 4 || bytes == 8) && offset % bytes == 0;
    if (rma == nullptr || word || bytes == 0) return nullptr;
    const std::byte* const base = heap_->base(context_.my_pe);
    const bool own = local >= base && local < base + heap_->size();
    if (!rma->reaches(pe, offset, local, bytes) || (!own && copies_.on_gpu(local))) return nullptr;
    return rma;
  }

  const Context context_;
  const std::shared_ptr<memory::DeviceHeap> heap_;
  const staged::Layout layout_;
  staged::Copies copies_;
  const std::unique_ptr<Transport> own_;
  staged::Requester requester_;
  std::vector<HeapRma*> direct_;        ///< by PE; nullptr: the network does not access GPU memory
  std::optional<staged::Agent> agent_;  ///< after carry() with PEs
};

}  // namespace

std::size_t staged_bytes(Pe n_pes, const Settings& settings) {
  return staged::Layout(n_pes, settings).bytes();
}

std::unique_ptr<HeapTransport> make_staged(const Context& context, std::unique_ptr<Transport> own) {
  return std::make_unique<StagedTransport>(context, std::move(own));
}

}  // namespace shoal::transport
