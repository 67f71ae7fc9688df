// SPDX-License-Identifier: Apache-2.0
// queue_pair.hpp: a reliable connection to a queue pair of one peer. It has no receive queue.
#pragma once

#include <string>

#include "transport/verbs/port/port.hpp"

namespace shoal::transport::verbs {

/// Limits common to all queue pairs of a port: settings, within the limits of the device.
struct QueueLimits {
  std::uint32_t depth = 0;         ///< requests in a send queue
  std::uint32_t inline_bytes = 0;  ///< asked for; the device may give more
  std::uint8_t atomics = 0;        ///< reads and atomics in flight, per direction
  std::uint8_t retries = 0;
  std::uint8_t timeout = 0;  ///< 4.096 us * 2^timeout
  std::uint8_t service_level = 0;
  std::uint8_t traffic_class = 0;

  /// Throws Error{unsupported} where a setting exceeds a limit of the device, with both.
  static QueueLimits of(const Port& port, const Settings& settings, std::size_t queue_pairs);
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  /// Number and addresses with which the peer connects.
  virtual std::uint32_t number() const noexcept = 0;
  /// True if it is the queue pair that an event names. Those of device commands have no events.
  virtual bool is(const ibv_qp* /*handle*/) const noexcept { return false; }
  std::uint32_t first_packet() const noexcept { return first_packet_; }
  std::uint32_t inline_bytes() const noexcept { return inline_bytes_; }

  /// Changes to RTR and RTS. Throws Error{unsupported} with the attributes, their limits and the
  /// settings.
  void connect(const PathAddress& path, const QueueAddress& peer);
  /// "RTS", as the device says.
  virtual std::string state() const = 0;
  /// Ends all requests with an error.
  virtual void stop() noexcept = 0;
  /// Error number, 0 for success.
  virtual int post(ibv_send_wr& first) noexcept = 0;
  std::string describe() const;

 protected:
  QueuePair(const Port& port, const QueueLimits& limits, const QueuePairName& name);
  /// The last step of a constructor.
  void to_init();
  /// Changes its state. Empty, or why not.
  virtual std::string modify(ibv_qp_attr& attributes, int mask) = 0;
  [[noreturn]] void refuse_creation(const std::string& problem, std::size_t existing) const;

  const Port& port_;
  const QueueLimits limits_;
  std::uint32_t inline_bytes_ = 0;

 private:
  void change(ibv_qp_attr& attributes, int mask, const std::string& detail);
  void to_receive(const PathAddress& path, const QueueAddress& peer);
  void to_send();

  const QueuePairName name_;
  std::uint32_t first_packet_;
};

/// "RTS".
const char* name_of(ibv_qp_state state);

}  // namespace shoal::transport::verbs
