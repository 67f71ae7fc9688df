// SPDX-License-Identifier: Apache-2.0
// nic.hpp: an emulated RDMA NIC.
//
// The engine has no threads and no clock of its own: its owner calls it, and the same calls with
// the same seed give the same result. It is not thread-safe. Clients share only memory with it:
// rings, doorbell records and completion queues.
//
//   VirtualNetwork network({.nics = 2});
//   Nic& nic = network.nic(0);
//   auto queue = nic.create_completion_queue({.entries = entries, .size = 64});
//   auto pair = nic.create_queue_pair({.send_completions = queue.object, .ring = ring, ...});
//   pair.object->modify(QpState::init, connection);  // and so on
//   nic.doorbell(pair.object->number());
//   network.run_until([&] { return queue.object->produced() == 1; });
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "engine/queue_pair.hpp"
#include "engine/relaxed_writes.hpp"

namespace shoal::emulator {

/// An object, or why it was not created.
template <typename Object>
struct Created {
  Status status = Status::ok;
  std::shared_ptr<Object> object;
};

class Nic {
 public:
  Nic(NicOptions options, Wire& wire);
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  const NicOptions& options() const { return options_; }
  MemoryKeys& keys() { return keys_; }
  /// Sum over all queue pairs, destroyed ones included.
  Counters counters() const;

  /// Status::limit_exceeded where the device has no more, or one that large; bad_parameter for
  /// sizes that are no power of two.
  Created<CompletionQueue> create_completion_queue(const CompletionQueueAttributes& attributes);
  Created<ReceiveQueue> create_receive_queue(const ReceiveQueueAttributes& attributes);
  Created<QueuePair> create_queue_pair(const QueuePairAttributes& attributes);
  /// Status::bad_resource_state while a queue pair uses the object; bad_resource for an unknown
  /// number.
  Status destroy_completion_queue(std::uint32_t number);
  Status destroy_receive_queue(std::uint32_t number);
  Status destroy_queue_pair(std::uint32_t number);
  /// nullptr for an unknown number.
  QueuePair* find(std::uint32_t qp_number);
  CompletionQueue* find_completion_queue(std::uint32_t number);
  ReceiveQueue* find_receive_queue(std::uint32_t number);
  const std::map<std::uint32_t, std::shared_ptr<QueuePair>>& queue_pairs() const { return pairs_; }
  std::size_t completion_queues() const { return completion_queues_.size(); }

  /// A client has written the doorbell record of a queue pair.
  void doorbell(std::uint32_t qp_number);
  /// A packet for this NIC has arrived.
  void receive(Packet&& packet);
  /// Runs timers that are due and sends while the wire accepts packets. Returns whether it did
  /// anything.
  bool progress();
  /// Time at which progress() may have a timer to run, at the latest; kNever without one.
  Time next_timer() const;

 private:
  std::uint32_t take_pair_number();
  void ready(QueuePair& pair);
  QueuePair* next_pair();
  void end_turn(QueuePair& pair);
  void update_timer(QueuePair& pair);

  NicOptions options_;
  Wire& wire_;
  MemoryKeys keys_;
  std::mt19937_64 random_;
  RelaxedWrites relaxed_;
  std::map<std::uint32_t, std::shared_ptr<QueuePair>> pairs_;
  std::vector<QueuePair*> by_number_;  ///< from first_queue_pair on; nullptr: destroyed
  std::map<std::uint32_t, std::shared_ptr<CompletionQueue>> completion_queues_;
  std::map<std::uint32_t, std::shared_ptr<ReceiveQueue>> receive_queues_;
  std::uint32_t next_pair_, next_completion_queue_ = 1, next_receive_queue_ = 1;
  Counters of_destroyed_;
  // Queue pairs with something to send; arrival numbers for Arbitration::oldest_doorbell.
  std::set<std::pair<std::uint64_t, std::uint32_t>> ready_;
  std::uint64_t arrivals_ = 0;
  std::uint32_t current_ = 0, left_in_turn_ = 0;
  std::set<std::pair<Time, std::uint32_t>> timers_;  ///< by QueuePair::Schedule::look
};

}  // namespace shoal::emulator
