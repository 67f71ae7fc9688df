// SPDX-License-Identifier: Apache-2.0
#include "run/output.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace shoal::run {

std::string LineLabeler::add(std::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    partial_ += bytes.substr(0, end);
    if (end == std::string_view::npos) {
      if (partial_.size() >= kMaxLine) lines += finish();
      break;
    }
    lines += label_ + partial_ + '\n';
    partial_.clear();
    bytes.remove_prefix(end + 1);
  }
  return lines;
}

std::string LineLabeler::finish() {
  if (partial_.empty()) return {};
  std::string line = label_ + partial_ + '\n';
  partial_.clear();
  return line;
}

int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {  // the file is non-blocking
      pollfd entry{fd, POLLOUT, 0};
      poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace shoal::run
