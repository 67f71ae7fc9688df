// SPDX-License-Identifier: Apache-2.0
// requester.hpp: the side of a PE that asks others to work on their heaps. Calls come from several
// threads and take turns.
#pragma once

#include <mutex>
#include <vector>

#include "transport/staged/copies.hpp"
#include "transport/staged/layout.hpp"
#include "transport/transport.hpp"

namespace shoal::transport::staged {

class Requester {
 public:
  Requester(const Context& context, const Layout& layout, Copies& copies);

  // As the operations of Transport. put and signal leave the source free, and are complete after
  // finish or quiet; get has filled the target when it returns, start_get when quiet does.
  void put(Pe pe, std::size_t offset, const Elements& source, std::size_t stride);
  /// All earlier requests to `pe`. Control words go another way than heaps: who was told of a put
  /// by those finds it done.
  void finish(Pe pe);
  void get(Pe pe, std::size_t offset, const Elements& target, std::size_t stride);
  void start_get(Pe pe, std::size_t offset, const Elements& target, std::size_t stride);
  std::uint64_t atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                       std::uint64_t compare, std::size_t width);
  void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value);
  void quiet();

 private:
  /// What one of this PE's chunks is in use for.
  struct Use {
    Pe pe = -1;  ///< negative: free
    std::uint64_t number = 0;
    Elements target{};  ///< of a get; start is nullptr for puts
  };

  std::size_t take_chunk();
  void finish_chunk(Use& use, std::size_t chunk);
  void finish_gets();
  void ask(Pe pe, const char* what, Request request);
  void await(Pe pe, const char* what, std::uint64_t number);
  template <typename Each>
  void cut(Pe pe, const char* what, Kind kind, std::size_t offset, const Elements& local,
           std::size_t stride, Each&& each);
  const Reply& reply(Pe pe) const noexcept;
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
  std::vector<std::uint64_t> asked_;  ///< by PE: number of the last request
  std::vector<Use> uses_;             ///< by chunk
  std::size_t next_chunk_ = 0;
};

}  // namespace shoal::transport::staged
