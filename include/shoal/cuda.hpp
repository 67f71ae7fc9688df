// SPDX-License-Identifier: Apache-2.0
// shoal/cuda.hpp: the device side of worlds whose symmetric heap is in GPU memory, and their
// operations on CUDA streams. Needs no CUDA header.
//
//   shoal::cuda::StreamOperations on(world, stream);
//   on.put_signal(box.on(peer), source, flag.on(peer), shoal::SignalOp::set, 1);
//   on.wait_until(flag.data(), shoal::Compare::equal, 1);
//   kernel<<<1, 256, 0, stream>>>(shoal::cuda::device_world(world));  // shoal/device.hpp
//
// A world opened with SHOAL_HEAP=cuda has a device side. Every call here throws Error{unsupported}
// for any other world, and Error{closed} after close.
//
// Failures on the GPU (a wait that passes its deadline of SHOAL_TIMEOUT_MS) let the stream continue
// and are kept until check_failures throws them.
//
// Several PEs on one GPU: a stream that waits must not block the stream that it waits for. The
// legacy default stream does, so it is refused then. Programs need as many hardware queues as
// streams (CUDA_DEVICE_MAX_CONNECTIONS, at most 32) and kernels that are loaded before anything
// waits (CUDA_MODULE_LOADING=EAGER); see docs/guide/device.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <shoal/device/host.hpp>  // IWYU pragma: export
#include <shoal/world.hpp>

namespace shoal {
namespace detail {
class DeviceSide;
class StreamSteps;
struct EntryFetch;
struct StreamBlock;
}  // namespace detail

namespace cuda {

// Names of version 0.1: shoal/detail/stream_steps.hpp.
using Block [[deprecated("use shoal::detail::StreamBlock")]] = detail::StreamBlock;
using EntryFetch [[deprecated("use shoal::detail::EntryFetch")]] = detail::EntryFetch;

/// The operations of World, queued on a stream.
///
/// They run in stream order and the call returns at once. No call allocates memory or waits for the
/// GPU. World's checks of arguments happen at the call (Error{invalid_argument}). Values and
/// addresses are fixed then; a captured graph replays them. Local memory (the source of a put, the
/// target of a get or of a result) is memory that this GPU can use: its own, the symmetric heap, or
/// pinned host memory; other host memory is Error{invalid_argument}. It must stay untouched until
/// the stream has passed the operation.
///
/// Where this GPU does not reach the heap of a PE by loads and stores, the proxy carries the
/// operation (SHOAL_PROXY_SLOTS), which holds the stream until it is complete. With 256 of them
/// queued outside graphs, a call waits for the first.
class StreamOperations {
 public:
  /// `stream` is a stream of this PE's GPU and outlives the object. Cheap; not collective. Throws
  /// Error{invalid_argument} for the legacy default stream when several PEs share the GPU.
  StreamOperations(shoal::World world, Stream stream);

  [[nodiscard]] Stream stream() const noexcept { return stream_; }

  // Put and get. The local side is any contiguous range of T. Calls on one element act on the first
  // of the remote span and throw Error{invalid_argument} when the span is empty.

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
  /// Puts one element of 1, 2, 4 or 8 bytes, passed by value. An aligned one of 4 or 8 bytes is one
  /// store.
  template <typename T>
  void put_value(RemoteSpan<T> target, std::type_identity_t<T> value) const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8 &&
                  (sizeof(T) & (sizeof(T) - 1)) == 0);
    put_small(target.address, &value, sizeof value, target.count);
  }
  /// Copies `count` elements; strides are in elements, both at least 1.
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
  void put_bytes(RemoteAddress target, const void* source, std::size_t bytes) const;
  void get_bytes(void* target, RemoteAddress source, std::size_t bytes) const;
  void put_strided_bytes(RemoteAddress target, std::size_t target_stride, const void* source,
                         std::size_t source_stride, std::size_t element, std::size_t count) const;
  void get_strided_bytes(void* target, std::size_t target_stride, RemoteAddress source,
                         std::size_t source_stride, std::size_t element, std::size_t count) const;

  // Atomics.

  /// Writes the value before to `*result`, local memory, unless that is nullptr.
  template <AtomicType T>
  void atomic(AtomicOp op, RemoteSpan<T> target, std::type_identity_t<T> operand,
              std::type_identity_t<T>* result, std::type_identity_t<T> compare = 0) const {
    shoal::detail::check_element("atomic", "target", target.count);
    atomic_word(op, target.address, static_cast<std::uint64_t>(operand),
                static_cast<std::uint64_t>(compare), sizeof(T), result);
  }
  void atomic_word(AtomicOp op, RemoteAddress target, std::uint64_t operand, std::uint64_t compare,
                   std::size_t width, void* result) const;

