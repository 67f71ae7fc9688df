// SPDX-License-Identifier: Apache-2.0
// format.hpp: what mlx5 NICs and their clients read in each other's memory: work requests (WQEs) in
// 64-byte blocks, doorbell records and completions (CQEs). For host and device code.
//
// All fields are big endian. A request consists of 16-byte segments: control, then by operation
// remote address, atomic operands, and data (address, length, key) or inline bytes. Source:
// rdma-core, providers/mlx5/mlx5dv.h (struct mlx5_wqe_*, struct mlx5_cqe64).
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/config.hpp>

namespace shoal::mlx5 {

inline constexpr std::uint32_t kBlockBytes = 64, kSegmentBytes = 16;
inline constexpr std::uint32_t kBlockSegments = kBlockBytes / kSegmentBytes;
/// Most segments of one request. The size field of the control segment has 6 bits.
inline constexpr std::uint32_t kMostSegments = 63;
/// Blocks of a send queue. Half of the range of the 16-bit block counters.
inline constexpr std::uint32_t kMostBlocks = 32768;
/// In front of the bytes of an inline request.
inline constexpr std::uint32_t kInlineHeader = 4;

/// Converts to big endian, and back.
SHOAL_HOST_DEVICE constexpr std::uint32_t big(std::uint32_t value) {
  return value << 24 | (value & 0xff00) << 8 | (value >> 8 & 0xff00) | value >> 24;
}
SHOAL_HOST_DEVICE constexpr std::uint64_t big(std::uint64_t value) {
  return std::uint64_t{big(static_cast<std::uint32_t>(value))} << 32 |
         big(static_cast<std::uint32_t>(value >> 32));
}

enum class Opcode : std::uint8_t {
  nop = 0x00,
  write = 0x08,
  read = 0x10,
  compare_swap = 0x11,
  fetch_add = 0x12,
};

/// Why a request failed.
enum class Syndrome : std::uint8_t {
  none = 0x00,
  local_length = 0x01,
  local_qp_operation = 0x02,
  local_protection = 0x04,
  flushed = 0x05,
  memory_window_bind = 0x06,
  bad_response = 0x10,
  local_access = 0x11,
  remote_invalid_request = 0x12,
  remote_access = 0x13,
  remote_operation = 0x14,
  retry_exceeded = 0x15,
  rnr_retry_exceeded = 0x16,
  remote_aborted = 0x22,
};

/// Byte 11 of the control segment.
struct Flags {
  bool signalled = false;  ///< has a completion of its own
  bool fenced = false;     ///< starts when earlier reads and atomics have their results

  SHOAL_HOST_DEVICE constexpr std::uint32_t bits() const {
    return (signalled ? 0x08u : 0u) | (fenced ? 0x80u : 0u);
  }
};

/// Memory of this side or of the peer, with its key.
struct Memory {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
};

/// A unit of a request, in big endian.
struct alignas(kSegmentBytes) Segment {
  std::uint32_t words[4];
};

SHOAL_HOST_DEVICE constexpr Segment segment_of(std::uint64_t first, std::uint32_t third,
                                               std::uint32_t fourth) {
  return {{big(static_cast<std::uint32_t>(first >> 32)), big(static_cast<std::uint32_t>(first)),
           big(third), big(fourth)}};
}
/// Control segment of the request whose first block has the free-running number `index`.
SHOAL_HOST_DEVICE constexpr Segment control_segment(Opcode opcode, std::uint16_t index,
                                                    std::uint32_t queue_pair,
                                                    std::uint32_t segments, Flags flags) {
  const std::uint32_t first = std::uint32_t{index} << 8 | static_cast<std::uint32_t>(opcode);
  return segment_of(std::uint64_t{first} << 32 | queue_pair << 8 | segments, flags.bits(), 0);
}
SHOAL_HOST_DEVICE constexpr Segment remote_segment(const Memory& remote) {
  return segment_of(remote.address, remote.key, 0);
}
SHOAL_HOST_DEVICE constexpr Segment data_segment(const Memory& local, std::uint32_t bytes) {
  return segment_of(std::uint64_t{bytes} << 32 | local.key,
                    static_cast<std::uint32_t>(local.address >> 32),
                    static_cast<std::uint32_t>(local.address));
}
/// `compare` of a fetch-and-add is 0.
SHOAL_HOST_DEVICE constexpr Segment atomic_segment(std::uint64_t swap_or_add,
                                                   std::uint64_t compare) {
  return segment_of(swap_or_add, static_cast<std::uint32_t>(compare >> 32),
                    static_cast<std::uint32_t>(compare));
}

SHOAL_HOST_DEVICE constexpr std::uint32_t blocks_of(std::uint32_t segments) {
  return segments <= kBlockSegments ? 1 : (segments + kBlockSegments - 1) / kBlockSegments;
}
/// Segments of a write of `bytes` inline bytes.
SHOAL_HOST_DEVICE constexpr std::uint32_t inline_segments(std::uint32_t bytes) {
  return bytes == 0 ? 2 : 2 + (kInlineHeader + bytes + kSegmentBytes - 1) / kSegmentBytes;
}
inline constexpr std::uint32_t kMostInline = (kMostSegments - 2) * kSegmentBytes - kInlineHeader;

/// Doorbell record of a queue pair: block counters, of which 16 bits count.
struct alignas(8) DoorbellRecord {
  std::uint32_t receives;
  std::uint32_t sends;
};
/// Doorbell record of a completion queue: how many entries were read (24 bits).
struct alignas(8) CompletionRecord {
  std::uint32_t consumed;
  std::uint32_t armed;
};
inline constexpr std::uint32_t kConsumedMask = 0xffffff;

struct alignas(64) CompletionEntry {
  std::uint8_t unused[54];
  std::uint8_t vendor;        ///< of an error
  std::uint8_t syndrome;      ///< of an error
  std::uint32_t operation;    ///< opcode of the request << 24 | number of the queue pair
  std::uint32_t index_state;  ///< first block of the request << 16 | completion opcode << 4 | owner
};
static_assert(sizeof(CompletionEntry) == 64 && offsetof(CompletionEntry, operation) == 56);

/// A completion as clients use it.
struct Completion {
  Syndrome syndrome = Syndrome::none;
  std::uint8_t vendor = 0;
  bool failed = false;
  std::uint16_t index = 0;  ///< first block of the request
  std::uint32_t queue_pair = 0;
};

/// The upper half of a completion's last byte.
inline constexpr std::uint32_t kCompletionError = 13, kCompletionInvalid = 15;
/// Entries of a new queue hold it in every byte.
inline constexpr std::uint8_t kUnusedEntry = 0xff;

}  // namespace shoal::mlx5
