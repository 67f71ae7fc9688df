// SPDX-License-Identifier: Apache-2.0
// tcp_bootstrap.hpp: the PE's side of a TCP bootstrap.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "bootstrap/tcp/channel.hpp"
#include "shoal/bootstrap.hpp"

namespace shoal::bootstrap {

/// Addresses of the root, with hints for a failed connection.
struct RootAddress {
  std::vector<Address> candidates;  ///< tried in turn
  std::string shown;                ///< for messages
  bool may_be_late = false;  ///< the root may start later: retry a refused connection (session ids)
  std::string hint;          ///< the settings to check if the root cannot be reached
};

/// One connection to the root. Sending and receiving have separate mutexes, so abort and aborted
/// work while the owner thread is in a collective call. The thread that reads a failure stores it
/// for all later calls.
class TcpBootstrap final : public Bootstrap {
 public:
  /// Returns when all PEs have joined. `root` is the root's handle if the root runs in this
  /// process; this object keeps it.
  TcpBootstrap(const RootAddress& where, const Key& key, Pe pe, std::int32_t n_pes,
               std::chrono::milliseconds limit, std::shared_ptr<void> root);
  ~TcpBootstrap() override;

  std::int32_t pe() const noexcept override { return pe_; }
  std::int32_t n_pes() const noexcept override { return n_pes_; }
  std::vector<Bytes> all_gather(std::span<const std::byte> mine, std::string_view step) override;
  void barrier(std::string_view step) override;
  void abort(const std::string& reason) noexcept override;
  std::optional<std::string> aborted() noexcept override;
  void close() noexcept override;

 private:
  void connect(const RootAddress& where, Clock::time_point deadline);
  /// Proves the key and waits for the other PEs. Returns false if the root dropped the connection,
  /// made at `start`, because this PE was too slow while strangers took all places.
  bool greet(const RootAddress& where, const Key& key, Clock::time_point start,
             Clock::time_point deadline);
  void forget_connection();
  Bytes collective(const Call& call);
  void send(MessageType type, std::uint64_t sequence, Bytes payload, Clock::time_point deadline);
  std::optional<Frame> receive(Clock::time_point deadline);
  /// Stores a failure that the root reports. Returns false for any other frame.
  bool keep_failure(const Frame& frame);
  void keep(Failure failure);
  void throw_if_failed();
  std::string describe_root() const;

  Pe pe_;
  std::int32_t n_pes_;
  std::chrono::milliseconds limit_;
  std::shared_ptr<void> root_;
  std::string root_shown_;
  Fd socket_;
  std::uint64_t sequence_ = 0;

  std::mutex send_mutex_;
  Outbox outbox_{Direction::to_root};
  std::mutex receive_mutex_;
  Inbox inbox_{Direction::from_root, kMaxPayload};
  std::deque<Frame> waiting_;  // frames for a collective call that aborted() has read

  std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace shoal::bootstrap
