// SPDX-License-Identifier: Apache-2.0
#include "verbs/attachment.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "wire/packet_format.hpp"

namespace shoal::emulator {
namespace {

/// fe80::0253:686f:616c:<LID>
constexpr Gid kInsideHost = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x53, 0x68, 0x6f, 0x61, 0x6c};
/// ::ffff:<IPv4 address>
constexpr Gid kIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::size_t kPrefixBytes = 12;
/// The first numbers of a slot are not used: 0 and 1 have a meaning.
constexpr std::uint32_t kFirstNumber = 0x40;
/// Numbers between those of two processes, of which one starts where the other has ended.
constexpr std::uint32_t kNumbersOfProcess = 0x40;

bool is_ipv4(const Gid& gid) {
  return std::equal(kIpv4.begin(), kIpv4.begin() + kPrefixBytes, gid.begin());
}

std::uint32_t address_of(const Gid& gid) {
  std::uint32_t address = 0;
  for (std::size_t i = kPrefixBytes; i < gid.size(); ++i) address = address << 8 | gid[i];
  return address;
}

}  // namespace

Attachment::Attachment(const DeviceSettings& settings) {
  if (settings.wire == WireKind::udp)
    attach_udp(settings);
  else
    attach_shared_memory(settings);
  Impairments impairments = settings.impairments;
  impairments.seed += lid_;
  if (impairments.any()) wire_ = std::make_unique<ImpairedWire>(std::move(wire_), impairments);
}

void Attachment::attach_udp(const DeviceSettings& settings) {
  auto udp = std::make_unique<UdpWire>(settings.udp);
  udp_ = udp.get();
  // Names this process among the hosts of a subnet, in traces.
  lid_ = static_cast<std::uint16_t>(udp->address() << 6 | udp->slot());
  wire_ = std::move(udp);
}

void Attachment::attach_shared_memory(const DeviceSettings& settings) {
  auto shared = std::make_unique<SharedMemoryWire>(SharedMemoryOptions{
      .file = settings.wire_file, .slots = settings.slots, .ring_bytes = settings.ring_bytes});
  lid_ = shared->lid();
  shared_ = shared.get();
  wire_ = std::move(shared);
}

Gid Attachment::gid() const {
  Gid gid = is_ethernet() ? kIpv4 : kInsideHost;
  const std::uint32_t own = is_ethernet() ? udp_->address() : lid_;
  for (std::size_t i = is_ethernet() ? kPrefixBytes : gid.size() - sizeof lid_; i < gid.size(); ++i)
    gid[i] = static_cast<std::uint8_t>(own >> 8 * (gid.size() - 1 - i));
  return gid;
}

std::uint32_t Attachment::mtu() const {
  return is_ethernet() ? udp_->mtu() : static_cast<std::uint32_t>(kMostPayloadBytes);
}

void Attachment::set_numbers(NicOptions& options) const {
  // Differs from those of the last process with this address, whose peers may still be sending.
  const auto process = static_cast<std::uint32_t>(getpid());
  if (!is_ethernet()) {
    options.first_queue_pair = kFirstNumber + (process & 0x3fff) * kNumbersOfProcess;
    return;
  }
  options.lowest_queue_pair = (udp_->slot() << UdpWire::kSlotShift) + kFirstNumber;
  options.queue_pair_numbers = (1U << UdpWire::kSlotShift) - kFirstNumber;
  options.first_queue_pair =
      options.lowest_queue_pair +
      process % (options.queue_pair_numbers / kNumbersOfProcess) * kNumbersOfProcess;
}

std::optional<Mac> Attachment::mac_of(const Gid& gid) {
  if (!is_ipv4(gid)) return std::nullopt;
  return Mac{0x02, 0x53, gid[12], gid[13], gid[14], gid[15]};
}

int Attachment::resolve(const Gid& gid, Mac& mac) const {
  const auto found = mac_of(gid);
  if (!is_ethernet() || !found) return EINVAL;
  mac = *found;
  return udp_->route_error(address_of(gid));
}

std::string Attachment::obstacle() const {
  if (!is_ethernet())
    return shared_->file() +
           " has no memory for packets to it; SHOAL_EMULATOR_DIRECTORY names a folder with more room";
  return "on the UDP wire, a path has a GID, ::ffff:<IPv4 address>, and a queue-pair number of an "
         "emulated NIC";
}

std::optional<std::uint16_t> Attachment::route(std::uint16_t lid, const Gid* gid,
                                               std::uint32_t qp_number) {
  if (!is_ethernet()) return shared_->prepare(lid) ? std::optional(lid) : std::nullopt;
  if (gid == nullptr || !is_ipv4(*gid)) return std::nullopt;
  const std::uint16_t found = udp_->peer(address_of(*gid), UdpWire::slot_of(qp_number));
  return found == 0 ? std::nullopt : std::optional(found);
}

}  // namespace shoal::emulator
