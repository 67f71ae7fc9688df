// SPDX-License-Identifier: Apache-2.0
// ascii.hpp: letters of names and choices, whatever the program's locale.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

/// `text` with lower-case letters. std::tolower() would leave 'I' as it is in a Turkish locale.
inline std::string ascii_lower(std::string_view text) {
  std::string out(text);
  for (char& letter : out)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return out;
}

}  // namespace shoal
