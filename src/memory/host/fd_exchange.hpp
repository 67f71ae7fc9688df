// SPDX-License-Identifier: Apache-2.0
// fd_exchange.hpp: gives a file descriptor to other processes of this host, over an abstract
// AF_UNIX datagram socket.
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

/// A socket with a name that the kernel chose; it exists in no file system and goes with the
/// object.
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
  pid_t pid = 0;  ///< of the sender, as this process sees it; 0 when it lives in a PID namespace
                  ///< that is invisible from here
  FileDescriptor fd;
};

struct FdExchange {
  Token world{};  ///< shared secret of the world: datagrams without it are dropped
  Pe my_pe = 0;
  std::chrono::milliseconds timeout{};
  std::function<void()> check;  ///< called about every millisecond; throws to give up early
};

/// Sends `fd` to every peer and receives one from each. Every peer calls, each with this PE among
/// its peers. Sends and receives are interleaved without blocking, so that full socket queues
/// cannot lock PEs against each other. Datagrams of other users are dropped. Throws Error{timeout}
/// naming the PEs that did not send or did not take, Error{system} when a socket fails.
std::vector<ReceivedFd> exchange_fds(const FdSocket& socket, int fd, std::span<const FdPeer> peers,
                                     const FdExchange& exchange);

}  // namespace shoal::memory
