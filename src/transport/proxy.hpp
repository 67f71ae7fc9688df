// SPDX-License-Identifier: Apache-2.0
// proxy.hpp: a thread of this PE that executes what kernels, or other threads, post to a ring.
//
//   auto memory = std::make_shared<ProxyMemory>(1024);        // in tests; pinned memory for a GPU
//   auto proxy = make_proxy({.ring = memory->ring(), .keep = memory, ...});
//
// The proxy uses the operations that ProxyContext::route returns and knows no transport.
// Protocol of the ring: shoal/device/detail/proxy_ring.hpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/service_thread.hpp"
#include "shoal/device/detail/proxy_ring.hpp"
#include "shoal/error.hpp"
#include "shoal/heap.hpp"
#include "transport/polled.hpp"

namespace shoal::transport {

/// Input of make_proxy. All of it must stay valid until the proxy is destroyed.
struct ProxyContext {
  Pe my_pe = 0;
  Pe n_pes = 0;
  std::size_t heap_bytes = 0;           ///< of every heap; requests must lie inside
  device::proxy::Ring ring{};           ///< zeroed memory, by addresses of the consumer
  std::chrono::milliseconds timeout{};  ///< of a request, from its start to its completion
  /// The way to the heap of a PE. Throws Error{unsupported}. Called by the proxy's thread.
  std::function<PolledRoute(Pe)> route{};
  /// Why the PE is known to have failed or ended; empty while it lives. May be null.
  std::function<std::string(Pe)> failure{};
  ProgressWait wait = ProgressWait::yield;
  std::int64_t core = -1;  ///< core of the thread; -1: not bound
};

class Proxy {
 public:
  virtual ~Proxy() = default;

  /// Waits until all requests posted so far are complete. `posted`: the ring's head. Throws the
  /// first error of the ring, or Error{timeout}.
  virtual void drain(std::uint64_t posted) = 0;
  /// Ends every wait of a producer with Outcome::aborted, unless the ring has failed before. No
  /// further request starts.
  virtual void abort() noexcept = 0;
  /// The error that ended the ring; nullopt while it works.
  virtual std::optional<Error> failure() const = 0;
  /// Requests that were complete so far.
  virtual std::uint64_t completed() const noexcept = 0;
};

/// Starts the thread. The destructor of the result aborts the ring and ends the thread; operations
/// in flight may use the memory of the ring until the transports are gone.
std::unique_ptr<Proxy> make_proxy(const ProxyContext& context);

/// The memory of a ring whose producers are threads of this process. Zeroed.
class ProxyMemory {
 public:
  /// `n_slots` >= 1; `timeout`: of the producers' waits.
  ProxyMemory(std::uint64_t n_slots, std::chrono::milliseconds timeout);
  const device::proxy::Ring& ring() const noexcept { return ring_; }

 private:
  struct Free {
    void operator()(void* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Free> memory_;
  device::proxy::Ring ring_{};
};

/// Bytes of the slots, responses and control block of a ring, and their places in zeroed memory
/// aligned to 64 bytes. Sets `slots`, `responses`, `control` and `n_slots` of `ring`.
std::size_t proxy_ring_bytes(std::uint64_t n_slots) noexcept;
void place_proxy_ring(device::proxy::Ring& ring, std::byte* memory, std::uint64_t n_slots) noexcept;

}  // namespace shoal::transport
