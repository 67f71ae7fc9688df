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
                       on.broadcast_bytes(dest, source, bytes_of(nelems, BYTES), root);           \
                     });                                                                          \
  }
#define DEFINE_BLOCKS(TYPE, FUNCTION, NAME, BYTES)                                      \
  NVSHMEMX_DEFINE(int, NAME##_on_stream,                                                \
                  (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems, \
                   cudaStream_t stream)) {                                              \
    return on_stream("nvshmemx_" #NAME "_on_stream", team, stream,                      \
                     [&](const StreamCollectives& on) {                                 \
                       on.FUNCTION##_bytes(dest, source, bytes_of(nelems, BYTES));      \
                     });                                                                \
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
#include "nvshmem/collective_functions.hpp"
