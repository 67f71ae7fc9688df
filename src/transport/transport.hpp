// SPDX-License-Identifier: Apache-2.0
// transport.hpp: what every transport offers: a table of operations and a word of capabilities.
//
// A transport carries one-sided operations between pairs of PEs. It addresses memory by PE and byte
// offset: into the PE's segment, or, for transports of device heaps (`heap_factories`), into its
// heap in GPU memory. Callers have checked that ranges lie inside. A transport knows neither the
// meaning of the bytes, nor teams, nor other transports.
//
// Two more interfaces have what only some callers need: polled.hpp (the proxy) and
// heap_transport.hpp (heaps in GPU memory). Which class to read first: mapped.hpp (memory that both
// PEs map), message/ (networks).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

/// Capabilities of a transport for one pair of PEs, as a word of bits.
using Capabilities = std::uint32_t;
namespace capability {
inline constexpr Capabilities load_store = 1;  ///< base() is valid for ordinary loads and stores
inline constexpr Capabilities put = 2;
inline constexpr Capabilities get = 4;
inline constexpr Capabilities atomics = 8;
inline constexpr Capabilities signals = 16;
inline constexpr Capabilities all_operations = put | get | atomics | signals;
}  // namespace capability

/// "load-store put get atomics signals", or "nothing".
std::string describe(Capabilities capabilities);

/// Capabilities towards one PE; where there are none, the reason.
struct Reach {
  Capabilities capabilities = 0;
  std::string reason;
};

/// Most operations that a call keeps in flight towards one PE.
struct Load {
  std::string call;      ///< "dispatch"
  std::size_t puts = 0;  ///< each of `bytes` bytes
  std::size_t bytes = 0;
  std::size_t signals = 0;  ///< and other messages
};

class Transport;
class PolledOperations;
class HeapRma;
class DeviceQueues;

/// Services of a network for GPUs; a member is nullptr where it does not.
struct GpuAccess {
  HeapRma* heaps = nullptr;              ///< accesses heaps in GPU memory
  const DeviceQueues* queues = nullptr;  ///< queues that kernels drive
};

/// Input of a transport's constructor. Members without another lifetime are valid until connect()
/// returns.
struct Context {
  Pe my_pe = 0;
  Pe n_pes = 0;
  std::span<const std::int32_t> host_of;  ///< by PE; PEs of one host have equal numbers
  std::span<const std::int32_t> node_of;  ///< by PE; a node is a host or a part of one
  /// Indexed by PE: equal where they reach each other over the loopback interface of a host. Empty:
  /// as host_of.
  std::span<const std::int32_t> network_of;
  bool crowded = false;  ///< more PEs than cores on this PE's host
  std::shared_ptr<memory::Segment> segment;
  std::shared_ptr<memory::DeviceHeap> device_heap;  ///< nullptr where heaps are on the host
  const Settings* settings = nullptr;               ///< lives as long as the world
  /// Networks: by PE, whether this transport must connect it. reach() of the others has no
  /// capabilities.
  std::vector<bool> wanted;
  /// Networks: the ports of this PE by the NIC plan, one per rail, such as "mlx5_0:1" or "eth0".
  /// Empty: any.
  std::vector<std::string> nics;
  memory::Token world{};  ///< a secret that only the PEs of this world know
  std::chrono::milliseconds timeout{};
  /// Called about every millisecond while connect() waits. Throws when another PE has failed.
  std::function<void()> check;
  /// Reason why the world considers `pe` ended or failed; empty while it lives. Valid as long as
  /// the transport; may be null. Called without locks that ended() takes.
  std::function<std::string(Pe)> failure;
  /// The other transports that could carry operations to `pe`, with the setting, to follow the
  /// error of a lost connection. Empty until the world has chosen. Valid as long as the transport;
  /// may be null. Takes no locks.
  std::function<std::string(Pe)> alternatives;
  /// heap_factories(): the transport of the segment of a PE. Valid from carry() on, as long as the
  /// transport.
  std::function<Transport&(Pe)> host_route;
  /// Offset of the WaitPoint in every PE's segment; nullopt: waits do not block.
  std::optional<std::size_t> wait_point;
  /// Transport `staged`: offset of its memory in every PE's segment.
  std::size_t staging = 0;

  /// True if this PE reaches all wanted peers over the loopback interface.
  bool loopback_reaches_wanted() const noexcept;
};

