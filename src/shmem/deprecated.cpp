// SPDX-License-Identifier: Apache-2.0
// Collectives over active sets, cache control, and names from before OpenSHMEM. An active set is a
// team that its first collective makes; the standard's work arrays are not needed.
#include "shmem/collectives.hpp"
#include "shmem/define.hpp"
#include "shmem/reductions.hpp"

using namespace shoal::shmem;
using shoal::ReduceOp;

namespace {

struct ActiveSet {
  int start, log_stride, size;
};

void check(const Program& program, const ActiveSet& set) {
  const auto in_world = [&](std::int64_t pe) { return pe >= 0 && pe < program.n_pes; };
  const bool fits =
      set.size >= 1 && set.log_stride >= 0 && set.log_stride < 31 && in_world(set.start) &&
      in_world(set.start + (std::int64_t{set.size} - 1) * (std::int64_t{1} << set.log_stride));
  shoal::require(
      fits, shoal::Code::invalid_argument,
      "SHOAL-N827: PE_start {}, logPE_stride {}, PE_size {}; allowed: sets of PEs 0 to {}",
      set.start, set.log_stride, set.size, program.n_pes - 1);
}

/// The team of an active set. Collective over its PEs where they use the set for the first time.
shoal::Team team_of(Program& program, ActiveSet set) {
  check(program, set);
  if (set.size == program.n_pes) return program.all.team;
  const int stride = 1 << set.log_stride;
  const int distance = program.me - set.start;
  shoal::require(
      distance >= 0 && distance % stride == 0 && distance / stride < set.size,
      shoal::Code::invalid_argument,
      "SHOAL-N827: PE {} is not in the active set PE_start {}, logPE_stride {}, PE_size {}",
      program.me, set.start, set.log_stride, set.size);
  if (set.size == 1) set.log_stride = 0;
  const std::array<int, 3> key{set.start, set.log_stride, set.size};
  {
    const std::lock_guard lock(program.active_sets_mutex);
    if (const auto found = program.active_sets.find(key); found != program.active_sets.end())
      return found->second;
  }
  // The same on all PEs of the set, and no id that make_team_id returns but by chance.
  const std::uint64_t id =
      std::uint64_t{0xac71} << 48 | static_cast<std::uint64_t>(set.start) << 28 |
      static_cast<std::uint64_t>(set.log_stride) << 22 | static_cast<std::uint64_t>(set.size);
  shoal::Team made;
  try {
    made = program.world.make_team(id, set.size, distance / stride);
  } catch (const shoal::Error& error) {
    if (error.code() != shoal::Code::exhausted) throw;
    shoal::fail(
        shoal::Code::exhausted,
        "SHOAL-N828: PE_start {}, logPE_stride {}, PE_size {}: no team is free on all PEs for "
        "another active set, and earlier sets keep theirs until shmem_finalize; SHOAL_MAX_TEAMS is "
        "{}",
        set.start, set.log_stride, set.size, program.core.settings().max_teams);
  }
  const std::lock_guard lock(program.active_sets_mutex);
  return program.active_sets.emplace(key, std::move(made)).first->second;
}

}  // namespace

// Runs `STATEMENT` for the team of the active set of a routine.
#define ON_ACTIVE_SET(NAME, STATEMENT)                                          \
  guarded("shmem_" #NAME, [&](Program& program) {                               \
    const shoal::Team on = team_of(program, {PE_start, logPE_stride, PE_size}); \
    STATEMENT;                                                                  \
  })
#define ACTIVE_SET int PE_start, int logPE_stride, int PE_size

SHMEM_DEFINE(void, barrier, (ACTIVE_SET, long*)) {
  ON_ACTIVE_SET(barrier, barrier(program, on));
}
SHMEM_DEFINE(void, sync, (ACTIVE_SET, long*)) {
  ON_ACTIVE_SET(sync, sync(program, on));
}

#define DEFINE_BLOCKS(FUNCTION, NAME, BYTES)                                                     \
  SHMEM_DEFINE(void, NAME, (void* dest, const void* source, size_t nelems, ACTIVE_SET, long*)) { \
    ON_ACTIVE_SET(NAME, FUNCTION(program, on, dest, source, bytes_of(nelems, BYTES)));           \
  }
