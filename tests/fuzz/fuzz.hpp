// SPDX-License-Identifier: Apache-2.0
// fuzz.hpp: the few words that the fuzz programs share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string_view>

#include "shoal/error.hpp"

namespace shoal::fuzz {

/// Ends the program, which libFuzzer takes for a crash, when a property does not hold.
inline void check(bool holds, const char* property) {
  if (holds) return;
  std::cerr << "violated: " << property << std::endl;
  std::abort();
}

/// Calls; an Error is a fine answer to bytes from outside, any other exception is not and ends the
/// program.
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
