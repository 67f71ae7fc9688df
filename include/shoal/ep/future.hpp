// SPDX-License-Identifier: Apache-2.0
// shoal/ep/future.hpp: what an asynchronous call of a group waits for on the host.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <utility>

#include <shoal/config.hpp>

namespace shoal::ep {

/// The end of an operation on the host, for the parameter `after` of dispatch_async and
/// combine_async. Every std::shared_future converts to it: share() the future of another
/// asynchronous call, of any group, or of a std::promise. Copies name the same operation.
///
///   const auto summed = group.combine_async(received.x, received.handle, {.out = y}).share();
///   auto sent = next.dispatch_async(y, routing, {}, summed);  // reads y once the sum is there
///   const auto rows = sent.get();
class Future {
 public:
  Future() = default;  ///< no operation: nothing to wait for
  /// The operation of `future`. A future without a state names no operation.
  template <typename T>
  Future(std::shared_future<T> future) {
    if (!future.valid()) return;
    wait_for_ = [future](std::chrono::nanoseconds limit) { return future.wait_for(limit); };
    get_ = [future = std::move(future)] { static_cast<void>(future.get()); };
  }

  /// True if there is an operation. The calls below need one, as those of std::shared_future do.
  [[nodiscard]] bool valid() const noexcept { return get_ != nullptr; }
  /// Waits for the end of the operation, for at most `limit`.
  std::future_status wait_for(std::chrono::nanoseconds limit) const { return wait_for_(limit); }
  /// Waits for the end of the operation and throws what it threw.
  void get() const { get_(); }

 private:
  std::function<std::future_status(std::chrono::nanoseconds)> wait_for_;
  std::function<void()> get_;
};

}  // namespace shoal::ep
