// SPDX-License-Identifier: Apache-2.0
// shoal/heap.hpp: the symmetric heap: memory that exists on every PE at the same offset.
//
// Allocation and release are collective over the world: every PE calls with the same arguments in
// the same order, which is checked (OpenSHMEM 1.5, section 9.3; requirement D2). An address in the
// heap plus a PE names a byte of the world.
//
// The heap lies on the host or, where SHOAL_HEAP is cuda, in GPU memory: then its addresses are
// those of the GPU, for kernels and copies, never to be read or written by the host. It takes
// memory when it is needed: of the host page by page, of a GPU in steps of 64 MiB, which malloc
// adds on all PEs together. Memory once taken stays with the world.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include <shoal/error.hpp>

namespace shoal {

class World;
namespace detail {
class WorldState;
}

/// Index of a processing element, 0-based, in the world or in a team.
using Pe = std::int32_t;

/// A byte of the symmetric heap of some PE of the world: where one-sided operations point.
struct RemoteAddress {
  Pe pe = 0;
  std::size_t offset = 0;
};

/// `count` elements of T in the heap of one PE, starting at `address`.
template <typename T>
struct RemoteSpan {
  RemoteAddress address;
  std::size_t count = 0;

  RemoteSpan subspan(std::size_t first, std::size_t length) const {
    if (first > count || length > count - first)
      throw Error(Code::invalid_argument, "RemoteSpan::subspan leaves the span");
    return {{address.pe, address.offset + first * sizeof(T)}, length};
  }
  RemoteSpan operator[](std::size_t index) const { return subspan(index, 1); }
};

/// Elements of T on every PE, released when the object goes. Destruction is collective like
/// release; a world that is already closed or has failed releases everything at once, so that
/// destruction never blocks or throws.
template <typename T>
class SymmetricArray;

/// Buffers that all PEs of a world shared in one call: where each PE's lies for this PE's GPU.
class SharedBuffer {
 public:
  /// nullptr where that PE shared no bytes, or its memory is out of reach of this PE's GPU.
  std::byte* on(Pe pe) const { return addresses_.at(static_cast<std::size_t>(pe)); }
  std::size_t bytes(Pe pe) const { return bytes_.at(static_cast<std::size_t>(pe)); }

 private:
  friend class SymmetricHeap;
  std::vector<std::byte*> addresses_;  // by PE
  std::vector<std::size_t> bytes_;     // by PE
  std::uint64_t id_ = 0;               // of this PE's range; 0: none, or in the heap
};

class SymmetricHeap {
 public:
  /// `bytes` bytes on every PE, contents undefined, aligned to `alignment` (a power of two up to 2
  /// MiB, at least 1). Returns this PE's copy; nullptr when bytes is 0. Throws Error{exhausted}
  /// stating size, free and SHOAL_SYMMETRIC_SIZE, also when a GPU has no memory left;
  /// Error{mismatch} when PEs ask for different sizes. Either is thrown on all PEs, and nothing is
  /// allocated.
  void* malloc(std::size_t bytes);
  void* align(std::size_t alignment, std::size_t bytes);
  /// As malloc for count * size bytes, set to zero.
  void* calloc(std::size_t count, std::size_t size);
  /// Releases what malloc, calloc or align returned; nullptr does nothing. Throws
  /// Error{invalid_argument} for any other pointer.
  void free(void* pointer);

  /// The RAII form: `count` elements, set to zero.
  template <typename T>
  SymmetricArray<T> allocate(std::size_t count);

  /// Makes [pointer, pointer + bytes) of this PE usable as local buffer of operations on transports
  /// that need registration. Not collective. Throws Error{invalid_argument} for an empty,
  /// overlapping or in-heap range. unregister takes the same pointer.
  void register_buffer(void* pointer, std::size_t bytes);
  void unregister_buffer(void* pointer);

