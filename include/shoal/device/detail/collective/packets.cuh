// SPDX-License-Identifier: Apache-2.0
// packets.cuh: small data between all PEs of a team, without flags, fences and barriers.
//
// A packet is 8 bytes of data and the epoch, written and read as one access of 16 bytes. The
// receiver polls it; the epoch says that the data are those of this collective. Packets lie in the
// team's memory in the heap of the receiver: two halves by parity of the epoch, with a slot for
// each sender. Every PE sends at least one packet to every other, and a PE ends an epoch when it
// has received them all, so a half is written again only after all its packets have been read
// (arrival.cuh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <shoal/device/detail/collective/arrival.cuh>

namespace shoal::device::detail {

inline constexpr std::size_t kPacketBytes = 16;
inline constexpr std::size_t kPacketData = 8;  ///< bytes of data in a packet

/// Packets for `bytes` bytes; at least one.
__device__ inline std::size_t packets_of(std::size_t bytes) {
  return bytes == 0 ? 1 : (bytes + kPacketData - 1) / kPacketData;
}

/// The data of packet `k` of `bytes` bytes at `source`, a multiple of sizeof(T); zeros behind the
/// end.
template <typename T>
__device__ std::uint64_t load_data(const std::byte* source, std::size_t bytes, std::size_t k) {
  const std::size_t at = k * kPacketData;
  std::uint64_t data = 0;
  if (at >= bytes) return data;
  if (reinterpret_cast<std::uintptr_t>(source) % kPacketData == 0 && bytes - at >= kPacketData)
    return *reinterpret_cast<const std::uint64_t*>(source + at);
  const std::size_t left = bytes - at < kPacketData ? bytes - at : kPacketData;
#pragma unroll 1
  for (std::size_t i = 0; i < left; i += sizeof(T)) {
    T element = *reinterpret_cast<const T*>(source + at + i);
    std::uint64_t bits = 0;
    memcpy(&bits, &element, sizeof element);
    data |= bits << (8 * i);
  }
  return data;
}
template <typename T>
__device__ void store_data(std::byte* target, std::size_t bytes, std::size_t k,
                           std::uint64_t data) {
  const std::size_t at = k * kPacketData;
  if (at >= bytes) return;
  if (reinterpret_cast<std::uintptr_t>(target) % kPacketData == 0 && bytes - at >= kPacketData) {
    *reinterpret_cast<std::uint64_t*>(target + at) = data;
    return;
  }
  const std::size_t left = bytes - at < kPacketData ? bytes - at : kPacketData;
#pragma unroll 1
  for (std::size_t i = 0; i < left; i += sizeof(T)) {
    const std::uint64_t bits = data >> (8 * i);
    T element;
    memcpy(&element, &bits, sizeof element);
    *reinterpret_cast<T*>(target + at + i) = element;
  }
}

/// Reports the packet from PE `world_pe` that did not come.
__device__ __noinline__ inline void report_packet(const World& world, const std::byte* packet,
                                                  std::uint64_t epoch, std::uint64_t waited_ns,
                                                  Pe world_pe) {
  std::uint64_t value, seen;
  ptx::ld_relaxed_sys_b128(packet, value, seen);
  record_wait<std::uint64_t>(world, FailureKind::collective,
                             reinterpret_cast<const std::uint64_t*>(packet), Compare::greater_equal,
                             epoch, seen, waited_ns, world_pe);
}

/// Sends packet k < `packets` to each PE and receives theirs; packet k of all PEs by the same
/// thread.
///
/// `sender`: -1, or the only PE that sends data; the others then send an empty packet 0.
/// `kTogether`: loads in flight of a thread that polls.
///
/// data(k, pe): what goes to PE `pe`. take(k, pe, data): called for every sender in ascending
/// order, this PE included; done(k) after the last. The team is in `epoch` afterwards. Returns
/// whether all packets of this thread came.
template <int kTogether, typename Crew, typename Data, typename Take, typename Done>
__device__ bool exchange_packets(const Crew& crew, const World& world, const Team& team,
                                 std::uint64_t epoch, std::size_t packets, Pe sender,
                                 const Data& data, const Take& take, const Done& done) {
  const Pe n = team.size, me = team.my_pe;
  const bool sends = sender < 0 || sender == me;
  std::byte* const half =
      team.packets + (epoch % 2) * static_cast<std::size_t>(n) * team.slot_bytes;
  std::byte* const slot = half + static_cast<std::size_t>(me) * team.slot_bytes;
#pragma unroll 1
  for (std::size_t k = crew.rank(); k < packets; k += crew.size()) {
    if (!sends && k != 0) break;
#pragma unroll 1
    for (Pe step = 1; step < n; ++step) {
      const Pe pe = me + step < n ? me + step : me + step - n;
      ptx::st_relaxed_sys_b128(on_pe(world, team, slot + k * kPacketBytes, pe),
                               sends ? data(k, pe) : 0, epoch);
    }
  }
  advance(crew, team, epoch);  // while packets travel
#pragma unroll 1
  for (std::size_t k = crew.rank(); k < packets; k += crew.size()) {
#pragma unroll 1
    for (Pe first = 0; first < n; first += kTogether) {
      const std::byte* const packet =
          half + static_cast<std::size_t>(first) * team.slot_bytes + k * kPacketBytes;
      std::uint64_t values[kTogether] = {};
      unsigned awaited = 0, missing = 0;  // bits of PEs from `first` on
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const Pe pe = first + i;
        if (pe < n && pe != me && (sender < 0 || pe == sender || k == 0)) awaited |= 1U << i;
      }
      std::uint64_t waited_ns = 0;
      const bool ok = poll(world, waited_ns, [&] {
        std::uint64_t epochs[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          epochs[i] = epoch;
          if ((awaited >> i & 1) != 0)
            ptx::ld_relaxed_sys_b128(packet + static_cast<std::size_t>(i) * team.slot_bytes,
                                     values[i], epochs[i]);
        }
        missing = 0;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) missing |= epochs[i] == epoch ? 0 : 1U << i;
        return missing == 0;
      });
      if (!ok) {
        const int i = __ffs(static_cast<int>(missing)) - 1;
        report_packet(world, packet + static_cast<std::size_t>(i) * team.slot_bytes, epoch,
                      waited_ns, team.pes[first + i]);
        return false;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const Pe pe = first + i;
        if (pe >= n) break;
        if (sender < 0 || pe == sender) take(k, pe, pe == me ? data(k, me) : values[i]);
      }
    }
    done(k);
  }
  return true;
}

}  // namespace shoal::device::detail
