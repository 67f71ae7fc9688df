// SPDX-License-Identifier: Apache-2.0
// text.hpp: text in the words of a record, and text that another program wrote.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "record/layout.hpp"

namespace shoal::detail::record {

/// Bytes of the UTF-8 character at the start of `text`; 0: there is none.
inline std::size_t character_bytes(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(0);
  if (text.empty() || first < 0x80) return text.empty() ? 0 : 1;
  const std::size_t bytes = first >= 0xc2 && first < 0xe0   ? 2
                            : first >= 0xe0 && first < 0xf0 ? 3
                            : first >= 0xf0 && first < 0xf5 ? 4
                                                            : 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // A character is valid if it is neither longer than needed, nor half of a UTF-16 pair, nor beyond
  // the last character.
  const bool wrong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0) ||
                     (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90);
  return wrong ? 0 : bytes;
}

/// Text of a foreign program as UTF-8 for terminals, pages and JSON: control characters, with which
/// a text could drive a terminal or forge lines, and wrong bytes become \xNN.
inline std::string printable(std::string_view text) {
  std::string to;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool control =
        first < 0x20 || first == 0x7f ||
        (first == 0xc2 && bytes == 2 && static_cast<unsigned char>(text[1]) < 0xa0);
    const std::size_t taken = std::max<std::size_t>(bytes, 1);
    for (std::size_t i = 0; i < taken; ++i) {
      if (bytes == 0 || control)
        to += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
      else
        to += text[i];
    }
    text.remove_prefix(taken);
  }
  return to;
}

/// Cuts off what does not fit, between two characters.
template <std::size_t words>
void store_text(Text<words>& to, std::string_view text) noexcept {
  std::uint64_t copy[words] = {};
  std::size_t bytes = std::min(text.size(), sizeof copy - 1);
  if (bytes < text.size())
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  std::memcpy(copy, text.data(), bytes);
  for (std::size_t i = 0; i < words; ++i) to[i].store(copy[i]);
}

template <std::size_t words>
std::string load_text(const Text<words>& from) {
  std::uint64_t copy[words];
  for (std::size_t i = 0; i < words; ++i) copy[i] = from[i].load();
  const char* const text = reinterpret_cast<const char*>(copy);
  return printable({text, strnlen(text, sizeof copy)});
}

}  // namespace shoal::detail::record
