// SPDX-License-Identifier: Apache-2.0
// fuzz.hpp: helpers of the fuzz programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string_view>

#include "shoal/error.hpp"

namespace shoal::fuzz {

/// Aborts the program if a property does not hold. libFuzzer reports that as a crash.
inline void check(bool holds, const char* property) {
  if (holds) return;
  std::cerr << "violated: " << property << std::endl;
  std::abort();
}

/// Calls `call` and ignores an Error, which is a valid reaction to bytes from outside. Any other
/// exception ends the program.
template <typename Call>
void allow_error(Call&& call) {
  try {
    call();
  } catch (const Error&) {
  }
}

inline std::span<const std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}
inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace shoal::fuzz