#define DEFINE_MOVES(BITS)                                                                        \
  SHMEM_DEFINE(void, broadcast##BITS,                                                             \
               (void* dest, const void* source, size_t nelems, int PE_root, ACTIVE_SET, long*)) { \
    ON_ACTIVE_SET(broadcast##BITS,                                                                \
                  broadcast(program, on, dest, source, bytes_of(nelems, BITS / 8), PE_root,       \
                            RootDest::kept));                                                     \
  }                                                                                               \
  DEFINE_BLOCKS(collect, collect##BITS, BITS / 8)                                                 \
  DEFINE_BLOCKS(all_gather, fcollect##BITS, BITS / 8)                                             \
  DEFINE_BLOCKS(all_to_all, alltoall##BITS, BITS / 8)                                             \
  SHMEM_DEFINE(void, alltoalls##BITS,                                                             \
               (void* dest, const void* source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems,      \
                ACTIVE_SET, long*)) {                                                             \
    ON_ACTIVE_SET(alltoalls##BITS,                                                                \
                  all_to_all_strided(program, on, dest, source, {BITS / 8, nelems, dst, sst}));   \
  }
DEFINE_MOVES(32)
DEFINE_MOVES(64)

#define DEFINE_TO_ALL(TYPE, NAME, OP)                                                      \
  SHMEM_DEFINE(void, NAME,                                                                 \
               (TYPE * dest, const TYPE* source, int nreduce, ACTIVE_SET, TYPE*, long*)) { \
    ON_ACTIVE_SET(NAME, {                                                                  \
      shoal::require(nreduce >= 0, shoal::Code::invalid_argument,                          \
                     "SHOAL-N824: nreduce is {}; allowed: at least 0", nreduce);           \
      reduce(program, on, reducer_of<TYPE>(ReduceOp::OP), dest, source,                    \
             static_cast<size_t>(nreduce));                                                \
    });                                                                                    \
  }
#define DEFINE_BITWISE(TYPE, NAME)                \
  DEFINE_TO_ALL(TYPE, NAME##_and_to_all, bit_and) \
  DEFINE_TO_ALL(TYPE, NAME##_or_to_all, bit_or)   \
  DEFINE_TO_ALL(TYPE, NAME##_xor_to_all, bit_xor)
#define DEFINE_ORDERED(TYPE, NAME)            \
  DEFINE_TO_ALL(TYPE, NAME##_max_to_all, max) \
  DEFINE_TO_ALL(TYPE, NAME##_min_to_all, min)
#define DEFINE_ARITHMETIC(TYPE, NAME)         \
  DEFINE_TO_ALL(TYPE, NAME##_sum_to_all, sum) \
  DEFINE_TO_ALL(TYPE, NAME##_prod_to_all, prod)
SHOAL_SHMEM_BITWISE_TO_ALL_TYPES(DEFINE_BITWISE)
SHOAL_SHMEM_ORDERED_TO_ALL_TYPES(DEFINE_ORDERED)
SHOAL_SHMEM_ARITHMETIC_TO_ALL_TYPES(DEFINE_ARITHMETIC)

SHMEM_DEFINE(void, set_cache_inv, ()) {}
SHMEM_DEFINE(void, set_cache_line_inv, (void*)) {}
SHMEM_DEFINE(void, clear_cache_inv, ()) {}
SHMEM_DEFINE(void, clear_cache_line_inv, (void*)) {}
SHMEM_DEFINE(void, udcflush, ()) {}
SHMEM_DEFINE(void, udcflush_line, (void*)) {}

extern "C" {

void start_pes(int) {
  shmem_init();
}
int _my_pe() {
  return shmem_my_pe();
}
int _num_pes() {
  return shmem_n_pes();
}
void* shmalloc(size_t size) {
  return shmem_malloc(size);
}
void* shmemalign(size_t alignment, size_t size) {
  return shmem_align(alignment, size);
}
void* shrealloc(void* block, size_t size) {
  return shmem_realloc(block, size);
}
void shfree(void* block) {
  shmem_free(block);
}

}  // extern "C"
