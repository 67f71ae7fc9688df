// SPDX-License-Identifier: Apache-2.0
// agreement.hpp: what must be equal on all PEs, and how to say that it is not (requirements A2,
// A7).
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/settings.hpp"
#include "world/control.hpp"

namespace shoal::detail {

/// What decides where things lie in memory, or which way every PE takes to every other one.
struct SharedField {
  std::string_view name;  ///< as the user knows it
  std::string value;
};

/// These as this PE sees them; the protocol version first.
std::vector<SharedField> shared_fields(const Settings& settings, const ControlLayout& layout);

/// Throws Error{mismatch} naming the first field whose values differ, and who has which. `values`
/// is by PE, in the order of `fields`.
void check_shared(std::span<const SharedField> fields,
                  std::span<const std::vector<std::string>> values);

/// "PE 0, 2: x; PE 1: y": each distinct text once, with the PEs that have it. `pes` numbers the
/// texts.
std::string group_by_text(std::span<const std::string> texts, std::span<const Pe> pes);

/// SHOAL_SYMMETRIC_SIZE rounded up to pages.
std::size_t heap_bytes(const Settings& settings) noexcept;

}  // namespace shoal::detail
