// SPDX-License-Identifier: Apache-2.0
#include "wire/udp_wire.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "wire/packet_format.hpp"

namespace shoal::emulator {
namespace {

constexpr std::uint32_t kNoPeer = 0xffffffff;
constexpr std::size_t kMostPeers = 0xffff;
constexpr std::size_t kHeadBytes = kDatagramHeadBytes + kPacketHeaderBytes;
constexpr std::size_t kIpAndUdpBytes = 28;
/// Limits of one call with segmentation offload, and bytes of the datagram that the socket
/// delivers.
constexpr std::size_t kMostGathered = 65000, kMostSegments = 64, kReceiveBytes = 1 << 16;
/// A peer without room that is silent for so long does not hold up the others any more.
constexpr Time kSilence = std::chrono::milliseconds(20);
constexpr std::uint32_t kLeastWindow = 1 << 14;

[[noreturn]] void fail_errno(const std::string& what) {
  throw std::runtime_error(what + ": " + std::generic_category().message(errno));
}

std::uint64_t key_of(std::uint32_t address, std::uint16_t port) {
  return std::uint64_t{address} << 16 | port;
}

std::string text_of(std::uint32_t address) {
  const in_addr at{.s_addr = htonl(address)};
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &at, text, sizeof text);
  return text;
}

std::uint32_t random_session() {
  std::uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number))
    fail_errno("getrandom");
  return std::max(number, 1U);
}

/// The interface's answer to `request`.
ifreq ask(int fd, unsigned long request, const std::string& interface) {
  ifreq asked{};
  std::strncpy(asked.ifr_name, interface.c_str(), sizeof asked.ifr_name - 1);
  if (ioctl(fd, request, &asked) != 0) asked.ifr_flags = asked.ifr_mtu = 0;
  return asked;
}

/// Control data with one integer.
struct alignas(cmsghdr) Control {
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

UdpWire::Descriptor::~Descriptor() {
  if (number >= 0) close(number);
}

UdpWire::UdpWire(const UdpOptions& options)
    : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      slots_(options.slots),
      session_(random_session()),
      first_port_(options.first_port),
      received_(kReceiveBytes) {
  if (slots_ == 0 || slots_ > kMostSlots || first_port_ == 0 || first_port_ > 65536 - slots_)
    throw std::runtime_error("a wire has 1 to 64 slots and as many ports, not " +
                             std::to_string(slots_) + " from port " + std::to_string(first_port_));
  if (socket_.number < 0 || wake_.number < 0) fail_errno("cannot make a socket");
  choose_interface(options.interface);
  const auto most =
      static_cast<std::size_t>(std::max(ask(socket_.number, SIOCGIFMTU, interface_).ifr_mtu, 0));
  for (mtu_ = kMostPayloadBytes; mtu_ > 256 && mtu_ + kHeadBytes + kIpAndUdpBytes > most;)
    mtu_ /= 2;
  size_buffer(options.buffer_bytes);
  bind_port();
}

void UdpWire::choose_interface(const std::string& wanted) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail_errno("cannot list interfaces");
  std::string all;
  for (const ifaddrs* at = list; at != nullptr && interface_.empty(); at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    const std::uint32_t address =
        ntohl(reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr.s_addr);
    const std::string name = at->ifa_name, text = text_of(address);
    const bool fits = wanted.empty() ? (at->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == IFF_UP
                                     : wanted == name || wanted == text;
    all += (all.empty() ? "" : ", ") + name + " (" + text + ")";
    if (!fits) continue;
    interface_ = name;
    address_ = address;
  }
  freeifaddrs(list);
  if (!interface_.empty()) return;
  throw std::runtime_error((wanted.empty() ? "no interface other than loopback is up"
                                           : "no interface is or has \"" + wanted + "\"") +
                           "; interfaces with an IPv4 address: " + (all.empty() ? "none" : all));
}

void UdpWire::size_buffer(std::uint32_t bytes) {
  const int fd = socket_.number, wanted = static_cast<int>(std::min(bytes, 1U << 30));
  // Beyond the limit of the system, where this process may.
  for (const auto& [force, plain] :
       {std::pair(SO_RCVBUFFORCE, SO_RCVBUF), std::pair(SO_SNDBUFFORCE, SO_SNDBUF)})
    if (setsockopt(fd, SOL_SOCKET, force, &wanted, sizeof wanted) != 0)
      (void)setsockopt(fd, SOL_SOCKET, plain, &wanted, sizeof wanted);
  int granted = 0;
  socklen_t size = sizeof granted;
  if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &granted, &size) != 0) fail_errno("getsockopt");
  buffer_cost_ = static_cast<std::uint32_t>(granted) / 4 * 3;
  const int on = 1;
  (void)setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on);
}

