// SPDX-License-Identifier: Apache-2.0
// request_writer.hpp: writes work requests in the mlx5 format into a send ring.
//
//   RequestWriter writer(ring, blocks, qp_number);
//   writer.start(Opcode::write, {.signalled = true});
//   writer.remote(address, rkey).data(source, bytes, lkey);
//   std::uint16_t index = writer.finish();  // then the doorbell record: writer.posted()
//
// The formats are those of engine/work_request.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/work_request.hpp"

namespace shoal::emulator {

struct RequestFlags {
  bool signalled = false, solicited = false, fenced = false;
  std::uint32_t immediate = 0;  ///< stored as it is: network byte order
};

class RequestWriter {
 public:
  /// `ring` has a power of two of blocks; the queue starts empty.
  RequestWriter(std::byte* ring, std::uint32_t blocks, std::uint32_t qp_number)
      : ring_(ring), blocks_(blocks), qp_number_(qp_number) {}

  RequestWriter& start(Opcode opcode, const RequestFlags& flags, std::uint8_t modifier = 0);
  RequestWriter& remote(std::uint64_t address, std::uint32_t key);
  RequestWriter& data(std::uint64_t address, std::uint32_t length, std::uint32_t key);
  RequestWriter& inline_data(std::span<const std::byte> bytes);
  /// The operands that the opcode needs; of masked operations with 4 or 8 bytes.
  RequestWriter& atomic(const AtomicOperands& operands);
  /// Completes the request; returns the number of its first block.
  std::uint16_t finish();

  std::uint16_t posted() const { return next_; }  ///< for the doorbell record
  void reset() { next_ = 0; }

 private:
  std::byte* segment();

  std::byte* ring_;
  std::uint32_t blocks_, qp_number_;
  std::uint16_t next_ = 0;
  std::uint32_t segments_ = 0;
  Opcode opcode_ = Opcode::nop;
  std::uint8_t modifier_ = 0, flags_ = 0;
  std::uint32_t immediate_ = 0;
};

/// Modifier of a masked atomic of `size` bytes; 0 for others.
std::uint8_t modifier_of(const AtomicOperands& operands);

}  // namespace shoal::emulator
