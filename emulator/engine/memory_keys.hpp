// SPDX-License-Identifier: Apache-2.0
// memory_keys.hpp: registered memory, and the checks of every access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/types.hpp"

namespace shoal::emulator {

/// Rights of a memory key; bits as in ibv_access_flags.
struct Access {
  static constexpr std::uint32_t local_write = 1, remote_write = 2, remote_read = 4,
                                 remote_atomic = 8, relaxed_ordering = 1 << 20;
};

/// One region of memory. Addresses on the wire lie in [address, address + length); the bytes are at
/// `memory`, in this process, owned by the client until the key is destroyed.
struct KeyAttributes {
  std::uint32_t domain = 0;  ///< protection domain
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::byte* memory = nullptr;
  std::uint32_t access = 0;  ///< Access bits
  std::uint8_t variant = 0;  ///< low byte of the key
};

/// The memory keys of a NIC. A key is index << 8 | variant and serves as lkey and rkey.
class MemoryKeys {
 public:
  explicit MemoryKeys(std::uint32_t limit) : limit_(limit) {}

  /// 0 when the NIC has no more keys.
  std::uint32_t create(const KeyAttributes& attributes);
  bool destroy(std::uint32_t key);
  const KeyAttributes* find(std::uint32_t key) const;
  std::size_t size() const { return keys_.size(); }

  /// The bytes of [address, address + length), or nullptr where `key` is unknown, belongs to
  /// another domain, lacks one of the rights `access`, or does not cover the range.
  std::byte* translate(std::uint32_t key, std::uint32_t domain, std::uint64_t address,
                       std::uint64_t length, std::uint32_t access) const;

 private:
  std::uint32_t limit_;
  /// Index of the next new key. Small keys have meanings of their own, such as kEndOfListKey.
  std::uint32_t next_ = 0x10;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::uint32_t, KeyAttributes> keys_;  ///< by index
};

}  // namespace shoal::emulator
