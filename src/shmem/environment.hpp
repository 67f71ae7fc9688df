// SPDX-License-Identifier: Apache-2.0
// environment.hpp: the environment variables of OpenSHMEM (1.5, chapter 8).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/settings.hpp"

namespace shoal::shmem {

using Lookup = std::function<std::optional<std::string>(const std::string&)>;

struct Environment {
  Settings settings{};  ///< of the world
  bool print_version = false;
  bool print_info = false;
  /// The variable that chose the size of the heap with its value, `SHMEM_SYMMETRIC_SIZE is "2G"`;
  /// empty where it is one of Shoal or none.
  std::string size_from{};
};

/// The settings of Shoal, overridden by SHMEM_SYMMETRIC_SIZE and SHMEM_DEBUG. Each SHMEM_X takes
/// precedence over SMA_X, its old name. Throws Error{invalid_argument} naming the variable.
Environment read_environment(const Lookup& lookup);
/// Reads the environment of this process.
Environment read_environment();

/// Parses "512", "1.5G": a decimal number, and one of the suffixes k m g t in either case, which
/// are powers of 1024. What follows the suffix is ignored. nullopt where it is no such text.
std::optional<std::size_t> parse_symmetric_size(std::string_view text);

}  // namespace shoal::shmem
