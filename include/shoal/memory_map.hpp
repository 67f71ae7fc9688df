// SPDX-License-Identifier: Apache-2.0
// shoal/memory_map.hpp: what lies where in the symmetric heap and in the memory of groups.
//
// Every process shows the maps of its PEs in its record (shoal/observe.hpp). Programs of the same
// user read them from running processes, to find what lies at an address that a debugger, a
// sanitizer or a log names:
//
//   for (const std::string& place : shoal::observe::locate_address(
//            shoal::observe::read_host_memory(), 0x7f3a5c012340))
//     std::puts(place.c_str());
//
// shoal-info --memory and --locate do the same (docs/guide/observability.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <shoal/config.hpp>
#include <shoal/pe.hpp>

namespace shoal::observe {

/// One dimension of an array: `count` entries, `stride` bytes apart.
struct MemoryDimension {
  std::string name;  ///< "source rank", "token"
  std::uint64_t count = 0, stride = 0;
};

/// An array in a block. What lies between regions is unused.
struct MemoryRegion {
  std::string name;                         ///< "slots", "combine_rows"; "allocation" in the heap
  std::uint64_t offset = 0, bytes = 0;      ///< in the block
  std::vector<MemoryDimension> dimensions;  ///< the outermost first; none: no entries
};

/// A block and its regions, as one PE sees it: the heap of a world, or the block of a group in it.
///
/// Blocks of one number have the same offsets on all PEs.
struct MemoryMap {
  std::uint64_t world = 0;  ///< equal to PeRecord::world
  Pe pe = 0;                ///< that shows the map
  std::int64_t pid = 0;
  std::uint64_t group = 0;  ///< GroupRecord::number; 0: the heap
  std::string memory;       ///< "heap", or "staging memory" for rows that pass through the host
  std::uint64_t offset = 0, bytes = 0;  ///< of the block in that memory
  std::vector<Pe> pes;                  ///< by rank; of the heap: all PEs
  /// Address of the block of each of `pes` in this process, or for this PE's GPU; 0: out of reach
  /// of loads and stores.
  std::vector<std::uint64_t> addresses;
  std::vector<MemoryRegion> regions;  ///< ascending
};

/// The maps of this process. Empty where it has no memory for records.
[[nodiscard]] std::vector<MemoryMap> read_process_memory();
/// The maps of all processes of this host whose records the caller may read (read_host).
[[nodiscard]] std::vector<MemoryMap> read_host_memory();

/// "slots: parity 1, source rank 2, token 12, byte 40 of 14464", for an offset in the block.
[[nodiscard]] std::string describe_offset(const MemoryMap& map, std::uint64_t offset);
/// Describes the contents of an address: one text for each process and block to which it belongs.
[[nodiscard]] std::vector<std::string> locate_address(const std::vector<MemoryMap>& maps,
                                                      std::uint64_t address);
/// Describes the contents of an offset of the heap: one text for each block.
[[nodiscard]] std::vector<std::string> locate_offset(const std::vector<MemoryMap>& maps,
                                                     std::uint64_t offset);

/// A table of the regions.
[[nodiscard]] std::string to_text(const MemoryMap& map);
/// One JSON object on one line, with the fields above.
[[nodiscard]] std::string to_json(const MemoryMap& map);

}  // namespace shoal::observe
