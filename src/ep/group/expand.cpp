// SPDX-License-Identifier: Apache-2.0
#include "ep/group/expand.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "ep/group/checks.hpp"

namespace shoal::ep::detail {
namespace {

constexpr const char* kCall = "expand";
constexpr std::size_t kUnit = 16;  // rows are copied in such units

void check_rows_of(const GroupState& group, const char* name, const ConstTensorView& tensor,
                   std::int64_t rows, std::int64_t columns, DataType dtype) {
  check_tensor(group, kCall, name, tensor, {rows, columns}, {dtype});
  check_row_address(kCall, name, tensor);
}

void check_scales(const GroupState& group, const ExpandOptions& options) {
  const ConstTensorView& from = options.scales;
  const TensorView& to = options.out_scales;
  require(
      from.defined() == to.defined(), Code::invalid_argument,
      "SHOAL-N582: expand: ExpandOptions.scales and out_scales are given together or not at all");
  if (!from.defined()) return;
  check_device(group.device, kCall, "ExpandOptions.scales", from);
  check_device(group.device, kCall, "ExpandOptions.out_scales", to);
  const bool fits = from.rank == 2 && to.rank == 2 && from.dtype == to.dtype &&
                    size_of(from.dtype) == 4 && from.shape[0] == options.x.shape[0] &&
                    to.shape[0] == options.out.shape[0] && from.shape[1] == to.shape[1] &&
                    (from.shape[1] <= 1 || from.strides[1] == 1);
  require(
      fits, Code::invalid_argument,
      "SHOAL-N570: expand: ExpandOptions.scales are {}, out_scales {}; allowed: elements of four "
      "bytes, one dtype, [{}, m] with contiguous rows and [{}, m]",
      [&] { return from.describe(); }, [&] { return to.describe(); }, options.x.shape[0],
      options.out.shape[0]);
}

/// Requires the caller's numbers of the first `slots` top-k slots to lie in `out`: those of another
/// layout may not.
void check_numbers(const ExpandOptions& options, std::int64_t slots) {
  const std::int64_t copies = options.out.shape[0], top_k = options.topk_rows.shape[1];
  for (std::int64_t i = 0; i < slots; ++i) {
    const std::int32_t copy = options.topk_rows.as<std::int32_t>()[i];
    require(
        copy >= -1 && copy < copies, Code::invalid_argument,
        "SHOAL-N544: expand: ExpandOptions.topk_rows[{}, {}] is {}; allowed with numbered: -1 to "
        "{}, the rows of out",
        i / top_k, i % top_k, copy, copies - 1);
  }
}

}  // namespace

void check_expand(const GroupState& group, const ExpandOptions& options) {
  const auto& shape = group.shape;
  const ConstTensorView& x = options.x;
  const TensorView& out = options.out;
  require(
      x.rank == 2 && out.rank == 2, Code::invalid_argument,
      "SHOAL-N570: expand: ExpandOptions.x is {}, out {}; both must have two dimensions",
      [&] { return x.describe(); }, [&] { return out.describe(); });
  check_rows_of(group, "ExpandOptions.x", x, x.shape[0], x.shape[1], x.dtype);
  check_rows_of(group, "ExpandOptions.out", out, out.shape[0], x.shape[1], x.dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(x.shape[1]) * size_of(x.dtype);
  require(row_bytes % kUnit == 0 && row_bytes > 0, Code::invalid_argument,
          "SHOAL-N580: expand: rows of {} bytes; allowed: multiples of {}", row_bytes, kUnit);
  const std::int64_t rows = x.shape[0], copies = out.shape[0], top_k = shape.top_k,
                     experts = shape.experts_of(group.me);
  check_tensor(group, kCall, "ExpandOptions.topk_idx", options.topk_idx, {rows, top_k},
               {DataType::int64});
  check_tensor(group, kCall, "ExpandOptions.topk_rows", options.topk_rows, {rows, top_k},
               {DataType::int32});
  check_tensor(group, kCall, "ExpandOptions.tokens_per_expert", options.tokens_per_expert,
               {experts}, {DataType::int32});
  check_tensor(group, kCall, "ExpandOptions.expert_ends", options.expert_ends, {experts},
               {DataType::int32});
  if (options.rows.defined())
    check_tensor(group, kCall, "ExpandOptions.rows", options.rows, {1}, {DataType::int32});
  if (options.block_ends.defined())
    check_tensor(group, kCall, "ExpandOptions.block_ends", options.block_ends, {experts},
                 {DataType::int32});
  require(
      options.weights.defined() == options.out_weights.defined(), Code::invalid_argument,
      "SHOAL-N582: expand: ExpandOptions.weights and out_weights are given together or not at all");
  if (options.weights.defined()) {
    check_tensor(group, kCall, "ExpandOptions.weights", options.weights, {rows, top_k},
                 {DataType::float32});
    check_tensor(group, kCall, "ExpandOptions.out_weights", options.out_weights, {copies},
                 {DataType::float32});
  }
  check_scales(group, options);
}

void expand_on_host(const ExpandOptions& options) {
  const std::int64_t copies = options.out.shape[0], top_k = options.topk_idx.shape[1];
  const std::int64_t rows =
      options.rows.defined()
          ? std::min<std::int64_t>(options.x.shape[0], *options.rows.as<std::int32_t>())
          : options.x.shape[0];
  if (options.numbered) check_numbers(options, rows * top_k);
  const std::size_t row_bytes =
      static_cast<std::size_t>(options.x.shape[1]) * size_of(options.x.dtype);
  const auto* const counts = options.tokens_per_expert.as<std::int32_t>();
  const auto* const ends = options.expert_ends.as<std::int32_t>();
  const std::int64_t experts = options.expert_ends.shape[0];
  auto* const topk_rows = options.topk_rows.as<std::int32_t>();
  std::vector<std::int32_t> next(static_cast<std::size_t>(experts));
  for (std::int64_t e = 0; e < experts; ++e) {
    next[static_cast<std::size_t>(e)] = e == 0 ? 0 : ends[e - 1];
    if (options.block_ends.defined())
      options.block_ends.as<std::int32_t>()[e] = next[static_cast<std::size_t>(e)] + counts[e];
  }
  if (!options.numbered)
    for (std::int64_t i = 0; i < options.topk_rows.size(); ++i) {
      const std::int64_t expert = i < rows * top_k ? options.topk_idx.as<std::int64_t>()[i] : -1;
      const bool here = expert >= 0 && expert < experts;
      topk_rows[i] = here && next[static_cast<std::size_t>(expert)] < copies
                         ? next[static_cast<std::size_t>(expert)]++
                         : -1;
    }
  const ConstTensorView& scales = options.scales;
  const TensorView& out_scales = options.out_scales;
  const auto set_scales = [&](std::int64_t to, const std::uint32_t* from) {
    for (std::int64_t s = 0; scales.defined() && s < scales.shape[1]; ++s)
      out_scales.as<std::uint32_t>()[to * out_scales.strides[0] + s * out_scales.strides[1]] =
          from == nullptr ? 0 : from[s];
  };
  std::vector<char> filled(static_cast<std::size_t>(copies));
  for (std::int64_t i = 0; i < rows * top_k; ++i) {
    const std::int64_t to = topk_rows[i], row = i / top_k;
    if (to < 0) continue;
    filled[static_cast<std::size_t>(to)] = 1;
    std::memcpy(options.out.as<std::byte>() + static_cast<std::size_t>(to) * row_bytes,
                options.x.as<std::byte>() + static_cast<std::size_t>(row) * row_bytes, row_bytes);
    if (options.weights.defined())
      options.out_weights.as<float>()[to] = options.weights.as<float>()[i];
    if (scales.defined()) set_scales(to, scales.as<std::uint32_t>() + row * scales.strides[0]);
  }
  for (std::int64_t to = 0; to < copies; ++to) {
    if (filled[static_cast<std::size_t>(to)] != 0) continue;
    if (options.weights.defined()) options.out_weights.as<float>()[to] = 0;
    if (!options.zero_padding) continue;
    std::memset(options.out.as<std::byte>() + static_cast<std::size_t>(to) * row_bytes, 0,
                row_bytes);
    set_scales(to, nullptr);
  }
}

}  // namespace shoal::ep::detail
