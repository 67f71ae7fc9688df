// SPDX-License-Identifier: Apache-2.0
// shape.hpp: blocks and threads of the kernels of collectives. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shoal::collective::kernels {

struct LaunchShape {
  unsigned blocks = 1;
  unsigned threads = 32;
};

inline constexpr unsigned kMaxThreads = 512;
/// Blocks of a launch. More blocks move large data faster, but leave no multiprocessor to other
/// kernels.
inline constexpr unsigned kMaxBlocks = 96;
/// One access of 16 bytes per thread: with 256 KiB to 1 MiB, more blocks are faster than more
/// accesses per thread.
inline constexpr std::uint64_t kBytesPerBlock = std::uint64_t{kMaxThreads} * 16;

/// The blocks that a PE may use where `pes` PEs share its GPU.
constexpr unsigned max_blocks(int pes) {
  return std::max(1U, kMaxBlocks / static_cast<unsigned>(std::max(pes, 1)));
}

/// A thread per packet while blocks last.
constexpr LaunchShape packet_shape(std::uint64_t bytes, int pes_on_device) {
  const std::uint64_t packets = std::max<std::uint64_t>((bytes + 7) / 8, 1);
  const auto threads =
      static_cast<unsigned>(std::min<std::uint64_t>((packets + 31) / 32 * 32, kMaxThreads));
  const std::uint64_t blocks = (packets + threads - 1) / threads;
  return {static_cast<unsigned>(std::min<std::uint64_t>(blocks, max_blocks(pes_on_device))),
          threads};
}

/// `bytes`: what this PE reads or writes in all.
constexpr LaunchShape bulk_shape(std::uint64_t bytes, int pes_on_device) {
  const std::uint64_t blocks = bytes / kBytesPerBlock + (bytes % kBytesPerBlock != 0 ? 1 : 0);
  return {static_cast<unsigned>(std::clamp<std::uint64_t>(blocks, 1, max_blocks(pes_on_device))),
          kMaxThreads};
}

}  // namespace shoal::collective::kernels
