// SPDX-License-Identifier: Apache-2.0
// shoal/cuda_collective.hpp: collectives on CUDA streams, for worlds whose heap is in GPU memory.
// Needs no CUDA header.
//
//   const shoal::cuda::StreamCollectives on(world.team(), stream);
//   on.reduce(shoal::ReduceOp::sum, sums.span(), values.span());  // float, int, ...
//   on.all_gather(all.span(), mine.span());
//
// The contract is that of shoal/collective.hpp, in stream order: a call checks its arguments,
// queues its work and returns. Every PE of the team queues the same calls in the same order, with
// the same counts, those of kernels (shoal/device/collective.cuh) and barriers on streams included;
// what PEs pass is not compared. Calls can be captured in CUDA graphs. A PE that does not come is a
// failure that shoal::cuda::check_failures throws; the team is then out of step on GPUs.
//
// Teams of more than device::Team::kMaxCollectivePes PEs, and teams with PEs that this GPU does not
// reach by loads and stores, take a copy or a request to the proxy for each PE, between two
// barriers, and GPU memory for reductions (up to 64 MiB for a team, kept by the world). Worlds of
// more than device::Team::kMaxPes PEs have no collectives on streams.
//
// Results have the bits of the host's collectives (NaNs: the processor's), whatever the size, the
// algorithm and the number of blocks, except sums by NCCL. SHOAL_COLLECTIVE_* select algorithms.
//
// NCCL runs what it was measured to do faster: broadcasts from 1 MiB and reductions from 16 MiB on
// of at least four PEs with a GPU each (SHOAL_COLLECTIVE_NCCL). The first such call of a team waits
// for all its PEs on the host. While a graph is captured, only a team that has made such a call
// uses NCCL.
//
// The host's collectives (shoal/collective.hpp) work for these heaps too and wait for their result.
// They are kernels as well where the GPU of each PE of the team reaches the heaps of all, except
// all_to_all_v and reduce_scatter in place; elsewhere they copy through host memory. As kernels
// they belong to the order of the team's calls: what a PE has queued for the same team on streams
// must be complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <shoal/collective.hpp>
#include <shoal/cuda.hpp>
#include <shoal/device/reduction.hpp>
#include <shoal/device/types.hpp>

namespace shoal::cuda {

/// The element types of reductions on streams.
enum class ElementType : std::uint8_t {
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
};

/// The ElementType of T: integers, float, double, device::Float16, device::BFloat16.
template <typename T>
[[nodiscard]] constexpr ElementType element_type_of() {
  if constexpr (std::is_same_v<T, device::Float16>) {
    return ElementType::float16;
  } else if constexpr (std::is_same_v<T, device::BFloat16>) {
    return ElementType::bfloat16;
  } else if constexpr (std::is_floating_point_v<T>) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    return sizeof(T) == 4 ? ElementType::float32 : ElementType::float64;
  } else {
    static_assert(std::is_integral_v<T> && !std::is_same_v<T, bool>);
    constexpr int width = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return static_cast<ElementType>(2 * width + (std::is_signed_v<T> ? 0 : 1));
  }
}

/// Collectives of one team on one stream. Cheap to make; not collective.
///
/// Every call throws Error{unsupported} where the world has no device side, and where this GPU
/// reaches the heap of a PE neither by loads and stores nor by the proxy; Error{invalid_argument}
/// for arguments as in shoal/collective.hpp; Error{closed} after close; Error{system} with CUDA's
/// reason. A call that throws has queued nothing, except after Error{system}.
class StreamCollectives {
 public:
  /// `stream` is a stream of this PE's GPU and outlives the object. Throws Error{invalid_argument}
  /// for the legacy default stream when several PEs share the GPU.
  StreamCollectives(Team team, Stream stream);

  [[nodiscard]] const Team& team() const noexcept { return team_; }
  [[nodiscard]] Stream stream() const noexcept { return stream_; }

  /// StreamOperations::barrier: what the streams of all PEs did before is visible afterwards. A
  /// stream has no outstanding operations, so sync is the same.
  void barrier() const;
  void sync() const { barrier(); }

