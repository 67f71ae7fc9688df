// SPDX-License-Identifier: Apache-2.0
// completion_queue.hpp: completion entries (CQEs) in the mlx5 format, written to client memory.
//
// A CQE has 64 bytes; byte 63 holds opcode << 4 | owner. An entry is new when its opcode is not
// `invalid` and its owner bit equals bit log2(size) of the consumer's counter. In a collapsed
// queue every CQE overwrites entry 0. Source: rdma-core, providers/mlx5/mlx5dv.h (struct
// mlx5_cqe64).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "engine/types.hpp"

namespace shoal::emulator {

constexpr std::size_t kCqeBytes = 64;

enum class CqeOpcode : std::uint8_t {
  request = 0,
  response_write_immediate = 1,
  response_send = 2,
  response_send_immediate = 3,
  response_send_invalidate = 4,
  request_error = 13,
  response_error = 14,
  invalid = 15,
};

struct Completion {
  CqeOpcode opcode = CqeOpcode::request;
  Syndrome syndrome = Syndrome::none;
  Opcode sent = Opcode::nop;  ///< operation of the request; 0 for receives
  std::uint32_t qp_number = 0;
  std::uint32_t remote_qp = 0;
  std::uint32_t user_index = 0;  ///< of the queue pair, or number of the SRQ
  std::uint32_t immediate = 0;   ///< as on the wire, not interpreted
  std::uint32_t bytes = 0;
  std::uint16_t request_index = 0;  ///< first block of the request, or index of the receive
  bool solicited = false;
  Time time{};
};

struct CompletionQueueAttributes {
  std::byte* entries = nullptr;  ///< size * 64 bytes of client memory
  std::uint32_t size = 0;        ///< entries; a power of two
  /// be32 consumer counter (24 bits), then be32 arm word: sequence << 28 | command << 24 | counter.
  std::byte* doorbell_record = nullptr;
  bool collapsed = false;
  bool ignore_overrun = false;
};

class CompletionQueue : public std::enable_shared_from_this<CompletionQueue> {
 public:
  CompletionQueue(std::uint32_t number, const CompletionQueueAttributes& attributes);

  std::uint32_t number() const { return number_; }
  const CompletionQueueAttributes& attributes() const { return attributes_; }
  /// False when the queue is full: the CQE is lost, the queue has failed, and so have the queue
  /// pairs that use it.
  bool push(const Completion& completion);
  bool failed() const { return failed_; }
  std::uint64_t produced() const { return produced_; }
  /// Request of the client to be notified of the next CQE, or the next solicited one.
  void arm(std::uint32_t command_and_counter);
  /// Called when an armed queue gets a CQE.
  std::function<void()> on_event;
  /// Called when the first CQE is lost.
  std::function<void()> on_overrun;
  /// References by queue pairs; a queue in use cannot be destroyed.
  std::uint32_t users = 0;

 private:
  enum class Armed : std::uint8_t { no, solicited, any };

  bool full() const;
  void notify();

  std::uint32_t number_;
  CompletionQueueAttributes attributes_;
  std::uint64_t produced_ = 0;
  std::uint64_t notified_ = 0;  ///< produced_ at the last event
  bool failed_ = false;
  Armed armed_ = Armed::no;
};

}  // namespace shoal::emulator
