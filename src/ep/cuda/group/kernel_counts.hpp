// SPDX-License-Identifier: Apache-2.0
// kernel_counts.hpp: what the kernels of a group have counted (device/record.cuh), as the record
// and the statistics of the group show it. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/device/record.cuh"
#include "ep/plan/shape.hpp"
#include "record/recorder.hpp"
#include "shoal/ep/group.hpp"

namespace shoal::ep::cuda {

/// The epochs with which GroupMemory begins.
struct Epochs {
  std::uint64_t of_kind[kKernelKinds];
};

/// Paths by which rows of a group's kernels leave the node.
struct NodeBorders {
  bool rails = false;                      ///< normal mode exchanges chunks with rail peers
  std::vector<std::int32_t> remote_ranks;  ///< to which low-latency rows go over a network
};

/// Adds the launches to `to` that no later launch has added yet. `done`: by KernelKind, the
/// last epochs that have ended.
void add_last_launches(KernelRecord& to, const Epochs& done, const NodeBorders& borders);
/// The counters of `from`, to which all launches have been added, of rank `me` of a group with
/// this shape. `clock`: steady time minus %globaltimer, in nanoseconds.
shoal::detail::record::KernelCounts counts_of(const KernelRecord& from, const Epochs& done,
                                              const detail::Shape& shape,
                                              const NodeBorders& borders, std::int32_t me,
                                              std::int64_t clock);
/// Adds to `statistics` what kernels count.
void add_counts(const KernelRecord& from, Statistics& statistics);

}  // namespace shoal::ep::cuda
