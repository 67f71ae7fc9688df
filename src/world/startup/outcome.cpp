// SPDX-License-Identifier: Apache-2.0
#include "world/startup/outcome.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "world/startup/agreement.hpp"

namespace shoal::detail {

FailureRecord::FailureRecord(const std::optional<Error>& failure) {
  if (!failure) return;
  failed = 1;
  code = failure->code();
  const std::string text = reason_of(*failure);
  std::memcpy(message, text.data(), std::min(text.size(), sizeof message - 1));
}

void FailureRecord::rethrow(Pe pe, const std::optional<Error>& own) const {
  if (failed == 0) return;
  if (own) throw Error(*own);
  fail(code, "PE {}: {}", pe, message);
}

void agree_on_outcome(WorldState& state, const std::optional<Error>& failure, const char* what) {
  const FailureRecord mine(failure);
  const auto blobs = state.exchange(state.world_team(), &mine, sizeof mine, what);
  for (Pe pe = 0; pe < state.n_pes(); ++pe) {
    FailureRecord record;
    std::memcpy(&record, blobs.data() + static_cast<std::size_t>(pe) * sizeof record,
                sizeof record);
    record.rethrow(pe, failure);
  }
}

}  // namespace shoal::detail
