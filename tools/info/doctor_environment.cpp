// SPDX-License-Identifier: Apache-2.0
// The check of the variables that are meant for Shoal, NVSHMEM or DeepEP: which are used, ignored,
// or not understood.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "info/doctor.hpp"

namespace shoal::info {
namespace {

std::string described(const EnvironmentVariable& variable) {
  switch (variable.use) {
    case VariableUse::used:
      return variable.setting.empty() || variable.setting == variable.name
                 ? fmt::format("{} is used", variable.name)
                 : fmt::format("{} is used as {}", variable.name, variable.setting);
    case VariableUse::ignored:
      return fmt::format("{} is ignored: {}", variable.name, variable.note);
    case VariableUse::unknown:
      return fmt::format("{} is not understood: {}", variable.name, variable.note);
  }
  return variable.name;
}

Finding environment_variables(const Subject& subject) {
  const std::string name = "environment";
  if (subject.variables.empty()) return ok(name, "no variable of Shoal, NVSHMEM or DeepEP is set");
  std::vector<std::string> found;
  bool without_effect = false;
  for (const EnvironmentVariable& variable : subject.variables) {
    found.push_back(described(variable));
    without_effect |= variable.use != VariableUse::used;
  }
  const std::string text = fmt::format("{}", fmt::join(found, "; "));
  if (!without_effect) return ok(name, text);
  return warning(name, text, "correct or unset what is ignored or not understood");
}

}  // namespace

std::vector<Check> environment_checks() {
  return {environment_variables};
}

}  // namespace shoal::info