/// One PE's side of a transport. Several threads may call operations at once.
///
/// Errors. Operations throw Error{unsupported} for a PE that reach() does not offer,
/// Error{timeout} when SHOAL_TIMEOUT_MS passes without completion, and Error{peer_failed} when the
/// target has ended. After an error the state of the operation at the target is unknown.
///
/// Order. Operations to one PE are unordered unless this file says otherwise: see fence, quiet and
/// signal. Operations to different PEs are never ordered, except by quiet.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Name in settings and messages: "shm", "ofi", ...
  virtual std::string_view name() const noexcept = 0;

  // Startup: every PE calls address(), the world all-gathers the results, every PE calls open() and
  // then, when all have, connect().

  /// Address with which peers reach this PE; empty on a PE without this network.
  virtual std::vector<std::byte> address() = 0;
  /// Gets ready for data that peers send once they call connect(). A network that repeats data
  /// which arrived too early need not override it.
  virtual void open(std::span<const std::vector<std::byte>> /*addresses*/) {}
  /// Connects every wanted PE whose address is not empty. A PE that cannot be connected is no
  /// error: reach() has the reason.
  virtual void connect(std::span<const std::vector<std::byte>> addresses) = 0;
  /// After connect(): what this transport can do for `pe`.
  virtual Reach reach(Pe pe) const = 0;

  /// The segment of `pe` in this address space, or nullptr without capability::load_store.
  virtual std::byte* base(Pe /*pe*/) const noexcept { return nullptr; }

  /// Copies `bytes` bytes to the target. When it returns, the source may be reused; the data may
  /// still be on the way. An aligned 4- or 8-byte word is stored whole: a polling reader never sees
  /// half of it.
  virtual void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) = 0;
  /// Copies `bytes` bytes from the target. When it returns, the data are in `target`. Not ordered
  /// after earlier puts to the same PE.
  virtual void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) = 0;

  /// Like put, but may leave the source in use until quiet().
  virtual void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) = 0;
  /// Like get, but may leave `target` unfilled until quiet().
  virtual void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) = 0;
  /// put of `count` elements of `element` bytes; strides in bytes.
  virtual void put_strided(Pe pe, std::size_t offset, std::size_t target_stride, const void* source,
                           std::size_t source_stride, std::size_t element, std::size_t count) = 0;
  /// get of `count` elements of `element` bytes; strides in bytes.
  virtual void get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                           std::size_t source_stride, std::size_t element, std::size_t count) = 0;

  /// Applies `op` atomically to the word of `width` (4 or 8) bytes at `offset`, a multiple of
  /// `width`. Returns the value before. Atomic towards every other transport of the world.
  virtual std::uint64_t atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                               std::uint64_t compare, std::size_t width) = 0;
  /// Like atomic, without the previous value: it may still be in flight when this returns. Default:
  /// atomic.
  virtual void update(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                      std::size_t width);
  /// Sets or adds to the 64-bit word at `offset`, after the data of all earlier puts (put, put_nbi,
  /// put_strided) of this thread to `pe` are visible there.
  virtual void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) = 0;
  /// Like signal, but no quiet waits for it: the operations of a team end when such flags have
  /// arrived. Default: signal.
  virtual void raise_flag(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value);
  /// put, then signal. When it returns, the source may be reused. Default: put and signal.
  virtual void put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                          std::size_t signal_offset, SignalOp op, std::uint64_t value);

  /// Orders earlier puts, atomics and signals to `pe` before later ones. Does not wait for their
  /// completion, and does not order gets.
  virtual void fence(Pe pe) = 0;
  /// Returns when all earlier operations of this thread are complete at their targets and all local
  /// buffers are free or filled.
  virtual void quiet() = 0;

  /// Makes progress without waiting, for a thread that polls memory and has nothing else to do.
  /// Returns whether it found something to do.
  virtual bool progress() noexcept { return false; }
  /// Calls of progress() without success after which a waiting thread yields its core: more than 1
  /// where a call costs less than a yield.
  virtual int polls_per_yield() const noexcept { return 1; }

  /// Wakes the threads of `pe` that block in a wait, whatever they wait for. Default: nothing; they
  /// look for themselves now and then.
  virtual void wake(Pe /*pe*/) noexcept {}

  /// The operations of a caller that polls for their completion. For one thread at a time.
  virtual PolledOperations& polled() = 0;
  virtual GpuAccess gpu_access() noexcept { return {}; }

  /// Why calls with these loads towards `pe` would wait for room in queues, with the remedy. Empty
  /// where they would not, or where nothing is known.
  virtual std::vector<std::string> shortfalls(Pe /*pe*/, std::span<const Load> /*loads*/) const {
    return {};
  }

  /// The most requests of one kind that were in flight to one PE at a time, which
  /// SHOAL_NETWORK_DEPTH bounds. 0: not counted.
  virtual std::size_t most_in_flight() const noexcept { return 0; }

  /// A connected peer that this transport knows to have ended, in order or not.
  struct Ended {
    Pe pe;
    std::string description;  ///< "pid 123 ended"
  };
  /// All of them so far. Does not block. A waiting PE calls it about every millisecond, from one
  /// thread at a time.
  virtual std::span<const Ended> ended() noexcept { return {}; }
};

using Factory = std::unique_ptr<Transport> (*)(const Context& context);

/// The transports inside a host, the preferred one first. Only registry/ lists them.
std::span<const Factory> factories();
/// Names of the network transports, the preferred one first: "ofi", "ucx", "verbs".
std::span<const std::string_view> network_names();
/// Loads the module of a network transport and constructs this PE's side. Throws the reason where
/// that fails.
std::unique_ptr<Transport> make_network(std::string_view name, const Context& context);
/// Bit i: the module of network_names()[i] is installed; its library may be missing.
std::uint32_t installed_networks(const Settings& settings);

}  // namespace shoal::transport
