// SPDX-License-Identifier: Apache-2.0
// launch.hpp: starts the kernels of collectives, on the current device. Each function returns
// nullptr, or CUDA's reason where the kernel did not start. None waits. Needs no CUDA header.
#pragma once

#include <cstddef>

#include "memory/device.hpp"
#include "shoal/cuda_collective.hpp"
#include "shoal/device/types.hpp"

namespace shoal::collective::kernels {

/// Parameters that every kernel gets. The team has been checked: its PEs are reached.
struct Launch {
  cuda::Stream stream = nullptr;
  const device::World& world;
  const device::Team& team;
  int pes_on_device = 1;
  /// No other PE on this GPU, which is of sm_90 or later: a kernel may be set up while the one
  /// before ends.
  bool overlaps = false;
};

/// The arguments of a reduction, all in this PE's heap. With `parts`, what is reduced has been
/// fetched: that many blocks of `count` elements, `stride` bytes apart, at `source` in any memory.
struct ReduceArguments {
  void* target = nullptr;
  const void* source = nullptr;
  std::size_t count = 0;
  bool scatter = false;  ///< reduce_scatter; `count` elements per PE
  std::size_t parts = 0;
  std::size_t stride = 0;
};

/// Loads all kernels on the current device.
const char* load();
/// load, once on each GPU of the process: before a kernel of another PE waits for one that would
/// have to be loaded. Where it fails it is not tried again.
const char* load_once(const memory::Device& gpu);

const char* broadcast(const Launch& launch, void* target, const void* source, std::size_t bytes,
                      Pe root);
/// all_to_all, or with `same` all_gather.
const char* spread(const Launch& launch, void* target, const void* source, std::size_t bytes,
                   bool same);
const char* all_to_all_v(const Launch& launch, const device::AllToAllV& arguments);
/// The operator is defined for the type.
const char* reduce(const Launch& launch, cuda::ElementType type, ReduceOp op,
                   const ReduceArguments& arguments);

// The parts of load and reduce, by element type.
const char* reduce_small_integers(const Launch* launch, cuda::ElementType type, ReduceOp op,
                                  const ReduceArguments& arguments);
const char* reduce_integers32(const Launch* launch, cuda::ElementType type, ReduceOp op,
                              const ReduceArguments& arguments);
const char* reduce_integers64(const Launch* launch, cuda::ElementType type, ReduceOp op,
                              const ReduceArguments& arguments);
const char* reduce_floats(const Launch* launch, cuda::ElementType type, ReduceOp op,
                          const ReduceArguments& arguments);
const char* reduce_halves(const Launch* launch, cuda::ElementType type, ReduceOp op,
                          const ReduceArguments& arguments);

}  // namespace shoal::collective::kernels
