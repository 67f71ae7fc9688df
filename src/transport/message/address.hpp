// SPDX-License-Identifier: Apache-2.0
// address.hpp: the address of a PE as bytes, built and read value by value.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/check.hpp"

namespace shoal::transport::message {

template <typename T>
void append(std::vector<std::byte>& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* const start = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), start, start + sizeof value);
}

/// The value at `index` of an array that begins at `offset`. The length has been checked.
template <typename T>
T value_at(std::span<const std::byte> bytes, std::size_t offset, std::size_t index = 0) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, bytes.data() + offset + index * sizeof value, sizeof value);
  return value;
}

/// The fixed part at the start. Throws Error{mismatch} when `address` is shorter.
template <typename Header>
Header header_of(std::span<const std::byte> address) {
  require(address.size() >= sizeof(Header), Code::mismatch,
          "SHOAL-N310: its address has {} bytes, expected at least {}", address.size(),
          sizeof(Header));
  return value_at<Header>(address, 0);
}

}  // namespace shoal::transport::message
