// SPDX-License-Identifier: Apache-2.0
// kernels.cuh: the kernels of normal mode and their parameters.
//
//   route               top-k indices -> which token goes to which rank; once per routing
//   number_topk_slots   -> index of each top-k slot among the tokens of its expert;
//                       once per routing,
//                       before expert-major dispatches
//   dispatch            notify, send, receive in one kernel: its first block publishes counts
//                       and the granted region,
//                       all blocks send,
//                       the block that ends last waits
//                       for the rows of all ranks
//   combine             notify, fetch and sum, finish, in the same way
//   stage_output        expert output where the ranks of this node find it, in a kernel before the
//                       combine: between nodes, and where rows are encoded
//   expand              copies rank-major rows to expert-major order
//
// A dispatch is a scatter to final places: once the counts of all ranks are known, every source
// knows the row of every token at every rank. A row is loaded once into shared memory and stored
// from there to each rank that needs it. A combine fetches the rows of a token from the ranks that
// hold them, chunk by chunk.
//
// Expert-major dispatches (DispatchOptions.expert_major) store a row once for each top-k slot:
// notices carry the counts of all experts, and every block derives from them where this rank's
// tokens for each expert start.
#pragma once

#include "ep/cuda/device/divisor.cuh"
#include "ep/cuda/device/group.cuh"
#include "ep/cuda/device/slots.cuh"
#include "ep/cuda/normal/device/plan.hpp"
#include "ep/plan/row_format.hpp"
#include "shoal/tensor.hpp"

