// SPDX-License-Identifier: Apache-2.0
// ep/low_latency_calls.hpp: the low-latency calls of deep_ep.Buffer, one binding call per
// operation.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "call_tensors.hpp"
#include "low_latency_group.hpp"
#include "signals.hpp"

namespace shoal::python {

/// A model makes these calls twice per layer, so host time counts: a call parses its tensors once,
/// and results have addresses that are known before the send.
class LowLatencyCalls {
 public:
  /// timeout: of waits for signals, in seconds. given: what CallTensors takes, and
  /// group (hidden, top_k, experts, max_tokens): a LowLatencyGroup; check_sizes (call, max_tokens,
  /// hidden, experts); handle_type: of the tuple of DeepEP; empty (shape, strides, dtype);
  /// nvfp4_scale (call, scale): float32 [1], the scale that counts, or None; pack_weights
  /// (topk_idx, weights): rows that carry them; unpack_weights (rows, top_k): (weights, source
  /// ranks, function that fills them); in_turn (functions): a function; traced (name, function):
  /// the function in a profiler range; used_here (tensor): records the use on the current stream.
  LowLatencyCalls(std::int64_t ranks, double timeout, const nb::dict& given);

  /// The arguments of Buffer.low_latency_dispatch.
  struct Dispatch {
    nb::handle x, topk_idx, max_tokens, experts, stats, waits;
    nb::handle use_fp8, round_scale, use_ue8m0, hook, use_nvfp4, global_scale, weights;
  };
  /// (rows, counts, [weights, source ranks,] handle, event, hook or None)
  nb::object dispatch(const Dispatch& call, nb::handle async_finish) const;

  /// The arguments of Buffer.low_latency_combine. num_sms: 0: automatic.
  struct Combine {
    nb::handle x, topk_idx, weights, handle, use_logfmt, zero_copy, hook, out, waits, overlaps;
    Overlap overlap;
    std::int32_t num_sms;
  };
  /// (sums, event, hook or None)
  nb::object combine(const Combine& call, nb::handle async_finish) const;

  /// The memory for the x of the next combine with zero_copy.
  nb::object next_combine_buffer(nb::handle handle) const;

 private:
  struct Shape {
    std::int64_t hidden, top_k, experts, max_tokens;
    bool operator==(const Shape&) const = default;
  };
  struct Known {
    Shape shape;
    nb::object group;
  };
  struct Sent {
    nb::object call;  ///< SentDispatch
    LowLatencyGroup::Arrays arrays;
  };

  /// `work`, in the profiler range `kernel`, and in that of its receive where there is a hook.
  template <typename Work>
  nb::object run(const char* kernel, nb::handle is_hooked, nb::handle async_finish, Work&& work,
                 const nb::tuple& inputs) const;
  nb::object send(const Dispatch& call, nb::object& hook) const;
  nb::object collect(const Combine& call, nb::object& hook) const;
  Sent send_rows(const nb::object& group, const TensorView& rows, const TensorView& indices,
                 const ep::LowLatencyDispatchOptions& options, KeptTensors kept) const;
  nb::object group_for(const Shape& shape) const;
  SentDispatch& sent_of(const char* call, nb::handle handle) const;

  CallTensors tensors_;
  std::int64_t ranks_;
  double timeout_;
  nb::object group_, check_sizes_, handle_type_, nvfp4_scale_, pack_weights_, unpack_weights_,
      in_turn_, traced_, used_here_;
  mutable TensorMaker maker_;
  mutable std::vector<Known> groups_;
};

}  // namespace shoal::python
