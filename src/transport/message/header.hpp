// SPDX-License-Identifier: Apache-2.0
// header.hpp: the fixed part at the start of a peer's address.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/check.hpp"

namespace shoal::transport::message {

/// Throws Error{mismatch} when `address` is shorter.
template <typename Header>
Header header_of(std::span<const std::byte> address) {
  static_assert(std::is_trivially_copyable_v<Header>);
  Header header;
  require(address.size() >= sizeof header, Code::mismatch,
          "its address has {} bytes, expected at least {}", address.size(), sizeof header);
  std::memcpy(&header, address.data(), sizeof header);
  return header;
}

}  // namespace shoal::transport::message
