// SPDX-License-Identifier: Apache-2.0
// Atomics. Floating point travels as the word of its width.
#include <bit>
#include <type_traits>

#include "nvshmem/define.hpp"

using namespace shoal::nvshmem;
using shoal::AtomicOp;

namespace {

template <typename T>
using WordOf = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

template <typename T>
T atomic(const char* call, AtomicOp op, const T* dest, int pe, T value = {}, T cond = {}) noexcept {
  return guarded(call, [&](Program& program) {
    const shoal::RemoteAddress at =
        program.remote_word(op == AtomicOp::fetch ? "source" : "dest", dest, sizeof(T), pe);
    const std::uint64_t before = program.world.atomic_word(
        op, at, std::bit_cast<WordOf<T>>(value), std::bit_cast<WordOf<T>>(cond), sizeof(T));
    return std::bit_cast<T>(static_cast<WordOf<T>>(before));
  });
}

}  // namespace

#define DEFINE_EXTENDED(TYPE, NAME)                                                        \
  NVSHMEM_DEFINE(TYPE, NAME##_atomic_fetch, (const TYPE* source, int pe)) {                \
    return atomic<TYPE>("nvshmem_" #NAME "_atomic_fetch", AtomicOp::fetch, source, pe);    \
  }                                                                                        \
  NVSHMEM_DEFINE(void, NAME##_atomic_set, (TYPE * dest, TYPE value, int pe)) {             \
    atomic<TYPE>("nvshmem_" #NAME "_atomic_set", AtomicOp::set, dest, pe, value);          \
  }                                                                                        \
  NVSHMEM_DEFINE(TYPE, NAME##_atomic_swap, (TYPE * dest, TYPE value, int pe)) {            \
    return atomic<TYPE>("nvshmem_" #NAME "_atomic_swap", AtomicOp::swap, dest, pe, value); \
  }
SHOAL_SHMEM_EXTENDED_AMO_TYPES(DEFINE_EXTENDED)

#define DEFINE_STANDARD(TYPE, NAME)                                                                \
  NVSHMEM_DEFINE(TYPE, NAME##_atomic_compare_swap, (TYPE * dest, TYPE cond, TYPE value, int pe)) { \
    return atomic<TYPE>("nvshmem_" #NAME "_atomic_compare_swap", AtomicOp::compare_swap, dest, pe, \
                        value, cond);                                                              \
  }                                                                                                \
  NVSHMEM_DEFINE(TYPE, NAME##_atomic_fetch_inc, (TYPE * dest, int pe)) {                           \
    return atomic<TYPE>("nvshmem_" #NAME "_atomic_fetch_inc", AtomicOp::add, dest, pe, 1);         \
  }                                                                                                \
  NVSHMEM_DEFINE(TYPE, NAME##_atomic_fetch_add, (TYPE * dest, TYPE value, int pe)) {               \
    return atomic<TYPE>("nvshmem_" #NAME "_atomic_fetch_add", AtomicOp::add, dest, pe, value);     \
  }                                                                                                \
  NVSHMEM_DEFINE(void, NAME##_atomic_inc, (TYPE * dest, int pe)) {                                 \
    atomic<TYPE>("nvshmem_" #NAME "_atomic_inc", AtomicOp::add, dest, pe, 1);                      \
  }                                                                                                \
  NVSHMEM_DEFINE(void, NAME##_atomic_add, (TYPE * dest, TYPE value, int pe)) {                     \
    atomic<TYPE>("nvshmem_" #NAME "_atomic_add", AtomicOp::add, dest, pe, value);                  \
  }
SHOAL_SHMEM_AMO_TYPES(DEFINE_STANDARD)

#define DEFINE_OP(TYPE, NAME, OP)                                                            \
  NVSHMEM_DEFINE(TYPE, NAME##_atomic_fetch_##OP, (TYPE * dest, TYPE value, int pe)) {        \
    return atomic<TYPE>("nvshmem_" #NAME "_atomic_fetch_" #OP, AtomicOp::bit_##OP, dest, pe, \
                        value);                                                              \
  }                                                                                          \
  NVSHMEM_DEFINE(void, NAME##_atomic_##OP, (TYPE * dest, TYPE value, int pe)) {              \
    atomic<TYPE>("nvshmem_" #NAME "_atomic_" #OP, AtomicOp::bit_##OP, dest, pe, value);      \
  }
#define DEFINE_BITWISE(TYPE, NAME) \
  DEFINE_OP(TYPE, NAME, and)       \
  DEFINE_OP(TYPE, NAME, or)        \
  DEFINE_OP(TYPE, NAME, xor)
SHOAL_SHMEM_BITWISE_AMO_TYPES(DEFINE_BITWISE)
