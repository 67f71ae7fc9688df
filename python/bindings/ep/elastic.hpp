// SPDX-License-Identifier: Apache-2.0
// ep/elastic.hpp: dispatch and combine of deep_ep.ElasticBuffer, one binding call per operation.
#pragma once

#include <shoal/detail/ep_layouts.hpp>

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "call_tensors.hpp"
#include "normal_calls.hpp"

namespace shoal::python {

/// The layout of an elastic dispatch, from which its EPHandle is made. Expert-major rows are
/// grouped by expert; they exist with `expanded`.
struct ElasticLayout {
  nb::object calls;  ///< NormalCalls of its group
  CallLayout layout;
  nb::object sent_topk_idx;  ///< topk_idx_t [tokens, top_k]
  nb::object topk_idx;       ///< int64 [rows, top_k]: local experts, or -1
  nb::object topk_rows;      ///< int32 [rows, top_k]: expert-major rows, or -1; None: rank-major
  nb::object block_ends;     ///< int32 [local experts]: ends of blocks without padding; or None
  bool expanded = false;
  std::int64_t experts = 0, alignment = 1, max_tokens = 0, sms = 0, expanded_rows = 0;
  std::vector<std::int64_t> tokens_per_expert;
  std::optional<ep::Handle> expert_major;  ///< of the same layout, once a combine needs it

  NormalCalls* get() const { return nb::inst_ptr<NormalCalls>(calls); }
  std::int64_t rows() const { return layout.handle.result_rows(); }
};

class ElasticCalls {
 public:
  /// max_tokens: per rank, of calls that do not name it. given: what CallTensors takes, and groups
  /// (a GroupPool), handle_type, make_handle (ElasticLayout), column_major (scales),
  /// empty_column_major (rows, scales), zeros (rows, columns): int8.
  ElasticCalls(std::int64_t ranks, std::int64_t rank, std::int64_t max_tokens,
               bool multiple_reduction, const nb::dict& given);

  /// The arguments of ElasticBuffer.dispatch. limit: expert-major rows to return; None: all.
  struct Dispatch {
    nb::handle x, topk_idx, weights, stats, experts, max_tokens, alignment;
    std::int32_t sms;
    nb::handle handle;
    bool copy_topk_idx;
    nb::handle cpu_sync, expand;
    bool zero_padding, column_major;
    nb::handle limit;
  };
  /// (rows in the form of x, indices, weights, handle, event)
  nb::object dispatch(const Dispatch& call, const Events& events);
  /// (sums, sums of weights or None, event)
  nb::object combine(nb::handle x, nb::handle handle, nb::handle topk_weights, nb::handle bias,
                     std::int32_t sms, const Events& events);
  void forget_groups() { groups_.clear(); }

 private:
  struct Shape {
    std::int64_t hidden, top_k, experts;
    bool operator==(const Shape&) const = default;
  };
  struct Known {
    Shape shape;
    nb::object calls;
  };

  ElasticLayout* layout_of(const char* call, nb::handle handle) const;
  void check_cached(const Dispatch& call, const ElasticLayout& layout, nb::handle handle,
                    std::int64_t tokens) const;
  /// A layout with the terms of a new dispatch, checked. Sets the other three from them.
  ElasticLayout new_layout(const Dispatch& call, const Rows& rows, bool captured,
                           ep::detail::AnyDispatchOptions& options, ep::Routing& routing,
                           Argument& weights);
  nb::object group_for(const Shape& shape, const ElasticLayout& terms, std::int64_t scales,
                       bool captured);
  std::int64_t expanded_rows(const Dispatch& call, const ElasticLayout& layout) const;
  /// Copies rank-major rows to expert-major order.
  nb::tuple expand(const Dispatch& call, const Rows& rows, const CallReceived& sent,
                   ElasticLayout& layout, bool cached, Stream stream) const;
  const ep::Handle& expert_major_handle(ElasticLayout& layout, Stream stream,
                                        std::optional<ep::Handle>& captured_one) const;
  bool sends_every_slot(const ElasticLayout& layout) const {
    return layout.expanded && !multiple_reduction_;
  }

  CallTensors tensors_;
  std::int64_t ranks_, rank_, max_tokens_;
  bool multiple_reduction_;
  nb::object pool_, make_handle_, handle_type_, column_major_, empty_column_major_, zeros_;
  std::vector<Known> groups_;
};

}  // namespace shoal::python
