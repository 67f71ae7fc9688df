// SPDX-License-Identifier: Apache-2.0
// shoal/c/memory.h: the symmetric heap, one-sided operations, signals (shoal/heap.hpp,
// shoal/world.hpp).
#ifndef SHOAL_C_MEMORY_H
#define SHOAL_C_MEMORY_H

#include <shoal/c/status.h>
#include <shoal/c/world.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Collective, with equal sizes, in the same order on all PEs. *pointer is this PE's copy; NULL for
/// 0 bytes. shoal_calloc zeroes the memory.
SHOAL_API shoal_status shoal_malloc(shoal_world* world, size_t bytes, void** pointer);
SHOAL_API shoal_status shoal_calloc(shoal_world* world, size_t count, size_t size, void** pointer);
SHOAL_API shoal_status shoal_free(shoal_world* world, void* pointer);
/// *pointer: the address in the heap of `pe` of `symmetric`, an address in this PE's heap; NULL
/// when loads and stores do not reach it.
SHOAL_API shoal_status shoal_peer_pointer(const shoal_world* world, const void* symmetric,
                                          int32_t pe, void** pointer);

/// The target of a put and the source of a get are addresses in this PE's heap; they name the same
/// place in the heap of `pe`. With _nbi the local buffer must stay untouched until shoal_quiet.
SHOAL_API shoal_status shoal_put(shoal_world* world, void* target, const void* source, size_t bytes,
                                 int32_t pe);
SHOAL_API shoal_status shoal_get(shoal_world* world, void* target, const void* source, size_t bytes,
                                 int32_t pe);
SHOAL_API shoal_status shoal_put_nbi(shoal_world* world, void* target, const void* source,
                                     size_t bytes, int32_t pe);
SHOAL_API shoal_status shoal_get_nbi(shoal_world* world, void* target, const void* source,
                                     size_t bytes, int32_t pe);
/// Orders earlier operations ahead of later ones to the same PE; shoal_quiet completes them.
SHOAL_API shoal_status shoal_fence(shoal_world* world);
SHOAL_API shoal_status shoal_quiet(shoal_world* world);

enum {
  SHOAL_ATOMIC_FETCH = 0,
  SHOAL_ATOMIC_SET = 1,
  SHOAL_ATOMIC_ADD = 2,
  SHOAL_ATOMIC_AND = 3,
  SHOAL_ATOMIC_OR = 4,
  SHOAL_ATOMIC_XOR = 5,
  SHOAL_ATOMIC_SWAP = 6,
  SHOAL_ATOMIC_COMPARE_SWAP = 7
};
/// An atomic operation on `width` aligned bytes, 4 or 8. op: SHOAL_ATOMIC_*. compare: the value
/// that SHOAL_ATOMIC_COMPARE_SWAP expects. before: NULL, or receives the value before; one of 4
/// bytes is in the low half.
SHOAL_API shoal_status shoal_atomic(shoal_world* world, int32_t op, void* target, size_t width,
                                    uint64_t operand, uint64_t compare, int32_t pe,
                                    uint64_t* before);

/// Memory of this PE's GPU, from any allocator, that all PEs share in one call
/// (SymmetricHeap::share_buffer).
typedef struct shoal_shared_buffer shoal_shared_buffer;
/// Collective.
SHOAL_API shoal_status shoal_share_buffer(shoal_world* world, const void* pointer, size_t bytes,
                                          shoal_shared_buffer** buffer);
/// *pointer: the memory of `pe` for this PE's GPU; NULL when that PE shared no bytes or this GPU
/// cannot reach them.
SHOAL_API shoal_status shoal_shared_buffer_pointer(const shoal_shared_buffer* buffer, int32_t pe,
                                                   void** pointer);
/// Collective, before the memory is freed. Frees the handle when it succeeds.
SHOAL_API shoal_status shoal_unshare_buffer(shoal_world* world, shoal_shared_buffer* buffer);
/// Frees the handle alone, for a world that is closed or has failed.
SHOAL_API shoal_status shoal_shared_buffer_destroy(shoal_shared_buffer* buffer);

enum { SHOAL_SIGNAL_SET = 0, SHOAL_SIGNAL_ADD = 1 };
enum {
  SHOAL_EQUAL = 0,
  SHOAL_NOT_EQUAL = 1,
  SHOAL_GREATER = 2,
  SHOAL_GREATER_EQUAL = 3,
  SHOAL_LESS = 4,
  SHOAL_LESS_EQUAL = 5
};

/// Sets the signal on `pe`, or adds to it. flag: 8 aligned bytes in this PE's heap. op:
/// SHOAL_SIGNAL_*.
SHOAL_API shoal_status shoal_signal(shoal_world* world, uint64_t* flag, int32_t op, uint64_t value,
                                    int32_t pe);
/// shoal_put, then shoal_signal: whoever sees the signal sees the data.
SHOAL_API shoal_status shoal_put_signal(shoal_world* world, void* target, const void* source,
                                        size_t bytes, uint64_t* flag, int32_t op, uint64_t value,
                                        int32_t pe);
/// *value: the value of this PE's flag.
SHOAL_API shoal_status shoal_signal_fetch(shoal_world* world, const uint64_t* flag,
                                          uint64_t* value);
/// Waits for at most SHOAL_TIMEOUT_MS until this PE's flag compares with `value` as asked. compare:
/// SHOAL_EQUAL and so on. seen: NULL, or receives the value that did.
SHOAL_API shoal_status shoal_signal_wait(shoal_world* world, const uint64_t* flag, int32_t compare,
                                         uint64_t value, uint64_t* seen);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHOAL_C_MEMORY_H
