// SPDX-License-Identifier: Apache-2.0
#include "docs.hpp"

#include <list>
#include <string>
#include <string_view>

namespace shoal::python {
namespace {

constexpr std::size_t kWidth = 88;

std::string wrapped(std::string_view text) {
  std::string lines;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
    if (column > 0 && column + 1 + end > kWidth) {
      lines += '\n';
      column = 0;
    }
    if (column > 0) lines += ' ';
    lines += text.substr(0, end);
    column += end + (column > 0 ? 1 : 0);
    text.remove_prefix(end);
    while (text.starts_with('\n')) {
      lines += '\n';
      column = 0;
      text.remove_prefix(1);
    }
    if (text.starts_with(' ')) text.remove_prefix(1);
  }
  return lines;
}

}  // namespace

const char* operator""_doc(const char* text, std::size_t length) {
  static std::list<std::string> kept;
  return kept.emplace_back(wrapped({text, length})).c_str();
}

}  // namespace shoal::python
