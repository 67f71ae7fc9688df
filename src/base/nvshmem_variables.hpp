// SPDX-License-Identifier: Apache-2.0
// nvshmem_variables.hpp: environment variables of NVSHMEM, as Shoal understands them.
//
// A job that sets variables for NVSHMEM must start with Shoal too. Names and values that NVSHMEM
// accepts never fail; those without an equivalent have no effect and produce a warning. Source: the
// "Environment Variables" chapter of NVSHMEM's documentation.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/settings.hpp"

namespace shoal::nvshmem {

using Lookup = std::function<std::optional<std::string>(const std::string&)>;

struct Translation {
  std::optional<std::string> value;  ///< in Shoal's notation; nullopt: the setting's default
  std::string warning;               ///< what is lost; empty: nothing
};

/// Translates `text`, the value of the NVSHMEM variable `info.alias`, into a value of the Shoal
/// setting `info`. `lookup` reads other variables that decide with this one. One NVSHMEM variable
/// may stand for several settings.
/// Values that NVSHMEM itself rejects are returned unchanged: the setting's own check rejects them.
Translation translate(const SettingInfo& info, const std::string& text, const Lookup& lookup);

/// Whether NVSHMEM has a variable of this name ("NVSHMEM_...").
bool is_known(std::string_view name);

}  // namespace shoal::nvshmem