  /// Lets the GPUs of all PEs read and write [pointer, pointer + bytes) of this PE's GPU memory,
  /// whatever allocated it, where they lie: no copy into the heap is needed. Collective over the
  /// world; PEs may pass different sizes, also none. The first call for an allocation maps all of
  /// it everywhere; later ones for any part of it cost one exchange of a few microseconds. Only
  /// where the heap is in GPU memory. Before the memory is freed, all PEs unshare it. Throws, on
  /// all PEs and with nothing changed: Error{unsupported} for a heap on the host, and for memory
  /// that cannot be passed to other processes, saying why; Error{invalid_argument} for what is no
  /// memory of this PE's GPU.
  SharedBuffer share_buffer(const void* pointer, std::size_t bytes);
  /// Ends one share_buffer. Collective over the world, in the same order as other calls; after the
  /// last one for an allocation nobody maps it any more. Throws Error{invalid_argument} on all PEs
  /// when one names what is not shared.
  void unshare_buffer(const SharedBuffer& buffer);

  /// The address of `local` (in this PE's heap) in the heap of `pe` when loads and stores (of this
  /// PE's GPU, where the heap is there) reach it from here, else nullptr.
  void* peer_pointer(const void* local, Pe pe) const;

  /// Where `local`, an address in this PE's heap, lies in everybody's heap. Throws
  /// Error{invalid_argument} outside the heap.
  std::size_t offset_of(const void* local) const;
  bool contains(const void* local, std::size_t bytes = 1) const noexcept;

  std::byte* base() const noexcept;
  std::size_t size()
      const noexcept;        ///< SHOAL_SYMMETRIC_SIZE, rounded up to pages of the host or the GPU
  std::size_t used() const;  ///< bytes in use by allocations, Shoal's own included
  std::size_t largest_free() const;  ///< the largest block that can still be allocated

 private:
  friend class detail::WorldState;
  explicit SymmetricHeap(detail::WorldState& state) : state_(&state) {}
  detail::WorldState* state_;
};

template <typename T>
class SymmetricArray {
 public:
  SymmetricArray() = default;
  SymmetricArray(SymmetricArray&& other) noexcept { swap(other); }
  SymmetricArray& operator=(SymmetricArray&& other) noexcept {
    SymmetricArray(std::move(other)).swap(*this);
    return *this;
  }

  T* data() const noexcept { return static_cast<T*>(memory_.get()); }
  std::size_t size() const noexcept { return count_; }
  /// An element of this PE. Only where the heap is on the host; in GPU memory use World::get_value
  /// and put_value.
  T& operator[](std::size_t index) const noexcept { return data()[index]; }
  std::span<T> span() const noexcept { return {data(), count_}; }

  /// The copy of world PE `pe`, as the target of one-sided operations.
  RemoteSpan<T> on(Pe pe) const noexcept { return {{pe, offset_}, count_}; }

 private:
  friend class SymmetricHeap;
  SymmetricArray(std::shared_ptr<void> memory, std::size_t offset, std::size_t count)
      : memory_(std::move(memory)), offset_(offset), count_(count) {}
  void swap(SymmetricArray& other) noexcept {
    memory_.swap(other.memory_);
    std::swap(offset_, other.offset_);
    std::swap(count_, other.count_);
  }

  std::shared_ptr<void> memory_;
  std::size_t offset_ = 0;
  std::size_t count_ = 0;
};

namespace detail {
/// Zeroed symmetric memory that releases itself; what SymmetricHeap::allocate is made of.
std::shared_ptr<void> allocate_symmetric(WorldState& state, std::size_t count, std::size_t size,
                                         std::size_t alignment);
}  // namespace detail

template <typename T>
SymmetricArray<T> SymmetricHeap::allocate(std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>,
                "symmetric memory is written by other PEs byte by byte");
  auto memory = detail::allocate_symmetric(*state_, count, sizeof(T), alignof(T));
  const std::size_t offset = memory ? offset_of(memory.get()) : 0;
  return SymmetricArray<T>(std::move(memory), offset, count);
}

}  // namespace shoal
