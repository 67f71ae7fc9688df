// SPDX-License-Identifier: Apache-2.0
// pending.hpp: the state of low-latency operations between send and receive.
//
// A pending operation does not keep its group alive: calls on it throw Error{closed} once the group
// is gone.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "ep/group/state.hpp"

namespace shoal::ep::detail {

struct PendingDispatchState {
  BackendKind backend = BackendKind::host;  ///< for of_backend
  std::weak_ptr<GroupState> group;
  std::shared_ptr<LowLatencyHandleState> handle;
  LowLatencyDispatchOptions options;
  std::chrono::steady_clock::time_point sent_at = std::chrono::steady_clock::now();
  bool received = false;
  bool dropped = false;  ///< by the caller; its options name no memory and no stream then
  /// PendingDispatch::result.
  std::optional<LowLatencyReceived> result;
};

struct PendingCombineState {
  BackendKind backend = BackendKind::host;  ///< for of_backend
  std::weak_ptr<GroupState> group;
  std::shared_ptr<const LowLatencyHandleState> handle;
  LowLatencyCombineOptions options;
  std::vector<float> weights;  ///< host backend: [tokens, top_k], a copy
  std::uint64_t epoch = 0;
  std::chrono::steady_clock::time_point sent_at = std::chrono::steady_clock::now();
  bool received = false;
  bool dropped = false;  ///< by the caller; its options name no memory and no stream then
};

}  // namespace shoal::ep::detail
