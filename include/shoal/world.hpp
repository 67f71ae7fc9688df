// SPDX-License-Identifier: Apache-2.0
// shoal/world.hpp: a world of PEs that share symmetric memory, and one-sided operations between
// them (OpenSHMEM 1.5, chapter 9).
//
//   shoal::World world = shoal::World::open();      // collective; shoal-run starts the PEs
//   auto box = world.heap().allocate<float>(1024);
//   world.put(box.on((world.my_pe() + 1) % world.n_pes()), std::vector<float>(1024, 1.0f));
//   shoal::barrier(world.team());                   // shoal/collective.hpp
//   world.close();                                  // collective
//
// Worlds are objects: a process may hold several, with different PEs, at once or one after another.
// A PE is a process or a thread. A World is a handle; copies name the same world. One thread uses a
// world at a time, except for const queries.
//
// Ownership. Worlds, teams and symmetric arrays are released when their last handle is destroyed.
// Destructors never communicate, so PEs destroy in any order, on any thread, and during exceptions.
// A destroyed array returns to the heap at the next heap call (malloc, align, calloc, allocate,
// free), a destroyed team at the next split of its parent: once all its PEs have destroyed it.
// close() of a world and free() of an array or team are collective and release at once. close
// succeeds with live arrays; their memory stays readable until they are destroyed, and calls on
// them throw Error{closed}.
//
// Ordering (OpenSHMEM 1.5, section 9.12). fence orders earlier put, put_nbi and atomics to a PE
// ahead of later ones to the same PE; quiet completes them at all PEs. Blocking calls return when
// the local buffer may be reused (put) or holds the data (get). put_signal makes the data visible
// before the signal.
//
// Heaps in GPU memory (SHOAL_HEAP=cuda). Local buffers of all operations may lie on the host or on
// the GPU. Operations called here run on a stream of Shoal's own, ordered among themselves but not
// with the program's streams: wait for your kernels before putting what they wrote. A PE's thread
// may use other GPUs between calls; every call that needs the PE's GPU makes it current.
//
// Children. A process that a PE forks is no PE. It may exec, use its own copy of ordinary memory,
// and exit. Every call on the worlds, teams and groups of the PE throws Error{closed} there, and
// destructors release nothing and send nothing. The parent and the other PEs are not affected.
// Symmetric memory is shared with the parent: do not write to it.
//
// Failure. Every call throws Error{invalid_argument} for a PE or range that does not exist, stating
// it and the allowed range; Error{unsupported} when no transport of that pair of PEs can do it;
// Error{closed} after close. Waits throw Error{timeout} after SHOAL_TIMEOUT_MS, and
// Error{peer_failed} when a PE of the world ended or failed meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <shoal/bootstrap.hpp>
#include <shoal/connectivity.hpp>
#include <shoal/heap.hpp>
#include <shoal/operation.hpp>
#include <shoal/settings.hpp>
#include <shoal/team.hpp>

namespace shoal {

struct WorldOptions {
  Settings settings{};
  /// The control plane of this PE (shoal/bootstrap.hpp); nullptr: chosen by settings.bootstrap.
  std::shared_ptr<Bootstrap> bootstrap{};

  [[nodiscard]] static WorldOptions from_environment() {
    return {Settings::from_environment(), nullptr};
  }
};

/// One step of World::open on this PE.
struct InitPhase {
  std::string name;
  std::chrono::nanoseconds duration{};
  /// The part spent in the step's all-gather: mostly waiting for the slowest PE.
  std::chrono::nanoseconds waited{};
};

namespace detail {

/// A range that a std::span can be made of.
template <typename Range>
concept ContiguousRange = requires(Range& range) { std::span(range); };
/// Its element type, without const.
template <ContiguousRange Range>
using ElementOf = typename decltype(std::span(std::declval<Range&>()))::value_type;
/// A view for reading elements of the type that Range has. Range is deduced from another argument,
/// so that every range of such elements converts to the view.
template <ContiguousRange Range>
using ElementsLike = std::span<const ElementOf<Range>>;

}  // namespace detail

/// The type of atomics and waits.
template <typename T>
concept AtomicType = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

/// A contiguous range of such words: a span, an array, a vector.
template <typename Range>
concept AtomicRange =
    detail::ContiguousRange<const Range> && AtomicType<detail::ElementOf<const Range>>;

/// A world, or a closed handle. The example above shows its use.
class World {
 public:
  World() = default;  ///< closed

