// SPDX-License-Identifier: Apache-2.0
// transport.hpp: a transport is a table of operations and a word of capabilities (requirements D4,
// D12).
//
// Addresses are a PE and an offset into its segment (transports of heaps in GPU memory: into its
// heap); callers have checked that they lie inside. A transport does not know what the bytes mean,
// which teams exist, or which other transports there are.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/host/segment.hpp"
#include "shoal/heap.hpp"
#include "shoal/operation.hpp"
#include "shoal/settings.hpp"

namespace shoal::memory {
class DeviceHeap;
}

namespace shoal::transport {

/// What a transport can do for one pair of PEs, as a word of bits.
using Capabilities = std::uint32_t;
namespace capability {
inline constexpr Capabilities load_store =
    1;  ///< base() gives an address that ordinary loads and stores may use
inline constexpr Capabilities put = 2;
inline constexpr Capabilities get = 4;
inline constexpr Capabilities atomics = 8;
inline constexpr Capabilities signals = 16;
inline constexpr Capabilities all_operations = put | get | atomics | signals;
}  // namespace capability

/// "load-store put get atomics signals", or "nothing".
std::string describe(Capabilities capabilities);

/// Capabilities towards one PE, or none and the reason.
struct Reach {
  Capabilities capabilities = 0;
  std::string reason;
};

class Transport;

/// What a transport is given to start with. Everything is valid until connect returns, `settings`
/// as long as the world.
struct Context {
  Pe my_pe = 0;
  Pe n_pes = 0;
  std::span<const std::int32_t>
      host_of;  ///< equal numbers: same host, as the user or the machine says
  std::span<const std::int32_t>
      node_of;  ///< equal numbers: same node, which may be a part of a host
  std::shared_ptr<memory::Segment> segment;
  std::shared_ptr<memory::DeviceHeap>
      device_heap;  ///< for heap_factories(); nullptr where the heap is on the host
  const Settings* settings = nullptr;
  /// Networks: the PEs that no other transport reaches as well as the settings ask for, by PE. Only
  /// these are connected; reach() of others is nothing, with a reason.
  std::vector<bool> wanted;
  /// Networks: the ports of this PE by the NIC plan, one a rail, such as "mlx5_0:1" or "eth0";
  /// empty: any.
  std::vector<std::string> nics;
  memory::Token world{};  ///< a secret that only the PEs of this world know
  std::chrono::milliseconds timeout{};
  std::function<void()>
      check;  ///< to be called in waits about every millisecond; throws when another PE has failed
  /// What the world knows of the end or failure of a PE, empty when it lives. For waits of
  /// operations, as long as the transport lives; called without locks that ended() takes. May be
  /// empty.
  std::function<std::string(Pe)> failure;
  /// Transports of heaps in GPU memory: what carries operations on the segment of a PE. From
  /// carry() on, as long as the transport lives.
  std::function<Transport&(Pe)> host_route;
  /// Transport "staged": offset of its memory in every PE's segment.
  std::size_t staging = 0;
};

/// One PE's side of a transport. Operations of this PE's own heap and of mapped ones may come from
/// several threads at once; a network locks for itself.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const noexcept = 0;

  // Start, in this order on every PE: address() everywhere, an all-gather, connect() everywhere. A
  // network leaves its address empty where it is not to be had; its connect() tries every wanted PE
  // with an address, both ways, throws for none of them, and reach() says what came of it.
  virtual std::vector<std::byte> address() = 0;
  virtual void connect(std::span<const std::vector<std::byte>> addresses) = 0;
  virtual Reach reach(Pe pe) const = 0;
  /// Transports of heaps in GPU memory: the PEs that it was chosen for, once, before the first
  /// operation. May throw.
  virtual void carry(std::span<const Pe> /*pes*/) {}

  /// The segment of `pe` in this address space where the pair has load_store, else nullptr.
  virtual std::byte* base(Pe pe) const noexcept = 0;

  // Blocking forms return when the local buffer may be reused (put) or is filled (get); the others
  // leave it in use until quiet. put of an aligned 4- or 8-byte word is one store: a waiter never
  // sees half of it.
  virtual void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) = 0;
  virtual void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) = 0;
  virtual void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) = 0;
  virtual void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) = 0;
  /// `count` elements of `element` bytes; strides in bytes.
  virtual void put_strided(Pe pe, std::size_t offset, std::size_t target_stride, const void* source,
                           std::size_t source_stride, std::size_t element, std::size_t count) = 0;
  virtual void get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                           std::size_t source_stride, std::size_t element, std::size_t count) = 0;

  /// Atomic on a 4- or 8-byte word at a multiple of its width; returns the value before.
  virtual std::uint64_t atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                               std::uint64_t compare, std::size_t width) = 0;
  /// Updates a 64-bit word after all earlier puts to this PE have become visible there.
  virtual void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) = 0;
  virtual void put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                          std::size_t signal_offset, SignalOp op, std::uint64_t value) = 0;

  virtual void fence(Pe pe) = 0;  ///< orders earlier puts and atomics to `pe` before later ones
  virtual void quiet() = 0;  ///< returns when all earlier operations are complete at their targets

  /// Moves along what is on its way, for a PE that waits and has nothing else to do with its core.
  /// Never waits itself. Whether something came of it.
  virtual bool progress() noexcept { return false; }

  /// The most requests of one kind that were ever in flight to one PE, which SHOAL_NETWORK_DEPTH
  /// bounds; 0: not counted.
  virtual std::size_t most_in_flight() const noexcept { return 0; }

  /// A peer that this transport knows to have ended, in order or not.
  struct Ended {
    Pe pe;
    std::string description;  ///< "pid 123 ended"
  };
  /// All of them so far. Does not block; called about every millisecond by a PE that waits.
  virtual std::span<const Ended> ended() noexcept = 0;
};

using Factory = std::unique_ptr<Transport> (*)(const Context& context);

/// The transports inside a host, the preferred ones first. The only place that lists them.
std::span<const Factory> factories();
/// The network transports that there are modules for ("ofi", "ucx"), the preferred ones first.
std::span<const std::string_view> network_names();
/// Loads the module of a network transport and makes this PE's side of it. Where it cannot be
/// loaded, a transport that reaches nobody and says why.
std::unique_ptr<Transport> make_network(std::string_view name, const Context& context);
/// A transport of this name that reaches nobody, for this reason.
std::unique_ptr<Transport> make_unavailable(std::string_view name, std::string reason);
/// Those that carry operations on heaps in GPU memory, the preferred ones first. Empty in a build
/// without CUDA.
std::span<const Factory> heap_factories();
/// Bytes that they take of every PE's segment, at Context::staging.
std::size_t heap_staging(Pe n_pes, const Settings& settings);

}  // namespace shoal::transport
