// SPDX-License-Identifier: Apache-2.0 side_payload.hpp: scales, indices and weights that accompany
// a row of normal mode, written in place at a local rank.
#pragma once

#include <cstdint>
#include <span>

#include "ep/group/modes.hpp"
#include "ep/host/group/layout.hpp"

namespace shoal::ep::host {

using detail::DispatchCall;

/// One token, wherever it is from.
struct TokenSide {
  std::int32_t token;  ///< its number at its source
  /// [top_k] experts; not needed if a layout is reused.
  std::span<const std::int64_t> experts;
  const float* weights;         ///< [top_k], or nullptr
  const std::uint32_t* scales;  ///< strided by scale_stride, or nullptr
  std::int64_t scale_stride;
};

/// Writes the side payload of copies: everything but the row itself.
class SidePayload {
 public:
  SidePayload(const DispatchCall& call, const Shape& shape)
      : scales_(call.scale_bytes() / 4),
        cached_(call.cached != nullptr),
        all_weights_(call.options.all_weights),
        shape_(shape) {}

  /// Writes the side payload of the copy for rank `rank` to row `row` of the region at `base`.
  void write(const TokenSide& from, std::int32_t rank, std::byte* base, const ReceiveLayout& layout,
             std::int64_t row) const {
    write_scales(from, base, layout, row);
    const std::int32_t k = shape_.top_k;
    auto* out_weights = reinterpret_cast<float*>(base + layout.weights) + row * k;
    auto* out_idx = reinterpret_cast<std::int64_t*>(base + layout.topk_idx) + row * k;
    const std::int64_t first = std::int64_t{rank} * shape_.local_experts;
    for (std::int32_t i = 0; i < k; ++i) {
      const bool here = from.experts[i] >= first && from.experts[i] < first + shape_.local_experts;
      if (!cached_) out_idx[i] = here ? from.experts[i] - first : -1;
      if (from.weights != nullptr) out_weights[i] = here || all_weights_ ? from.weights[i] : 0.0F;
    }
    if (!cached_) reinterpret_cast<std::int32_t*>(base + layout.source_token)[row] = from.token;
  }

  /// Like write, for the copy for the expert of one top-k slot.
  void write_expert_major(const TokenSide& from, std::int32_t topk_slot, std::byte* base,
                          const ReceiveLayout& layout, std::int64_t row) const {
    write_scales(from, base, layout, row);
    if (from.weights != nullptr)
      reinterpret_cast<float*>(base + layout.weights)[row] = from.weights[topk_slot];
    if (cached_) return;
    reinterpret_cast<std::int64_t*>(base + layout.topk_idx)[row] =
        from.experts[topk_slot] % shape_.local_experts;
    reinterpret_cast<std::int32_t*>(base + layout.source_token)[row] = from.token;
  }

 private:
  void write_scales(const TokenSide& from, std::byte* base, const ReceiveLayout& layout,
                    std::int64_t row) const {
    auto* out = reinterpret_cast<std::uint32_t*>(base + layout.scales) + row * scales_;
    if (from.scales == nullptr) return;
    for (std::int64_t i = 0; i < scales_; ++i) out[i] = from.scales[i * from.scale_stride];
  }

  std::int64_t scales_;
  bool cached_, all_weights_;
  const Shape& shape_;
};

/// Token `token` of the caller's own.
inline TokenSide side_of(const DispatchCall& call, std::int64_t token) {
  const ConstTensorView& scales = call.options.scales;
  return {static_cast<std::int32_t>(token), call.routing->experts_of(token),
          call.options.weights.defined()
              ? call.options.weights.as<float>() + token * call.routing->shape.top_k
              : nullptr,
          scales.defined() ? scales.as<std::uint32_t>() + token * scales.strides[0] : nullptr,
          scales.defined() ? scales.strides[1] : 0};
}

}  // namespace shoal::ep::host
