// SPDX-License-Identifier: Apache-2.0
// shoal/heap.hpp: the symmetric heap: memory at the same offset on every PE (OpenSHMEM 1.5, section
// 9.3).
//
// An address in this PE's heap and a PE name a byte of the world. Allocation and release are
// collective over the world: every PE calls with the same arguments in the same order. This is
// checked.
//
//   auto box = world.heap().allocate<float>(1024);  // zeroed
//   world.put(box.on(3), std::vector<float>(1024, 1.0f));
//   shoal::barrier(world.team());
//
// The heap lies on the host or, with SHOAL_HEAP=cuda, in GPU memory. In the latter case its
// addresses are for kernels and copies: the host must not read or write them. Memory is taken when
// it is needed: page by page on the host, in steps of 64 MiB or more on a GPU, which malloc adds on
// all PEs together. Memory once taken stays with the world.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include <shoal/error.hpp>
#include <shoal/tensor.hpp>

namespace shoal {

class World;
namespace detail {
struct ArrayMemory;
class WorldState;
[[noreturn]] void fail_subspan(std::size_t first, std::size_t length, std::size_t count);
[[noreturn]] void fail_empty_span(const char* call, const char* role);
/// Throws Error{invalid_argument} unless the remote span that is the `role` ("target") of `call`
/// has the element that the call accesses.
inline void check_element(const char* call, const char* role, std::size_t count) {
  if (count == 0) [[unlikely]]
    fail_empty_span(call, role);
}
}  // namespace detail

/// Index of a processing element, 0-based, in the world or in a team.
using Pe = std::int32_t;

/// A byte of the symmetric heap of a PE of the world: the remote side of one-sided operations.
struct RemoteAddress {
  Pe pe = 0;
  std::size_t offset = 0;
};

/// `count` elements of T in the heap of one PE, starting at `address`. SymmetricArray::on makes it.
template <typename T>
struct RemoteSpan {
  RemoteAddress address;
  std::size_t count = 0;

  /// `length` elements from element `first` on. Throws Error{invalid_argument} when they leave the
  /// span.
  [[nodiscard]] RemoteSpan subspan(std::size_t first, std::size_t length) const {
    if (first > count || length > count - first) detail::fail_subspan(first, length, count);
    return {{address.pe, address.offset + first * sizeof(T)}, length};
  }
  [[nodiscard]] RemoteSpan operator[](std::size_t index) const { return subspan(index, 1); }
};

template <typename T>
class SymmetricArray;

/// The buffers that all PEs shared in one call of SymmetricHeap::share_buffer. A plain value; the
/// world owns the mappings.
class SharedBuffer {
 public:
  /// The start of that PE's buffer for this PE's GPU; nullptr when the PE shared no bytes or this
  /// GPU cannot reach them.
  [[nodiscard]] std::byte* on(Pe pe) const { return addresses_.at(static_cast<std::size_t>(pe)); }
  [[nodiscard]] std::size_t bytes(Pe pe) const { return bytes_.at(static_cast<std::size_t>(pe)); }

 private:
  friend class SymmetricHeap;
  std::vector<std::byte*> addresses_;  // by PE
  std::vector<std::size_t> bytes_;     // by PE
  std::uint64_t id_ = 0;               // of this PE's range; 0: none, or in the heap
};

/// The symmetric heap of one PE, from World::heap. Valid as long as the world is open.
class SymmetricHeap {
 public:
  /// Allocates `bytes` bytes on every PE, not initialized. Collective. Returns this PE's copy;
  /// nullptr when bytes is 0.
  ///
  /// align: `alignment` is a power of two, 1 to 2 MiB. calloc: count * size bytes, zeroed. Throws
  /// on all PEs, with nothing allocated: Error{exhausted} stating the size, what is free and
  /// SHOAL_SYMMETRIC_SIZE, also when a GPU has no memory left; Error{mismatch} when PEs pass
  /// different arguments.
  [[nodiscard]] void* malloc(std::size_t bytes);
  [[nodiscard]] void* align(std::size_t alignment, std::size_t bytes);
  [[nodiscard]] void* calloc(std::size_t count, std::size_t size);
  /// Releases a result of malloc, calloc or align. Collective; nullptr does nothing. Any other
  /// pointer is Error{invalid_argument} on this PE alone, before the other PEs are involved: the
  /// heap is unchanged and the call can be repeated with the right pointer.
  void free(void* pointer);

  /// Allocates `count` elements, zeroed, owned by the result. Collective. Throws as malloc.
  template <typename T>
  [[nodiscard]] SymmetricArray<T> allocate(std::size_t count);

  /// Registers [pointer, pointer + bytes) as local buffer with transports that need registration.
  /// Not collective. Throws Error{invalid_argument} for a range that is empty, overlaps a
  /// registered one or lies in the heap. unregister_buffer takes the same pointer.
  void register_buffer(void* pointer, std::size_t bytes);
  void unregister_buffer(void* pointer);