  /// Starts the world. Collective over all of its PEs. A failure on one PE makes the call throw on
  /// all of them, with that PE's message, within SHOAL_BOOTSTRAP_TIMEOUT_MS.
  [[nodiscard]] static World open(WorldOptions options = WorldOptions::from_environment());
  /// Calls open on a thread of its own, so that the program can do other work meanwhile. get() of
  /// the future throws what open throws; the destructor of the future waits until open returns. Any
  /// one thread may use the world.
  [[nodiscard]] static std::future<World> open_async(
      WorldOptions options = WorldOptions::from_environment());

  /// Ends the world after a barrier. Collective. Its teams become invalid, and so do pointers of
  /// malloc, align and calloc; arrays keep this PE's copy readable (SymmetricArray).
  /// Throws Error{timeout} when a PE does not come; the world is closed all the same. That is a
  /// warning once the world has had an ep::Group with mask_failed. Does nothing on a closed world.
  /// The destructor of the last handle of an open world ends it without a barrier.
  void close();
  /// Reports that this PE has failed: pending and later waits of the other PEs throw
  /// Error{peer_failed} with `reason`. The world stays open here; destroy it without close. Does
  /// nothing on a closed world.
  void abort(const std::string& reason) const noexcept;
  [[nodiscard]] bool is_open() const noexcept;

  [[nodiscard]] Pe my_pe() const;
  [[nodiscard]] Pe n_pes() const;
  /// Index of this PE on its node, and the number of PEs per node (equal on all nodes).
  [[nodiscard]] Pe my_pe_on_node() const;
  [[nodiscard]] Pe pes_per_node() const;

  [[nodiscard]] Team team() const;         ///< all PEs
  [[nodiscard]] Team node_team() const;    ///< PEs of this PE's node
  [[nodiscard]] Team shared_team() const;  ///< PEs whose heaps this PE reaches by load and store
  [[nodiscard]] Team same_index_team() const;  ///< PEs with this PE's index on every node (a rail)
  [[nodiscard]] Team self_team() const;        ///< this PE alone

  /// A number that names a team for make_team. One PE makes it and passes it to the others by any
  /// means.
  [[nodiscard]] std::uint64_t make_team_id() const;
  /// The team of the `size` PEs that call with the same `id`, each with its own `index` from 0 to
  /// size - 1. Collective over those PEs alone. Throws Error{invalid_argument} for an index out of
  /// range or taken twice, Error{exhausted} as Team::split_strided.
  [[nodiscard]] Team make_team(std::uint64_t id, Pe size, Pe index) const;

  [[nodiscard]] SymmetricHeap& heap() const;
  [[nodiscard]] const Settings& settings() const;
  [[nodiscard]] const std::vector<InitPhase>& init_phases() const;
  /// The control plane, for small exchanges of the program's own, such as the ids of other
  /// libraries. It belongs to the world. Its calls are collective (shoal/bootstrap.hpp) and must
  /// not overlap other collective calls of the world.
  [[nodiscard]] Bootstrap& bootstrap() const;
  /// The transport chosen for the heap of `pe` and its capabilities, as text: "shm: load-store put
  /// get atomics signals". For heaps in GPU memory it also names the transport of control words and
  /// the reason why no better one is used: "staged: put get atomics signals; control shm; cuda_p2p:
  /// GPU 0 has no peer access to GPU 1 (cuDeviceCanAccessPeer)".
  [[nodiscard]] std::string describe_transport(Pe pe) const;
  /// How every pair of PEs reaches each other, and why by that transport
  /// (shoal/connectivity.hpp): the same report on all PEs. Collective. Throws Error{peer_failed} or
  /// Error{timeout} when a PE does not take part.
  [[nodiscard]] ConnectivityReport connectivity() const;

  // Put and get. The local side is any contiguous range of T: a vector, an array, a span.

