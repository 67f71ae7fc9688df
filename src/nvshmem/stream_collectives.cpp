// SPDX-License-Identifier: Apache-2.0
// Collectives over teams on streams.
#include <type_traits>

#include "nvshmem/define.hpp"
#include "shoal/cuda_collective.hpp"

using namespace shoal::nvshmem;
using shoal::ReduceOp;
using shoal::cuda::ElementType;
using shoal::cuda::StreamCollectives;

namespace {

template <typename T>
constexpr ElementType element_type() {
  if constexpr (std::is_same_v<T, __half>) {
    return ElementType::float16;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return ElementType::bfloat16;
  } else {
    return shoal::cuda::element_type_of<T>();
  }
}

/// Runs `operation` with the collectives of the team on the stream.
template <typename Operation>
int on_stream(const char* call, nvshmem_team_t team, cudaStream_t stream,
              const Operation& operation) noexcept {
  guarded(call,
          [&](Program& program) { operation(StreamCollectives(program.teams.at(team), stream)); });
  return NVSHMEMX_SUCCESS;
}

}  // namespace

#define DEFINE_BROADCAST(TYPE, NAME, BYTES)                                                       \
  NVSHMEMX_DEFINE(int, NAME##_on_stream,                                                          \
                  (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems, int root, \
                   cudaStream_t stream)) {                                                        \
    return on_stream("nvshmemx_" #NAME "_on_stream", team, stream,                                \
                     [&](const StreamCollectives& on) {                                           \
                       on.broadcast(dest, source, bytes_of(nelems, BYTES), root);                 \
                     });                                                                          \
  }
#define DEFINE_BLOCKS(TYPE, FUNCTION, NAME, BYTES)                                                 \
  NVSHMEMX_DEFINE(int, NAME##_on_stream,                                                           \
                  (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems,            \
                   cudaStream_t stream)) {                                                         \
    return on_stream(                                                                              \
        "nvshmemx_" #NAME "_on_stream", team, stream,                                              \
        [&](const StreamCollectives& on) { on.FUNCTION(dest, source, bytes_of(nelems, BYTES)); }); \
  }
#define DEFINE_REDUCTION(TYPE, NAME, FUNCTION, OP)                                             \
  NVSHMEMX_DEFINE(int, NAME##_on_stream,                                                       \
                  (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nreduce,       \
                   cudaStream_t stream)) {                                                     \
    return on_stream("nvshmemx_" #NAME "_on_stream", team, stream,                             \
                     [&](const StreamCollectives& on) {                                        \
                       on.FUNCTION(element_type<TYPE>(), ReduceOp::OP, dest, source, nreduce); \
                     });                                                                       \
  }
#define DEFINE_OP(TYPE, NAME, WORD, OP)                      \
  DEFINE_REDUCTION(TYPE, NAME##_##WORD##_reduce, reduce, OP) \
  DEFINE_REDUCTION(TYPE, NAME##_##WORD##_reducescatter, reduce_scatter, OP)
#define DEFINE_TYPE(TYPE, NAME)                                  \
  DEFINE_BROADCAST(TYPE, NAME##_broadcast, sizeof(TYPE))         \
  DEFINE_BLOCKS(TYPE, all_gather, NAME##_fcollect, sizeof(TYPE)) \
  DEFINE_BLOCKS(TYPE, all_to_all, NAME##_alltoall, sizeof(TYPE)) \
  DEFINE_OP(TYPE, NAME, sum, sum)                                \
  DEFINE_OP(TYPE, NAME, prod, prod)                              \
  DEFINE_OP(TYPE, NAME, min, min)                                \
  DEFINE_OP(TYPE, NAME, max, max)
#define DEFINE_BITWISE(TYPE, NAME)    \
  DEFINE_OP(TYPE, NAME, and, bit_and) \
  DEFINE_OP(TYPE, NAME, or, bit_or)   \
  DEFINE_OP(TYPE, NAME, xor, bit_xor)
SHOAL_NVSHMEM_RMA_TYPES(DEFINE_TYPE)
SHOAL_SHMEM_BITWISE_REDUCE_TYPES(DEFINE_BITWISE)
DEFINE_BROADCAST(void, broadcastmem, 1)
DEFINE_BLOCKS(void, all_gather, fcollectmem, 1)
DEFINE_BLOCKS(void, all_to_all, alltoallmem, 1)