namespace shoal::ep::cuda {

/// One copy of a token in a rank-major result: the destination rank, and the row index among the
/// rows sent there.
SHOAL_HOST_DEVICE constexpr std::int32_t pack_copy(std::int32_t rank, std::int32_t row_index) {
  return rank << 24 | row_index;
}
SHOAL_HOST_DEVICE constexpr std::int32_t copy_rank(std::int32_t copy) {
  return copy >> 24;
}
SHOAL_HOST_DEVICE constexpr std::int32_t copy_row_index(std::int32_t copy) {
  return copy & 0xffffff;
}
inline constexpr std::int32_t kNoCopy = -1;
inline constexpr std::int64_t kMaxDeviceTokens = 1 << 24;  ///< row indices have 24 bits

/// The arrays of a routing, in device memory.
struct RoutingArrays {
  std::int64_t* topk_idx;  ///< [tokens, top_k]; indices out of range as -1
  /// [tokens, copies_per_token]: by the last top-k slot that names the rank; then kNoCopy.
  std::int32_t* copies;
  std::int32_t* rank_counts;    ///< [ranks]
  std::int32_t* expert_counts;  ///< [experts]
  /// [tokens, top_k]: index of the token among those of the slot's expert; by number_topk_slots.
  std::int32_t* expert_row_indices;
  /// [1]: tokens with an expert, of a group on one node; nullptr: not counted.
  std::int32_t* node_counts;
};

/// The arrays of a handle, in device memory.
struct HandleArrays {
  std::uint64_t* epoch;         ///< of the dispatch that made the layout
  std::int32_t* first_row;      ///< [ranks]: where this rank's rows start at each rank
  std::int32_t* received;       ///< [ranks]: rows that each rank receives from all ranks
  std::int32_t* expert_counts;  ///< [own_experts]: tokens that this rank received for each expert
  std::int32_t* expert_ends;    ///< [own_experts]: sums of the aligned counts up to each expert
  std::int32_t* source_ends;    ///< [ranks]: rows that this rank received from ranks up to each
  // The next members are set in an expert-major layout.
  std::int32_t* expert_rows;  ///< [experts]: where this rank's rows start, at the expert's rank
  /// [own_experts + 1]: this rank's blocks of experts, and the end.
  std::int32_t* expert_first_row;
};

/// The sizes of a dispatch, for the host that waits for them; in host memory. Followed by int32
/// rows of each source [ranks] and tokens of each expert of this rank [own_experts].
struct SizesMessage {
  volatile std::uint64_t sequence;  ///< the number of the call, written last
  volatile std::int64_t received;
};

/// route.cu
struct NormalRoute {
  DeviceGroup group;
  const void* topk_idx;
  std::int32_t is_int64;
  std::int32_t tokens, copies_per_token;
  RoutingArrays out;
  // Copies for the caller, or nullptr.
  std::uint8_t* is_token_in_rank;             ///< [tokens, ranks]: 0 or 1
  std::int32_t *rank_counts, *expert_counts;  ///< [ranks], [experts]
  std::int32_t* node_counts;                  ///< [1], with out.node_counts
  Divisor by_top_k;                           ///< set by the launcher
};

/// number_topk_slots.cu
struct NormalNumberTopkSlots {
  const std::int64_t* topk_idx;  ///< of RoutingArrays
  std::int32_t* expert_row_indices;
  std::int32_t tokens, top_k, experts;
};

/// dispatch.cuh
struct NormalDispatch {
  DeviceGroup group;
  const std::byte* x;
  std::uint32_t row_bytes;    ///< as rows travel
  std::uint32_t x_row_bytes;  ///< more where the kernel encodes
  std::uint32_t quantize;     ///< Quantize
  std::uint32_t encodes;      ///< not 0: x is bfloat16, which this kernel encodes
  const float* global_scale;  ///< of nvfp4; nullptr: 1
  std::uint32_t by_expert;    ///< not 0: global_scale has one for each expert; with `encodes`
  std::int32_t tokens, copies_per_token;
  const std::int32_t* copies;
  std::uint32_t write_indices;            ///< 0 with a cached handle
  const float* weights;                   ///< [tokens, top_k], or nullptr
  const std::uint32_t* scales;            ///< or nullptr
  std::int64_t scale_stride, scale_step;  ///< in words: between tokens, between scales of a token
  std::uint32_t scale_count;
  RoutingArrays routing;
  HandleArrays handle;
  std::uint32_t cached;  ///< not 0: the handle's arrays are read, not written
  std::uint64_t region;  ///< the granted region, as an offset in the block; kNoRoom: none
  std::int64_t region_rows;
  std::uint32_t expert_alignment;  ///< of an expert-major layout; 0: rank-major
  std::uint32_t count_alignment;   ///< of HandleArrays::expert_ends
  std::uint32_t all_weights;       ///< not 0: also those of top-k slots with experts elsewhere
  std::uint32_t table_offset;  ///< of HandleArrays::expert_rows in shared memory, if expert-major
  std::uint32_t fill;  ///< not 0: rows that no token fills get indices of -1 and weights of 0
  std::uint32_t dtype;
  SizesMessage* sizes;  ///< nullptr: the host does not wait
  std::uint64_t sequence;
  std::uint32_t stage_bytes, stages, warps;
};

/// encode_rows.cu: rows in a format (Quantize), where the kernel that sends does not encode.
struct NormalEncodeRows {
  const std::byte* x;         ///< bfloat16 [tokens, hidden]
  std::byte *codes, *scales;  ///< results: [tokens, row_bytes], [tokens, scale_bytes]
  std::uint32_t row_bytes, scale_bytes, hidden;
  std::int32_t tokens;
  std::uint32_t quantize;
  const float* global_scale;  ///< of nvfp4; nullptr: 1
};

/// A buffer that a rank shares (SymmetricHeap::share_buffer), as mapped for this GPU.
struct SharedRange {
  std::uint64_t id;  ///< the rank's number for it; 0: none
  const std::byte* base;
};
/// Entries of each rank in a ShareTable: number n has entry n % kShareSlots.
inline constexpr std::uint32_t kShareSlots = 64;

/// unpack.cu: one array that is copied, in words of four bytes.
struct UnpackedArray {
  const std::uint32_t* from;  ///< rows contiguous
  std::uint32_t* to;
  std::int64_t from_stride;  ///< words between rows
  detail::RowPlaces places;  ///< of `to`, in words
  std::int64_t words;        ///< of all rows
  Divisor by_row;            ///< words of a row
  std::uint32_t wide;        ///< 1 for elements of two words, else 0
};
struct NormalUnpack {
  static constexpr int kMaxArrays = 8;
  UnpackedArray arrays[kMaxArrays];
  int count;
  // Arrays of UnpackOptions::clear_unused.
  uint4* cleared;        ///< the rows; nullptr: they keep what they have
  std::int64_t vectors;  ///< of 16 bytes, in all rows
  std::int64_t row_vectors;
  const std::int32_t* row_count;  ///< rows with a token
};

/// expand.cu. Fields as those of ExpandOptions; nullptr: not given.
struct NormalExpand {
  const std::byte* x;
  std::byte* out;
  std::uint32_t row_vectors;  ///< of 16 bytes
  std::int32_t rows, out_rows, top_k, experts;
  const std::int64_t* topk_idx;
  const std::int32_t *row_count, *expert_counts, *expert_ends;
  std::int32_t *topk_rows, *block_ends;
  const float* weights;
  float* out_weights;
  const std::uint32_t* scales;
  std::uint32_t* out_scales;
  std::int64_t scale_stride;     ///< in elements
  detail::RowPlaces out_places;  ///< of out_scales
  std::int32_t scale_count;
  std::uint32_t numbered, zero_padding;  ///< 0 or 1
};
/// Throws Error{unsupported} for more rows than a kernel counts.
NormalExpand expand_parameters(const ExpandOptions& options);

/// Expert output of this rank that other ranks do not reach (combine_staging.cuh).
struct CombineStaging {
  const std::byte* rows;          ///< or nullptr: the rows are reached where they lie
  const std::int32_t* topk_rows;  ///< [y_rows, top_k]: rows to be added, -1: none; or nullptr
  const float* weights;           ///< or nullptr. With topk_rows one for each of `rows`
  std::int64_t weight_stride;     ///< in elements
  const std::int64_t* topk_idx;   ///< [y_rows, top_k]: weights of slots below 0 count as 0
  std::int32_t row_count;         ///< rows that topk_rows may name
  std::int32_t blocks;            ///< that stage before they fetch; 0: nothing is staged
  std::uint32_t copy_bytes;       ///< of shared memory, for each warp that copies rows
};

/// combine.cuh
struct NormalCombine {
  DeviceGroup group;
  std::uint64_t y, y_weights;  ///< offsets in the block; y_weights: kNoRoom where there are none
  std::uint64_t share;         ///< not 0: number of the shared range whose start `y` counts from
  /// [ranks][kShareSlots], in host memory: read only for ranks whose y lies in a shared range.
  const SharedRange* shares;
  std::uint32_t weight_stride;  ///< bytes
  std::int64_t y_rows;
  std::uint32_t row_bytes;
  std::int32_t tokens, copies_per_token;  ///< copies_per_token: top_k if expert-major
  const std::int32_t* copies;
  std::uint32_t expert_major;  ///< not 0: a row for each top-k slot
  /// Not 0: `out` has the row of each top-k slot, which takes the place of a token in `tokens` and
  /// `copies_per_token`.
  std::uint32_t unsummed;
  const std::int64_t* topk_idx;  ///< of RoutingArrays, as the next
  const std::int32_t* expert_row_indices;
  const std::int32_t *rank_counts, *expert_counts;
  HandleArrays handle;
  const std::byte* bias[2];
  std::byte* out;
  float* out_weights;  ///< [tokens, top_k], or nullptr
  std::uint32_t dtype;
  /// Quantize of the rows, which lie in the staging area, or between nodes of the sums of nodes.
  std::uint32_t quantize;
  std::uint32_t chunk_bytes, stages, warps;
  std::uint32_t stage_rows;  ///< chunks that a stage has room for
  CombineStaging staging;
  std::uint32_t segment_chunks;  ///< chunks of a token that a warp sums at a time
  Divisor by_segments;           ///< segments of a token; set by the launcher
};

/// Rows that a combine adds for a token.
enum class AddedRows : std::uint8_t {
  of_ranks,    ///< a row of each rank
  of_experts,  ///< a row of each top-k slot: the layout is expert-major
  /// A row of each rank. That of this rank is the sum of the rows that CombineOptions::topk_rows
  /// names, rounded; those of other ranks have been summed there.
  of_ranks_summed
};

/// True if a token has more rows than a warp has lanes: a combine then loads them one by one.
inline bool adds_many_rows(const NormalCombine& params) {
  return params.copies_per_token > kOnePerLane ||
         (params.staging.topk_rows != nullptr && params.group.top_k > kOnePerLane);
}

/// stage_output.cu: CombineStaging of the parameters says from where.
struct StageOutput {
  NormalCombine normal;
  std::uint32_t quantize;  ///< Quantize in which rows are staged
};

/// Launches a kernel that begins with griddepcontrol_wait: it may be set up before the one in front
/// of it has ended.
template <typename Params>
void launch(void (*kernel)(Params), const Params& params, const NormalPlan& plan,
            cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(static_cast<unsigned>(plan.warps) * 32);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = plan.overlap_launches ? 1 : 0;
  config.attrs = &attribute;
  config.numAttrs = 1;
  (void)cudaLaunchKernelEx(&config, kernel, params);
}

// overlap_launches: as in NormalPlan.
void launch_normal_route(NormalRoute params, bool overlap_launches, cudaStream_t stream);
void launch_normal_encode_rows(const NormalEncodeRows& params, cudaStream_t stream);
void preload_normal_encode_rows();
void launch_normal_number_topk_slots(const NormalNumberTopkSlots& params, cudaStream_t stream);
void launch_normal_dispatch(const NormalDispatch& params, const NormalPlan& plan,
                            cudaStream_t stream);
void launch_normal_combine(NormalCombine params, const NormalPlan& plan, cudaStream_t stream);
void launch_stage_output(const StageOutput& params, std::int32_t blocks, cudaStream_t stream);
/// Kernels for more top-k slots, or more rows of a token, than a warp has lanes: in files of their
/// own, whose device code is compressed, because few programs need it.
using DispatchKernel = void (*)(NormalDispatch);
DispatchKernel many_slots_dispatch_kernel(bool expert_major, bool encodes, bool by_expert);
using CombineKernel = void (*)(NormalCombine);
CombineKernel many_rows_combine_kernel(AddedRows rows, Quantize quantize, DataType dtype);
void launch_unpack(const NormalUnpack& params, bool overlap_launches, cudaStream_t stream);
/// `blocks`: those that run at once.
void launch_expand(const NormalExpand& params, std::int32_t blocks, bool overlap_launches,
                   cudaStream_t stream);

/// Load the code of the kernels and set their attributes, so that first calls do not pay for it.
/// `shared_bytes` is the shared memory that a block can have on this GPU. `many_slots`: of a group
/// with more top-k slots than a warp has lanes.
void preload_normal_route(bool many_slots);
void preload_normal_number_topk_slots();
void preload_normal_dispatch(bool many_slots, int shared_bytes);
void preload_normal_combine(bool many_slots, int shared_bytes);
void preload_stage_output(bool many_slots);
void preload_unpack();
void preload_expand(bool many_slots);

/// Epoch of a handle whose dispatch did not take place.
inline constexpr std::uint64_t kRefused = ~std::uint64_t{0};

}  // namespace shoal::ep::cuda
