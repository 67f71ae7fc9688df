// SPDX-License-Identifier: Apache-2.0
// ep/hybrid.hpp: dispatch and combine of deep_ep.HybridEPBuffer, over those of ElasticBuffer.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "elastic.hpp"

namespace shoal::python {

class HybridCalls {
 public:
  /// sms: of dispatch and combine; 0: automatic. given: what CallTensors takes, and elastic
  /// (ElasticCalls); sizes: its attribute max_num_of_tokens_per_rank is that of blocking calls so
  /// far; exchange (bytes): the bytes of all ranks, collective; most: on GPUs int32 [1], raised to
  /// the most experts of a token, else None; and on tensors probs_of (hidden, probs, topk_weights,
  /// map, topk_idx, experts), slots_of_map (map, probs, top_k, most), most_of_map (map), by_slot
  /// (probs, topk_idx), padded (topk_idx, top_k).
  HybridCalls(std::int64_t ranks, std::int64_t rank, std::int32_t dispatch_sms,
              std::int32_t combine_sms, const nb::dict& given);

  /// A routing: a map bool [tokens, experts] with probabilities, or top-k indices with weights.
  struct Routing {
    nb::handle map, probs, topk_idx, topk_weights, experts;
  };
  /// The form of a result by expert. limit: the rows of a result whose size does not reach the
  /// host; None: as many as needed.
  struct Permuted {
    nb::handle multiple, limit, experts_per_rank;
  };
  /// A new dispatch; permuted: nullptr: one row per token. (rows, scales or None, weights by top-k
  /// slot or None, EPHandle, experts)
  nb::object dispatch(const char* call, nb::handle hidden, nb::handle scales,
                      const Routing& routing, const Permuted* permuted);
  /// A dispatch along the layout of `known`, an EPHandle. The same without the last.
  nb::object repeat(nb::handle hidden, nb::handle scales, const Routing& routing,
                    nb::handle known) const;
  /// (sums, weights by top-k slot or None, event)
  nb::object combine(nb::handle hidden, nb::handle weights, nb::handle known) const;

 private:
  struct Slots {
    nb::object topk_idx, weights;
  };
  /// top-k indices or a map, with float32 [tokens, experts] or None.
  struct Chosen {
    bool is_map;
    nb::object routing, probs;
    std::int64_t tokens, experts;
  };

  Chosen chosen(const char* call, nb::handle hidden, const Routing& routing) const;
  /// The routing by top-k slot, with the same top-k on all ranks. Collective; on GPUs, calls with a
  /// limit ask no other rank.
  Slots agree(const char* call, const Chosen& chosen, bool asks);
  /// Raises top-k and the number of tokens to the most of all ranks. Collective.
  void agree_on_sizes(const char* call, std::int64_t tokens, std::int64_t most,
                      std::int64_t experts);
  nb::object send(nb::handle hidden, nb::handle scales, ElasticCalls::Dispatch call) const;
  std::int64_t max_tokens() const;

  CallTensors tensors_;
  std::int64_t ranks_, rank_;
  std::int32_t dispatch_sms_, combine_sms_;
  nb::object elastic_, sizes_, exchange_, most_, probs_of_, slots_of_map_, most_of_map_, by_slot_,
      padded_;
  std::int64_t top_k_ = 1;  ///< of blocking calls so far: a group has a fixed one
};

}  // namespace shoal::python
