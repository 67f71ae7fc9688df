// SPDX-License-Identifier: Apache-2.0
// polled.hpp: the operations of a caller that has many in flight and must not wait for one of them,
// such as the proxy. Transport::polled() returns them.
//
//   PolledOperations::Point point;
//   if (operations.has_room(pe)) operations.put_nbi(pe, offset, source, bytes);
//   while (!operations.reached(pe, point)) ...  // other work; then the put is complete
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "shoal/heap.hpp"
#include "shoal/operation.hpp"

namespace shoal::transport {

/// Operations of the same meaning and errors as those of Transport. For one thread at a time.
class PolledOperations {
 public:
  /// A point in the order of the operations to one PE, for reached().
  struct Point {
    bool set = false;
    std::uint32_t request = 0;
    std::uint64_t transfer = 0;
    bool counted = false;
    std::uint64_t number = 0;  ///< of a request that another PE serves
    std::chrono::steady_clock::time_point next_probe{};
  };

  /// True if an operation to `pe` would start without waiting, as far as is known: another thread
  /// may take the room.
  virtual bool has_room(Pe pe) = 0;
  virtual void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) = 0;
  virtual void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) = 0;
  /// `before` receives the value before the operation, at the latest when a later point is reached.
  virtual void atomic_nbi(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                          std::uint64_t compare, std::size_t width, std::uint64_t* before) = 0;
  virtual void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) = 0;
  /// True if all operations to `pe` that started before the first call with this `point` are
  /// complete at their target. Makes progress; does not wait for the peer where the transport can
  /// tell without waiting. Throws Error{peer_failed}.
  virtual bool reached(Pe pe, Point& point) = 0;

 protected:
  ~PolledOperations() = default;
};

/// The way to the heap of one PE. `start` is the offset of the heap as `operations` count.
struct PolledRoute {
  PolledOperations& operations;
  std::size_t start;
};

}  // namespace shoal::transport
