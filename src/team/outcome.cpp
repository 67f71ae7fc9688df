// SPDX-License-Identifier: Apache-2.0
#include "team/outcome.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "pe/agreement.hpp"

namespace shoal::detail {

FailureBlob::FailureBlob(const std::optional<Error>& failure) {
  if (!failure) return;
  failed = 1;
  code = failure->code();
  const std::string text = reason_of(*failure);
  std::memcpy(message, text.data(), std::min(text.size(), sizeof message - 1));
}

void rethrow(const FailureBlob& record, Pe pe, const std::optional<Error>& own) {
  if (record.failed == 0) return;
  if (own) throw Error(*own);
  fail(record.code, "PE {}: {}", pe, record.message);
}

void agree_on_outcome(WorldState& state, const std::optional<Error>& failure, const char* what) {
  struct Nothing {};
  exchange_or_throw(state, Nothing{}, failure, what);
}

}  // namespace shoal::detail
