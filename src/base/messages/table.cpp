// SPDX-License-Identifier: Apache-2.0
#include "base/messages/table.hpp"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/ascii.hpp"
#include "base/check.hpp"

namespace shoal::messages {

static const Message* find(std::uint16_t number) {
  for (const auto rows : {kStart, kTransport, kGroup, kMemory}) {
    const auto row = std::ranges::lower_bound(rows, number, {}, &Message::number);
    if (row != rows.end() && row->number == number) return &*row;
  }
  return nullptr;
}

const Message& explain(std::string_view id) {
  std::string digits = ascii_lower(id);
  for (const std::string_view prefix : {"shoal-", "n"})
    if (digits.starts_with(prefix)) digits.erase(0, prefix.size());
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = error == std::errc{} && end == digits.data() + digits.size();
  const Message* const found = whole ? find(number) : nullptr;
  require(found != nullptr, Code::invalid_argument,
          "SHOAL-N100: no message has the id {}; allowed: N{} to N{}, as printed at the start of a "
          "message",
          id, kStart.front().number, kMemory.back().number);
  return *found;
}

}  // namespace shoal::messages
