// SPDX-License-Identifier: Apache-2.0
// reader.hpp: records in memory as public structs.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "record/layout.hpp"

namespace shoal::detail::record {

/// Calls use(data, bytes) for the sections of a kind of at least `least` bytes that lie in the
/// record of `bytes` bytes at `process`. Stops when their sizes add up to more than `bytes`: two
/// sections of a record that Shoal writes share no memory.
template <typename Use>
void each_section(const ProcessBlock& process, std::size_t bytes, Kind kind, std::size_t least,
                  Use&& use) {
  const auto* const data = reinterpret_cast<const std::byte*>(&process);
  if (process.magic.load() != kMagic || process.version.load() != kVersion) return;
  std::size_t left = bytes;
  for (const Section& section : process.sections) {
    const std::uint64_t offset = section.offset.load(), size = section.bytes.load();
    if (size == 0) break;
    if (section.kind.load() != static_cast<std::uint64_t>(kind)) continue;
    if (offset % alignof(Word) != 0 || offset > bytes || size > bytes - offset || size < least)
      continue;
    if (size > left) return;
    left -= size;
    use(data + offset, size);
  }
}

/// Calls use(record, bytes) for the records of this host's processes that the caller may read.
void each_process(const std::function<void(const ProcessBlock&, std::size_t)>& use);

/// The PEs of the record of `bytes` bytes at `process`, which another process may be writing.
/// Nothing that it contains is trusted. Empty for another version. `only`: of this world and PE.
std::vector<observe::PeRecord> read(const ProcessBlock& process, std::size_t bytes,
                                    std::optional<std::pair<std::uint64_t, Pe>> only = {});

}  // namespace shoal::detail::record
