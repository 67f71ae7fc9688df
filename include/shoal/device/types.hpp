// SPDX-License-Identifier: Apache-2.0
// shoal/device/types.hpp: what kernels are given, as plain structs that travel as kernel
// parameters.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/heap.hpp>
#include <shoal/operation.hpp>

namespace shoal::device {

/// Why a FailureReport was written.
enum class FailureKind : std::uint32_t {
  none = 0,
  wait_until,      ///< a deadline passed
  wait_until_all,  ///< likewise; the variable is the first that was found not to compare so
  wait_until_any,  ///< likewise; the variable is the first of them
  barrier,         ///< likewise; `awaited` has not come
  bad_address,     ///< a PE that does not exist, or a range that leaves the heap; nothing was done
  unreachable,     ///< the GPU of this PE cannot reach the heap of PE `awaited`; nothing was done
};

/// The first thing that went wrong in a kernel of this PE since the report was last taken. In host
/// memory that the GPU writes; read it with shoal::cuda::check_failures or take_failure.
struct FailureReport {
  enum State : std::uint32_t { empty = 0, filling = 1, complete = 2 };

  std::uint32_t state;
  FailureKind kind;
  Pe awaited;               ///< the PE in question, -1 where none is known
  Compare compare;          ///< of waits
  std::uint8_t width;       ///< bytes of the variable: 4 or 8
  std::uint8_t is_signed;   ///< whether expected and seen are signed numbers
  std::uint64_t offset;     ///< of the variable or range, in bytes from the start of this PE's heap
  std::uint64_t bytes;      ///< length of the range, of bad_address
  std::uint64_t expected;   ///< what the variable was compared with
  std::uint64_t seen;       ///< what it was at last
  std::uint64_t waited_ns;  ///< how long the wait took
  std::uint32_t block[3];   ///< index of the block and of the thread that failed
  std::uint32_t thread[3];
};

/// The world as a kernel of one PE sees it. Pass it by value, best as `__grid_constant__ const`.
struct World {
  std::byte* heap;           ///< start of this PE's heap
  std::byte* window;         ///< heap of PE p: window + p * stride, where `bases` is nullptr
  std::size_t stride;        ///< bytes
  std::byte* const* bases;   ///< in device memory, by PE, where heaps lie anywhere; nullptr
                             ///< elements: not reachable
  std::size_t heap_bytes;    ///< of every heap
  std::uint64_t timeout_ns;  ///< deadline of every wait (SHOAL_TIMEOUT_MS)
  FailureReport* failure;    ///< in host memory
  Pe my_pe;
  Pe n_pes;
};

/// A team as kernels of its members see it: what barrier needs. Valid until the team is destroyed.
struct Team {
  static constexpr Pe kMaxPes = 1024;  ///< of the world
  static constexpr int kEpochBits = 40;

  std::uint64_t* arrived;    ///< in this PE's heap, by world PE: the last barrier of this team that
                             ///< it has entered
  std::uint64_t* epoch;      ///< in this PE's heap: the last barrier that this PE has entered
  std::uint64_t generation;  ///< tells teams apart that had the same index one after another
  std::uint64_t members[kMaxPes / 64];  ///< bit p: world PE p is a member
};

/// What wait_until_any and test_any return for none.
inline constexpr std::size_t kNoIndex = static_cast<std::size_t>(-1);

}  // namespace shoal::device
