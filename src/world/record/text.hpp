// SPDX-License-Identifier: Apache-2.0
// text.hpp: text in the words of a record.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "world/record/layout.hpp"

namespace shoal::detail::record {

/// Cuts off what does not fit.
template <std::size_t words>
void store_text(Text<words>& to, std::string_view text) noexcept {
  std::uint64_t copy[words] = {};
  std::memcpy(copy, text.data(), std::min(text.size(), sizeof copy - 1));
  for (std::size_t i = 0; i < words; ++i) to[i].store(copy[i]);
}

template <std::size_t words>
std::string load_text(const Text<words>& from) {
  std::uint64_t copy[words];
  for (std::size_t i = 0; i < words; ++i) copy[i] = from[i].load();
  const char* const text = reinterpret_cast<const char*>(copy);
  return {text, strnlen(text, sizeof copy)};
}

}  // namespace shoal::detail::record
