// SPDX-License-Identifier: Apache-2.0
#include "shmem/collectives.hpp"

#include <cstring>

#include "collective/puller.hpp"
#include "shmem/define.hpp"
#include "world/rma/address_checks.hpp"

namespace shoal::shmem {
namespace {

std::size_t blocks_of(const Team& team, std::size_t bytes) {
  return bytes_of(static_cast<std::size_t>(team.size()), bytes);
}

}  // namespace

void broadcast(Program& program, const Team& team, void* dest, const void* source,
               std::size_t bytes, int root) {
  shoal::broadcast(team, program.in_heap("dest", dest, bytes),
                   program.in_heap("source", source, bytes), bytes, root);
}

void all_gather(Program& program, const Team& team, void* dest, const void* source,
                std::size_t bytes) {
  shoal::all_gather(team, program.in_heap("dest", dest, blocks_of(team, bytes)),
                    program.in_heap("source", source, bytes), bytes);
}

void collect(Program& program, const Team& team, void* dest, const void* source,
             std::size_t bytes) {
  struct Part {
    std::uint64_t bytes, offset;
  };
  const Part mine{bytes, bytes == 0 ? 0 : program.offset("source", source, bytes)};
  const auto all = exchange_bytes(team, std::as_bytes(std::span(&mine, 1)));
  const auto n = static_cast<std::size_t>(team.size());
  std::vector<Part> parts(n);
  std::memcpy(parts.data(), all.data(), all.size());
  std::size_t total = 0;
  for (const Part& part : parts) total += part.bytes;
  auto* to = reinterpret_cast<std::byte*>(program.in_heap("dest", dest, total));
  collective::Puller puller(team.state());
  for (std::size_t pe = 0; pe < n; ++pe) {
    puller.pull(to, pe, parts[pe].offset, parts[pe].bytes);
    to += parts[pe].bytes;
  }
  puller.finish();
  sync(team);  // the sources may change
}

void all_to_all(Program& program, const Team& team, void* dest, const void* source,
                std::size_t bytes) {
  const std::size_t whole = blocks_of(team, bytes);
  shoal::all_to_all(team, program.in_heap("dest", dest, whole),
                    program.in_heap("source", source, whole), bytes);
}

void all_to_all_strided(Program& program, const Team& team, void* dest, const void* source,
                        const StridedBlocks& blocks) {
  for (const auto& [argument, stride] :
       {std::pair("dst", blocks.dst), std::pair("sst", blocks.sst)})
    require(stride >= 1, Code::invalid_argument, "{} is {}; allowed: at least 1", argument, stride);
  const auto n = static_cast<std::size_t>(team.size());
  const auto me = static_cast<std::size_t>(team.my_pe());
  const std::size_t to_stride = bytes_of(static_cast<std::size_t>(blocks.dst), blocks.element);
  const std::size_t from_stride = bytes_of(static_cast<std::size_t>(blocks.sst), blocks.element);
  const std::size_t elements = bytes_of(n, blocks.count);
  const std::size_t to_bytes = detail::extent(blocks.element, to_stride, elements);
  const std::size_t from_bytes = detail::extent(blocks.element, from_stride, elements);
  auto* const to = reinterpret_cast<std::byte*>(program.in_heap("dest", dest, to_bytes));
  const std::size_t from = from_bytes == 0 ? 0 : program.offset("source", source, from_bytes);
  sync(team);
  for (std::size_t i = 1; i <= n && blocks.count != 0; ++i) {
    const std::size_t pe = (me + i) % n;
    program.world.get_strided_bytes(
        to + pe * blocks.count * to_stride, to_stride,
        {team.world_pe(static_cast<Pe>(pe)), from + me * blocks.count * from_stride}, from_stride,
        blocks.element, blocks.count);
  }
  sync(team);
}

}  // namespace shoal::shmem

using namespace shoal::shmem;

SHMEM_DEFINE(void, barrier_all, ()) {
  guarded("shmem_barrier_all", [](Program& program) { shoal::barrier(program.all.team); });
}
SHMEM_DEFINE(void, sync_all, ()) {
  guarded("shmem_sync_all", [](Program& program) { shoal::sync(program.all.team); });
}
SHMEM_DEFINE(int, team_sync, (shmem_team_t team)) {
  guarded("shmem_team_sync", [&](Program& program) { shoal::sync(program.team(team).team); });
  return 0;
}

// Runs `STATEMENT` for the team of a routine.
#define ON_TEAM(NAME, STATEMENT)                     \
  guarded("shmem_" #NAME, [&](Program& program) {    \
    const shoal::Team& on = program.team(team).team; \
    STATEMENT;                                       \
  });                                                \
  return 0;
#define DEFINE_BLOCKS(TYPE, FUNCTION, NAME, BYTES)                                               \
  SHMEM_DEFINE(int, NAME, (shmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems)) { \
    ON_TEAM(NAME, FUNCTION(program, on, dest, source, bytes_of(nelems, BYTES)))                  \
  }
#define DEFINE_BROADCAST(TYPE, NAME, BYTES)                                                     \
  SHMEM_DEFINE(int, NAME,                                                                       \
               (shmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems, int root)) { \
    ON_TEAM(NAME, broadcast(program, on, dest, source, bytes_of(nelems, BYTES), root))          \
  }
#define DEFINE_ALLTOALLS(TYPE, NAME, BYTES)                                                       \
  SHMEM_DEFINE(int, NAME,                                                                         \
               (shmem_team_t team, TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, \
                size_t nelems)) {                                                                 \
    ON_TEAM(NAME, all_to_all_strided(program, on, dest, source, {BYTES, nelems, dst, sst}))       \
  }
#define DEFINE_TYPE(TYPE, NAME)                                  \
  DEFINE_BLOCKS(TYPE, all_to_all, NAME##_alltoall, sizeof(TYPE)) \
  DEFINE_ALLTOALLS(TYPE, NAME##_alltoalls, sizeof(TYPE))         \
  DEFINE_BROADCAST(TYPE, NAME##_broadcast, sizeof(TYPE))         \
  DEFINE_BLOCKS(TYPE, collect, NAME##_collect, sizeof(TYPE))     \
  DEFINE_BLOCKS(TYPE, all_gather, NAME##_fcollect, sizeof(TYPE))
SHOAL_SHMEM_RMA_TYPES(DEFINE_TYPE)
DEFINE_BLOCKS(void, all_to_all, alltoallmem, 1)
DEFINE_ALLTOALLS(void, alltoallsmem, 1)
DEFINE_BROADCAST(void, broadcastmem, 1)
DEFINE_BLOCKS(void, collect, collectmem, 1)
DEFINE_BLOCKS(void, all_gather, fcollectmem, 1)
