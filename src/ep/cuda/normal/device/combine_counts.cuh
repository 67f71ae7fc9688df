// SPDX-License-Identifier: Apache-2.0
// combine_counts.cuh: the rows that a combine of normal mode counts, inside a node and between
// nodes.
#pragma once

#include "ep/cuda/device/record.cuh"
#include "ep/cuda/normal/device/kernels.cuh"
#include "ep/plan/row_format.hpp"

namespace shoal::ep::cuda {
namespace {

/// Bytes of a row of a combine on one node as it travels.
__device__ std::uint64_t travelling_bytes(const NormalCombine& params) {
  const auto quantize = static_cast<Quantize>(params.quantize);
  return quantize == Quantize::none ? params.row_bytes
                                    : detail::RowFormat(quantize).wire_bytes(params.row_bytes / 2);
}

/// Counts the rows of this rank's tokens, wherever they are summed. One block calls.
__device__ void count_rows(const NormalCombine& params, std::uint64_t epoch,
                           std::uint64_t row_bytes) {
  const DeviceGroup& group = params.group;
  if (group.record == nullptr) return;
  const bool by_expert = params.expert_major != 0;
  for (std::int32_t part = threadIdx.x; part < (by_expert ? group.experts : group.ranks);
       part += blockDim.x) {
    const auto rows =
        static_cast<std::uint64_t>((by_expert ? params.expert_counts : params.rank_counts)[part]);
    count_rows_moved(group, epoch, RecordedOperation::combine, rows, rows * row_bytes);
  }
}

}  // namespace
}  // namespace shoal::ep::cuda