  /// Copies `source` to `target`, which has as many elements. Throws Error{invalid_argument} when
  /// the counts differ.
  template <typename T>
  void put(RemoteSpan<T> target, std::span<const std::type_identity_t<T>> source) const {
    check_counts(target.count, source.size());
    put_bytes(target.address, source.data(), source.size_bytes());
  }
  /// Copies `source` to `target`, which has as many elements. Throws Error{invalid_argument} when
  /// the counts differ.
  template <typename T>
  void get(std::span<std::type_identity_t<T>> target, RemoteSpan<T> source) const {
    check_counts(target.size(), source.count);
    get_bytes(target.data(), source.address, target.size_bytes());
  }
  /// Non-blocking put and get. The local buffer must stay untouched until quiet returns; when quiet
  /// throws, until the world is gone.
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
  /// put_value and get_value copy one element, the first of the remote span; T is trivially
  /// copyable. They throw Error{invalid_argument} when the span is empty.
  template <typename T>
  void put_value(RemoteSpan<T> target, std::type_identity_t<T> value) const {
    detail::check_element("put_value", "target", target.count);
    put_bytes(target.address, &value, sizeof value);
  }
  template <typename T>
  [[nodiscard]] T get_value(RemoteSpan<T> source) const {
    detail::check_element("get_value", "source", source.count);
    T value;
    get_bytes(&value, source.address, sizeof value);
    return value;
  }
  /// Copies `count` elements, `target_stride` and `source_stride` elements apart, both at least 1.
  /// Throws Error{invalid_argument} when they leave the remote span.
  template <typename T>
  void put_strided(RemoteSpan<T> target, std::ptrdiff_t target_stride,
                   const std::type_identity_t<T>* source, std::ptrdiff_t source_stride,
                   std::size_t count) const {
    check_strided(target.count, target_stride, source_stride, count);
    put_strided_bytes(target.address, static_cast<std::size_t>(target_stride) * sizeof(T), source,
                      static_cast<std::size_t>(source_stride) * sizeof(T), sizeof(T), count);
  }
  template <typename T>
  void get_strided(T* target, std::ptrdiff_t target_stride, RemoteSpan<T> source,
                   std::ptrdiff_t source_stride, std::size_t count) const {
    check_strided(source.count, source_stride, target_stride, count);
    get_strided_bytes(target, static_cast<std::size_t>(target_stride) * sizeof(T), source.address,
                      static_cast<std::size_t>(source_stride) * sizeof(T), sizeof(T), count);
  }

  // Put and get by address, with sizes and strides in bytes.

  void put_bytes(RemoteAddress target, const void* source, std::size_t bytes) const;
  void get_bytes(void* target, RemoteAddress source, std::size_t bytes) const;
  void put_bytes_nbi(RemoteAddress target, const void* source, std::size_t bytes) const;
  void get_bytes_nbi(void* target, RemoteAddress source, std::size_t bytes) const;
  void put_strided_bytes(RemoteAddress target, std::size_t target_stride, const void* source,
                         std::size_t source_stride, std::size_t element, std::size_t count) const;
  void get_strided_bytes(void* target, std::size_t target_stride, RemoteAddress source,
                         std::size_t source_stride, std::size_t element, std::size_t count) const;

  // Atomics on words of 4 or 8 bytes at a multiple of their size. Each acts on the first element of
  // its target, returns the value before, and throws Error{invalid_argument} for an empty span.

