// SPDX-License-Identifier: Apache-2.0
// requester.hpp: the requesting side of a PE. Calls of several threads take turns.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "transport/polled.hpp"
#include "transport/staged/copies.hpp"
#include "transport/staged/layout.hpp"
#include "transport/transport.hpp"

namespace shoal::transport::staged {

class Requester {
 public:
  Requester(const Context& context, const Layout& layout, Copies& copies);

  // Like the operations of Transport. The source of put is free when it returns. put and signal are
  // complete after finish or quiet, start_get after quiet, and all of them where reached is true.
  void put(Pe pe, std::size_t offset, const Elements& source, std::size_t stride);
  /// Waits for all earlier requests to `pe`. Control words travel by another transport than heaps:
  /// a PE that learns of a put from a control word must find it complete.
  void finish(Pe pe);
  void get(Pe pe, std::size_t offset, const Elements& target, std::size_t stride);
  void start_get(Pe pe, std::size_t offset, const Elements& target, std::size_t stride);
  std::uint64_t atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                       std::uint64_t compare, std::size_t width);
  void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value);
  void quiet();
  /// PolledOperations::has_room and reached. They do not wait.
  bool has_room(Pe pe);
  bool reached(Pe pe, PolledOperations::Point& point);
  /// The most requests in flight to one PE so far, which SHOAL_STAGED_DEPTH bounds.
  std::size_t most_in_flight() const noexcept {
    return most_in_flight_.load(std::memory_order_relaxed);
  }

 private:
  /// The request that uses one of this PE's chunks.
  struct Use {
    Pe pe = -1;  ///< negative: free
    std::uint64_t number = 0;
    Elements target{};  ///< of a get; start is nullptr for puts
  };

  std::size_t take_chunk();
  void finish_chunk(Use& use, std::size_t chunk);
  /// Ends the gets of all PEs, or those from `pe` up to request `newest`.
  void finish_gets(Pe pe = -1, std::uint64_t newest = 0);
  void send(Pe pe, const char* what, Request request);
  void await(Pe pe, const char* what, std::uint64_t number);
  void check_alive(Pe pe, const char* what) const;
  void check_reply(Pe pe, const char* what) const;
  template <typename Each>
  void cut(Pe pe, const char* what, Kind kind, std::size_t offset, const Elements& local,
           std::size_t stride, Each&& each);
  /// A word of the reply area of `pe`, which that PE writes.
  std::uint64_t reply_word(Pe pe, std::size_t member) const noexcept;
  std::string reply_reason(Pe pe) const;
  std::byte* at(std::size_t offset) const noexcept { return segment_->base() + area_ + offset; }

  const Layout layout_;
  Copies& copies_;
  const std::shared_ptr<memory::Segment> segment_;
  const std::size_t area_;
  const Pe my_pe_;
  const std::chrono::milliseconds timeout_;
  const std::function<Transport&(Pe)> host_route_;
  const std::function<std::string(Pe)> failure_;

  std::mutex mutex_;
  std::vector<std::uint64_t> sent_;  ///< by PE: number of the last request
  std::vector<Use> uses_;            ///< by chunk
  std::size_t next_chunk_ = 0;
  std::atomic<std::size_t> most_in_flight_{0};
};

}  // namespace shoal::transport::staged
