// SPDX-License-Identifier: Apache-2.0
// process_environment.hpp: the environment and the arguments of a program that is to be started.
#pragma once

#include <unistd.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

/// The environment of this process with `changes` (name to value), as NAME=value.
inline std::vector<std::string> environment_with(
    const std::map<std::string, std::string>& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!changes.contains(std::string(text.substr(0, text.find('='))))) merged.emplace_back(text);
  }
  for (const auto& [name, value] : changes) merged.push_back(name + "=" + value);
  return merged;
}

/// `texts` as execve takes them: a pointer to each, then nullptr. Valid while `texts` is unchanged.
inline std::vector<char*> null_terminated(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace shoal
