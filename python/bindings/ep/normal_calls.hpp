// SPDX-License-Identifier: Apache-2.0
// ep/normal_calls.hpp: normal-mode calls of one group for deep_ep and shoal.torch.
//
// A model makes such calls for every layer, so host time counts. Arguments are positional, results
// are allocated with the allocator of the caller's library, and only the rows lie in the group's
// memory. The calls for shoal.torch with try_ take tensors that are exactly as expected, on the
// current stream; for any other argument they return None and have no effect.
#pragma once

#include <shoal/detail/ep_layouts.hpp>

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "../arrays/exchange.hpp"
#include "group.hpp"
#include "tensors.hpp"

namespace shoal::python {

/// State that the tensors of results share with the group that made them.
struct Results {
  std::shared_ptr<ep::Group> group;
  std::shared_ptr<void> heap;
  PyTypeObject* type;   ///< of tensors; exchange_of keeps it alive, and this needs no GIL
  std::int32_t device;  ///< index of the GPU
  decltype(Exchange::current_stream) find_stream;
  std::atomic<int> held = 0;  ///< tensors in the group's memory
  std::mutex mutex;
  /// Memory that a captured read on another stream may still use in every replay.
  std::vector<std::shared_ptr<void>> read_by_graphs;
};

/// A number that changes when a tensor is written; inference tensors have none.
std::int64_t version_of(nb::handle tensor);

/// A routing, for Python.
struct CallRouting {
  ep::Routing routing;
};

/// The layout of a dispatch: what its combine and later dispatches of the same layout need.
struct CallLayout {
  ep::Handle handle;
  /// int32: source_ends [ranks], expert_counts and expert_ends [local experts], source_token
  /// [rows]. Undefined for a dispatch along the layout of another; source_token alone, with 0 ranks
  /// and experts, for shoal.torch.
  nb::object side{};
  std::int64_t ranks = 0, local_experts = 0, worst_case_rows = 0;

  nb::object all() const { return side.is_valid() ? side : nb::none(); }
  nb::object part(std::int64_t first, std::int64_t end) const;
  nb::object source_ends() const { return part(0, ranks); }
  nb::object expert_counts() const { return part(ranks, ranks + local_experts); }
  nb::object expert_ends() const { return part(ranks + local_experts, ranks + 2 * local_experts); }
  nb::object source_token() const { return part(ranks + 2 * local_experts, -1); }
};

/// The result of a dispatch; absent tensors are None. `x` keeps the group's memory.
struct CallReceived {
  nb::object x, scales, topk_idx, topk_weights;
  CallLayout layout;
  std::vector<std::int64_t> tokens_per_expert;
};

/// The layout of an expert-major dispatch of shoal.torch. Rows travel once per rank, and each is
/// then copied for each of its experts here; or they travel once per expert, where that is a store
/// to the memory of a rank of this machine (ep::detail::can_be_also_rank_major).
struct ExpertMajorLayout {
  CallLayout layout;     ///< rank-major
  ep::Handle by_expert;  ///< valid where rows travel once per expert
  nb::object topk_idx;   ///< int64 [received rows, top_k]: local experts, or -1; not by_expert
  nb::object topk_rows;  ///< int32 [received rows, top_k]: expert-major rows, or -1
  std::vector<std::int64_t> tokens_per_expert;
  std::int64_t rows = 0;  ///< expert-major
};

class NormalCalls {
 public:
  /// empty: a function (shape, strides, dtype). dtypes: bool, int32, int64, float32. capturing: a
  /// function that returns whether the current stream is captured, or None.
  NormalCalls(nb::handle_t<Group> group, nb::handle tensor_type, nb::object empty,
              const nb::tuple& dtypes, nb::object capturing);

  int held() const { return results_->held; }
  /// Results of deep_ep that callers may hold in the group's memory. Others are copied.
  void set_most_held(int most) { most_held_ = most; }

  CallRouting route(nb::handle topk_idx, std::uintptr_t stream) const;
  ep::Routing route(const TensorView& indices, const ep::Launch& launch) const;
  /// A routing with its counts as tensors: int32 [ranks], int32 [experts], bool [tokens, ranks].
  struct Layout {
    ep::Routing routing;
    nb::object per_rank, per_expert, in_rank;
  };
  Layout layout(const TensorView& indices, const ep::Launch& launch);

  /// For what shoal.torch cannot pass to try_exchange and try_sum. layout: a CallRouting, or a
  /// Handle. stays: the rows may stay in the group's memory.
  CallReceived dispatch(nb::handle x, nb::handle layout, nb::handle weights,
                        std::int64_t worst_case_rows, bool stays, bool clear_unused,
                        std::uintptr_t stream);
  /// (sums, sums of weights or None)
  nb::tuple combine(nb::handle y, const ep::Handle& handle, nb::handle weights, nb::handle topk_idx,
                    std::uintptr_t stream);

