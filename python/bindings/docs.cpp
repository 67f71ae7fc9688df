// SPDX-License-Identifier: Apache-2.0
#include "docs.hpp"

#include <algorithm>
#include <cstddef>
#include <list>
#include <string>
#include <string_view>

namespace shoal::python {
namespace {

constexpr std::size_t kWidth = 88;

/// Appends the words of one paragraph in lines of at most kWidth characters.
void wrap(std::string& lines, std::string_view paragraph) {
  std::size_t column = 0;
  while (!paragraph.empty()) {
    const std::size_t end = std::min(paragraph.find(' '), paragraph.size());
    if (column > 0 && column + 1 + end > kWidth) {
      lines += '\n';
      column = 0;
    } else if (column > 0) {
      lines += ' ';
      ++column;
    }
    lines += paragraph.substr(0, end);
    column += end;
    paragraph.remove_prefix(std::min(end + 1, paragraph.size()));
  }
}

std::string wrapped(std::string_view text) {
  std::string lines;
  while (true) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (text.starts_with(' '))
      lines += text.substr(0, end);
    else
      wrap(lines, text.substr(0, end));
    if (end == text.size()) return lines;
    lines += '\n';
    text.remove_prefix(end + 1);
  }
}

}  // namespace

const char* operator""_doc(const char* text, std::size_t length) {
  static std::list<std::string> kept;
  return kept.emplace_back(wrapped({text, length})).c_str();
}

}  // namespace shoal::python
