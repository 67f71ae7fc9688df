// SPDX-License-Identifier: Apache-2.0
// library.hpp: the functions of NCCL that Shoal calls, found at run time. Types and values are
// those of NCCL's documentation ("API"); they have been the same in all versions 2.
#pragma once

#include <cstddef>
#include <string>

#include "shoal/cuda.hpp"

namespace shoal::collective::nccl {

struct UniqueId {
  char bytes[128];
};
using Communicator = void*;

/// ncclDataType_t, ncclRedOp_t.
enum class DataType : int {
  int8,
  uint8,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  float32,
  float64,
  bfloat16
};
enum class Op : int { sum, prod, max, min };

/// Every function returns ncclResult_t: 0 for success.
struct Library {
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(UniqueId* id) = nullptr;
  const char* (*error_text)(int result) = nullptr;
  int (*make)(Communicator* communicator, int ranks, UniqueId id, int rank) = nullptr;
  int (*destroy)(Communicator communicator) = nullptr;
  int (*broadcast)(const void* source, void* target, std::size_t count, DataType type, int root,
                   Communicator communicator, cuda::Stream stream) = nullptr;
  int (*all_gather)(const void* source, void* target, std::size_t count, DataType type,
                    Communicator communicator, cuda::Stream stream) = nullptr;
  int (*all_reduce)(const void* source, void* target, std::size_t count, DataType type, Op op,
                    Communicator communicator, cuda::Stream stream) = nullptr;
  int (*reduce_scatter)(const void* source, void* target, std::size_t count, DataType type, Op op,
                        Communicator communicator, cuda::Stream stream) = nullptr;
  int (*send)(const void* source, std::size_t count, DataType type, int peer,
              Communicator communicator, cuda::Stream stream) = nullptr;
  int (*receive)(void* target, std::size_t count, DataType type, int peer,
                 Communicator communicator, cuda::Stream stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
};

/// The oldest version that is used, as NCCL_VERSION_CODE: 2.19.
inline constexpr int kOldestVersion = 21900;

/// The library in `file` (SHOAL_NCCL_LIBRARY). Returns nullptr, with the reason in `why`, where it
/// cannot be loaded, lacks a function or is older than kOldestVersion. It stays loaded.
const Library* load(const std::string& file, std::string& why);

}  // namespace shoal::collective::nccl
