// SPDX-License-Identifier: Apache-2.0
// host_platform.hpp: threads of a processor as the dispatcher and the workers of the NIC.
#pragma once

#include <atomic>
#include <cstring>
#include <thread>

#include "base/shared_words.hpp"
#include "gpu/bits.hpp"
#include "gpu/copy.hpp"

namespace shoal::emulator::gpu {

struct HostPlatform {
  /// Whether a worker may wait for another one inside a step.
  static constexpr bool kWaits = false;

  // The lanes of a warp, one after the other.
  template <typename Function>
  void lanes(std::uint32_t n, Function function) const {
    for (std::uint32_t i = 0; i < n; ++i) function(i);
  }
  template <typename Function>
  std::uint32_t mask(std::uint32_t n, Function function) const {
    std::uint32_t bits = 0;
    for (std::uint32_t i = 0; i < n; ++i) bits |= (function(i) ? 1U : 0U) << i;
    return bits;
  }
  template <std::uint32_t kCount, typename Function>
  Masks<kCount> masks(std::uint32_t n, Function function) const {
    Masks<kCount> masks;
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t bits = function(i);
      for (std::uint32_t j = 0; j < kCount; ++j) masks.at[j] |= (bits >> j & 1) << i;
    }
    return masks;
  }
  template <typename Function, typename Visitor>
  void scan(std::uint32_t n, Function function, Visitor visit) const {
    std::uint32_t values[32] = {}, sum = 0;
    for (std::uint32_t i = 0; i < n; ++i) values[i] = function(i);
    for (std::uint32_t i = 0; i < n; sum += values[i++]) visit(i, sum);
  }
  template <typename Function>
  std::uint64_t sum(std::uint32_t n, Function function) const {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < n; ++i) sum += function(i);
    return sum;
  }
  template <typename Function>
  void one(Function function) const {
    function();
  }
  template <typename Function>
  std::uint64_t ask(Function function) const {
    return static_cast<std::uint64_t>(function());
  }
  std::uint32_t lane() const noexcept { return 0; }
  std::uint32_t width() const noexcept { return 1; }

  std::uint64_t load_word(const std::uint64_t* word) const noexcept { return load_acquire(word); }
  void store_word(std::uint64_t* word, std::uint64_t value) const noexcept {
    store_release(word, value);
  }
  void count(std::uint64_t* word) const noexcept {
    std::atomic_ref(*word).fetch_add(1, std::memory_order_acq_rel);
  }
  std::uint64_t load_shared(const std::uint64_t* word) const noexcept { return load_acquire(word); }
  void store_shared(std::uint64_t* word, std::uint64_t value) const noexcept {
    store_release(word, value);
  }
  std::uint64_t add_shared(std::uint64_t* word, std::uint64_t value) const noexcept {
    return std::atomic_ref(*word).fetch_add(value, std::memory_order_acq_rel);
  }
  bool replace_shared(std::uint64_t* word, std::uint64_t& seen,
                      std::uint64_t value) const noexcept {
    return replace_far(word, seen, value);
  }
  std::uint64_t load_far(const std::uint64_t* word) const noexcept { return load_acquire(word); }
  void store_far(std::uint64_t* word, std::uint64_t value) const noexcept {
    store_release(word, value);
  }
  std::uint32_t load_record(const std::uint32_t* word) const noexcept { return load_acquire(word); }

  template <typename T>
  T load(const std::byte* from) const noexcept {
    if constexpr (sizeof(T) == sizeof(Vector))
      return {load<std::uint64_t>(from), load<std::uint64_t>(from + 8)};
    else
      return load_relaxed(reinterpret_cast<const T*>(from));
  }
  /// What this thread knows to be stored is stored before: there is nothing left for fence().
  template <typename T>
  void store(std::byte* to, const T& value) const noexcept {
    if constexpr (sizeof(T) == sizeof(Vector)) {
      store(to, value.low);
      store(to + 8, value.high);
    } else {
      store_release(reinterpret_cast<T*>(to), value);
    }
  }
  void fence() const noexcept {}
  void fence_near() const noexcept {}
  template <typename T>
  T add_far(T* word, T value) const noexcept {
    return std::atomic_ref(*word).fetch_add(value, std::memory_order_acq_rel);
  }
  template <typename T>
  bool replace_far(T* word, T& seen, T value) const noexcept {
    return std::atomic_ref(*word).compare_exchange_strong(seen, value, std::memory_order_acq_rel,
                                                          std::memory_order_acquire);
  }

  std::uint64_t now() const noexcept { return steady_ns(); }
  void pause() const noexcept { std::this_thread::yield(); }
};

}  // namespace shoal::emulator::gpu
