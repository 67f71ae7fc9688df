// SPDX-License-Identifier: Apache-2.0
#include "engine/services.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

namespace shoal::emulator {
namespace {

/// Calls use(address, key, offset in the range, bytes) for each part of [offset, offset + bytes) of
/// a message. False where the segments end before, or `use` says so.
template <typename Use>
bool for_each_part(const std::vector<DataSegment>& data, std::uint64_t offset, std::uint64_t bytes,
                   Use use) {
  std::uint64_t done = 0;
  for (const DataSegment& segment : data) {
    if (done == bytes) break;
    if (offset >= segment.length) {
      offset -= segment.length;
      continue;
    }
    const std::uint64_t part = std::min<std::uint64_t>(segment.length - offset, bytes - done);
    if (!use(segment.address + offset, segment.key, done, part)) return false;
    done += part;
    offset = 0;
  }
  return done == bytes;
}

}  // namespace

bool scatter(const Services& services, std::uint32_t domain, const std::vector<DataSegment>& data,
             std::uint64_t offset, std::span<const std::byte> bytes) {
  if (services.options.timing_only) return true;
  const auto find = [&](std::uint64_t address, std::uint32_t key, std::uint64_t part) {
    return services.keys.translate(key, domain, address, part, Access::local_write);
  };
  const bool good = for_each_part(
      data, offset, bytes.size(),
      [&](auto address, auto key, auto, auto part) { return find(address, key, part) != nullptr; });
  return good &&
         for_each_part(data, offset, bytes.size(), [&](auto address, auto key, auto at, auto part) {
           place(find(address, key, part), bytes.subspan(at, part));
           return true;
         });
}

bool gather(const Services& services, std::uint32_t domain, const std::vector<DataSegment>& data,
            std::uint64_t offset, std::span<std::byte> bytes) {
  if (services.options.timing_only) return true;
  return for_each_part(data, offset, bytes.size(), [&](auto address, auto key, auto at, auto part) {
    const std::byte* const from = services.keys.translate(key, domain, address, part, 0);
    if (from != nullptr) std::memcpy(bytes.data() + at, from, part);
    return from != nullptr;
  });
}

bool covered(const Services& services, std::uint32_t domain, const std::vector<DataSegment>& data,
             std::uint32_t access) {
  if (services.options.timing_only) return true;
  return std::all_of(data.begin(), data.end(), [&](const DataSegment& segment) {
    return segment.length == 0 || services.keys.translate(segment.key, domain, segment.address,
                                                          segment.length, access) != nullptr;
  });
}

void place(std::byte* to, std::span<const std::byte> bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(to);
  if (bytes.size() == 8 && at % 8 == 0) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to)).store(word, std::memory_order_release);
  } else if (bytes.size() == 4 && at % 4 == 0) {
    std::uint32_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(to)).store(word, std::memory_order_release);
  } else {
    std::memcpy(to, bytes.data(), bytes.size());
  }
}

void place_in_pieces(std::byte* to, std::span<const std::byte> bytes) {
  constexpr std::size_t kWord = 8;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::atomic_ref(to[i]).store(bytes[i], std::memory_order_release);
    if (bytes.size() <= kWord && 2 * (i + 1) == bytes.size()) std::this_thread::yield();
  }
}

}  // namespace shoal::emulator