  /// Lets the GPUs of all PEs read and write [pointer, pointer + bytes), memory of this PE's GPU
  /// from any allocator, without a copy into the heap. Collective; PEs may pass different sizes,
  /// also 0. Only for a heap in GPU memory.
  ///
  /// The first call for an allocation maps all of it on every PE; later calls for any part of it
  /// cost one exchange of a few microseconds. All PEs unshare it before the memory is freed. Throws
  /// on all PEs, with nothing changed: Error{unsupported} for a heap on the host and for memory
  /// that cannot be passed to other processes, saying why; Error{invalid_argument} for memory that
  /// is not this PE's GPU's.
  [[nodiscard]] SharedBuffer share_buffer(const void* pointer, std::size_t bytes);
  /// Ends one share_buffer. Collective, in the same order as other calls. The last one for an
  /// allocation unmaps it. Throws Error{invalid_argument} on all PEs when one of them names a
  /// buffer that is not shared.
  void unshare_buffer(const SharedBuffer& buffer);

  /// The address of `local` (in this PE's heap) in the heap of `pe`, for loads and stores of this
  /// process or, for a heap in GPU memory, of this PE's GPU; nullptr when they do not reach it.
  [[nodiscard]] void* peer_pointer(const void* local, Pe pe) const;

  /// The offset of `local` in the heap, which is the same on every PE. Throws
  /// Error{invalid_argument} outside the heap.
  [[nodiscard]] std::size_t offset_of(const void* local) const;
  /// Whether [local, local + bytes) lies in this PE's heap.
  [[nodiscard]] bool contains(const void* local, std::size_t bytes = 1) const noexcept;

  /// Where the heap lies: the host, or this PE's GPU as numbered in this process.
  [[nodiscard]] Device device() const noexcept;
  /// Keeps this PE's heap mapped while any copy lives, also after World::close: for arrays that
  /// outlive the world, such as those of Python.
  [[nodiscard]] std::shared_ptr<void> memory_owner() const;

  /// The start of this PE's heap.
  [[nodiscard]] std::byte* base() const noexcept;
  /// SHOAL_SYMMETRIC_SIZE in bytes, rounded up to pages of the host or the GPU.
  [[nodiscard]] std::size_t size() const noexcept;
  /// Bytes in use by allocations, Shoal's own and destroyed arrays that are not yet released
  /// included.
  [[nodiscard]] std::size_t used() const;
  /// Bytes of the largest block that can still be allocated.
  [[nodiscard]] std::size_t largest_free() const;

 private:
  friend class detail::WorldState;
  explicit SymmetricHeap(detail::WorldState& state) : state_(&state) {}
  detail::WorldState* state_;
};

namespace detail {
/// A new array of a heap.
struct ArrayPlace {
  std::shared_ptr<ArrayMemory> memory;  ///< nullptr: of no elements
  void* data = nullptr;
  std::size_t offset = 0;
};
ArrayPlace allocate_symmetric(WorldState& state, std::size_t count, std::size_t size,
                              std::size_t alignment);
void free_symmetric(const ArrayMemory& memory);
}  // namespace detail

/// `count` elements of T on every PE, from SymmetricHeap::allocate. Movable, not copyable.
///
/// The destructor does not communicate, never throws and may run on any thread, during an
/// exception, after World::abort and in a forked child. The memory returns to the heap at the next
/// malloc, align, calloc, allocate or free once all PEs have destroyed their array; work on streams
/// that uses it must be complete by then. free() releases at once:
///
///   auto box = world.heap().allocate<float>(1024);
///   box.free();  // collective
///
/// World::close succeeds with live arrays: this PE's copy stays readable until the array is
/// destroyed.
template <typename T>
class SymmetricArray {
 public:
  SymmetricArray() = default;  ///< empty
  SymmetricArray(SymmetricArray&& other) noexcept { swap(other); }
  SymmetricArray& operator=(SymmetricArray&& other) noexcept {
    SymmetricArray(std::move(other)).swap(*this);
    return *this;
  }

  /// Releases the memory and leaves the array empty. Collective, as SymmetricHeap::free. Does
  /// nothing on an empty array. Throws as SymmetricHeap::free, and Error{closed} naming the array
  /// after World::close; the array is then unchanged.
  void free() {
    if (memory_) detail::free_symmetric(*memory_);
    *this = {};
  }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  /// An element of this PE, for a heap on the host. For one in GPU memory use World::get_value and
  /// put_value.
  [[nodiscard]] T& operator[](std::size_t index) const noexcept { return data()[index]; }
  [[nodiscard]] std::span<T> span() const noexcept { return {data(), count_}; }

  /// The copy on world PE `pe`, for one-sided operations.
  [[nodiscard]] RemoteSpan<T> on(Pe pe) const noexcept { return {{pe, offset_}, count_}; }

 private:
  friend class SymmetricHeap;
  SymmetricArray(detail::ArrayPlace place, std::size_t count)
      : memory_(std::move(place.memory)),
        data_(static_cast<T*>(place.data)),
        offset_(place.offset),
        count_(count) {}
  void swap(SymmetricArray& other) noexcept {
    memory_.swap(other.memory_);
    std::swap(data_, other.data_);
    std::swap(offset_, other.offset_);
    std::swap(count_, other.count_);
  }

  std::shared_ptr<detail::ArrayMemory> memory_;
  T* data_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t count_ = 0;
};

template <typename T>
SymmetricArray<T> SymmetricHeap::allocate(std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>,
                "symmetric memory is written by other PEs byte by byte");
  return SymmetricArray<T>(detail::allocate_symmetric(*state_, count, sizeof(T), alignof(T)),
                           count);
}

}  // namespace shoal
