// shoal/heap.hpp: the symmetric heap: memory that exists on every PE at the same offset.
//
// Allocation and release are collective over the world: every PE calls with the same arguments in the same order, which
// is checked (OpenSHMEM 1.5, section 9.3; requirement D2). An address in the heap plus a PE names a byte of the world.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

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

/// Elements of T on every PE, released when the object goes. Destruction is collective like release; a world that is
/// already closed or has failed releases everything at once, so that destruction never blocks or throws.
template <typename T>
class SymmetricArray;

class SymmetricHeap {
 public:
  /// `bytes` bytes on every PE, contents undefined, aligned to `alignment` (a power of two up to 2 MiB, at least 1).
  /// Returns this PE's copy; nullptr when bytes is 0.
  /// Throws Error{exhausted} stating size, free and SHOAL_SYMMETRIC_SIZE; Error{mismatch} when PEs ask for different
  /// sizes. Either is thrown on all PEs, and nothing is allocated.
  void* malloc(std::size_t bytes);
  void* align(std::size_t alignment, std::size_t bytes);
  /// As malloc for count * size bytes, set to zero.
  void* calloc(std::size_t count, std::size_t size);
  /// Releases what malloc, calloc or align returned; nullptr does nothing. Throws Error{invalid_argument} for any other
  /// pointer.
  void free(void* pointer);

  /// The RAII form: `count` elements, set to zero.
  template <typename T>
  SymmetricArray<T> allocate(std::size_t count);

  /// Makes [pointer, pointer + bytes) of this PE usable as local buffer of operations on transports that need
  /// registration. Not collective. Throws Error{invalid_argument} for an empty, overlapping or in-heap range.
  /// unregister takes the same pointer.
  void register_buffer(void* pointer, std::size_t bytes);
  void unregister_buffer(void* pointer);

  /// The address of `local` (in this PE's heap) in the heap of `pe` when loads and stores reach it from here, else
  /// nullptr.
  void* peer_pointer(const void* local, Pe pe) const;

  /// Where `local`, an address in this PE's heap, lies in everybody's heap. Throws Error{invalid_argument} outside the
  /// heap.
  std::size_t offset_of(const void* local) const;
  bool contains(const void* local, std::size_t bytes = 1) const noexcept;

  std::byte* base() const noexcept;
  std::size_t size() const noexcept;  ///< SHOAL_SYMMETRIC_SIZE, rounded up to pages
  std::size_t used() const;           ///< bytes in use by allocations, Shoal's own included
  std::size_t largest_free() const;   ///< the largest block that can still be allocated

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
std::shared_ptr<void> allocate_symmetric(WorldState& state, std::size_t count, std::size_t size, std::size_t alignment);
}  // namespace detail

template <typename T>
SymmetricArray<T> SymmetricHeap::allocate(std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>, "symmetric memory is written by other PEs byte by byte");
  auto memory = detail::allocate_symmetric(*state_, count, sizeof(T), alignof(T));
  const std::size_t offset = memory ? offset_of(memory.get()) : 0;
  return SymmetricArray<T>(std::move(memory), offset, count);
}

}  // namespace shoal
