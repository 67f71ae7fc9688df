// SPDX-License-Identifier: Apache-2.0
// text.hpp: text helpers of all sections: tables, wrapping, counts, sizes, ranges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::info {

/// Formats rows of cells. Columns are as wide as their widest cell and two spaces apart, after
/// `indent` spaces. The last cell of a row is not padded.
std::string table(const std::vector<std::vector<std::string>>& rows, std::size_t indent = 2);

/// Breaks `text` at spaces into lines of at most `width` characters. Indents all lines but the
/// first.
std::string wrap(std::string_view text, std::size_t width, std::size_t indent);

std::string yes_or_no(bool value);

/// "1 PE", "2 PEs".
std::string count_text(std::int64_t count, std::string_view what);

/// "64 MiB", "2.5 GiB".
std::string bytes_text(std::uint64_t bytes);

/// A text for XML and HTML, as content and in attributes.
std::string escaped(std::string_view text);

/// "0-3, 6" for 0 1 2 3 6.
std::string ranges(const std::vector<std::int32_t>& numbers);

}  // namespace shoal::info
