// SPDX-License-Identifier: Apache-2.0
// shoal/world.hpp: a world of PEs that share symmetric memory, and one-sided operations between
// them.
//
// Worlds are objects: a process may hold several, of different members, at once or one after
// another, and PEs may be processes or threads (requirements D1, D8). World::open and close are
// collective. A World is a handle; copies name the same world. One thread uses a world at a time,
// apart from the const queries.
//
// Ordering (OpenSHMEM 1.5, section 9.10; requirement D15): put, put_nbi and atomics to one PE are
// ordered by fence, completed at all targets by quiet. Blocking calls return when the local buffer
// may be reused (put) or holds the data (get). put_signal makes the data visible before the signal.
//
// The heap lies on the host or in the memory of each PE's GPU (SHOAL_HEAP). In GPU memory, local
// buffers of all operations may be the host's or the GPU's. Operations of the host run on a stream
// of Shoal's own: they are ordered among themselves, not with the streams of the program, which
// waits for its kernels before it puts what they wrote. A PE's thread may use other GPUs between
// calls: every call that needs the PE's GPU makes it current.
//
// Every call throws Error{invalid_argument} for a PE or range that does not exist, stating it and
// what is allowed; Error{unsupported} when no transport of that pair can do it; Error{closed} after
// close. Waits throw Error{timeout} after SHOAL_TIMEOUT_MS and Error{peer_failed} when a PE of the
// world ended or failed meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <shoal/bootstrap.hpp>
#include <shoal/heap.hpp>
#include <shoal/operation.hpp>
#include <shoal/settings.hpp>
#include <shoal/team.hpp>

namespace shoal {

struct WorldOptions {
  Settings settings{};
  /// How this PE reaches the others; nullptr: as settings.bootstrap says.
  std::shared_ptr<Bootstrap> bootstrap{};

  static WorldOptions from_environment() { return {Settings::from_environment(), nullptr}; }
};

/// One named step of World::open and how long it took on this PE (requirement D9).
struct InitPhase {
  std::string name;
  std::chrono::nanoseconds duration{};
  /// The part of it that the phase's all-gather took, which is mostly waiting for the slowest PE.
  std::chrono::nanoseconds waited{};
};

template <typename T>
concept AtomicType = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

class World {
 public:
  World() = default;  ///< closed

  /// Starts the world: all of its PEs call. A failure on one PE makes the call fail on all of them,
  /// with that PE's message, within SHOAL_BOOTSTRAP_TIMEOUT_MS.
  static World open(WorldOptions options = WorldOptions::from_environment());
  /// The same on a thread of its own, while the program does something else (requirement B6). What
  /// open throws, get() of the future throws. The world belongs to whoever takes it: any one
  /// thread.
  static std::future<World> open_async(WorldOptions options = WorldOptions::from_environment());

  /// Ends the world after a barrier. Heap pointers and teams of it become invalid. A closed world
  /// may be closed again. The last handle of an open world closes it without a barrier.
  void close();
  bool is_open() const noexcept;

  Pe my_pe() const;
  Pe n_pes() const;
  /// Index of this PE on its node, and PEs per node (equal on all nodes).
  Pe my_pe_on_node() const;
  Pe pes_per_node() const;

  Team team() const;             ///< all PEs
  Team node_team() const;        ///< PEs of this PE's node
  Team shared_team() const;      ///< PEs whose heaps this PE reaches by load and store
  Team same_index_team() const;  ///< PEs with this PE's index on every node (a rail)
  Team self_team() const;        ///< this PE alone

  /// A number that names a team to be made by make_team; one PE makes it and gives it to the other
  /// members by any means.
  std::uint64_t make_team_id() const;
  /// The team of `size` PEs that call with the same `id`, each with its own `index` in 0 .. size
  /// - 1. Collective over those PEs alone. Throws Error{invalid_argument} for an index out of range
  /// or taken twice, Error{exhausted} as Team::split_strided.
  Team make_team(std::uint64_t id, Pe size, Pe index) const;

  SymmetricHeap& heap() const;
  const Settings& settings() const;
  const std::vector<InitPhase>& init_phases() const;
  /// The transport chosen for the heap of `pe` and what it can do, as text: "shm: load-store put
  /// get atomics signals"; for heaps in GPU memory also what carries control words, and why no
  /// better one is used: "staged: put get atomics signals; control shm; cuda_p2p: GPU 0 has no peer
  /// access to GPU 1 (cuDeviceCanAccessPeer)".
  std::string describe_transport(Pe pe) const;

