// SPDX-License-Identifier: Apache-2.0
#include "ep/group/expand.hpp"

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
  const bool tiles = to.rank == 3;
  const bool fits =
      from.rank == 2 && size_of(from.dtype) == 4 && from.shape[0] == options.x.shape[0] &&
      (from.shape[1] <= 1 || from.strides[1] == 1) &&
      (tiles || (to.rank == 2 && from.dtype == to.dtype && to.shape[0] == options.out.shape[0] &&
                 from.shape[1] == to.shape[1]));
  require(
      fits, Code::invalid_argument,
      "SHOAL-N570: expand: ExpandOptions.scales are {}, out_scales {}; allowed: elements of four "
      "bytes, one dtype, [{}, m] with contiguous rows and [{}, m]",
      [&] { return from.describe(); }, [&] { return to.describe(); }, options.x.shape[0],
      options.out.shape[0]);
  if (tiles) check_tiles(group, kCall, "ExpandOptions.out_scales", to, from, options.out.shape[0]);
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

}  // namespace shoal::ep::detail
