// SPDX-License-Identifier: Apache-2.0
// limits.hpp: the limits of counts that size memory, of groups and of calls.
#pragma once

#include <cstdint>

namespace shoal::ep::detail {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24, kMaxHidden = std::int64_t{1} << 20;
constexpr std::int32_t kMaxExperts = 1 << 16, kMaxExpertAlignment = 1 << 16;

}  // namespace shoal::ep::detail
