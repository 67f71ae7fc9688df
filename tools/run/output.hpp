// SPDX-License-Identifier: Apache-2.0
// output.hpp: what the PEs print, passed on line by line with the PE's number in front.
#pragma once

#include <string>
#include <string_view>

namespace shoal::run {

/// Turns a stream of bytes into labelled lines, so that lines of several PEs never mix. Pure.
class LineLabeler {
 public:
  explicit LineLabeler(std::string label) : label_(std::move(label)) {}
  /// The labelled lines that `bytes` completes. What follows the last line end is kept, up to
  /// kMaxLine bytes.
  std::string add(std::string_view bytes);
  /// The rest, as a line of its own.
  std::string finish();

  static constexpr std::size_t kMaxLine = 64 << 10;

 private:
  std::string label_;
  std::string partial_;
};

/// Writes all of `text`; what the reader no longer takes is dropped.
void write_all(int fd, std::string_view text);

}  // namespace shoal::run
