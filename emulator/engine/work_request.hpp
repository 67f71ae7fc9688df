// SPDX-License-Identifier: Apache-2.0
// work_request.hpp: work requests in the mlx5 format (WQEs), read from a ring in client memory.
//
// A send ring consists of 64-byte blocks; a request has 1 to 16 segments of 16 bytes each and may
// wrap at the end of the ring. Fields are big endian. Segments: control, then by operation remote
// address, atomic operands, data (address, length, lkey) or inline bytes. Source: rdma-core,
// providers/mlx5/mlx5dv.h (struct mlx5_wqe_*).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/atomics.hpp"
#include "engine/types.hpp"

namespace shoal::emulator {

constexpr std::size_t kBlockBytes = 64, kSegmentBytes = 16;
constexpr std::uint32_t kInlineFlag = 0x80000000;
/// lkey that ends the list of data segments of a receive request.
constexpr std::uint32_t kEndOfListKey = 0x100;

/// Bits of the control segment's byte 11.
struct ControlFlags {
  static constexpr std::uint8_t solicited = 0x02, completion_mask = 0x0c, completion_always = 0x08,
                                completion_first_error = 0x04, fence_mask = 0xe0;
};

struct DataSegment {
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  std::uint32_t key = 0;
};

/// A send request as the NIC executes it.
struct WorkRequest {
  Opcode opcode = Opcode::nop;
  std::uint16_t index = 0;   ///< free-running number of its first block
  std::uint32_t blocks = 1;  ///< that it occupies
  bool signalled = false;
  bool solicited = false;
  bool fenced = false;          ///< waits for earlier reads and atomics
  std::uint32_t immediate = 0;  ///< as in memory: big endian, not interpreted
  std::uint64_t remote_address = 0;
  std::uint32_t remote_key = 0;
  AtomicOperands atomic;
  std::vector<DataSegment> data;
  std::vector<std::byte> inline_data;  ///< instead of `data`

  std::uint64_t length() const;  ///< bytes of the message
};

/// A power-of-two ring of blocks in client memory.
struct SendRing {
  const std::byte* memory = nullptr;
  std::uint32_t blocks = 0;
};

/// Reads the request whose first block has the free-running number `index`. Syndrome::none, or
/// local_qp_operation for one that no NIC executes: unknown opcode, wrong queue pair or index, or
/// segments that do not fit the operation. `request` then has only index and blocks.
Syndrome decode(const SendRing& ring, std::uint32_t qp_number, std::uint16_t index,
                WorkRequest& request);

/// Number of blocks of the request at `index`, at least 1.
std::uint32_t blocks_at(const SendRing& ring, std::uint16_t index);

/// Data segments of a receive request of `stride` bytes; the list ends early at kEndOfListKey.
std::vector<DataSegment> decode_receive(const std::byte* request, std::size_t stride);

}  // namespace shoal::emulator
