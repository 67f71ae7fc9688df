// SPDX-License-Identifier: Apache-2.0
// receive_queue.hpp: posted receive requests, of one queue pair or shared by several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/work_request.hpp"

namespace shoal::emulator {

struct ReceiveQueueAttributes {
  std::byte* memory = nullptr;
  std::uint32_t size = 0;    ///< requests; a power of two
  std::uint32_t stride = 0;  ///< bytes of one
  /// be32 counter of posted requests.
  std::byte* doorbell_record = nullptr;
  /// Requests form a list: bytes 2 and 3 of each hold the index of the next, and its data segments
  /// follow at byte 16.
  bool shared = false;
  std::uint32_t domain = 0;
};

class ReceiveQueue : public std::enable_shared_from_this<ReceiveQueue> {
 public:
  struct Request {
    std::uint16_t index = 0;
    std::vector<DataSegment> data;
  };

  ReceiveQueue(std::uint32_t number, const ReceiveQueueAttributes& attributes)
      : number_(number), attributes_(attributes) {}

  std::uint32_t number() const { return number_; }
  const ReceiveQueueAttributes& attributes() const { return attributes_; }
  /// Takes the oldest posted request; nullopt where none is posted.
  std::optional<Request> take();
  /// Forgets all requests (transition to the reset state).
  void reset() { taken_ = 0, head_ = 0; }
  std::uint32_t users = 0;  ///< queue pairs that take from it

 private:
  std::uint32_t number_;
  ReceiveQueueAttributes attributes_;
  std::uint16_t taken_ = 0;  ///< free-running, as the doorbell record's counter
  std::uint16_t head_ = 0;   ///< index of the next request of a shared queue
};

}  // namespace shoal::emulator