  // Put, get.
  template <typename T>
  void put(RemoteSpan<T> target, std::span<const std::type_identity_t<T>> source) const {
    check_counts(target.count, source.size());
    put_bytes(target.address, source.data(), source.size_bytes());
  }
  template <typename T>
  void get(std::span<std::type_identity_t<T>> target, RemoteSpan<T> source) const {
    check_counts(target.size(), source.count);
    get_bytes(target.data(), source.address, target.size_bytes());
  }
  /// Non-blocking: the local buffer must stay untouched until quiet; when quiet throws, until the
  /// world is gone.
  template <typename T>
  void put_nbi(RemoteSpan<T> target, std::span<const std::type_identity_t<T>> source) const {
    check_counts(target.count, source.size());
    put_bytes_nbi(target.address, source.data(), source.size_bytes());
  }
  template <typename T>
  void get_nbi(std::span<std::type_identity_t<T>> target, RemoteSpan<T> source) const {
    check_counts(target.size(), source.count);
    get_bytes_nbi(target.data(), source.address, target.size_bytes());
  }
  /// One element.
  template <typename T>
  void put_value(RemoteSpan<T> target, std::type_identity_t<T> value) const {
    put_bytes(target.address, &value, sizeof value);
  }
  template <typename T>
  T get_value(RemoteSpan<T> source) const {
    T value;
    get_bytes(&value, source.address, sizeof value);
    return value;
  }
  /// `count` elements, `target_stride` and `source_stride` elements apart (both at least 1).
  template <typename T>
  void put_strided(RemoteSpan<T> target, std::ptrdiff_t target_stride,
                   const std::type_identity_t<T>* source, std::ptrdiff_t source_stride,
                   std::size_t count) const {
    check_strided(target.count, target_stride, source_stride, count);
    put_strided_bytes(target.address, target_stride * sizeof(T), source, source_stride * sizeof(T),
                      sizeof(T), count);
  }
  template <typename T>
  void get_strided(T* target, std::ptrdiff_t target_stride, RemoteSpan<T> source,
                   std::ptrdiff_t source_stride, std::size_t count) const {
    check_strided(source.count, source_stride, target_stride, count);
    get_strided_bytes(target, target_stride * sizeof(T), source.address, source_stride * sizeof(T),
                      sizeof(T), count);
  }

  void put_bytes(RemoteAddress target, const void* source, std::size_t bytes) const;
  void get_bytes(void* target, RemoteAddress source, std::size_t bytes) const;
  void put_bytes_nbi(RemoteAddress target, const void* source, std::size_t bytes) const;
  void get_bytes_nbi(void* target, RemoteAddress source, std::size_t bytes) const;
  void put_strided_bytes(RemoteAddress target, std::size_t target_stride, const void* source,
                         std::size_t source_stride, std::size_t element, std::size_t count) const;
  void get_strided_bytes(void* target, std::size_t target_stride, RemoteAddress source,
                         std::size_t source_stride, std::size_t element, std::size_t count) const;

  // Atomics: each returns the value before.
  template <AtomicType T>
  T atomic(AtomicOp op, RemoteSpan<T> target, std::type_identity_t<T> operand,
           std::type_identity_t<T> compare = 0) const {
    return static_cast<T>(atomic_word(op, target.address, static_cast<std::uint64_t>(operand),
                                      static_cast<std::uint64_t>(compare), sizeof(T)));
  }
  template <AtomicType T>
  T atomic_fetch(RemoteSpan<T> target) const {
    return atomic(AtomicOp::fetch, target, 0);
  }
  template <AtomicType T>
  void atomic_set(RemoteSpan<T> target, std::type_identity_t<T> value) const {
    atomic(AtomicOp::set, target, value);
  }
  template <AtomicType T>
  T atomic_fetch_add(RemoteSpan<T> target, std::type_identity_t<T> value) const {
    return atomic(AtomicOp::add, target, value);
  }
  template <AtomicType T>
  T atomic_fetch_and(RemoteSpan<T> target, std::type_identity_t<T> value) const {
    return atomic(AtomicOp::bit_and, target, value);
  }
  template <AtomicType T>
  T atomic_fetch_or(RemoteSpan<T> target, std::type_identity_t<T> value) const {
    return atomic(AtomicOp::bit_or, target, value);
  }
  template <AtomicType T>
  T atomic_fetch_xor(RemoteSpan<T> target, std::type_identity_t<T> value) const {
    return atomic(AtomicOp::bit_xor, target, value);
  }
  template <AtomicType T>
  T atomic_swap(RemoteSpan<T> target, std::type_identity_t<T> value) const {
    return atomic(AtomicOp::swap, target, value);
  }
  template <AtomicType T>
  T atomic_compare_swap(RemoteSpan<T> target, std::type_identity_t<T> expected,
                        std::type_identity_t<T> desired) const {
    return atomic(AtomicOp::compare_swap, target, desired, expected);
  }
  std::uint64_t atomic_word(AtomicOp op, RemoteAddress target, std::uint64_t operand,
                            std::uint64_t compare, std::size_t width) const;

  // Signals: 64-bit words of the heap.
  void signal(RemoteSpan<std::uint64_t> target, SignalOp op, std::uint64_t value) const;
  void signal_set(RemoteSpan<std::uint64_t> target, std::uint64_t value) const {
    signal(target, SignalOp::set, value);
  }
  void signal_add(RemoteSpan<std::uint64_t> target, std::uint64_t value) const {
    signal(target, SignalOp::add, value);
  }
  template <typename T>
  void put_signal(RemoteSpan<T> target, std::span<const std::type_identity_t<T>> source,
                  RemoteSpan<std::uint64_t> flag, SignalOp op, std::uint64_t value) const {
    check_counts(target.count, source.size());
    put_signal_bytes(target.address, source.data(), source.size_bytes(), flag, op, value);
  }
  void put_signal_bytes(RemoteAddress target, const void* source, std::size_t bytes,
                        RemoteSpan<std::uint64_t> flag, SignalOp op, std::uint64_t value) const;
  /// The value of a signal of this PE.
  std::uint64_t signal_fetch(const std::uint64_t* flag) const;
  /// Waits until `*flag` compares so with `value`; returns what was seen.
  std::uint64_t signal_wait_until(const std::uint64_t* flag, Compare compare,
                                  std::uint64_t value) const {
    wait_until(flag, compare, value);
    return signal_fetch(flag);
  }

