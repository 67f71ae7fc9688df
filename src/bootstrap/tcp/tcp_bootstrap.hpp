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

/// Where the root is and how long to look for it.
struct RootAddress {
  std::vector<Address> candidates;  ///< tried in turn
  std::string shown;                ///< for messages
  bool may_be_late =
      false;  ///< nobody listening yet is no reason to give up before the deadline (session ids)
  std::string hint;  ///< the settings to look at when nobody listens there
};

/// One connection to the root. Sending and receiving have a mutex each, so that abort and aborted
/// work while the owner thread is in a collective call; whoever reads a failure keeps it for all
/// later calls.
class TcpBootstrap final : public Bootstrap {
 public:
  /// Returns when all PEs have come. `root` is kept as long as this object: the root's handle when
  /// it lives in this process.
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
  void greet(const RootAddress& where, const Key& key, Clock::time_point deadline);
  Bytes collective(const Call& call);
  void send(MessageType type, std::uint64_t sequence, Bytes payload, Clock::time_point deadline);
  std::optional<Frame> receive(Clock::time_point deadline);
  /// Keeps a failure that the root reports; false for any other frame.
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
  std::deque<Frame> waiting_;  // read by aborted(), meant for a collective call

  std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace shoal::bootstrap
