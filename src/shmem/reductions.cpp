// SPDX-License-Identifier: Apache-2.0
#include "shmem/reductions.hpp"

#include <cstring>
#include <vector>

#include "collective/puller.hpp"
#include "shmem/collectives.hpp"
#include "shmem/define.hpp"

namespace shoal::shmem {

void reduce(Program& program, const Team& team, const collective::Reducer& reducer, void* dest,
            const void* source, std::size_t count) {
  const std::size_t bytes = bytes_of(count, reducer.element);
  collective::reduce_with(team, reducer, program.in_heap("dest", dest, bytes),
                          program.in_heap("source", source, bytes), count,
                          program.team_memory.scratch(state_of(team)));
}

void scan(Program& program, const Team& team, const collective::Reducer& reducer, Scan kind,
          void* dest, const void* source, std::size_t count) {
  const std::size_t bytes = bytes_of(count, reducer.element);
  std::byte* const to = reinterpret_cast<std::byte*>(program.in_heap("dest", dest, bytes));
  const std::size_t from = bytes == 0 ? 0 : program.offset("source", source, bytes);
  check_apart(dest, bytes, source, bytes, true);
  const std::size_t pes =
      static_cast<std::size_t>(team.my_pe()) + (kind == Scan::inclusive ? 1 : 0);
  sync(team);  // the sources are ready
  collective::Puller puller(state_of(team));
  std::size_t unreached = 0;
  for (std::size_t pe = 0; pe < pes; ++pe) unreached += puller.reaches(pe) ? 0 : 1;
  std::byte* scratch = puller.scratch(unreached * bytes);
  std::vector<const void*> sources;
  for (std::size_t pe = 0; pe < pes; ++pe) {
    sources.push_back(puller.view(pe, from, bytes, scratch));
    if (!puller.reaches(pe)) scratch += bytes;
  }
  puller.finish();
  // Held back until all PEs have read the sources: dest may be source.
  std::vector<std::byte> held(bytes);
  if (pes != 0 && count != 0) reducer.kernel(held.data(), sources, count);
  sync(team);
  if (bytes != 0) std::memcpy(to, held.data(), bytes);
}

}  // namespace shoal::shmem

using namespace shoal::shmem;
using shoal::ReduceOp;

#define DEFINE_REDUCE(TYPE, NAME, OP)                                                             \
  SHMEM_DEFINE(int, NAME, (shmem_team_t team, TYPE * dest, const TYPE* source, size_t nreduce)) { \
    guarded("shmem_" #NAME, [&](Program& program) {                                               \
      reduce(program, program.team(team).team, reducer_of<TYPE>(ReduceOp::OP), dest, source,      \
             nreduce);                                                                            \
    });                                                                                           \
    return 0;                                                                                     \
  }
#define DEFINE_SCAN(TYPE, NAME, KIND)                                                             \
  SHMEM_DEFINE(int, NAME, (shmem_team_t team, TYPE * dest, const TYPE* source, size_t nreduce)) { \
    guarded("shmem_" #NAME, [&](Program& program) {                                               \
      scan(program, program.team(team).team, reducer_of<TYPE>(ReduceOp::sum), Scan::KIND, dest,   \
           source, nreduce);                                                                      \
    });                                                                                           \
    return 0;                                                                                     \
  }
#define DEFINE_BITWISE(TYPE, NAME)                \
  DEFINE_REDUCE(TYPE, NAME##_and_reduce, bit_and) \
  DEFINE_REDUCE(TYPE, NAME##_or_reduce, bit_or)   \
  DEFINE_REDUCE(TYPE, NAME##_xor_reduce, bit_xor)
#define DEFINE_ORDERED(TYPE, NAME)            \
  DEFINE_REDUCE(TYPE, NAME##_max_reduce, max) \
  DEFINE_REDUCE(TYPE, NAME##_min_reduce, min)
#define DEFINE_ARITHMETIC(TYPE, NAME)             \
  DEFINE_REDUCE(TYPE, NAME##_sum_reduce, sum)     \
  DEFINE_REDUCE(TYPE, NAME##_prod_reduce, prod)   \
  DEFINE_SCAN(TYPE, NAME##_sum_inscan, inclusive) \
  DEFINE_SCAN(TYPE, NAME##_sum_exscan, exclusive)
SHOAL_SHMEM_BITWISE_REDUCE_TYPES(DEFINE_BITWISE)
SHOAL_SHMEM_ORDERED_REDUCE_TYPES(DEFINE_ORDERED)
SHOAL_SHMEM_ARITHMETIC_REDUCE_TYPES(DEFINE_ARITHMETIC)
