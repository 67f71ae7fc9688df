// SPDX-License-Identifier: Apache-2.0
// shoal/ep/options.hpp: the options of an expert-parallel group, the memory that it takes, and how
// its calls are ordered with other work on a GPU.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <shoal/stream.hpp>
#include <shoal/tensor.hpp>

namespace shoal::ep {

/// Experts per token, at most.
inline constexpr std::int32_t kMaxTopK = 128;

/// Orders a call of a group in GPU memory with other work on the GPU. The host backend ignores it.
///
/// Streams and events belong to the caller and must outlive the call's work.
struct Launch {
  /// Runs the call's kernels; nullptr: Group::stream().
  Stream stream = nullptr;
  /// The call's kernels wait for it first; optional.
  Event after = nullptr;
  /// Recorded after the call's kernels; optional.
  Event done = nullptr;
  /// SMs (thread blocks) that the call may hold; 0: SHOAL_EP_SMS, or a measured choice.
  std::int32_t sms = 0;
};

/// The options of a group; the same on all ranks.
///
///   shoal::ep::Group group(world.team(), {.max_tokens = 4096, .hidden = 7168, .top_k = 8,
///                                         .experts = 256, .preinitialize = true});
struct GroupOptions {
  /// Tokens per rank and normal operation, at most; 0: no normal mode.
  std::int64_t max_tokens = 0;
  /// Channels of a row. Rows of every dtype in use must be a multiple of 16 bytes.
  std::int64_t hidden = 0;
  /// Experts per token, 1 to kMaxTopK.
  std::int32_t top_k = 0;
  /// Experts of all ranks together. Each rank holds consecutive ones: ranks r < experts % ranks
  /// hold experts / ranks + 1, the others experts / ranks.
  std::int32_t experts = 0;
  /// The first expert of each rank, if they are spread otherwise: [ranks] numbers that ascend from
  /// 0; or [ranks + 1], the last of which is `experts`. Two equal numbers are a rank without
  /// experts.
  std::vector<std::int32_t> first_expert = {};
  /// An id in topk_idx that means no expert, as -1 always does: -1, or any id from `experts` on,
  /// such as `experts` itself, with which FlashInfer fills unused slots.
  std::int32_t none_expert = -1;
  /// The widest row dtype of normal mode, which determines the size of the receive area: bfloat16,
  /// float16, float32 or float8_e4m3.
  DataType dtype = DataType::bfloat16;
  /// Scales (4 bytes each) per row, at most; 0: one per 128 channels.
  std::int64_t max_scales = 0;
  /// The number of normal-mode results of any size that can be held at once. More can be held when
  /// they are small. With 1 and combine_staging, a group in GPU memory has room for one more, which
  /// is transient (DispatchOptions::transient) or the copy that a combine makes.
  std::int32_t live_results = 2;
  /// Tokens per rank and low-latency operation, at most; 0: no low-latency mode.
  std::int64_t low_latency_max_tokens = 0;
  /// Calls Group::warmup while the group is made, so that the first operation of each mode is as
  /// fast as later ones.
  bool preinitialize = false;
  /// Low-latency operations continue without ranks that time out (Group::masked). A rank may then
  /// leave early: Group::close and World::close warn where the other ranks do not come.
  bool mask_failed = false;
  /// The limit of every wait of this group; 0: SHOAL_TIMEOUT_MS.
  std::chrono::milliseconds timeout{0};
  /// Threads of this PE that move rows on the host backend; 0: SHOAL_EP_THREADS.
  std::int32_t threads = 0;
  /// Whether combine takes a y outside the symmetric heap, which needs room for a copy: on GPUs,
  /// real memory of ranks * max_tokens rows, with live_results 1 that of another result. Without it
  /// such a y is Error{invalid_argument}, unless it lies in a shared buffer
  /// (SymmetricHeap::share_buffer). CombineOptions::quantize needs the room on one node wherever y
  /// lies.
  bool combine_staging = true;
  /// Between nodes, normal mode: bytes of a chunk; 0: SHOAL_EP_CHUNK.
  std::int64_t chunk_bytes = 0;
  /// Between nodes, normal mode: chunks in flight to one other node; 0: SHOAL_EP_DEPTH. Memory
  /// grows with it: two rings of so many chunks for each node. Kernels use 2 to 64.
  std::int32_t chunks_in_flight = 0;
};

/// Bytes of the symmetric heap that a group takes on each rank, by part.
///
/// On the host they are address space; the system provides a page when it is first used. On GPUs
/// they are memory, which the driver gives in steps of 2 MiB, and to a group's low-latency results
/// in steps of 32 MiB.
struct SizeHint {
  std::size_t control = 0;      ///< signals and counts
  std::size_t normal = 0;       ///< receive area and staging of normal mode
  std::size_t low_latency = 0;  ///< slots and combine buffers of low-latency mode
  /// On GPUs, outside the heap and not in total(): what low-latency results take at their first use
  /// or in a warm-up. Results in bfloat16 that are held while the next one is made take as much
  /// again.
  std::size_t results = 0;
  [[nodiscard]] std::size_t total() const noexcept { return control + normal + low_latency; }
};

/// The memory of a group of `ranks` ranks, spread evenly over `nodes` nodes. Local and pure.
///
/// A group of GPU tensors on several nodes takes host memory (SHOAL_STAGING_SIZE): ask with
/// DeviceKind::host for it. Kernels that send rows between nodes take memory of the heap as well.
/// Throws Error{invalid_argument} for options outside their limits.
[[nodiscard]] SizeHint size_hint(const GroupOptions& options, std::int32_t ranks,
                                 DeviceKind heap = DeviceKind::host, std::int32_t nodes = 1);
/// SizeHint::low_latency alone, by the fields of GroupOptions that determine it.
[[nodiscard]] std::size_t low_latency_size_hint(std::int64_t max_tokens, std::int64_t hidden,
                                                std::int32_t ranks, std::int32_t experts,
                                                std::int32_t top_k = 8,
                                                DeviceKind heap = DeviceKind::host);

}  // namespace shoal::ep
