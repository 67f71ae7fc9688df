// SPDX-License-Identifier: Apache-2.0
// queue_failures.hpp: why a queue of a NIC that kernels drive does not complete requests, as text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "shoal/device/detail/gda/queue.hpp"
#include "shoal/error.hpp"
#include "shoal/heap.hpp"

namespace shoal::detail {

/// A queue between two calls of its users.
struct QueueState {
  device::gda::Failure failure;  ///< with a cause: the queue has ended
  std::uint64_t completed = 0;   ///< requests
  std::uint64_t published = 0;
};

/// The state of `queue`, whose shared words are `shared`. Sees errors that no user has polled yet,
/// and changes nothing.
QueueState look_at(const device::gda::Queue& queue, const device::gda::Shared& shared);

/// "request 12 (RDMA write) ended with remote access error (syndrome 0x13, vendor 0x88)", or the
/// step at which the deadline of a user passed.
std::string describe(const device::gda::Failure& failure);

/// Why one of the queues that lead to `pe` has ended; else one that leads to another PE; else which
/// requests to `pe` are not complete. nullopt: nothing of that.
std::optional<Error> failure_of(std::span<const QueueState> queues, Pe pe);

}  // namespace shoal::detail
