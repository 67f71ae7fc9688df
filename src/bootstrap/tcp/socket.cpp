// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/tcp/socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/check.hpp"
#include "base/interrupt.hpp"

namespace shoal::bootstrap {

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

std::optional<HostPort> parse_host_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return std::nullopt;
  }
  if (host.find_first_of("[]") != std::string_view::npos) return std::nullopt;
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size() || port < 1 || port > 65535)
    return std::nullopt;
  if (host.empty()) return std::nullopt;
  return HostPort{std::string(host), port};
}

std::string format_host_port(std::string_view host, int port) {
  return host.find(':') == std::string_view::npos ? fmt::format("{}:{}", host, port)
                                                  : fmt::format("[{}]:{}", host, port);
}

int Address::port() const {
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::string Address::host() const {
  char text[NI_MAXHOST] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, text, sizeof text, nullptr, 0,
              NI_NUMERICHOST);
  return text;
}

std::string Address::to_string() const {
  return format_host_port(host(), port());
}

std::vector<Address> resolve(const HostPort& where, std::string_view family,
                             std::string_view setting) {
  addrinfo hints{};
  hints.ai_family = family == "AF_INET" ? AF_INET : family == "AF_INET6" ? AF_INET6 : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  require(error == 0, Code::invalid_argument,
          "SHOAL-N151: the host \"{}\" in {} has no address of family {}: {}", where.host, setting,
          family, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    Address address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

Fd listen_at(const Address& address) {
  Fd fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) fail_errno("SHOAL-N145: the bootstrap could not create a socket");
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 ||
      listen(fd.get(), 4096) != 0)
    fail_errno("SHOAL-N145: the bootstrap could not listen at {}", address.to_string());
  return fd;
}

Address local_address(int fd) {
  Address address;
  address.size = sizeof address.storage;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return address;
}

Fd connect_to(const Address& address, Clock::time_point deadline, std::string& reason) {
  Fd fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) fail_errno("SHOAL-N145: the bootstrap could not create a socket");
  int error = 0;
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof error;
      if (!wait_ready(fd.get(), POLLOUT, deadline)) {
        error = ETIMEDOUT;
      } else {
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
  }
  if (error != 0) {
    reason = errno_text(error);
    return {};
  }
  tune(fd.get());
  return fd;
}

void tune(int fd) {
  const int on = 1, idle_s = 10, interval_s = 5, probes = 4, unacknowledged_ms = 30'000;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

// Between two questions whether the wait was interrupted.
constexpr int kLookMs = 20;

bool wait_ready(int fd, short events, Clock::time_point deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, std::min(poll_timeout(deadline), kLookMs));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    throw_if_interrupted("a wait for the bootstrap");
    if (ready < 0 && errno != EINTR)
      fail_errno("SHOAL-N145: the bootstrap could not wait for a socket");
  }
}

int poll_timeout(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

std::string this_host_name() {
  char name[256] = "?";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace shoal::bootstrap
