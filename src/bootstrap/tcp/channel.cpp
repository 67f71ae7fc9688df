// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/tcp/channel.hpp"

#include <sys/uio.h>

#include "base/check.hpp"

namespace shoal::bootstrap {
namespace {

constexpr std::size_t kReadSize = 64 << 10;  ///< bytes
constexpr std::size_t kReadsAtOnce = 16;

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

}  // namespace

void Outbox::add(MessageType type, Pe pe, std::uint64_t sequence, SharedBytes payload) {
  if (!payload) payload = std::make_shared<const Bytes>();
  const auto header =
      encode_header({type, pe, static_cast<std::uint32_t>(payload->size()), sequence});
  const Tag tag = authenticator_.make(header, *payload);
  queue_.push_back({header, std::move(payload), tag});
}

void Outbox::flush(int fd) {
  while (!queue_.empty()) {
    Item& item = queue_.front();
    const std::span<const std::byte> pieces[] = {item.header, *item.payload, item.tag};
    iovec vectors[3];
    int count = 0;
    std::size_t skip = item.sent, left = 0;
    for (const auto piece : pieces) {
      const std::size_t skipped = std::min(skip, piece.size());
      skip -= skipped;
      if (skipped == piece.size()) continue;
      const auto rest = piece.subspan(skipped);
      vectors[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
      left += rest.size();
    }
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = static_cast<std::size_t>(count);
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (would_block(errno)) return;
      if (errno == EINTR) continue;
      fail(Code::peer_failed, "SHOAL-N140: the connection broke while sending: {}",
           errno_text(errno));
    }
    item.sent += static_cast<std::size_t>(sent);
    if (static_cast<std::size_t>(sent) == left) queue_.pop_front();
  }
}

bool Inbox::fill(int fd) {
  std::byte buffer[kReadSize];
  for (std::size_t reads = 0; reads < kReadsAtOnce; ++reads) {
    const ssize_t count = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno == ECONNRESET)) return false;
    if (count < 0) {
      if (would_block(errno)) return true;
      if (errno == EINTR) continue;
      fail(Code::peer_failed, "SHOAL-N140: the connection broke while receiving: {}",
           errno_text(errno));
    }
    reader_.append(std::span(buffer).first(static_cast<std::size_t>(count)));
    if (static_cast<std::size_t>(count) < sizeof buffer) return true;
  }
  return true;
}

std::optional<Frame> Inbox::next() {
  auto frame = reader_.next();
  require(!frame || authenticator_.check(*frame), Code::mismatch,
          "SHOAL-N141: a message that is altered, replayed, or made with another key");
  return frame;
}

}  // namespace shoal::bootstrap
