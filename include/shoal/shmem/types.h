// SPDX-License-Identifier: Apache-2.0
// types.h: the types that typed routines exist for (OpenSHMEM 1.5, tables 3 to 11). Each table is a
// macro that applies X(TYPE, NAME) to its rows; shmem_NAME_put is the routine of TYPE.
#ifndef SHOAL_SHMEM_TYPES_H
#define SHOAL_SHMEM_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SHOAL_SHMEM_COMPLEX(TYPE) std::complex<TYPE>
#else
#define SHOAL_SHMEM_COMPLEX(TYPE) TYPE _Complex
#endif

// Integers.
#define SHOAL_SHMEM_INTEGER_TYPES(X) \
  X(char, char)                      \
  X(signed char, schar)              \
  X(short, short)                    \
  X(int, int)                        \
  X(long, long)                      \
  X(long long, longlong)             \
  X(unsigned char, uchar)            \
  X(unsigned short, ushort)          \
  X(unsigned int, uint)              \
  X(unsigned long, ulong)            \
  X(unsigned long long, ulonglong)   \
  X(int8_t, int8)                    \
  X(int16_t, int16)                  \
  X(int32_t, int32)                  \
  X(int64_t, int64)                  \
  X(uint8_t, uint8)                  \
  X(uint16_t, uint16)                \
  X(uint32_t, uint32)                \
  X(uint64_t, uint64)                \
  X(size_t, size)                    \
  X(ptrdiff_t, ptrdiff)

// RMA and team collectives.
#define SHOAL_SHMEM_RMA_TYPES(X) \
  X(float, float)                \
  X(double, double)              \
  X(long double, longdouble)     \
  SHOAL_SHMEM_INTEGER_TYPES(X)

// The same without second names for a type: X(TYPE, NAME, SUFFIX), for generic selections and
// overloads.
#define SHOAL_SHMEM_DISTINCT_RMA_TYPES(X, SUFFIX) \
  X(float, float, SUFFIX)                         \
  X(double, double, SUFFIX)                       \
  X(long double, longdouble, SUFFIX)              \
  X(char, char, SUFFIX)                           \
  X(signed char, schar, SUFFIX)                   \
  X(short, short, SUFFIX)                         \
  X(int, int, SUFFIX)                             \
  X(long, long, SUFFIX)                           \
  X(long long, longlong, SUFFIX)                  \
  X(unsigned char, uchar, SUFFIX)                 \
  X(unsigned short, ushort, SUFFIX)               \
  X(unsigned int, uint, SUFFIX)                   \
  X(unsigned long, ulong, SUFFIX)                 \
  X(unsigned long long, ulonglong, SUFFIX)

// Elements by their size in bits: X(BITS).
#define SHOAL_SHMEM_SIZES(X) X(8) X(16) X(32) X(64) X(128)

// Atomics, waits and tests.
#define SHOAL_SHMEM_AMO_TYPES(X)   \
  X(int, int)                      \
  X(long, long)                    \
  X(long long, longlong)           \
  X(unsigned int, uint)            \
  X(unsigned long, ulong)          \
  X(unsigned long long, ulonglong) \
  X(int32_t, int32)                \
  X(int64_t, int64)                \
  X(uint32_t, uint32)              \
  X(uint64_t, uint64)              \
  X(size_t, size)                  \
  X(ptrdiff_t, ptrdiff)
#define SHOAL_SHMEM_DISTINCT_AMO_TYPES(X, SUFFIX) \
  X(int, int, SUFFIX)                             \
  X(long, long, SUFFIX)                           \
  X(long long, longlong, SUFFIX)                  \
  X(unsigned int, uint, SUFFIX)                   \
  X(unsigned long, ulong, SUFFIX)                 \
  X(unsigned long long, ulonglong, SUFFIX)

// Atomic fetch, set and swap: also of floating point.
#define SHOAL_SHMEM_EXTENDED_AMO_TYPES(X) X(float, float) X(double, double) SHOAL_SHMEM_AMO_TYPES(X)
#define SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES(X, SUFFIX) \
  X(float, float, SUFFIX) X(double, double, SUFFIX) SHOAL_SHMEM_DISTINCT_AMO_TYPES(X, SUFFIX)

