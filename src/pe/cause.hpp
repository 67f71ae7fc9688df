// SPDX-License-Identifier: Apache-2.0
// cause.hpp: the PE with which a failure began.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shoal/heap.hpp"

namespace shoal::detail {

/// One PE's failure makes others fail. Their messages name the first PE, which these fields hold.
struct FailureCause {
  Pe pe = -1;  ///< negative: unknown
  std::string reason;

  /// "PE 3: pid 123 ended"; the reason alone where the PE is unknown.
  std::string text() const;
};

/// "gave up after PE 3: pid 123 ended": what a PE reports of itself when another PE is the cause.
std::string describe_consequence(const FailureCause& cause);

/// Reads "PE 3: reason". `pe` is negative for other texts.
FailureCause parse_cause(std::string_view text);

/// The cause in a text of describe_consequence; nullopt for other texts.
std::optional<FailureCause> parse_consequence(std::string_view text);

}  // namespace shoal::detail
