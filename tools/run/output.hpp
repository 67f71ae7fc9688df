// SPDX-License-Identifier: Apache-2.0
// output.hpp: forwards the output of PEs line by line, each line labelled with its PE.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace shoal::run {

/// Turns a stream of bytes into labelled lines, so that lines of different PEs never mix. Pure.
class LineLabeler {
 public:
  explicit LineLabeler(std::string label) : label_(std::move(label)) {}
  /// The labelled lines that `bytes` completes. Keeps the text after the last line end, up to
  /// kMaxLine bytes.
  std::string add(std::string_view bytes);
  /// The text kept so far, as a line of its own.
  std::string finish();

  static constexpr std::size_t kMaxLine = 64 << 10;

 private:
  std::string label_;
  std::string partial_;
};

/// Writes the part of `text` that the reader takes without delay and removes it from `text`; calls
/// `taken` after each write that succeeded. Returns 0, or the errno of the write that failed. Block
/// SIGPIPE first: a closed pipe is then EPIPE. Uses SIGALRM and its timer.
int write_some(int fd, std::string& text, const std::function<void()>& taken);

}  // namespace shoal::run