// Single waits and tests, with the deprecated short types.
#define SHOAL_SHMEM_DISTINCT_WAIT_TYPES(X, SUFFIX) \
  X(short, short, SUFFIX)                          \
  X(unsigned short, ushort, SUFFIX) SHOAL_SHMEM_DISTINCT_AMO_TYPES(X, SUFFIX)

// Bitwise atomics.
#define SHOAL_SHMEM_BITWISE_AMO_TYPES(X) \
  X(unsigned int, uint)                  \
  X(unsigned long, ulong)                \
  X(unsigned long long, ulonglong)       \
  X(int32_t, int32)                      \
  X(int64_t, int64)                      \
  X(uint32_t, uint32)                    \
  X(uint64_t, uint64)
#define SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(X, SUFFIX) \
  X(int, int32, SUFFIX)                                   \
  X(long, int64, SUFFIX)                                  \
  X(unsigned int, uint, SUFFIX)                           \
  X(unsigned long, ulong, SUFFIX)                         \
  X(unsigned long long, ulonglong, SUFFIX)

// Reductions with and, or, xor.
#define SHOAL_SHMEM_BITWISE_REDUCE_TYPES(X) \
  X(unsigned char, uchar)                   \
  X(unsigned short, ushort)                 \
  X(unsigned int, uint)                     \
  X(unsigned long, ulong)                   \
  X(unsigned long long, ulonglong)          \
  X(int8_t, int8)                           \
  X(int16_t, int16)                         \
  X(int32_t, int32)                         \
  X(int64_t, int64)                         \
  X(uint8_t, uint8)                         \
  X(uint16_t, uint16)                       \
  X(uint32_t, uint32)                       \
  X(uint64_t, uint64)                       \
  X(size_t, size)
#define SHOAL_SHMEM_DISTINCT_BITWISE_REDUCE_TYPES(X, SUFFIX) \
  X(unsigned char, uchar, SUFFIX)                            \
  X(unsigned short, ushort, SUFFIX)                          \
  X(unsigned int, uint, SUFFIX)                              \
  X(unsigned long, ulong, SUFFIX)                            \
  X(unsigned long long, ulonglong, SUFFIX)                   \
  X(signed char, int8, SUFFIX)                               \
  X(short, int16, SUFFIX)                                    \
  X(int, int32, SUFFIX)                                      \
  X(long, int64, SUFFIX)

// Reductions with min and max: every type of RMA.
#define SHOAL_SHMEM_ORDERED_REDUCE_TYPES(X) SHOAL_SHMEM_RMA_TYPES(X)
#define SHOAL_SHMEM_DISTINCT_ORDERED_REDUCE_TYPES(X, SUFFIX) \
  SHOAL_SHMEM_DISTINCT_RMA_TYPES(X, SUFFIX)

// Reductions with sum and prod: complex numbers too.
#define SHOAL_SHMEM_ARITHMETIC_REDUCE_TYPES(X) \
  SHOAL_SHMEM_RMA_TYPES(X)                     \
  X(SHOAL_SHMEM_COMPLEX(double), complexd) X(SHOAL_SHMEM_COMPLEX(float), complexf)
#define SHOAL_SHMEM_DISTINCT_ARITHMETIC_REDUCE_TYPES(X, SUFFIX) \
  SHOAL_SHMEM_DISTINCT_RMA_TYPES(X, SUFFIX)                     \
  X(SHOAL_SHMEM_COMPLEX(double), complexd, SUFFIX) X(SHOAL_SHMEM_COMPLEX(float), complexf, SUFFIX)

// Deprecated reductions over active sets.
#define SHOAL_SHMEM_BITWISE_TO_ALL_TYPES(X) \
  X(short, short) X(int, int) X(long, long) X(long long, longlong)
#define SHOAL_SHMEM_ORDERED_TO_ALL_TYPES(X) \
  SHOAL_SHMEM_BITWISE_TO_ALL_TYPES(X)       \
  X(float, float) X(double, double) X(long double, longdouble)
#define SHOAL_SHMEM_ARITHMETIC_TO_ALL_TYPES(X) \
  SHOAL_SHMEM_ORDERED_TO_ALL_TYPES(X)          \
  X(SHOAL_SHMEM_COMPLEX(double), complexd) X(SHOAL_SHMEM_COMPLEX(float), complexf)

#endif
