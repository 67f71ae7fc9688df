// SPDX-License-Identifier: Apache-2.0
// collective_functions.hpp: all typed collectives, by three macros of the file that includes this:
// DEFINE_BROADCAST(type, name, bytes of an element), DEFINE_BLOCKS(type, Shoal's function, name,
// bytes), DEFINE_REDUCTION(type, name, Shoal's function, operator).
#pragma once

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
