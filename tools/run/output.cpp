// SPDX-License-Identifier: Apache-2.0
#include "run/output.hpp"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace shoal::run {
namespace {

/// Interrupts a write again and again that blocks although the file was ready, because another
/// process has filled the pipe, or because a terminal has room for a part. The files are shared
/// with other processes, so O_NONBLOCK is no choice.
class Alarm {
 public:
  Alarm() {
    struct sigaction action{};
    action.sa_handler = [](int) {};  // without SA_RESTART, so that write returns
    sigaction(SIGALRM, &action, nullptr);
    set(50'000);
  }
  ~Alarm() { set(0); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  static void set(suseconds_t microseconds) {
    const itimerval timer{{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, nullptr);
  }
};

}  // namespace

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

int write_some(int fd, std::string& text, const std::function<void()>& taken) {
  const Alarm alarm;
  while (!text.empty()) {
    pollfd entry{fd, POLLOUT, 0};
    if (poll(&entry, 1, 0) <= 0) return 0;
    const ssize_t written = ::write(fd, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written >= 0) {
      text.erase(0, static_cast<std::size_t>(written));
      taken();
    } else {
      return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : errno;
    }
  }
  return 0;
}

}  // namespace shoal::run
