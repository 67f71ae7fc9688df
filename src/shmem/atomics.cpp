// SPDX-License-Identifier: Apache-2.0
// Atomic memory operations, with their deprecated names. Every routine is one call of `atomic` or
// `update`.
#include <bit>
#include <type_traits>

#include "shmem/define.hpp"

using namespace shoal::shmem;
using shoal::AtomicOp;

namespace {

/// The unsigned word of 4 or 8 bytes with the bits of a T.
template <typename T>
using WordOf = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

template <typename T>
std::uint64_t bits_of(T value) {
  return std::bit_cast<WordOf<T>>(value);
}

/// The word at symmetric address `argument`.
template <typename T>
Target word(Program& program, shmem_ctx_t ctx, const char* argument, const T* address, int pe) {
  const Target at = program.target(ctx, argument, address, sizeof(T), pe);
  shoal::require(at.offset % sizeof(T) == 0, shoal::Code::invalid_argument,
                 "SHOAL-N820: {} is {}; allowed: multiples of {}", argument,
                 static_cast<const void*>(address), sizeof(T));
  return at;
}

/// Applies `op` to `dest` on PE `pe`. Returns the value before. compare_swap expects `cond`.
template <typename T>
T atomic(const char* call, AtomicOp op, shmem_ctx_t ctx, const T* dest, int pe, T value = {},
         T cond = {}) noexcept {
  return guarded(call, [&](Program& program) {
    const Target at = word(program, ctx, op == AtomicOp::fetch ? "source" : "dest", dest, pe);
    const std::uint64_t before =
        at.transport.atomic(at.pe, op, at.offset, bits_of(value), bits_of(cond), sizeof(T));
    return std::bit_cast<T>(static_cast<WordOf<T>>(before));
  });
}

/// The same, which stores the value before.
template <typename T, typename... Arguments>
void atomic_nbi(const char* call, T* fetch, AtomicOp op, shmem_ctx_t ctx, const T* dest, int pe,
                Arguments... arguments) noexcept {
  guarded(call, [&](Program&) { result("fetch", fetch); });
  *fetch = atomic<T>(call, op, ctx, dest, pe, arguments...);
}

/// The same without a result: over a network, the call does not wait for the target.
template <typename T>
void update(const char* call, AtomicOp op, shmem_ctx_t ctx, const T* dest, int pe,
            T value) noexcept {
  guarded(call, [&](Program& program) {
    const Target at = word(program, ctx, "dest", dest, pe);
    at.transport.update(at.pe, op, at.offset, bits_of(value), sizeof(T));
  });
}

}  // namespace

// A routine, and its other forms. PARAMETERS are those between the context and the PE, with a comma
// at the end; ARGUMENTS follow the PE in the call of atomic. The deprecated names have one form.
#define UNPACK(...) __VA_ARGS__
#define DEFINE_FETCH(TYPE, NAME, OP, DEST, PARAMETERS, ARGUMENTS)              \
  SHMEM_DEFINE(TYPE, NAME, (UNPACK PARAMETERS int pe)) {                       \
    return atomic<TYPE>("shmem_" #NAME, AtomicOp::OP, SHMEM_CTX_DEFAULT, DEST, \
                        pe UNPACK ARGUMENTS);                                  \
  }