  /// For shoal.torch: routes and sends rows of any dtype that a group takes, and clears unused
  /// rows; `side` is source_token alone.
  std::optional<CallReceived> try_exchange(nb::handle x, nb::handle topk_idx,
                                           nb::handle topk_weights, std::int64_t worst_case_rows,
                                           bool copy_out);
  /// combine without weights, of any dtype; a null object in place of None.
  nb::object try_sum(nb::handle y, const ep::Handle& handle);

  enum class Counts : bool { no, yes };  ///< whether a layout has more than source_token
  /// Where the rows of a result lie. `apart`: held if the library finds room where no other graph
  /// writes, else copied. `passing`: in the group's memory, for work that the caller queues before
  /// it releases them and calls again.
  enum class Place { copied, held, apart, passing };
  /// Sends along a routing or a handle, whichever is given, and unpacks.
  CallReceived send(const TensorView& rows, const ep::Routing* routing, const ep::Handle* handle,
                    ep::detail::AnyDispatchOptions options, nb::handle scales, Place place,
                    bool clear_unused = false, Counts counts = Counts::yes);
  /// Held, where the group's memory has room for this result and one more; else copied. That of a
  /// captured call is held only apart from what other graphs write, a plain one where none writes.
  Place place(bool captured) const;
  /// A dispatch whose rows are not read, for its handle.
  ep::Handle dispatch_rows(const TensorView& rows, const ep::Routing& routing,
                           const ep::detail::AnyDispatchOptions& options);
  void expand(const ep::ExpandOptions& options);
  /// The rows and counts to expand of what a dispatch brought. layout, topk_idx: those of the first
  /// dispatch of this layout. element: the type as which elements are copied.
  ep::ExpandOptions expansion(const CallReceived& sent, const CallLayout& layout,
                              nb::handle topk_idx, DataType element) const;

  /// For shoal.torch, a dispatch and the copies of its rows: (rows, their weights or None, layout).
  /// layout: a CallRouting, or an ExpertMajorLayout.
  nb::tuple dispatch_expert_major(nb::handle x, nb::handle layout, nb::handle weights,
                                  std::uintptr_t stream);
  /// (sums, sums of weights by top-k slot or None). weights: float32 [rows of y], or None.
  nb::tuple combine_expert_major(nb::handle y, const ExpertMajorLayout& layout, nb::handle weights,
                                 std::uintptr_t stream);
  /// A new tensor; columns < 0: of one dimension.
  nb::object empty(std::int64_t rows, std::int64_t columns, nb::handle dtype) {
    return maker_.make(rows, columns, dtype);
  }
  /// The view of a contiguous tensor whose dtype and shape are known.
  TensorView view_of_new(nb::handle tensor, DataType dtype, std::int64_t rows,
                         std::int64_t columns) const;
  /// (sums, sums of weights or None). y: the tensor of the rows, for its dtype.
  nb::tuple sum(const TensorView& rows, nb::handle y, const ep::Handle& handle,
                ep::CombineOptions& options);

  const PlainTensors& tensors() const { return tensors_; }
  std::int64_t hidden() const { return hidden_; }
  std::int64_t top_k() const { return top_k_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  std::int64_t local_experts() const { return local_experts_; }
  std::int64_t max_scales() const { return max_scales_; }

 private:
  struct SideTensors;
  bool captured() const;
  SideTensors allocate_side(std::int64_t rows, const ep::detail::AnyDispatchOptions& options,
                            nb::handle scales, bool is_new, Counts counts);
  bool take_any_rows(TensorView& rows, nb::handle x, std::int64_t count) const;
  nb::object take_x(ep::detail::AnyDispatched& received, Stream stream, Place place) const;
  /// dispatch_expert_major of rows that travel once per expert, into `layout` or in its layout.
  /// False on all ranks where the memory of one of them has no room for its rows.
  bool send_by_expert(const TensorView& rows, nb::handle routing, ExpertMajorLayout& layout,
                      const ep::detail::AnyDispatchOptions& given, nb::object& x,
                      nb::object& weights);

  ep::Group& group_;  ///< which results_ keeps
  PlainTensors tensors_;
  TensorMaker maker_;
  nb::object bool_, int32_, int64_, float32_, capturing_;
  std::int64_t hidden_, top_k_, experts_, local_experts_, ranks_, max_tokens_, max_scales_;
  Device device_;
  std::shared_ptr<Results> results_;
  int most_held_ = 0;
};

}  // namespace shoal::python
