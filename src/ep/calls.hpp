// SPDX-License-Identifier: Apache-2.0
// calls.hpp: what every public call of a group begins with.
#pragma once

#include <chrono>
#include <memory>

#include "ep/state.hpp"

namespace shoal::ep::detail {

/// The state of a group that has not been closed. Throws Error{closed}.
GroupState& open_group(const std::shared_ptr<GroupState>& state, const char* call);
/// As open_group, for a group whose operations work: neither it nor, unless it masks failed ranks,
/// that of another rank has failed. Throws Error{closed}.
GroupState& working_group(const std::shared_ptr<GroupState>& state, const char* call);
/// As working_group, and waits for asynchronous calls, so that operations keep their order.
GroupState& idle_group(const std::shared_ptr<GroupState>& state, const char* call);

/// Adds the time of a scope to a counter.
class Timer {
 public:
  explicit Timer(std::chrono::nanoseconds& total)
      : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Timer() { total_ += std::chrono::steady_clock::now() - start_; }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  std::chrono::nanoseconds& total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace shoal::ep::detail