void UdpWire::bind_port() {
  // A new process rarely gets the port of one that has just ended.
  const std::uint32_t start = static_cast<std::uint32_t>(getpid()) % slots_;
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(address_);
  for (std::uint32_t i = 0; i < slots_; ++i) {
    slot_ = (start + i) % slots_;
    own.sin_port = htons(static_cast<std::uint16_t>(first_port_ + slot_));
    if (bind(socket_.number, reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0) return;
    if (errno != EADDRINUSE)
      fail_errno("cannot use port " + std::to_string(first_port_ + slot_) + " of " +
                 text_of(address_));
  }
  throw std::runtime_error("all " + std::to_string(slots_) + " ports of " + text_of(address_) +
                           " from " + std::to_string(first_port_) + " on are in use");
}

bool UdpWire::link_up() const {
  return (ask(socket_.number, SIOCGIFFLAGS, interface_).ifr_flags & (IFF_UP | IFF_RUNNING)) ==
         (IFF_UP | IFF_RUNNING);
}

int UdpWire::route_error(std::uint32_t address) const {
  const Descriptor probe(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in end{};
  end.sin_family = AF_INET;
  end.sin_addr.s_addr = htonl(address_);
  const auto* const at = reinterpret_cast<const sockaddr*>(&end);
  if (probe.number < 0 || bind(probe.number, at, sizeof end) != 0) return errno;
  end.sin_addr.s_addr = htonl(address);
  end.sin_port = htons(first_port_);
  return connect(probe.number, at, sizeof end) == 0 ? 0 : errno;
}

std::uint16_t UdpWire::peer(std::uint32_t address, std::uint32_t slot) {
  if (slot >= slots_) return 0;
  const auto port = static_cast<std::uint16_t>(first_port_ + slot);
  const auto [at, is_new] =
      by_address_.try_emplace(key_of(address, port), static_cast<std::uint32_t>(peers_.size()));
  if (is_new) {
    if (peers_.size() == kMostPeers) {
      by_address_.erase(at);
      return 0;
    }
    Peer& peer = peers_.emplace_back();
    peer.address.sin_family = AF_INET;
    peer.address.sin_addr.s_addr = htonl(address);
    peer.address.sin_port = htons(port);
  }
  return static_cast<std::uint16_t>(at->second + 1);
}

/// All peers together may fill the socket's buffer.
std::uint32_t UdpWire::window() const {
  return std::max(
      buffer_cost_ / static_cast<std::uint32_t>(std::max<std::size_t>(peers_.size(), 1)),
      kLeastWindow);
}

void UdpWire::send(Packet&& packet) {
  const std::uint32_t index = packet.target - 1U;
  if (index >= peers_.size() || packet.payload.size() > mtu_) {
    ++dropped_;
    return;
  }
  if (!waiting_.empty()) return waiting_.push_back(std::move(packet));
  Peer& peer = peers_[index];
  const std::size_t bytes = kHeadBytes + packet.payload.size();
  std::byte* const at = append(index, bytes);
  if (at == nullptr) return waiting_.push_back(std::move(packet));  // few: ready() is false now
  encode_head(peer.flow.next(session_, bytes, window()), at);
  encode_header(packet, at + kDatagramHeadBytes);
  if (!packet.payload.empty())
    std::memcpy(at + kHeadBytes, packet.payload.data(), packet.payload.size());
  if (peer.flow.has_room() || peer.held_since != Time(0)) return;
  peer.held_since = now();
  held_.push_back(index);
}

/// Room for a datagram after those that are gathered; nullptr where the socket is blocked.
std::byte* UdpWire::append(std::uint32_t index, std::size_t bytes) {
  Peer& peer = peers_[index];
  const std::size_t before = peer.gathered.size();
  const bool fits = before != 0 && bytes <= peer.segment && before % peer.segment == 0 &&
                    before + bytes <= kMostGathered && before / peer.segment < kMostSegments;
  if (before != 0 && !fits && !send_gathered(peer)) return nullptr;
  if (peer.gathered.empty()) {
    peer.segment = bytes;
    if (before == 0) gathered_.push_back(index);
  }
  peer.gathered.resize(peer.gathered.size() + bytes);
  return peer.gathered.data() + peer.gathered.size() - bytes;
}

/// False where the socket takes nothing at present.
bool UdpWire::send_gathered(Peer& peer) {
  const std::span<const std::byte> all(peer.gathered);
  std::size_t sent = 0;
  const std::size_t step = offload_ ? all.size() : peer.segment;
  while (sent < all.size()) {
    const auto part = all.subspan(sent, std::min(step, all.size() - sent));
    const Outcome outcome = send_bytes(peer, part, peer.segment);
    if (outcome == Outcome::blocked) break;
    if (outcome == Outcome::dropped) ++dropped_;
    if (outcome == Outcome::refused) return send_gathered(peer);
    sent += part.size();
  }
  blocked_ = sent < all.size();
  peer.gathered.erase(peer.gathered.begin(),
                      peer.gathered.begin() + static_cast<std::ptrdiff_t>(sent));
  return !blocked_;
}

UdpWire::Outcome UdpWire::send_bytes(const Peer& peer, std::span<const std::byte> bytes,
                                     std::size_t segment) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_name = const_cast<sockaddr_in*>(&peer.address);
  message.msg_namelen = sizeof peer.address;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  const bool several = bytes.size() > segment;
  if (several) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(std::uint16_t));
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_UDP;
    head->cmsg_type = UDP_SEGMENT;
    head->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const auto size = static_cast<std::uint16_t>(segment);
    std::memcpy(CMSG_DATA(head), &size, sizeof size);
  }
  if (sendmsg(socket_.number, &message, MSG_NOSIGNAL) >= 0) return Outcome::sent;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Outcome::blocked;
  if (several && (errno == EINVAL || errno == EIO || errno == EOPNOTSUPP)) {
    offload_ = false;  // this interface cannot
    return Outcome::refused;
  }
  return Outcome::dropped;
}

