// SPDX-License-Identifier: Apache-2.0 side_payload.hpp: scales, indices and weights that accompany
// a row of normal mode, written in place at a local rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/align.hpp"
#include "ep/group/modes.hpp"
#include "ep/host/group/layout.hpp"
#include "ep/host/rows/row_ops.hpp"
#include "ep/numeric/scale.hpp"

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
    const std::int64_t first = shape_.first_expert(rank), end = shape_.first_expert(rank + 1);
    for (std::int32_t i = 0; i < k; ++i) {
      const bool here = from.experts[i] >= first && from.experts[i] < end;
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
        shape_.local_of(from.experts[topk_slot]);
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

/// A token of the caller's own, as it travels.
struct OwnToken {
  TokenSide side;
  const std::byte* row;
};

/// The caller's own tokens, one at a time. Encodes rows into memory of its own.
class OwnTokens {
 public:
  explicit OwnTokens(const DispatchCall& call)
      : call_(call),
        scales_at_(align_up(call.row_bytes(), sizeof(std::uint32_t))),
        encoded_(call.encodes() ? scales_at_ + call.scale_bytes() : 0) {
    if (call.options.quantize == Quantize::fp8_ue8m0)
      floats_.resize(static_cast<std::size_t>(call.scale_elements()));
  }

  /// Valid until the next call. Without its row and scales where has_scale_per_expert.
  OwnToken token(std::int64_t token) {
    const ConstTensorView& scales = call_.options.scales;
    OwnToken own{
        {static_cast<std::int32_t>(token), call_.routing->experts_of(token),
         call_.options.weights.defined()
             ? call_.options.weights.as<float>() + token * call_.routing->shape.top_k
             : nullptr,
         scales.defined() ? scales.as<std::uint32_t>() + token * scales.strides[0] : nullptr,
         scales.defined() ? scales.strides[1] : 0},
        static_cast<const std::byte*>(call_.x.data) + token * call_.given_row_bytes()};
    if (!call_.encodes() || call_.routing->copies_of(token).empty()) return own;
    own.side.scales = reinterpret_cast<const std::uint32_t*>(encoded_.data() + scales_at_);
    own.side.scale_stride = 1;
    if (!detail::has_scale_per_expert(call_.options)) encode(token, 0);
    own.row = encoded_.data();
    return own;
  }

  /// Puts the row and the scales of the last token in the form of those for an expert.
  void encode(std::int64_t token, std::int64_t expert) {
    encode(static_cast<const std::uint16_t*>(call_.x.data) + token * call_.x.shape[1],
           detail::global_scale_of(call_.options, expert));
  }

 private:
  void encode(const std::uint16_t* row, float global) {
    const detail::AnyDispatchOptions& options = call_.options;
    std::byte* const scales = encoded_.data() + scales_at_;
    encode_row(options.quantize, global, reinterpret_cast<std::uint8_t*>(encoded_.data()),
               floats_.empty() ? scales : reinterpret_cast<std::byte*>(floats_.data()), row,
               static_cast<std::size_t>(call_.x.shape[1]));
    for (std::size_t group = 0; group < floats_.size(); ++group)
      scales[group] = std::byte{numeric::encode_ue8m0(floats_[group])};
  }

  const DispatchCall& call_;
  const std::size_t scales_at_;
  std::vector<std::byte> encoded_;  ///< codes and scales; bytes after the last scale are 0
  std::vector<float> floats_;       ///< of fp8_ue8m0
};

}  // namespace shoal::ep::host
