// SPDX-License-Identifier: Apache-2.0
#include "ep/group/unpack.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "ep/group/checks.hpp"
#include "ep/plan/row_format.hpp"

namespace shoal::ep::detail {

namespace {

/// Scales of one byte as the words in which they lie, whole ones for each row; others as they are.
Tensor words_of(const Tensor& scales) {
  if (!scales.defined() || size_of(scales.dtype) != 1) return scales;
  TensorView words = scales;
  words.dtype = DataType::int32;
  words.shape[1] = (scales.shape[1] + 3) / 4;
  words.strides[0] = scales.strides[0] / 4;
  return {words, scales.owner};
}

void check_scale_tiles(const GroupState& group, const Tensor& words, const TensorView& tiles,
                       const HandleState& handle) {
  constexpr const char* kName = "UnpackOptions.scales";
  check_tiles(group, "unpack", kName, tiles, words, words.shape[0]);
  require(handle.expert_alignment > 0 && handle.expert_alignment % kTileRows == 0,
          Code::invalid_argument,
          "SHOAL-N582: unpack: {} are tiles and the alignment of the dispatch is {}; allowed: "
          "expert-major with multiples of {}",
          kName, handle.expert_alignment, kTileRows);
}

}  // namespace

std::vector<ArrayCopy> unpacked_arrays(const GroupState& group, const AnyDispatched& received,
                                       const UnpackOptions& to) {
  constexpr const char* kUnpack = "unpack";
  std::vector<ArrayCopy> copies;
  const auto add = [&](const char* name, const Tensor& from, const TensorView& array) {
    if (!array.defined()) return;
    require(from.defined(), Code::invalid_argument,
            "SHOAL-N590: unpack: UnpackOptions.{} is given, and the dispatch has no such result",
            name);
    if (&array == &to.scales && array.rank == 3) {
      check_scale_tiles(group, from, array, *state_of(received.handle));
      if (array.size() > 0) copies.push_back({from, array});
      return;
    }
    require(
        array.rank == from.rank && array.dtype == from.dtype &&
            std::equal(array.shape.begin(), array.shape.begin() + array.rank, from.shape.begin()),
        Code::invalid_argument, "SHOAL-N570: unpack: UnpackOptions.{} is {}; it must be {}", name,
        [&] { return array.describe(); }, [&] { return from.describe(); });
    check_device(group.device, kUnpack, name, array);
    require(array.size() == 0 || array.data != nullptr, Code::invalid_argument,
            "SHOAL-N572: unpack: UnpackOptions.{} has no data", name);
    if (array.size() > 0) copies.push_back({from, array});
  };
  add("scales", words_of(received.scales), to.scales);
  add("topk_idx", received.topk_idx, to.topk_idx);
  add("topk_weights", received.topk_weights, to.topk_weights);
  add("source_token", received.source_token, to.source_token);
  add("tokens_per_expert", received.expert_counts, to.tokens_per_expert);
  add("expert_ends", received.expert_ends, to.expert_ends);
  add("source_ends", received.source_ends, to.source_ends);
  require(
      !to.clear_unused || (received.x.defined() && !received.expert_first_row.defined()),
      Code::invalid_argument,
      "SHOAL-N582: unpack: UnpackOptions.clear_unused is set; the dispatch has no rank-major rows");
  require(
      !to.clear_unused || received.x.shape[0] == received.handle.result_rows(),
      Code::invalid_argument,
      "SHOAL-N570: unpack: UnpackOptions.clear_unused is set and x has {} rows; it must have the {} "
      "of the dispatch",
      received.x.shape[0], received.handle.result_rows());
  return copies;
}

void copy_array(const ArrayCopy& copy) {
  const auto& [from, to] = copy;
  const std::size_t element = size_of(from.dtype);
  const std::int64_t columns = from.rank == 1 ? 1 : from.shape[1];
  const RowPlaces from_places(from), to_places(to);
  for (std::int64_t row = 0; row < from.shape[0]; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      std::memcpy(
          to.as<std::byte>() + (to_places.first(row) + column * to_places.step) * element,
          from.as<std::byte>() + (from_places.first(row) + column * from_places.step) * element,
          element);
}

}  // namespace shoal::ep::detail
