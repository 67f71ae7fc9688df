// SPDX-License-Identifier: Apache-2.0
// Collectives over teams on the host.
#include "shoal/collective.hpp"

#include <type_traits>

#include "collective/reduce.hpp"
#include "nvshmem/define.hpp"
#include "shmem/reductions.hpp"

using namespace shoal::nvshmem;
using shoal::ReduceOp;

namespace {

/// half and bfloat16 have a DataType of their own; the others are C++ arithmetic.
template <typename T>
constexpr bool is_half = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;
template <typename T>
constexpr shoal::DataType half_type() {
  return std::is_same_v<T, __half> ? shoal::DataType::float16 : shoal::DataType::bfloat16;
}

template <typename T>
void check_range(const Program& program, const char* argument, const T* address,
                 std::size_t count) {
  if (count != 0) (void)program.offset(argument, address, bytes_of(count, sizeof(T)));
}

template <typename T>
int reduce(const char* call, ReduceOp op, nvshmem_team_t id, T* dest, const T* source,
           std::size_t count) noexcept {
  guarded(call, [&](Program& program) {
    const shoal::Team team = program.teams.at(id);
    if constexpr (is_half<T>) {
      shoal::reduce(team, half_type<T>(), op, dest, source, count);
    } else {
      check_range(program, "dest", dest, count);
      check_range(program, "source", source, count);
      shoal::collective::reduce_with(team, shoal::shmem::reducer_of<T>(op), dest, source, count);
    }
  });
  return NVSHMEMX_SUCCESS;
}

template <typename T>
int reduce_scatter(const char* call, ReduceOp op, nvshmem_team_t id, T* dest, const T* source,
                   std::size_t count) noexcept {
  guarded(call, [&](Program& program) {
    const shoal::Team team = program.teams.at(id);
    if constexpr (is_half<T>) {
      shoal::reduce_scatter(team, half_type<T>(), op, dest, source, count);
    } else {
      check_range(program, "dest", dest, count);
      check_range(program, "source", source,
                  bytes_of(count, static_cast<std::size_t>(team.size())));
      shoal::collective::reduce_scatter_with(team, shoal::shmem::reducer_of<T>(op), dest, source,
                                             count);
    }
  });
  return NVSHMEMX_SUCCESS;
}

}  // namespace

#define DEFINE_BROADCAST(TYPE, NAME, BYTES)                                                        \
  NVSHMEM_DEFINE(                                                                                  \
      int, NAME,                                                                                   \
      (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems, int root)) {           \
    guarded("nvshmem_" #NAME, [&](Program& program) {                                              \
      shoal::broadcast_bytes(program.teams.at(team), dest, source, bytes_of(nelems, BYTES), root); \
    });                                                                                            \
    return NVSHMEMX_SUCCESS;                                                                       \
  }
#define DEFINE_BLOCKS(TYPE, FUNCTION, NAME, BYTES)                                            \
  NVSHMEM_DEFINE(int, NAME,                                                                   \
                 (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems)) {     \
    guarded("nvshmem_" #NAME, [&](Program& program) {                                         \
      shoal::FUNCTION##_bytes(program.teams.at(team), dest, source, bytes_of(nelems, BYTES)); \
    });                                                                                       \
    return NVSHMEMX_SUCCESS;                                                                  \
  }
#define DEFINE_REDUCTION(TYPE, NAME, FUNCTION, OP)                                         \
  NVSHMEM_DEFINE(int, NAME,                                                                \
                 (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nreduce)) { \
    return FUNCTION<TYPE>("nvshmem_" #NAME, ReduceOp::OP, team, dest, source, nreduce);    \
  }
#include "nvshmem/collective_functions.hpp"
