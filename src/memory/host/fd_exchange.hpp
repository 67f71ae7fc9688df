// SPDX-License-Identifier: Apache-2.0
// fd_exchange.hpp: passes file descriptors between processes of a host over abstract AF_UNIX
// datagram sockets.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "memory/host/segment.hpp"
#include "shoal/heap.hpp"

namespace shoal::memory {

/// A socket with a name chosen by the kernel. It exists in no file system and ends with the object.
class FdSocket {
 public:
  FdSocket();  ///< Throws Error{system}.
  const std::string& name() const noexcept { return name_; }
  int get() const noexcept { return fd_.get(); }

 private:
  FileDescriptor fd_;
  std::string name_;
};

struct FdPeer {
  Pe pe = 0;
  std::string socket_name;
};

struct ReceivedFd {
  Pe pe = 0;
  /// Process id of the sender, as this process sees it; 0 if its PID namespace is not visible from
  /// here.
  pid_t pid = 0;
  FileDescriptor fd;
};

struct FdExchange {
  Token world{};  ///< shared secret of the world: datagrams without it are dropped
  Pe my_pe = 0;
  std::chrono::milliseconds timeout{};
  /// Called about every millisecond; may throw to end the exchange early.
  std::function<void()> check;
  /// Called with the reason for a peer with which the exchange fails, here or there. Null: the
  /// exchange throws.
  std::function<void(Pe, const std::string&)> failed{};
  const char* timeout_setting = "SHOAL_BOOTSTRAP_TIMEOUT_MS";  ///< what sets `timeout`
};

/// Sends `fd` to every peer and receives one from each. Collective over the peers. Sends and
/// receives are interleaved without blocking, so full socket queues cannot cause a deadlock.
/// Datagrams of other users are dropped. Throws Error{timeout} naming the PEs that did not send or
/// receive, Error{system} if a socket fails; FdExchange::failed replaces both where one peer is
/// concerned.
std::vector<ReceivedFd> exchange_fds(const FdSocket& socket, int fd, std::span<const FdPeer> peers,
                                     const FdExchange& exchange);

}  // namespace shoal::memory
