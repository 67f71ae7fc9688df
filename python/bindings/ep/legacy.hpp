// SPDX-License-Identifier: Apache-2.0
// ep/legacy.hpp: the normal-mode calls of deep_ep.Buffer, one binding call per operation.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <vector>

#include "call_tensors.hpp"
#include "normal_calls.hpp"

namespace shoal::python {

/// Parses the tensors of a call once, finds the group of their shape, and calls it on the current
/// stream.
class LegacyCalls {
 public:
  /// given: what CallTensors takes, and groups (a GroupPool), count_layout (topk_idx, experts),
  /// count_nodes (is_token_in_rank), ranks_as_experts (is_token_in_rank), expert_totals (tokens per
  /// expert, alignment), handle_type, make_handle (calls, layout, is_token_in_rank).
  LegacyCalls(std::int64_t ranks, std::int64_t nodes, const nb::dict& given);

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
  struct Layout {
    nb::handle per_rank, in_rank, per_expert;
  };
  /// Path of a dispatch: along a new routing, or along the layout of an earlier dispatch.
  struct Target {
    nb::object calls;
    ep::Routing routing;
    const CallLayout* layout = nullptr;
    Argument weights;
    NormalCalls* get() const { return nb::inst_ptr<NormalCalls>(calls); }
  };

  Target target_of(const char* call, nb::handle handle) const;

  Target new_target(const Rows& rows, const Layout& given, nb::handle topk_idx,
                    nb::handle topk_weights, const ep::detail::AnyDispatchOptions& options,
                    bool captured);
  nb::object group_for(const Shape& shape, std::int64_t tokens, std::int64_t scales,
                       std::int64_t worst_rows, bool captured);
  /// `known`: what remembered() found.
  ep::Routing routing_of(const Remembered* known, const NormalCalls& calls,
                         const TensorView& indices, const Layout& given, Stream stream) const;
  const Remembered* remembered(nb::handle topk_idx, const Layout& given) const;

  static constexpr std::size_t kRemembered = 4;  ///< layouts made ahead of their dispatches

  CallTensors tensors_;
  std::int64_t ranks_, nodes_;
  nb::object pool_, count_layout_, count_nodes_, ranks_as_experts_, expert_totals_;
  nb::object handle_type_, make_handle_;
  std::vector<Known> groups_;  ///< the current group of each shape, in the order of creation
  std::array<Remembered, kRemembered> remembered_;
  std::size_t next_ = 0;
};

}  // namespace shoal::python
