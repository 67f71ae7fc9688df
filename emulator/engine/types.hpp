// SPDX-License-Identifier: Apache-2.0
// types.hpp: terms that all parts of the emulated NIC share.
//
// Sources: the InfiniBand Architecture Specification, volume 1 (chapters 9 to 11) for the
// semantics; the mlx5 formats as published by rdma-core (providers/mlx5/mlx5dv.h) and the Linux
// kernel (include/linux/mlx5/qp.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace shoal::emulator {

/// Since the start of a wire's clock, which is virtual or real.
using Time = std::chrono::nanoseconds;
constexpr Time kNever = Time::max();

/// Operation of a work request, as the mlx5 control segment encodes it.
enum class Opcode : std::uint8_t {
  nop = 0x00,
  send_invalidate = 0x01,
  write = 0x08,
  write_immediate = 0x09,
  send = 0x0a,
  send_immediate = 0x0b,
  read = 0x10,
  compare_swap = 0x11,
  fetch_add = 0x12,
  masked_compare_swap = 0x14,
  masked_fetch_add = 0x15,
};

constexpr bool is_atomic(Opcode opcode) {
  return opcode == Opcode::compare_swap || opcode == Opcode::fetch_add ||
         opcode == Opcode::masked_compare_swap || opcode == Opcode::masked_fetch_add;
}
constexpr bool is_send(Opcode opcode) {
  return opcode == Opcode::send || opcode == Opcode::send_immediate ||
         opcode == Opcode::send_invalidate;
}
constexpr bool is_write(Opcode opcode) {
  return opcode == Opcode::write || opcode == Opcode::write_immediate;
}
constexpr bool has_immediate(Opcode opcode) {
  return opcode == Opcode::write_immediate || opcode == Opcode::send_immediate ||
         opcode == Opcode::send_invalidate;
}

/// Why a work request failed: the syndrome of an mlx5 error CQE.
enum class Syndrome : std::uint8_t {
  none = 0x00,
  local_length = 0x01,
  local_qp_operation = 0x02,
  local_protection = 0x04,
  flushed = 0x05,
  bad_response = 0x10,
  local_access = 0x11,
  remote_invalid_request = 0x12,
  remote_access = 0x13,
  remote_operation = 0x14,
  retry_exceeded = 0x15,
  rnr_retry_exceeded = 0x16,
  remote_aborted = 0x22,
};

/// In which order the data of one queue pair becomes visible at its target.
enum class Ordering : std::uint8_t {
  /// All in the order of posting, on one path.
  strict = 0,
  /// Writes take any path and land in any order; every other operation is sent when all earlier
  /// ones are acknowledged (mlx5's out-of-order read/write mode).
  adaptive = 1,
  /// Everything takes any path; the responder holds operations other than writes until all earlier
  /// ones are complete (mlx5's fully out-of-order mode).
  unordered = 2,
};

enum class QpState : std::uint8_t { reset, init, ready_to_receive, ready_to_send, error };

/// Outcome of a control command: the status byte of an mlx5 command.
enum class Status : std::uint8_t {
  ok = 0x00,
  internal = 0x01,
  bad_operation = 0x02,
  bad_parameter = 0x03,
  bad_system_state = 0x04,
  bad_resource = 0x05,
  busy = 0x06,
  limit_exceeded = 0x08,
  bad_resource_state = 0x09,
  bad_index = 0x0a,
  no_resources = 0x0f,
  bad_qp_state = 0x10,
  bad_input_length = 0x50,
  bad_output_length = 0x51,
};

/// Packet sequence numbers have 24 bits and are compared within half of their range.
constexpr std::uint32_t kPsnMask = 0xffffff;
constexpr std::int32_t psn_distance(std::uint32_t to, std::uint32_t from) {
  return static_cast<std::int32_t>((to - from) << 8) >> 8;
}
constexpr std::uint32_t psn_add(std::uint32_t psn, std::uint32_t count) {
  return (psn + count) & kPsnMask;
}

}  // namespace shoal::emulator
