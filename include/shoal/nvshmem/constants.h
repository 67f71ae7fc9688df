// SPDX-License-Identifier: Apache-2.0
// constants.h: constants, handles and structures of nvshmem.h. Values and layouts are those that
// existing programs were compiled with.
#ifndef SHOAL_NVSHMEM_CONSTANTS_H
#define SHOAL_NVSHMEM_CONSTANTS_H

#include <stddef.h>
#include <stdint.h>

// The standard that the names follow, and the release whose interface this is.
#define NVSHMEM_MAJOR_VERSION 1
#define NVSHMEM_MINOR_VERSION 3
#define NVSHMEM_VENDOR_MAJOR_VERSION 3
#define NVSHMEM_VENDOR_MINOR_VERSION 4
#define NVSHMEM_VENDOR_PATCH_VERSION 5
#define NVSHMEM_VENDOR_VERSION 30405
#define NVSHMEM_VENDOR_STRING "Shoal"
#define NVSHMEM_MAX_NAME_LEN 256

enum {
  NVSHMEM_THREAD_SINGLE = 0,
  NVSHMEM_THREAD_FUNNELED = 1,
  NVSHMEM_THREAD_SERIALIZED = 2,
  NVSHMEM_THREAD_MULTIPLE = 3
};

// Not the order of OpenSHMEM.
enum nvshmemi_cmp_type {
  NVSHMEM_CMP_EQ = 0,
  NVSHMEM_CMP_NE = 1,
  NVSHMEM_CMP_GT = 2,
  NVSHMEM_CMP_LE = 3,
  NVSHMEM_CMP_LT = 4,
  NVSHMEM_CMP_GE = 5
};

enum nvshmemi_signal_op { NVSHMEM_SIGNAL_SET = 9, NVSHMEM_SIGNAL_ADD = 10 };

typedef int32_t nvshmem_team_t;
typedef nvshmem_team_t nvshmemx_team_t;
enum {
  NVSHMEM_TEAM_INVALID = -1,
  NVSHMEM_TEAM_WORLD = 0,
  NVSHMEM_TEAM_SHARED = 1,           ///< PEs whose heaps this PE reaches by load and store
  NVSHMEMX_TEAM_NODE = 2,            ///< PEs of this node
  NVSHMEMX_TEAM_SAME_MYPE_NODE = 3,  ///< PEs with this PE's index on every node
  NVSHMEMX_TEAM_SAME_GPU = 4,        ///< PEs on this PE's GPU
  NVSHMEMX_TEAM_GPU_LEADERS = 5      ///< the first PE of each GPU; invalid on other PEs
};

/// Names a team for nvshmemx_team_init; one PE makes it and passes it to the others.
typedef uint64_t nvshmem_team_uniqueid_t;
typedef struct {
  int version;
  int num_contexts;
  nvshmem_team_uniqueid_t uniqueid;
  char padding[48];
} nvshmem_team_config_t;
#define NVSHMEM_TEAM_NUM_CONTEXTS 1L
#define NVSHMEM_TEAM_CONFIG_INITIALIZER {(2 << 16) + (int)sizeof(nvshmem_team_config_t), 0, 0, {0}}

// Flags of nvshmemx_init_attr; 0: from the environment.
#define NVSHMEMX_INIT_THREAD_PES 1
#define NVSHMEMX_INIT_WITH_MPI_COMM (1 << 1)
#define NVSHMEMX_INIT_WITH_SHMEM (1 << 2)
#define NVSHMEMX_INIT_WITH_UNIQUEID (1 << 3)

/// A secret that one PE makes and passes to the others by any means.
typedef struct {
  int version;
  char internal[124];
} nvshmemx_uniqueid_t;
#define NVSHMEMX_UNIQUEID_INITIALIZER {(1 << 16) + (int)sizeof(nvshmemx_uniqueid_t), {0}}

typedef struct {
  int version;
  nvshmemx_uniqueid_t* id;
  int myrank;
  int nranks;
} nvshmemx_uniqueid_args_t;

typedef struct {
  int version;
  nvshmemx_uniqueid_args_t uid_args;
  char content[96];
} nvshmemx_init_args_t;

typedef struct {
  int version;
  void* mpi_comm;  ///< points to the MPI_Comm
  nvshmemx_init_args_t args;
} nvshmemx_init_attr_t;
#define NVSHMEMX_INIT_ATTR_INITIALIZER                                         \
  {                                                                            \
    (1 << 16) + (int)sizeof(nvshmemx_init_attr_t), NULL, {                     \
      (1 << 16) + (int)sizeof(nvshmemx_init_args_t),                           \
          {(1 << 16) + (int)sizeof(nvshmemx_uniqueid_args_t), NULL, 0, 0}, {0} \
    }                                                                          \
  }

enum {
  NVSHMEM_STATUS_NOT_INITIALIZED = 0,
  NVSHMEM_STATUS_IS_BOOTSTRAPPED = 1,
  NVSHMEM_STATUS_IS_INITIALIZED = 2,
  NVSHMEM_STATUS_LIMITED_MPG = 3,
  NVSHMEM_STATUS_FULL_MPG = 4,  ///< initialized, and PEs share a GPU
  NVSHMEM_STATUS_INVALID = 0x7fffffff
};

/// Results of functions that return an int.
enum nvshmemx_status {
  NVSHMEMX_SUCCESS = 0,
  NVSHMEMX_ERROR_INVALID_VALUE = 1,
  NVSHMEMX_ERROR_OUT_OF_MEMORY = 2,
  NVSHMEMX_ERROR_NOT_SUPPORTED = 3,
  NVSHMEMX_ERROR_SYMMETRY = 4,
  NVSHMEMX_ERROR_GPU_NOT_SELECTED = 5,
  NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED = 6,
  NVSHMEMX_ERROR_INTERNAL = 7
};

/// Prints a message of a program, with its place, to stderr, which needs <stdio.h>.
#define NVSHMEMI_ERROR_PRINT(...)                                 \
  do {                                                            \
    fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, __func__); \
    fprintf(stderr, __VA_ARGS__);                                 \
  } while (0)

struct CUstream_st;
struct CUmod_st;
struct CUlib_st;
typedef struct CUstream_st* cudaStream_t;

#endif
