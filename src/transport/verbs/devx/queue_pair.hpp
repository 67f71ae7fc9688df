// SPDX-License-Identifier: Apache-2.0
// queue_pair.hpp: a reliable connection that device commands create. The transport writes its work
// requests, rings its doorbell and reads its completions itself (mlx5/work_queue.hpp).
#pragma once

#include <vector>

#include "transport/verbs/devx/port.hpp"
#include "transport/verbs/port/queue_pair.hpp"

namespace shoal::transport::verbs::devx {

class CommandQueuePair final : public QueuePair {
 public:
  /// Has the arguments of Port::make_queue_pair.
  CommandQueuePair(const CommandPort& port, const QueueLimits& limits, const QueuePairName& name,
                   std::size_t existing);
  /// With a completion queue of its own. Nothing may be posted by post(): kernels write requests
  /// and read completions.
  CommandQueuePair(const CommandPort& port, const QueueLimits& limits, const QueuePairName& name,
                   std::size_t existing, const CompletionQueue& completions);
  ~CommandQueuePair() override;

  std::uint32_t number() const noexcept override { return queue_.number; }
  std::string state() const override;
  void stop() noexcept override;
  const mlx5::SendQueue& sends() const noexcept { return queue_; }
  const QueueMemory& memory() const noexcept { return memory_; }
  /// ENOMEM where the chain finds no room. A chain is posted as a whole or not at all.
  int post(ibv_send_wr& first) noexcept override;

  /// The identifier of the request whose first block is `index`. All requests up to it are
  /// complete.
  std::uint64_t completed(std::uint16_t index) noexcept;

 private:
  std::string modify(ibv_qp_attr& attributes, int mask) override;
  void lay_out();
  void create(std::size_t existing, std::uint32_t completions);
  /// Writes a request at posted_. Error number, 0 for success.
  int write(const ibv_send_wr& request, mlx5::Posted& posted) noexcept;

  Device& device_;
  QueueMemory memory_;
  Object object_{nullptr, nullptr};  ///< before its memory
  mlx5::SendQueue queue_;
  std::uint32_t posted_ = 0, completed_ = 0;  ///< blocks
  std::vector<std::uint64_t> ids_;            ///< of requests, by their first block
};

/// Blocks of the send queue for `limits`. Throws Error{unsupported} naming the limit.
std::uint32_t ring_blocks(const Device& device, const QueueLimits& limits);

}  // namespace shoal::transport::verbs::devx
