// SPDX-License-Identifier: Apache-2.0
// agreement.hpp: the values that must be equal on all PEs, and messages for those that differ.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pe/control.hpp"
#include "shoal/settings.hpp"

namespace shoal::detail {

/// A value that determines the layout of memory or the choice of transports.
struct SharedField {
  std::string_view name;  ///< for users
  std::string value;
};

/// The values of this PE; the protocol version first.
std::vector<SharedField> shared_fields(const Settings& settings, const ControlLayout& layout);

/// Throws Error{mismatch} naming the first field whose values differ, and which PE has which value.
/// `values` is indexed by PE and field.
void check_shared(std::span<const SharedField> fields,
                  std::span<const std::vector<std::string>> values);

/// "PE 0, 2: x; PE 1: y": each distinct text once, with the PEs that have it. `pes[i]` is the PE of
/// `texts[i]`.
std::string group_by_text(std::span<const std::string> texts, std::span<const Pe> pes);

/// SHOAL_SYMMETRIC_SIZE rounded up to pages.
std::size_t heap_bytes(const Settings& settings) noexcept;

}  // namespace shoal::detail