bool UdpWire::flush() {
  if (!busy()) return false;
  std::size_t done = 0;
  while (done < gathered_.size() && send_gathered(peers_[gathered_[done]])) ++done;
  gathered_.erase(gathered_.begin(), gathered_.begin() + static_cast<std::ptrdiff_t>(done));
  if (!gathered_.empty() || waiting_.empty()) return done != 0;
  for (std::deque<Packet> again = std::exchange(waiting_, {}); !again.empty(); again.pop_front())
    send(std::move(again.front()));
  return flush() || done != 0;
}

void UdpWire::send_head(Peer& peer) {
  std::byte head[kDatagramHeadBytes];
  encode_head(peer.flow.next(session_, sizeof head, window()), head);
  (void)send_bytes(peer, head, sizeof head);
}

void UdpWire::release_held() {
  if (held_.empty()) return;
  const Time time = now();
  std::erase_if(held_, [&](std::uint32_t index) {
    Peer& peer = peers_[index];
    if (!peer.flow.has_room() && time - peer.held_since < kSilence) return false;
    if (!peer.flow.has_room()) peer.flow.ignore();
    peer.held_since = Time(0);
    return true;
  });
}

bool UdpWire::receive() {
  sockaddr_in from{};
  iovec part{received_.data(), received_.size()};
  Control control{};
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t got = recvmsg(socket_.number, &message, 0);
  if (got < 0) return false;
  received_bytes_ = (message.msg_flags & MSG_TRUNC) != 0 ? 0 : static_cast<std::size_t>(got);
  received_segment_ = received_bytes_;
  taken_ = 0;
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  if (head != nullptr && head->cmsg_level == SOL_UDP && head->cmsg_type == UDP_GRO) {
    int size = 0;
    std::memcpy(&size, CMSG_DATA(head), sizeof size);
    if (size > 0) received_segment_ = static_cast<std::size_t>(size);
  }
  const auto peer = by_address_.find(key_of(ntohl(from.sin_addr.s_addr), ntohs(from.sin_port)));
  sender_ = peer == by_address_.end() ? kNoPeer : peer->second;
  return true;
}

void UdpWire::take(std::span<const std::byte> bytes, const Deliver& deliver) {
  DatagramHead head;
  Packet packet;
  const DatagramKind kind = decode_datagram(bytes, head, packet);
  if (kind == DatagramKind::invalid || sender_ == kNoPeer) {
    ++dropped_;
    return;
  }
  FlowControl& flow = peers_[sender_].flow;
  if (!flow.arrived(head, session_, bytes.size())) {
    ++dropped_;
    return;
  }
  if (flow.owes_head(window())) send_head(peers_[sender_]);
  if (kind == DatagramKind::head) return;
  packet.source = static_cast<std::uint16_t>(sender_ + 1);
  deliver(std::move(packet));
}

bool UdpWire::poll(std::size_t most, const Deliver& deliver) {
  bool worked = flush();
  for (std::size_t count = 0; count < most; ++count) {
    if (taken_ == received_bytes_ && !receive()) break;
    const std::size_t bytes = std::min(received_segment_, received_bytes_ - taken_);
    const std::span<const std::byte> datagram(received_.data() + taken_, bytes);
    taken_ += bytes;
    take(datagram, deliver);
    worked = true;
  }
  release_held();
  return worked;
}

Time UdpWire::next_event() const {
  Time next = kNever;
  for (const std::uint32_t index : held_)
    next = std::min(next, peers_[index].held_since + kSilence);
  return next;
}

bool UdpWire::sleep(Time longest) {
  pollfd on[2] = {{.fd = wake_.number, .events = POLLIN, .revents = 0},
                  {.fd = socket_.number,
                   .events = static_cast<short>(blocked_ ? POLLIN | POLLOUT : POLLIN),
                   .revents = 0}};
  const auto count = longest.count();
  const timespec timeout{.tv_sec = count / 1'000'000'000, .tv_nsec = count % 1'000'000'000};
  sleeping_.store(true, std::memory_order_seq_cst);
  const int ready = ppoll(on, 2, &timeout, nullptr);
  sleeping_.store(false, std::memory_order_seq_cst);
  std::uint64_t wakes = 0;
  if (ready > 0 && on[0].revents != 0) (void)!read(wake_.number, &wakes, sizeof wakes);
  return ready > 0;
}

void UdpWire::wake() {
  constexpr std::uint64_t kOne = 1;
  if (sleeping_.exchange(false, std::memory_order_seq_cst))
    (void)!write(wake_.number, &kOne, sizeof kOne);
}

}  // namespace shoal::emulator
