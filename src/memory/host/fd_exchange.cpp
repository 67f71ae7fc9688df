// SPDX-License-Identifier: Apache-2.0
#include "memory/host/fd_exchange.hpp"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/check.hpp"

namespace shoal::memory {
namespace {

struct Message {
  Token world;
  Pe sender;
  Pe receiver;
};

/// Room for the two control messages of a datagram, with the kernel's alignment.
union ControlBuffer {
  cmsghdr aligned;
  char bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(ucred))];
};

struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;
};

Address address_of(const std::string& name) {
  Address address;
  address.socket.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.socket.sun_path);
  std::memcpy(address.socket.sun_path, name.data(), length);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  return address;
}

/// A datagram of this world.
struct Arrival {
  ReceivedFd received;
  bool refused = false;  ///< the sender has no descriptor for this PE
  bool dropped = false;  ///< this process has no room for its descriptor
};

/// False when the receiver's queue is full. `fd`: negative: the datagram says that none follows.
bool try_send(int socket, int fd, const FdPeer& peer, const FdExchange& exchange) {
  Message message{exchange.world, exchange.my_pe, peer.pe};
  iovec data{&message, sizeof message};
  Address address = address_of(peer.socket_name);
  ControlBuffer control{};
  msghdr header{};
  header.msg_name = &address.socket;
  header.msg_namelen = address.length;
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  if (sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  // ETOOMANYREFS: the kernel's limit on descriptors in flight; retry after some are received.
  // ECONNREFUSED: the peer is gone; exchange.check or the deadline reports the cause.
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS ||
      errno == ETOOMANYREFS || errno == ECONNREFUSED)
    return false;
  fail_errno("SHOAL-N735: cannot pass symmetric memory to PE {}", peer.pe);
}

/// One datagram of this world; nullopt if none is queued. Datagrams of other worlds are dropped.
std::optional<Arrival> try_receive(int socket, const FdExchange& exchange) {
  for (;;) {
    Message message{};
    iovec data{&message, sizeof message};
    ControlBuffer control{};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    const ssize_t received = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
      fail_errno("SHOAL-N735: cannot receive symmetric memory of a peer");
    }
    Arrival arrival;
    ReceivedFd& result = arrival.received;
    ucred sender{0, static_cast<uid_t>(-1), 0};
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr;
         part = CMSG_NXTHDR(&header, part)) {
      if (part->cmsg_level != SOL_SOCKET) continue;
      if (part->cmsg_type == SCM_CREDENTIALS) std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
      if (part->cmsg_type == SCM_RIGHTS) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
        result.fd = FileDescriptor(fd);
      }
    }
    const bool ours = received == sizeof message && message.world == exchange.world &&
                      message.receiver == exchange.my_pe && sender.uid == geteuid();
    if (!ours) continue;
    // The kernel drops a descriptor that does not fit, without an error.
    arrival.dropped = !result.fd && (header.msg_flags & MSG_CTRUNC) != 0;
    arrival.refused = !result.fd && !arrival.dropped;
    if (arrival.dropped && !exchange.failed) {
      errno = EMFILE;
      fail_errno("SHOAL-N735: cannot receive symmetric memory of a peer");
    }
    if (arrival.refused && !exchange.failed) continue;
    result.pe = message.sender;
    result.pid = sender.pid;
    return arrival;
  }
}

}  // namespace

FdSocket::FdSocket() : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (!fd_) fail_errno("SHOAL-N735: cannot open a local socket");
  const int on = 1;
  if (setsockopt(fd_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
    fail_errno("SHOAL-N736: cannot ask for credentials on a local socket");
  // Binding to the family alone selects a free abstract name.
  Address address;
  address.socket.sun_family = AF_UNIX;
  if (bind(fd_.get(), reinterpret_cast<sockaddr*>(&address.socket), sizeof(sa_family_t)) != 0)
    fail_errno("SHOAL-N736: cannot name a local socket");
  address.length = sizeof address.socket;
  if (getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address.socket), &address.length) != 0)
    fail_errno("SHOAL-N736: cannot read the name of a local socket");
  name_.assign(address.socket.sun_path, address.length - offsetof(sockaddr_un, sun_path));
}

std::vector<ReceivedFd> exchange_fds(const FdSocket& socket, int fd, std::span<const FdPeer> peers,
                                     const FdExchange& exchange) {
  std::vector<ReceivedFd> received;
  std::vector<FdPeer> to_send(peers.begin(), peers.end());
  std::vector<Pe> to_receive;
  for (const FdPeer& peer : peers) to_receive.push_back(peer.pe);
  std::vector<std::pair<Pe, std::string>> lost;
  const auto send = [&](const FdPeer& peer) {
    try {
      return try_send(socket.get(), fd, peer, exchange);
    } catch (const Error& error) {
      if (!exchange.failed) throw;
      std::erase(to_receive, peer.pe);
      lost.emplace_back(peer.pe, error.reason());
    }
    try {
      try_send(socket.get(), -1, peer, exchange);
    } catch (const Error&) {  // the peer's deadline remains
    }
    return true;
  };
  const auto report_lost = [&] {
    for (const auto& [pe, reason] : lost) exchange.failed(pe, reason);
    lost.clear();
  };

  const auto deadline = std::chrono::steady_clock::now() + exchange.timeout;
  while (!to_send.empty() || !to_receive.empty()) {
    std::erase_if(to_send, send);
    while (auto arrival = try_receive(socket.get(), exchange)) {
      const Pe from = arrival->received.pe;
      if (std::erase(to_receive, from) == 0) continue;
      if (arrival->dropped) {
        lost.emplace_back(from,
                          "SHOAL-N737: cannot receive its symmetric memory: " + errno_text(EMFILE));
      } else if (arrival->refused) {
        lost.emplace_back(from, "it cannot pass its symmetric memory");
        std::erase_if(to_send, [&](const FdPeer& peer) { return peer.pe == from; });
      } else {
        received.push_back(std::move(arrival->received));
      }
    }
    report_lost();
    if (to_send.empty() && to_receive.empty()) break;

    if (std::chrono::steady_clock::now() >= deadline) {
      std::vector<Pe> full;
      for (const FdPeer& peer : to_send) full.push_back(peer.pe);
      if (exchange.failed) {
        std::set<Pe> late(to_receive.begin(), to_receive.end());
        late.insert(full.begin(), full.end());
        for (const Pe pe : late)
          lost.emplace_back(
              pe, fmt::format("SHOAL-N738: it did not pass or take symmetric memory within {} ms. "
                              "Setting: {}",
                              exchange.timeout.count(), exchange.timeout_setting));
        report_lost();
        break;
      }
      fail(Code::timeout,
           "SHOAL-N738: passing symmetric memory timed out after {} ms on PE {}: nothing came from "
           "PEs [{}], nothing was taken by PEs [{}]; Setting: {}",
           exchange.timeout.count(), exchange.my_pe, fmt::join(to_receive, ", "),
           fmt::join(full, ", "), exchange.timeout_setting);
    }
    if (exchange.check) exchange.check();
    pollfd waiting{socket.get(), POLLIN, 0};
    poll(&waiting, 1, 1);
  }
  return received;
}

}  // namespace shoal::memory