  /// The operation `op`; `compare` is the value that compare_swap expects.
  template <AtomicType T>
  T atomic(AtomicOp op, RemoteSpan<T> target, std::type_identity_t<T> operand,
           std::type_identity_t<T> compare = 0) const {
    detail::check_element("atomic", "target", target.count);
    return static_cast<T>(atomic_word(op, target.address, static_cast<std::uint64_t>(operand),
                                      static_cast<std::uint64_t>(compare), sizeof(T)));
  }
  template <AtomicType T>
  [[nodiscard]] T atomic_fetch(RemoteSpan<T> target) const {
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
  /// The atomic operation by address; `width` is 4 or 8, and narrow values are in the low half.
  std::uint64_t atomic_word(AtomicOp op, RemoteAddress target, std::uint64_t operand,
                            std::uint64_t compare, std::size_t width) const;

  // Signals: 64-bit words of the heap. Each call signals the first element of its span and throws
  // Error{invalid_argument} when the span is empty.

  void signal(RemoteSpan<std::uint64_t> target, SignalOp op, std::uint64_t value) const;
  void signal_set(RemoteSpan<std::uint64_t> target, std::uint64_t value) const {
    signal(target, SignalOp::set, value);
  }
  void signal_add(RemoteSpan<std::uint64_t> target, std::uint64_t value) const {
    signal(target, SignalOp::add, value);
  }
  /// put, then signal: whoever sees the signal sees the data.
  template <typename T>
  void put_signal(RemoteSpan<T> target, std::span<const std::type_identity_t<T>> source,
                  RemoteSpan<std::uint64_t> flag, SignalOp op, std::uint64_t value) const {
    check_counts(target.count, source.size());
    put_signal_bytes(target.address, source.data(), source.size_bytes(), flag, op, value);
  }
  void put_signal_bytes(RemoteAddress target, const void* source, std::size_t bytes,
                        RemoteSpan<std::uint64_t> flag, SignalOp op, std::uint64_t value) const;
  /// The value of a signal of this PE.
  [[nodiscard]] std::uint64_t signal_fetch(const std::uint64_t* flag) const;
  /// Waits until `*flag` compares with `value` as asked, and returns the value seen.
  std::uint64_t signal_wait_until(const std::uint64_t* flag, Compare compare,
                                  std::uint64_t value) const {
    wait_until(flag, compare, value);
    return signal_fetch(flag);
  }

  // Wait and test on variables of this PE's heap that other PEs write (OpenSHMEM 1.5, section
  // 9.10). `variables` is a contiguous range of words, such as SymmetricArray::span. `values` has
  // one element for all variables, or one per variable. `skip` is empty or has an element per
  // variable: a nonzero element leaves its variable out. When every variable is left out, wait_any
  // returns no_index and wait_some nothing, at once. wait_any rotates its starting point, so that
  // no variable starves. The calls deduce the type of the words; a type that is written out, as
  // version 0.1 needed it for some ranges, has no effect.

  /// The result of wait_any and test_any when no variable compares as asked.
  static constexpr std::size_t no_index = static_cast<std::size_t>(-1);

  template <AtomicType T>
  void wait_until(const T* variable, Compare compare, std::type_identity_t<T> value) const {
    wait_all(std::span<const T>(variable, 1), compare, std::span<const T>(&value, 1), {});
  }
  template <AtomicType T>
  [[nodiscard]] bool test(const T* variable, Compare compare, std::type_identity_t<T> value) const {
    return test_all(std::span<const T>(variable, 1), compare, std::span<const T>(&value, 1), {});
  }
  template <typename = void, AtomicRange Variables>
  void wait_all(const Variables& variables, Compare compare, detail::ElementsLike<Variables> values,
                std::span<const int> skip = {}) const {
    wait_words(words(variables, values, skip), compare, Quorum::all);
  }
  template <typename = void, AtomicRange Variables>
  [[nodiscard]] bool test_all(const Variables& variables, Compare compare,
                              detail::ElementsLike<Variables> values,
                              std::span<const int> skip = {}) const {
    return test_words(words(variables, values, skip), compare, Quorum::all).satisfied;
  }
  template <typename = void, AtomicRange Variables>
  [[nodiscard]] std::size_t wait_any(const Variables& variables, Compare compare,
                                     detail::ElementsLike<Variables> values,
                                     std::span<const int> skip = {}) const {
    return first(wait_words(words(variables, values, skip), compare, Quorum::any));
  }
  template <typename = void, AtomicRange Variables>
  [[nodiscard]] std::size_t test_any(const Variables& variables, Compare compare,
                                     detail::ElementsLike<Variables> values,
                                     std::span<const int> skip = {}) const {
    return first(test_words(words(variables, values, skip), compare, Quorum::any));
  }
  /// Waits for at least one variable, and returns the indices of all that compare as asked.
  template <typename = void, AtomicRange Variables>
  [[nodiscard]] std::vector<std::size_t> wait_some(const Variables& variables, Compare compare,
                                                   detail::ElementsLike<Variables> values,
                                                   std::span<const int> skip = {}) const {
    return wait_words(words(variables, values, skip), compare, Quorum::some).indices;
  }
  template <typename = void, AtomicRange Variables>
  [[nodiscard]] std::vector<std::size_t> test_some(const Variables& variables, Compare compare,
                                                   detail::ElementsLike<Variables> values,
                                                   std::span<const int> skip = {}) const {
    return test_words(words(variables, values, skip), compare, Quorum::some).indices;
  }

  // Order.

  /// Orders earlier puts and atomics ahead of later ones, for each target PE.
  void fence() const;
  /// Returns when all earlier operations of this PE are complete and visible at their targets.
  void quiet() const;

 private:
  friend struct detail::Access;
  explicit World(std::shared_ptr<detail::WorldState> state) : state_(std::move(state)) {}
  /// The state of an open world. Throws Error{closed} when it is closed.
  detail::WorldState& state() const;

  /// Variables of either width, so that the wait loops are compiled once.
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
  static Words words(std::span<const std::type_identity_t<T>> variables, std::span<const T> values,
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
  /// What a wait is for: all variables, the first one found, or all that compare as asked (some).
  enum class Quorum : std::uint8_t { all, any, some };
  WaitResult test_words(const Words& words, Compare compare, Quorum quorum) const;
  WaitResult wait_words(const Words& words, Compare compare, Quorum quorum) const;

  std::shared_ptr<detail::WorldState> state_;
};

/// Runs `body(world)` on `n_pes` threads of this process, one PE each, and rethrows the first
/// failure. 1 to 512 PEs, for tests, tools and learning.
///
///   shoal::run_threads(8, {}, [](shoal::World& world) { shoal::barrier(world.team()); });
void run_threads(Pe n_pes, const Settings& settings, const std::function<void(World&)>& body);

}  // namespace shoal