  // Each call does what the function of its name in shoal/collective.hpp does.

  void broadcast_bytes(void* target, const void* source, std::size_t bytes, Pe root) const;
  /// In place: `source` may be block my_pe of `target`.
  void all_gather_bytes(void* target, const void* source, std::size_t bytes) const;
  void all_to_all_bytes(void* target, const void* source, std::size_t bytes) const;
  /// The sizes and offsets, in bytes, are read on the GPU.
  void all_to_all_v_bytes(const device::AllToAllV& arguments) const;

  void reduce(ElementType type, ReduceOp op, void* target, const void* source,
              std::size_t count) const;
  /// In place: `target` may be block my_pe of `source`; it must not overlap `source` otherwise.
  void reduce_scatter(ElementType type, ReduceOp op, void* target, const void* source,
                      std::size_t count) const;

  // The collectives with spans of elements, as those of shoal/collective.hpp; reductions take the
  // types of element_type_of.

  template <typename T, std::size_t N>
  void broadcast(std::span<T, N> target, std::span<const std::type_identity_t<T>> source,
                 Pe root) const {
    shoal::detail::block_length("broadcast", target.size(), source.size(), 1, 1);
    broadcast_bytes(target.data(), source.data(), source.size_bytes(), root);
  }
  template <typename T, std::size_t N>
  void all_gather(std::span<T, N> target, std::span<const std::type_identity_t<T>> source) const {
    shoal::detail::block_length("all_gather", target.size(), source.size(), pes(), 1);
    all_gather_bytes(target.data(), source.data(), source.size_bytes());
  }
  template <typename T, std::size_t N>
  void all_to_all(std::span<T, N> target, std::span<const std::type_identity_t<T>> source) const {
    const std::size_t length =
        shoal::detail::block_length("all_to_all", target.size(), source.size(), pes(), pes());
    all_to_all_bytes(target.data(), source.data(), length * sizeof(T));
  }
  template <typename T, std::size_t N>
  void reduce(ReduceOp op, std::span<T, N> target,
              std::span<const std::type_identity_t<T>> source) const {
    shoal::detail::block_length("reduce", target.size(), source.size(), 1, 1);
    reduce(element_type_of<T>(), op, target.data(), source.data(), source.size());
  }
  template <typename T, std::size_t N>
  void reduce_scatter(ReduceOp op, std::span<T, N> target,
                      std::span<const std::type_identity_t<T>> source) const {
    shoal::detail::block_length("reduce_scatter", target.size(), source.size(), 1, pes());
    reduce_scatter(element_type_of<T>(), op, target.data(), source.data(), target.size());
  }

  // Names of version 0.1.

  [[deprecated("use broadcast_bytes")]] void broadcast(void* target, const void* source,
                                                       std::size_t bytes, Pe root) const {
    broadcast_bytes(target, source, bytes, root);
  }
  [[deprecated("use all_gather_bytes")]] void all_gather(void* target, const void* source,
                                                         std::size_t bytes) const {
    all_gather_bytes(target, source, bytes);
  }
  [[deprecated("use all_to_all_bytes")]] void all_to_all(void* target, const void* source,
                                                         std::size_t bytes) const {
    all_to_all_bytes(target, source, bytes);
  }
  [[deprecated("use all_to_all_v_bytes")]] void all_to_all_v(
      const device::AllToAllV& arguments) const {
    all_to_all_v_bytes(arguments);
  }
  template <typename T>
  [[deprecated("use spans, or an ElementType")]] void reduce(ReduceOp op, T* target,
                                                             const std::type_identity_t<T>* source,
                                                             std::size_t count) const {
    reduce(element_type_of<T>(), op, target, source, count);
  }
  template <typename T>
  [[deprecated("use spans, or an ElementType")]] void reduce_scatter(
      ReduceOp op, T* target, const std::type_identity_t<T>* source, std::size_t count) const {
    reduce_scatter(element_type_of<T>(), op, target, source, count);
  }

 private:
  std::size_t pes() const noexcept { return static_cast<std::size_t>(team_.size()); }

  Team team_;
  Stream stream_;
};

}  // namespace shoal::cuda