  // Signals.

  /// Whoever sees the signal sees what the stream did before.
  void signal(RemoteSpan<std::uint64_t> target, SignalOp op, std::uint64_t value) const;
  template <typename T>
  void put_signal(RemoteSpan<T> target, std::span<const std::type_identity_t<T>> source,
                  RemoteSpan<std::uint64_t> flag, SignalOp op, std::uint64_t value) const {
    check_counts(target.count, source.size());
    put_signal_bytes(target.address, source.data(), source.size_bytes(), flag, op, value);
  }
  void put_signal_bytes(RemoteAddress target, const void* source, std::size_t bytes,
                        RemoteSpan<std::uint64_t> flag, SignalOp op, std::uint64_t value) const;

  // Wait and test on variables of this PE's heap.

  /// Holds the stream until `*variable` compares with `value` as asked; uses one thread of the GPU.
  template <AtomicType T>
  void wait_until(const T* variable, Compare compare, std::type_identity_t<T> value) const {
    wait_word(variable, compare, static_cast<std::uint64_t>(value), sizeof(T), std::is_signed_v<T>);
  }
  /// Sets `*result`, local memory, to 1 when it compares as asked, else to 0.
  template <AtomicType T>
  void test(const T* variable, Compare compare, std::type_identity_t<T> value, int* result) const {
    test_word(variable, compare, static_cast<std::uint64_t>(value), sizeof(T), std::is_signed_v<T>,
              result);
  }

  // Order.

  /// Order and complete the operations of this stream, as World::fence and World::quiet do those of
  /// the host. They queue nothing while all heaps are reached by load and store, where stream order
  /// suffices. Use them all the same: they are needed where operations go through a network.
  void fence() const;
  void quiet() const;
  /// Holds the stream until the streams of all PEs of the team have reached the same barrier. What
  /// they did before is visible afterwards. PEs call in the same order as other barriers of the
  /// team on streams and in kernels; barriers of the host count separately. When a PE does not
  /// come, the barrier times out and the team's barriers on streams are no longer usable.
  void barrier(const shoal::Team& team) const;

  // Names of version 0.1: shoal/detail/stream_steps.hpp.

  [[deprecated("use shoal::detail::StreamSteps")]] void put_when(
      const std::uint64_t* ready, std::uint64_t at_least, RemoteAddress target, const void* source,
      std::size_t bytes, RemoteSpan<std::uint64_t> flag, std::uint64_t value) const;
  [[deprecated("use shoal::detail::StreamSteps")]] void take_when(
      const std::uint64_t* ready, std::uint64_t at_least, void* target, const void* source,
      std::size_t bytes, RemoteSpan<std::uint64_t> flag, std::uint64_t value) const;
  [[deprecated("use shoal::detail::StreamSteps")]] void put_to_all(
      const shoal::Team& team, std::span<const detail::StreamBlock> blocks, std::uint64_t* flags,
      std::uint64_t value) const;
  [[deprecated("use shoal::detail::StreamSteps")]] void wait_for_all(const shoal::Team& team,
                                                                     const std::uint64_t* flags,
                                                                     std::uint64_t value) const;
  [[deprecated("use shoal::detail::StreamSteps")]] void fetch_entries(
      const detail::EntryFetch& fetch) const;

 private:
  friend class detail::StreamSteps;
  static void check_counts(std::size_t target, std::size_t source);
  static void check_strided(std::size_t available, std::ptrdiff_t remote_stride,
                            std::ptrdiff_t local_stride, std::size_t count);
  detail::DeviceSide& side() const;
  /// The team for kernels, once all its PEs are reached with these transport capabilities.
  device::Team reached_team(const char* what, const shoal::Team& team, std::uint32_t needed) const;
  void put_small(RemoteAddress target, const void* value, std::size_t bytes,
                 std::size_t count) const;
  void wait_word(const void* variable, Compare compare, std::uint64_t value, std::size_t width,
                 bool is_signed) const;
  void test_word(const void* variable, Compare compare, std::uint64_t value, std::size_t width,
                 bool is_signed, int* result) const;

  shoal::World world_;
  Stream stream_;
};

}  // namespace cuda
}  // namespace shoal
