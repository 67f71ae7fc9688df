// SPDX-License-Identifier: Apache-2.0
// handles.hpp: the objects behind handles that a program passes. A handle is a number, not an
// address: one that is destroyed or was never given is an error message, and destroyed objects take
// no memory.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace shoal::shmem {

/// Objects by handle. Any thread; finding takes no lock. `Handle` is a pointer type of the API,
/// never followed.
template <typename T, typename Handle>
class Handles {
 public:
  Handles() = default;
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    for (std::atomic<Slot*>& chunk : chunks_) delete[] chunk.load();
  }

  /// nullptr: destroyed, or never given.
  T* find(Handle handle) const noexcept {
    const Slot* const slot = slot_of(handle);
    return slot != nullptr && slot->handle.load(std::memory_order_acquire) == bits(handle)
               ? slot->object.get()
               : nullptr;
  }
  /// Throws Error{invalid_argument} where `find` finds none; `argument` names it in the message.
  [[noreturn, gnu::cold]] void refuse(const char* argument, const char* kind, Handle handle) const {
    const Slot* const slot = slot_of(handle);
    const std::uint64_t given = slot == nullptr ? 0 : slot->generation.load();
    require(slot == nullptr || bits(handle) >> kIndexBits >= given, Code::invalid_argument,
            "SHOAL-N830: {} was destroyed; allowed: a {} that exists", argument, kind);
    fail(Code::invalid_argument, "SHOAL-N830: {} is {}, which is no {}; allowed: a {} that exists",
         argument, static_cast<const void*>(handle), kind, kind);
  }
  /// Throws Error{exhausted} where 2^26 objects exist.
  Handle add(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    const std::size_t index = free_.back();
    free_.pop_back();
    Slot& slot = at(index);
    slot.object = std::move(object);
    const std::uint64_t handle = slot.generation.load() << kIndexBits | (index + kFirst);
    slot.handle.store(handle, std::memory_order_release);
    return std::bit_cast<Handle>(handle);
  }
  /// The object of a handle that exists; the handle is destroyed.
  std::unique_ptr<T> remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    const std::size_t index = index_of(handle);
    Slot& slot = at(index);
    slot.handle = 0;
    ++slot.generation;
    free_.push_back(index);
    return std::move(slot.object);
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> handle{0};  ///< 0: free
    std::atomic<std::uint64_t> generation{1};
    std::unique_ptr<T> object;
  };
  static constexpr int kIndexBits = 32;
  static constexpr std::size_t kFirst = 64;  ///< lower numbers are predefined handles
  static constexpr std::size_t kChunk = 64;  ///< slots of the first chunk; each further one doubles

  static std::uint64_t bits(Handle handle) { return std::bit_cast<std::uint64_t>(handle); }
  static std::size_t index_of(Handle handle) {
    return (bits(handle) & ((std::uint64_t{1} << kIndexBits) - 1)) - kFirst;
  }
  /// The chunk of a slot, and its place there.
  static std::pair<std::size_t, std::size_t> place(std::size_t index) {
    const auto chunk = static_cast<std::size_t>(std::bit_width(index / kChunk + 1)) - 1;
    return {chunk, index - kChunk * ((std::size_t{1} << chunk) - 1)};
  }
  Slot& at(std::size_t index) const {
    const auto [chunk, i] = place(index);
    return chunks_[chunk].load(std::memory_order_relaxed)[i];
  }
  const Slot* slot_of(Handle handle) const noexcept {
    const std::size_t index = index_of(handle);  // wraps around for predefined handles
    return index < slots_.load(std::memory_order_acquire) ? &at(index) : nullptr;
  }
  void grow() {
    const std::size_t before = slots_.load(), chunk = place(before).first;
    require(chunk < chunks_.size(), Code::exhausted, "SHOAL-N830: {} handles exist; allowed: {}",
            before, before);
    const std::size_t count = kChunk << chunk;
    chunks_[chunk] = new Slot[count];
    for (std::size_t i = count; i > 0; --i) free_.push_back(before + i - 1);
    slots_.store(before + count, std::memory_order_release);
  }

  std::array<std::atomic<Slot*>, 20> chunks_{};
  std::atomic<std::size_t> slots_{0};
  std::mutex mutex_;
  std::vector<std::size_t> free_;
};

}  // namespace shoal::shmem
