// SPDX-License-Identifier: Apache-2.0
// pending.hpp: what stands behind low-latency operations between their send and their receive.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "ep/state.hpp"

namespace shoal::ep::detail {

struct PendingDispatchState {
  std::shared_ptr<GroupState> group;
  std::shared_ptr<LowLatencyHandleState> handle;
  LowLatencyDispatchOptions options;
  std::chrono::steady_clock::time_point sent_at = std::chrono::steady_clock::now();
  bool received = false;
};

struct PendingCombineState {
  std::shared_ptr<GroupState> group;
  std::shared_ptr<const LowLatencyHandleState> handle;
  LowLatencyCombineOptions options;
  std::vector<float>
      weights;  ///< [tokens, top_k] of the host backend, copied: the caller's may go before receive
  std::uint64_t epoch = 0;
  std::chrono::steady_clock::time_point sent_at = std::chrono::steady_clock::now();
  bool received = false;
};

}  // namespace shoal::ep::detail
