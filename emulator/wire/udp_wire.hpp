// SPDX-License-Identifier: Apache-2.0
// udp_wire.hpp: packets between processes of different hosts, in UDP datagrams.
//
// A process has one socket: an IPv4 address of its host, and the first free port of a range. The
// port's index in the range is the process's *slot*. As on an Ethernet with RoCE v2, a peer is
// named by its address, which is its GID, and by a queue-pair number, whose upper bits are the
// slot. Packets carry LIDs that have a meaning in this process alone: peer() gives them out.
//
// Packets to one peer that have one size travel in one system call (segmentation offload), and
// arrive in one. Queue pairs send again what is lost; flow control (datagram.hpp) keeps a slow
// receiver from causing it.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "wire/datagram.hpp"
#include "wire/live_wire.hpp"

namespace shoal::emulator {

struct UdpOptions {
  /// An interface or an IPv4 address of this host; empty: the first interface that is up and not
  /// loopback.
  std::string interface;
  std::uint16_t first_port = 14791;
  std::uint32_t slots = 64;               ///< processes of a host at the same time, at most 64
  std::uint32_t buffer_bytes = 8U << 20;  ///< of the socket; the kernel may grant less
};

class UdpWire final : public LiveWire {
 public:
  /// Bits of a queue-pair number below the slot.
  static constexpr unsigned kSlotShift = 18;
  static constexpr std::uint32_t kMostSlots = 1U << (24 - kSlotShift);
  static constexpr std::uint32_t slot_of(std::uint32_t qp_number) {
    return qp_number >> kSlotShift;
  }

  /// Throws std::runtime_error where there is no such interface or no port is free.
  explicit UdpWire(const UdpOptions& options);

  std::uint32_t address() const { return address_; }  ///< IPv4, in host byte order
  std::uint32_t slot() const { return slot_; }
  const std::string& interface() const { return interface_; }
  /// Largest payload of a packet: a power of two from 256 to 4096.
  std::uint32_t mtu() const { return mtu_; }
  /// True if the interface has a link. Any thread may ask.
  bool link_up() const;

  /// Error number where the kernel has no route from this interface to `address`; 0: it has one.
  int route_error(std::uint32_t address) const;

  /// LID by which packets reach the process with this slot at `address`; 0: slot without a port, or
  /// too many peers.
  std::uint16_t peer(std::uint32_t address, std::uint32_t slot);

  bool ready() const override { return held_.empty() && !blocked_ && waiting_.empty(); }
  void send(Packet&& packet) override;
  bool poll(std::size_t most, const Deliver& deliver) override;
  bool flush() override;
  Time next_event() const override;
  bool busy() const override { return !gathered_.empty() || !waiting_.empty(); }
  bool sleep(Time longest) override;
  void wake() override;
  /// Datagrams that were not sent, were none of a peer, or had arrived before.
  std::uint64_t dropped() const { return dropped_; }

 private:
  /// Closes itself.
  struct Descriptor {
    explicit Descriptor(int opened) : number(opened) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    const int number;
  };
  struct Peer {
    sockaddr_in address{};
    FlowControl flow;
    std::vector<std::byte> gathered;  ///< datagrams of one size, the last one may be shorter
    std::size_t segment = 0;          ///< that size
    Time held_since{};
  };
  enum class Outcome : std::uint8_t { sent, dropped, blocked, refused };

  void choose_interface(const std::string& wanted);
  void bind_port();
  void size_buffer(std::uint32_t bytes);
  std::uint32_t window() const;
  std::byte* append(std::uint32_t index, std::size_t bytes);
  bool send_gathered(Peer& peer);
  Outcome send_bytes(const Peer& peer, std::span<const std::byte> bytes, std::size_t segment);
  void send_head(Peer& peer);
  void release_held();
  bool receive();
  void take(std::span<const std::byte> bytes, const Deliver& deliver);

  const Descriptor socket_, wake_;
  std::string interface_;
  std::uint32_t address_ = 0, slot_ = 0, slots_ = 0, mtu_ = 0, session_ = 0;
  std::uint16_t first_port_ = 0;
  std::uint32_t buffer_cost_ = 0;  ///< of what the socket's buffer holds
  bool offload_ = true;            ///< the kernel cuts segments

  std::vector<Peer> peers_;  ///< by LID, less 1
  std::unordered_map<std::uint64_t, std::uint32_t> by_address_;
  std::vector<std::uint32_t> gathered_;  ///< peers with something gathered
  std::deque<Packet> waiting_;           ///< that came while the socket was blocked
  std::vector<std::uint32_t> held_;      ///< peers without room
  std::atomic<bool> blocked_{false};     ///< the socket takes nothing at present
  std::atomic<bool> sleeping_{false};
  std::uint64_t dropped_ = 0;

  // Data that the socket has delivered in one call.
  std::vector<std::byte> received_;
  std::size_t received_bytes_ = 0, received_segment_ = 0, taken_ = 0;
  std::uint32_t sender_ = 0;  ///< index of its peer, or kNoPeer
};

}  // namespace shoal::emulator