#define DEFINE_FETCHING(TYPE, NAME, OP, DEST, PARAMETERS, ARGUMENTS)                       \
  DEFINE_FETCH(TYPE, NAME, OP, DEST, PARAMETERS, ARGUMENTS)                                \
  SHMEM_DEFINE(TYPE, ctx_##NAME, (shmem_ctx_t ctx, UNPACK PARAMETERS int pe)) {            \
    return atomic<TYPE>("shmem_ctx_" #NAME, AtomicOp::OP, ctx, DEST, pe UNPACK ARGUMENTS); \
  }                                                                                        \
  SHMEM_DEFINE(void, NAME##_nbi, (TYPE * fetch, UNPACK PARAMETERS int pe)) {               \
    atomic_nbi<TYPE>("shmem_" #NAME "_nbi", fetch, AtomicOp::OP, SHMEM_CTX_DEFAULT, DEST,  \
                     pe UNPACK ARGUMENTS);                                                 \
  }                                                                                        \
  SHMEM_DEFINE(void, ctx_##NAME##_nbi,                                                     \
               (shmem_ctx_t ctx, TYPE * fetch, UNPACK PARAMETERS int pe)) {                \
    atomic_nbi<TYPE>("shmem_ctx_" #NAME "_nbi", fetch, AtomicOp::OP, ctx, DEST,            \
                     pe UNPACK ARGUMENTS);                                                 \
  }
#define DEFINE_UPDATE(TYPE, NAME, OP, PARAMETERS, ARGUMENTS)                                  \
  SHMEM_DEFINE(void, NAME, (UNPACK PARAMETERS int pe)) {                                      \
    update<TYPE>("shmem_" #NAME, AtomicOp::OP, SHMEM_CTX_DEFAULT, dest, pe UNPACK ARGUMENTS); \
  }
#define DEFINE_SILENT(TYPE, NAME, OP, PARAMETERS, ARGUMENTS)                        \
  DEFINE_UPDATE(TYPE, NAME, OP, PARAMETERS, ARGUMENTS)                              \
  SHMEM_DEFINE(void, ctx_##NAME, (shmem_ctx_t ctx, UNPACK PARAMETERS int pe)) {     \
    update<TYPE>("shmem_ctx_" #NAME, AtomicOp::OP, ctx, dest, pe UNPACK ARGUMENTS); \
  }

#define DEFINE_EXTENDED(TYPE, NAME)                                                             \
  DEFINE_FETCHING(TYPE, NAME##_atomic_fetch, fetch, source, (const TYPE* source, ), ())         \
  DEFINE_FETCHING(TYPE, NAME##_atomic_swap, swap, dest, (TYPE * dest, TYPE value, ), (, value)) \
  DEFINE_SILENT(TYPE, NAME##_atomic_set, set, (TYPE * dest, TYPE value, ), (, value))           \
  DEFINE_FETCH(TYPE, NAME##_fetch, fetch, source, (const TYPE* source, ), ())                   \
  DEFINE_FETCH(TYPE, NAME##_swap, swap, dest, (TYPE * dest, TYPE value, ), (, value))           \
  DEFINE_UPDATE(TYPE, NAME##_set, set, (TYPE * dest, TYPE value, ), (, value))
SHOAL_SHMEM_EXTENDED_AMO_TYPES(DEFINE_EXTENDED)

#define DEFINE_STANDARD(TYPE, NAME)                                                            \
  DEFINE_FETCHING(TYPE, NAME##_atomic_compare_swap, compare_swap, dest,                        \
                  (TYPE * dest, TYPE cond, TYPE value, ), (, value, cond))                     \
  DEFINE_FETCHING(TYPE, NAME##_atomic_fetch_inc, add, dest, (TYPE * dest, ), (, 1))            \
  DEFINE_FETCHING(TYPE, NAME##_atomic_fetch_add, add, dest, (TYPE * dest, TYPE value, ),       \
                  (, value))                                                                   \
  DEFINE_SILENT(TYPE, NAME##_atomic_inc, add, (TYPE * dest, ), (, 1))                          \
  DEFINE_SILENT(TYPE, NAME##_atomic_add, add, (TYPE * dest, TYPE value, ), (, value))          \
  DEFINE_FETCH(TYPE, NAME##_cswap, compare_swap, dest, (TYPE * dest, TYPE cond, TYPE value, ), \
               (, value, cond))                                                                \
  DEFINE_FETCH(TYPE, NAME##_finc, add, dest, (TYPE * dest, ), (, 1))                           \
  DEFINE_FETCH(TYPE, NAME##_fadd, add, dest, (TYPE * dest, TYPE value, ), (, value))           \
  DEFINE_UPDATE(TYPE, NAME##_inc, add, (TYPE * dest, ), (, 1))                                 \
  DEFINE_UPDATE(TYPE, NAME##_add, add, (TYPE * dest, TYPE value, ), (, value))
SHOAL_SHMEM_AMO_TYPES(DEFINE_STANDARD)

#define DEFINE_BITWISE_OP(TYPE, NAME, FETCHING, SILENT, OP)                         \
  DEFINE_FETCHING(TYPE, FETCHING, OP, dest, (TYPE * dest, TYPE value, ), (, value)) \
  DEFINE_SILENT(TYPE, SILENT, OP, (TYPE * dest, TYPE value, ), (, value))
#define DEFINE_BITWISE(TYPE, NAME)                                                   \
  DEFINE_BITWISE_OP(TYPE, NAME, NAME##_atomic_fetch_and, NAME##_atomic_and, bit_and) \
  DEFINE_BITWISE_OP(TYPE, NAME, NAME##_atomic_fetch_or, NAME##_atomic_or, bit_or)    \
  DEFINE_BITWISE_OP(TYPE, NAME, NAME##_atomic_fetch_xor, NAME##_atomic_xor, bit_xor)
SHOAL_SHMEM_BITWISE_AMO_TYPES(DEFINE_BITWISE)
