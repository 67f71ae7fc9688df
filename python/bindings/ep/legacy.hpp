// SPDX-License-Identifier: Apache-2.0
// ep/legacy.hpp: the normal-mode calls of deep_ep.Buffer, one binding call per operation.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "normal_calls.hpp"

namespace shoal::python {

/// What LegacyCalls takes from Python. It calls the functions for first calls, errors, and layouts
/// that only some programs use.
struct LegacySetup {
  nb::object groups;       ///< GroupPool: agree(shape, tokens, scales), get(shape, tokens, scales)
  nb::object tensor_type;  ///< torch.Tensor
  nb::object device;       ///< torch.device of all tensors
  nb::object bool_, int32, int64, float32, bfloat16, float8;  ///< dtypes of torch
  nb::object index;                                           ///< dtype of topk_idx: int64 or int32
  nb::object current_stream;    ///< (): the current cudaStream_t, None on the CPU
  nb::object capturing;         ///< (): whether a CUDA graph captures the current stream; or None
  nb::object require_tensor;    ///< raises for a tensor with another dtype, shape or device
  nb::object as_rows;           ///< a tensor in a form that any DLPack exports
  nb::object count_layout;      ///< (topk_idx, experts): a layout without a group
  nb::object count_nodes;       ///< (is_token_in_rank): tokens per node
  nb::object ranks_as_experts;  ///< (is_token_in_rank): top-k indices, one expert per rank
  nb::object
      expert_totals;       ///< (tokens per expert, alignment): tokens per local expert, collective
  nb::object handle_type;  ///< NormalHandle, with the attributes calls and layout
  nb::object make_handle;  ///< (calls, layout, is_token_in_rank): a NormalHandle
  nb::object no_event;     ///< (): the event of a call without events
  nb::object run;          ///< (call, function, inputs, *events): the function with these events
  nb::object profiler;     ///< torch.autograd.profiler on the CPU, where kernels have no names
};

/// Parses the tensors of a call once, finds the group of their shape, and calls it on the current
/// stream. Raises what DeepEP raises, with the text of deep_ep.buffers.checks.
class LegacyCalls {
 public:
  LegacyCalls(LegacySetup setup, std::int64_t ranks, std::int64_t nodes);

  /// previous_event, async_finish and allocate_on_comm_stream of a call; null inside of run().
  struct Events {
    nb::handle previous, async_finish, on_comm_stream;
  };

  /// (tokens per rank, tokens per node or None, tokens per expert, is_token_in_rank, event)
  nb::object layout(nb::handle topk_idx, nb::handle experts, const Events& events);
  /// (rows in the form of x, indices, weights, tokens per expert, handle, event). With a handle,
  /// the four before the event are None.
  nb::object dispatch(nb::handle x, nb::handle handle, nb::handle per_rank, nb::handle in_rank,
                      nb::handle per_expert, nb::handle topk_idx, nb::handle topk_weights,
                      std::int64_t alignment, std::int64_t worst_rows, std::int32_t sms,
                      const Events& events);
  /// (sums, sums of weights or None, event)
  nb::object combine(nb::handle x, nb::handle handle, nb::handle topk_weights, nb::handle bias,
                     std::int32_t sms, const Events& events);
  /// Looks groups up again, after the pool has dropped some.
  void forget_groups() { groups_.clear(); }

 private:
  /// A tensor argument: its view, and the exported object where torch has no exchange table.
  struct Argument {
    TensorView view;
    Input kept;
  };
  struct Shape {
    std::int64_t hidden, top_k, experts;
    bool operator==(const Shape&) const = default;
  };
  struct Known {
    Shape shape;
    nb::object calls;
    NormalCalls* get() const { return nb::inst_ptr<NormalCalls>(calls); }
  };
  /// The routing of a layout call, for the dispatch that gets the tensors of this layout. The
  /// references are weak: a layout that its caller drops is not kept.
  struct Remembered {
    const NormalCalls* calls = nullptr;
    nb::object topk_idx, in_rank, per_rank, per_expert;
    std::int64_t topk_idx_version = 0, in_rank_version = 0;
    ep::Routing routing;
  };
  /// The rows of a dispatch, with what its options need of them.
  struct Rows {
    nb::handle x, scales;
    Argument rows, scale_values;
    bool scaled() const { return !scales.is_none(); }
  };
  struct Layout {
    nb::handle per_rank, in_rank, per_expert;
  };
  /// Where a dispatch goes: along a new routing, or along the layout of an earlier dispatch.
  struct Target {
    nb::object calls;
    ep::Routing routing;
    const CallLayout* layout = nullptr;
    Argument weights;
    NormalCalls* get() const { return nb::inst_ptr<NormalCalls>(calls); }
  };

  Argument take(const char* call, const char* name, nb::handle tensor, DataType dtype,
                std::initializer_list<std::int64_t> shape) const;
  void explain(const char* call, const char* name, nb::handle tensor, nb::handle dtype,
               std::initializer_list<std::int64_t> shape) const;
  nb::handle dtype_object(DataType dtype) const;
  DataType index_type() const {
    return setup_.index.is(setup_.int64) ? DataType::int64 : DataType::int32;
  }
  Rows take_rows(nb::handle x) const;
  void follow(ep::Launch& launch) const;
  bool captured() const;
  Target target_of(const char* call, nb::handle handle) const;

  /// Whether a call runs as it is, without the stream of its events and without a profiler.
  bool is_plain(const Events& events) const;
  template <typename Work>
  nb::object run(const char* call, const Events& events, Work&& work,
                 const nb::tuple& inputs) const;
  Target new_target(const Rows& rows, const Layout& given, nb::handle topk_idx,
                    nb::handle topk_weights, const ep::DispatchOptions& options, bool captured);
  nb::object group_for(const Shape& shape, std::int64_t tokens, std::int64_t scales,
                       std::int64_t worst_rows, bool captured);
  /// `known`: what remembered() found.
  ep::Routing routing_of(const Remembered* known, const NormalCalls& calls,
                         const TensorView& indices, const Layout& given, void* stream) const;
  const Remembered* remembered(nb::handle topk_idx, const Layout& given) const;

  static constexpr std::size_t kRemembered = 4;  ///< layouts made ahead of their dispatches

  LegacySetup setup_;
  std::int64_t ranks_, nodes_;
  PlainTensors tensors_;
  std::vector<Known> groups_;  ///< the current group of each shape, in the order of creation
  std::array<Remembered, kRemembered> remembered_;
  std::size_t next_ = 0;
};

}  // namespace shoal::python
