// SPDX-License-Identifier: Apache-2.0
// statics.hpp: makes the global and static variables of the program symmetric.
//
// A block of the symmetric heap takes the contents of the executable's .data and .bss and is then
// mapped over them: a variable and its place in the heap are the same memory. So every operation of
// a world, every transport and shmem_ptr work on variables too. Only the translation of an address
// to an offset knows of a second range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "shoal/world.hpp"

namespace shoal::shmem {

/// The writable pages of the executable.
struct StaticRange {
  std::uintptr_t start = 0;
  std::size_t bytes = 0;
  /// Why the variables cannot be symmetric: "the program ..."; empty where they can.
  std::string obstacle;
};

/// Examines the executable of this process. `threads`: threads that the process has; another thread
/// could write to a variable between the copy and the mapping.
StaticRange find_static_range(std::size_t threads);
/// The ids of the threads of this process.
std::set<std::string> list_threads();

class Statics {
 public:
  /// Makes the range symmetric unless a PE has an obstacle or another executable. Collective. The
  /// world must have room for it.
  void map(const World& world, const StaticRange& range);

  std::uintptr_t start() const noexcept { return start_; }
  /// 0 where variables are not symmetric.
  std::size_t bytes() const noexcept { return bytes_; }
  /// Offset of the range in every PE's heap.
  std::size_t offset() const noexcept { return offset_; }
  /// Why variables are not symmetric.
  const std::string& obstacle() const noexcept { return obstacle_; }

 private:
  std::uintptr_t start_ = 0;
  std::size_t bytes_ = 0;
  std::size_t offset_ = 0;
  std::string obstacle_;
};

}  // namespace shoal::shmem