  // Wait and test on variables of this PE's heap that others write.
  // `skip`, where given, has an element per variable;.
  // those that are not zero are left out. wait_any and wait_some return no_index / nothing at once
  // when every variable is left out. wait_any rotates its starting point, so no variable starves.
  static constexpr std::size_t no_index = static_cast<std::size_t>(-1);

  template <AtomicType T>
  void wait_until(const T* variable, Compare compare, std::type_identity_t<T> value) const {
    wait_all(std::span<const T>(variable, 1), compare, std::span<const T>(&value, 1), {});
  }
  template <AtomicType T>
  bool test(const T* variable, Compare compare, std::type_identity_t<T> value) const {
    return test_all(std::span<const T>(variable, 1), compare, std::span<const T>(&value, 1), {});
  }
  /// `values` has one element (the same value for all variables) or one per variable.
  template <AtomicType T>
  void wait_all(std::span<const T> variables, Compare compare,
                std::span<const std::type_identity_t<T>> values,
                std::span<const int> skip = {}) const {
    wait_words(words(variables, values, skip), compare, Quorum::all);
  }
  template <AtomicType T>
  bool test_all(std::span<const T> variables, Compare compare,
                std::span<const std::type_identity_t<T>> values,
                std::span<const int> skip = {}) const {
    return test_words(words(variables, values, skip), compare, Quorum::all).satisfied;
  }
  template <AtomicType T>
  std::size_t wait_any(std::span<const T> variables, Compare compare,
                       std::span<const std::type_identity_t<T>> values,
                       std::span<const int> skip = {}) const {
    return first(wait_words(words(variables, values, skip), compare, Quorum::any));
  }
  template <AtomicType T>
  std::size_t test_any(std::span<const T> variables, Compare compare,
                       std::span<const std::type_identity_t<T>> values,
                       std::span<const int> skip = {}) const {
    return first(test_words(words(variables, values, skip), compare, Quorum::any));
  }
  /// The indices of all variables that compare so, at least one.
  template <AtomicType T>
  std::vector<std::size_t> wait_some(std::span<const T> variables, Compare compare,
                                     std::span<const std::type_identity_t<T>> values,
                                     std::span<const int> skip = {}) const {
    return wait_words(words(variables, values, skip), compare, Quorum::some).indices;
  }
  template <AtomicType T>
  std::vector<std::size_t> test_some(std::span<const T> variables, Compare compare,
                                     std::span<const std::type_identity_t<T>> values,
                                     std::span<const int> skip = {}) const {
    return test_words(words(variables, values, skip), compare, Quorum::some).indices;
  }

  void fence() const;  ///< Orders earlier puts and atomics before later ones, for each target PE.
  void quiet() const;  ///< Returns when all earlier operations of this PE are complete and visible
                       ///< at their targets.

  /// The state behind the handle, for Shoal's own layers. Throws Error{closed} when closed.
  detail::WorldState& state() const;

 private:
  /// Variables of either width behind one interface, so that the wait loops are compiled once.
  struct Words {
    const void* variables;
    const void* values;
    std::size_t count, value_count;
    std::size_t width;
    bool is_signed;
    std::span<const int> skip;
  };
  struct WaitResult {
    bool satisfied = false;
    std::vector<std::size_t> indices;
  };
  template <typename T>
  static Words words(std::span<const T> variables, std::span<const T> values,
                     std::span<const int> skip) {
    return {variables.data(),    values.data(), variables.size(), values.size(), sizeof(T),
            std::is_signed_v<T>, skip};
  }
  static std::size_t first(const WaitResult& result) {
    return result.indices.empty() ? no_index : result.indices.front();
  }
  static void check_counts(std::size_t target, std::size_t source);
  static void check_strided(std::size_t available, std::ptrdiff_t remote_stride,
                            std::ptrdiff_t local_stride, std::size_t count);
  /// How many of the variables have to compare as asked: all of them, one of them, or at least one.
  enum class Quorum : std::uint8_t { all, any, some };
  WaitResult test_words(const Words& words, Compare compare, Quorum quorum) const;
  WaitResult wait_words(const Words& words, Compare compare, Quorum quorum) const;

  std::shared_ptr<detail::WorldState> state_;
};

/// Runs `body(world)` on `n_pes` threads of this process, a PE each, and rethrows the first
/// failure. The quickest way to a world: for tests, for tools and for learning.
void run_threads(Pe n_pes, const Settings& settings, const std::function<void(World&)>& body);

}  // namespace shoal
