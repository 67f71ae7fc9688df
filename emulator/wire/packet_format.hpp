// SPDX-License-Identifier: Apache-2.0
// packet_format.hpp: packets as bytes, between processes and hosts.
//
// A fixed header in host byte order, then the payload. Every process that shares a wire runs the
// same version of the emulator: kWireVersion guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/packet.hpp"

namespace shoal::emulator {

constexpr std::uint32_t kWireVersion = 2;
constexpr std::size_t kPacketHeaderBytes = 80;
constexpr std::size_t kMostPayloadBytes = 4096;

/// Writes the header of `packet` to `to`; its payload follows there.
void encode_header(const Packet& packet, std::byte* to);

/// Reads a header and its payload. False where the bytes are no packet: unknown kind, sizes that do
/// not agree, or operands that no NIC sends.
bool decode_packet(std::span<const std::byte> bytes, Packet& packet);

}  // namespace shoal::emulator
