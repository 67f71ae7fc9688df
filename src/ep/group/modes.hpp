// SPDX-License-Identifier: Apache-2.0
// modes.hpp: the interfaces between a group and the place of its memory: one for each mode, and one
// for the memory and the life of the group.
//
// Implementations: the host (host/), GPUs (cuda/), and GPUs whose rows pass through the host
// (cuda/staged/). Semantics and numbers are the same. The group has checked all arguments
// (checks.hpp) and is usable when it calls. Errors are those of shoal/ep/group.hpp.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ep/group/pending.hpp"
#include "ep/plan/row_format.hpp"
#include "shoal/detail/ep_layouts.hpp"
#include "shoal/memory_map.hpp"

namespace shoal::ep::detail {

/// The arguments of one dispatch.
struct DispatchCall {
  const ConstTensorView& x;
  const AnyDispatchOptions& options;
  std::shared_ptr<const RoutingState> routing;
  std::shared_ptr<const HandleState> cached{};  ///< handle whose layout is reused, or nullptr

  bool encodes() const { return options.quantize != Quantize::none; }
  /// Bytes of a row of x.
  std::size_t given_row_bytes() const { return x.shape[1] * size_of(x.dtype); }

  // Rows as they travel and arrive.

  std::size_t row_bytes() const {
    return encodes() ? RowFormat(options.quantize).row_bytes(x.shape[1]) : given_row_bytes();
  }
  /// Multiples of four.
  std::size_t scale_bytes() const {
    if (encodes())
      return 4 *
             RowFormat(options.quantize).scale_words(x.shape[1], has_byte_scales(options.quantize));
    return options.scales.defined() ? options.scales.shape[1] * 4 : 0;
  }
  bool has_scales() const { return scale_bytes() > 0; }
  DataType row_dtype() const { return encodes() ? code_dtype(options.quantize) : x.dtype; }
  std::int64_t row_elements() const {
    return static_cast<std::int64_t>(row_bytes() / size_of(row_dtype()));
  }
  DataType scale_dtype() const {
    return encodes() ? ep::detail::scale_dtype(options.quantize) : options.scales.dtype;
  }
  std::int64_t scale_elements() const {
    return encodes() ? RowFormat(options.quantize).groups(x.shape[1]) : options.scales.shape[1];
  }
  /// Alignment of the blocks of an expert-major layout; 0: rank-major.
  std::int32_t expert_alignment() const {
    if (cached) return cached->expert_alignment;
    return options.expert_major ? options.expert_alignment : 0;
  }
  /// Top-k slots described with a row of the result.
  std::int32_t topk_slots() const { return expert_alignment() > 0 ? 1 : routing->shape.top_k; }
  /// True if the number of rows has to reach the host before the call returns.
  bool waits_for_sizes() const { return options.worst_case_rows == 0 && !cached; }
};

struct Mode {
  explicit Mode(BackendKind of) : kind(of) {}
  virtual ~Mode() = default;
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;

  /// True if calls return before their operation has ended.
  bool queues() const { return kind == BackendKind::cuda; }

  const BackendKind kind;
};

struct NormalMode : Mode {
  using Mode::Mode;
  virtual Routing route(const ConstTensorView& topk_idx, const RouteOptions& options) = 0;
  virtual AnyDispatched dispatch(const DispatchCall& call) = 0;
  virtual void unpack(const AnyDispatched& received, const UnpackOptions& to) = 0;
  virtual void expand(const ExpandOptions& options) = 0;
  virtual Combined combine(const ConstTensorView& y, const HandleState& handle,
                           const CombineOptions& options) = 0;
};

struct LowLatencyMode : Mode {
  using Mode::Mode;
  virtual std::shared_ptr<PendingDispatchState> dispatch(
      const ConstTensorView& x, const ConstTensorView& topk_idx,
      const LowLatencyDispatchOptions& options) = 0;
  virtual bool ready(const PendingDispatchState& pending) = 0;
  virtual LowLatencyReceived receive(PendingDispatchState& pending) = 0;
  virtual std::shared_ptr<PendingCombineState> combine(
      const ConstTensorView& y, const ConstTensorView& topk_idx, const ConstTensorView& weights,
      const std::shared_ptr<const LowLatencyHandleState>& handle,
      const LowLatencyCombineOptions& options) = 0;
  virtual bool ready(const PendingCombineState& pending) = 0;
  virtual Tensor receive(PendingCombineState& pending) = 0;
  /// Waits until the buffer of the next combine is free.
  virtual TensorView next_combine_buffer() = 0;

  virtual std::vector<int> masked() = 0;
  virtual void set_mask(std::int32_t rank, bool masked) = 0;
  virtual void clear_masks() = 0;
};

/// Owns the resources of a group other than its block, and its modes.
class Backend {
 public:
  virtual ~Backend() = default;

  /// The modes of the group, which has them for good once it is open.
  NormalMode& normal() const { return *normal_; }
  LowLatencyMode& low_latency() const { return *low_latency_; }

  /// The memory that the group allocates before it calls open.
  virtual BlockPlan block_plan() const = 0;
  /// Names the arrays of that memory and their places.
  virtual std::vector<observe::MemoryRegion> regions() const = 0;
  /// Called once the group has its memory, before any other rank proceeds.
  virtual void open() = 0;
  /// Returns the other resources that open took. Collective.
  virtual void release() {}
  /// A rank that has given up the group, if this is known without effort. Asked at every call.
  virtual std::optional<std::int32_t> failed_rank() const { return std::nullopt; }
  /// The rank that made `failed` give up the group: `failed` itself, or one that it waited for.
  virtual std::int32_t cause_of(std::int32_t failed) const { return failed; }
  /// The same with all effort. Asked at the end.
  virtual std::optional<std::int32_t> ask_failed_rank() { return failed_rank(); }

  virtual void warmup(Group& group) = 0;
  /// Adds what kernels count. Any time between two calls.
  virtual void add_counts(Statistics&) {}
  /// The record keeps what kernels have counted so far: the world is about to close, or the group
  /// has returned its memory.
  virtual void stop_counting() noexcept {}
  virtual Stream stream() const { return nullptr; }
  virtual void synchronize() {}
  /// Orders later calls after the work queued on a stream so far. Any thread.
  virtual void order_after(Stream) noexcept {}
  /// True if a CUDA graph captures the stream.
  virtual bool captures(Stream) const noexcept { return false; }
  /// Waits for queued work like synchronize, but throws only if the group has failed.
  virtual void drain() {}

 protected:
  NormalMode* normal_ = nullptr;
  LowLatencyMode* low_latency_ = nullptr;
};

}  // namespace shoal::ep::detail
