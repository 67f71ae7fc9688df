// SPDX-License-Identifier: Apache-2.0
// collectives.hpp: collectives over a team, shared by the routines over teams and those over active
// sets. Sizes are in bytes.
#pragma once

#include <cstddef>

#include "shmem/program.hpp"

namespace shoal::shmem {

/// Elements of `element` bytes, `dst` and `sst` elements apart, `count` of them per PE.
struct StridedBlocks {
  std::size_t element, count;
  std::ptrdiff_t dst, sst;
};

/// barrier and sync. Throw Error{mismatch} where an earlier broadcast of the team had two roots.
void barrier(Program& program, const Team& team);
void sync(Program& program, const Team& team);

/// Throws Error{invalid_argument} where the ranges overlap. in_place: they may be the same.
void check_apart(const void* dest, std::size_t dest_bytes, const void* source,
                 std::size_t source_bytes, bool in_place);

/// Effect of a broadcast on the dest of its root.
enum class RootDest : bool { written, kept };
/// The root sends to the dest of the other PEs and waits for none of them.
void broadcast(Program& program, const Team& team, void* dest, const void* source,
               std::size_t bytes, int root, RootDest root_dest = RootDest::written);
void all_gather(Program& program, const Team& team, void* dest, const void* source,
                std::size_t bytes);
/// Like all_gather, with blocks of different sizes one after the other.
void collect(Program& program, const Team& team, void* dest, const void* source, std::size_t bytes);
void all_to_all(Program& program, const Team& team, void* dest, const void* source,
                std::size_t bytes);
void all_to_all_strided(Program& program, const Team& team, void* dest, const void* source,
                        const StridedBlocks& blocks);

}  // namespace shoal::shmem
