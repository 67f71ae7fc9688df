// SPDX-License-Identifier: Apache-2.0
// socket.hpp: TCP sockets for the bootstrap. Every socket is non-blocking and closes on exec.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::bootstrap {

using Clock = std::chrono::steady_clock;

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// The parts of "host:port" or "[ipv6]:port". An IPv6 host has no brackets here.
struct HostPort {
  std::string host;
  int port = 0;
};

/// Returns nullopt if the text has another form, or the port is outside 1 to 65535.
std::optional<HostPort> parse_host_port(std::string_view text);
/// Adds brackets around an IPv6 host.
std::string format_host_port(std::string_view host, int port);

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family() const { return storage.ss_family; }
  int port() const;
  std::string host() const;       ///< numeric
  std::string to_string() const;  ///< numeric, with the port
};

/// The addresses of a host name or a numeric address in `family`: "any", "AF_INET" or "AF_INET6".
/// Throws Error{invalid_argument} with the resolver's reason; `setting` is the source of the text.
std::vector<Address> resolve(const HostPort& where, std::string_view family,
                             std::string_view setting);

/// A listening socket. For port 0, the system chooses a port. Throws Error{system}.
Fd listen_at(const Address& address);
Address local_address(int fd);

/// Connects before the deadline. On failure, returns an invalid Fd and sets `reason`.
Fd connect_to(const Address& address, Clock::time_point deadline, std::string& reason);

/// Sends small messages at once, and detects the end of the other host within about 30 seconds.
void tune(int fd);

/// Waits until `fd` is ready for `events` (POLLIN, POLLOUT) or has an error. Returns false if the
/// deadline passes.
bool wait_ready(int fd, short events, Clock::time_point deadline);
/// Milliseconds for poll() until `deadline`, rounded up; 0 if it has passed.
int poll_timeout(Clock::time_point deadline);

std::string this_host_name();

}  // namespace shoal::bootstrap
