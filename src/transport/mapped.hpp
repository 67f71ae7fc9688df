// SPDX-License-Identifier: Apache-2.0
// mapped.hpp: the operations of transports that map the segments of their peers.
//
// Memory order. A signal is a release store (or add), read by an acquire load: a PE that sees the
// signal sees all puts before it. Atomics are acquire-release. put stores aligned words atomically,
// so that polling such a word is no data race. Every operation is complete when it returns; fence
// and quiet order operations for observers that use no signal. Each operation that writes wakes the
// threads that wait for what it wrote.
#pragma once

#include "base/wait_point.hpp"
#include "transport/polled.hpp"
#include "transport/transport.hpp"

namespace shoal::transport {

/// Base of `self` and `shm`.
class MappedTransport : public Transport, public PolledOperations {
 public:
  void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) final;
  void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) final;
  void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) final {
    put(pe, offset, source, bytes);
  }
  void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) final {
    get(target, pe, offset, bytes);
  }
  void put_strided(Pe pe, std::size_t offset, std::size_t target_stride, const void* source,
                   std::size_t source_stride, std::size_t element, std::size_t count) final;
  void get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                   std::size_t source_stride, std::size_t element, std::size_t count) final;
  std::uint64_t atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                       std::uint64_t compare, std::size_t width) final;
  void update(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
              std::size_t width) final;
  void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) final;
  void fence(Pe pe) final;
  void quiet() final;
  void wake(Pe pe) noexcept final;

  PolledOperations& polled() final { return *this; }
  bool has_room(Pe) final { return true; }
  void atomic_nbi(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                  std::uint64_t compare, std::size_t width, std::uint64_t* before) final {
    *before = atomic(pe, op, offset, operand, compare, width);
  }
  bool reached(Pe, Point&) final {
    quiet();
    return true;
  }

 protected:
  explicit MappedTransport(const Context& context)
      : mapped_(static_cast<std::size_t>(context.n_pes)), wait_point_(context.wait_point) {}
  void set_mapping(Pe pe, std::shared_ptr<memory::Segment> segment) {
    mapped_[static_cast<std::size_t>(pe)] = std::move(segment);
  }
  std::byte* mapping(Pe pe) const noexcept {
    const auto& segment = mapped_[static_cast<std::size_t>(pe)];
    return segment ? segment->base() : nullptr;
  }

 private:
  WaitPoint& wait_point(Pe pe) const noexcept {
    return *reinterpret_cast<WaitPoint*>(mapping(pe) + *wait_point_);
  }
  void notify(Pe pe, std::size_t offset, std::size_t bytes) const noexcept {
    if (wait_point_) wait_point(pe).notify(offset, bytes);
  }

  std::vector<std::shared_ptr<memory::Segment>> mapped_;  // by PE; empty: not reached
  const std::optional<std::size_t> wait_point_;
};

}  // namespace shoal::transport
