// SPDX-License-Identifier: Apache-2.0
// combine_send: publishes where the expert output lies.
//
// Rows inside the group's block stay there. Others are copied once to the staging area, which is
// free: the previous combine ended only after every rank had fetched its rows. Rows that travel in
// an encoding are encoded to the staging area in place of the copy, all of them, so that a sum does
// not depend on where its rows come from. Between nodes they stay as they are: combine_forward
// encodes the sums of nodes.
#include <cstring>

#include "base/check.hpp"
#include "ep/group/checks.hpp"
#include "ep/host/normal/normal.hpp"
#include "ep/host/rows/combine_row.hpp"

namespace shoal::ep::host {
namespace {

bool in_block(const HostGroup& group, const void* pointer, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(pointer);
  return at >= group.state.block && at + bytes <= group.state.block + group.layout.total;
}

/// Heap offset of the data, whose first `rows` rows are staged at `staging` if need be.
std::uint64_t reachable(HostGroup& group, const ConstTensorView& data, std::int64_t rows,
                        std::size_t staging) {
  if (data.bytes() == 0) return group.state.block_offset + staging;
  if (in_block(group, data.data, data.bytes()))
    return group.state.block_offset +
           (static_cast<const std::byte*>(data.data) - group.state.block);
  const std::size_t row_bytes = data.bytes() / data.shape[0];
  const Store store = choose_store(data.bytes(), group.state.shape.ranks, last_level_cache_bytes());
  const auto* source = static_cast<const std::byte*>(data.data);
  std::byte* target = group.state.block + staging;
  group.workers.for_ranges(rows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      if (row_bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(source) % 16 == 0)
        copy_row(target + row * row_bytes, source + row * row_bytes, row_bytes, store);
      else
        std::memcpy(target + row * row_bytes, source + row * row_bytes, row_bytes);
  });
  return group.state.block_offset + staging;
}

/// Encodes the first `rows` rows of y to the staging area, each where a copy of it would be. y may
/// lie there: a row is encoded beside it first.
std::uint64_t stage_encoded(HostGroup& group, const ConstTensorView& y, std::int64_t rows,
                            Quantize quantize) {
  const auto hidden = static_cast<std::size_t>(y.shape[1]);
  const std::size_t bytes = detail::RowFormat(quantize).wire_bytes(y.shape[1]);
  std::byte* const staging = group.state.block + group.layout.staging;
  group.workers.for_ranges(rows, [&](std::int64_t first, std::int64_t last) {
    std::vector<std::byte> encoded(bytes);
    for (std::int64_t row = first; row < last; ++row) {
      const std::size_t at = static_cast<std::size_t>(row) * hidden;
      encode_combine_row(detail::encoding_of(quantize), {y.as<std::uint16_t>() + at, hidden},
                         encoded.data());
      std::memcpy(staging + at * sizeof(std::uint16_t), encoded.data(), bytes);
    }
  });
  return group.state.block_offset + group.layout.staging;
}

}  // namespace

void check_staging(const HostGroup& group, const ConstTensorView& y,
                   const CombineOptions& options) {
  const GroupLayout& layout = group.layout;
  const auto check = [&](const char* name, const ConstTensorView& data, std::size_t room) {
    if (data.bytes() == 0 || in_block(group, data.data, data.bytes())) return;
    require(
        group.state.shape.combine_staging, Code::invalid_argument,
        "SHOAL-N565: combine: {} lies outside the group's memory, and this group was made without "
        "room for a copy (GroupOptions.combine_staging)",
        name);
    require(
        data.bytes() <= room, Code::invalid_argument,
        "SHOAL-N565: combine: {} is {}, {} bytes outside the group's memory, which has room for a "
        "copy of {}; write the expert output to Dispatched::x, or raise GroupOptions.max_tokens "
        "(now {})",
        name, [&] { return data.describe(); }, data.bytes(), room, group.state.shape.max_tokens);
  };
  const std::size_t room = layout.staging_weights - layout.staging;
  if (encodes_rows(group, options))
    detail::check_room_for_encoded(group.state, options.quantize, y, y.shape[0], room);
  else
    check("y", y, room);
  if (options.weights.defined())
    check("CombineOptions.weights", options.weights, layout.normal_end - layout.staging_weights);
}

NoticeBoard combine_send(HostGroup& group, const ConstTensorView& y, const HandleState& handle,
                         const CombineOptions& options) {
  const std::uint64_t epoch = ++group.state.epoch;
  enter_phase(group, shoal::detail::Activity::combine, epoch, "send");
  NormalNotice notice{};
  notice.operation = static_cast<std::uint64_t>(detail::Operation::combine);
  notice.base = encodes_rows(group, options)
                    ? stage_encoded(group, y, handle.received, options.quantize)
                    : reachable(group, y, handle.received, group.layout.staging);
  notice.weights = options.weights.defined() ? reachable(group, options.weights, handle.received,
                                                         group.layout.staging_weights)
                                             : detail::kNoRoom;
  notice.handle_epoch = handle.epoch;
  notice.rows = handle.result_rows;
  notice.dtype = static_cast<std::uint32_t>(y.dtype);
  notice.has_weights = options.weights.defined();
  // Inside a node each rank fetches what it needs.
  notice.unsummed = options.unsummed && group.state.nodes.count > 1;
  notice.quantize = static_cast<std::uint32_t>(options.quantize);
  const Step step{"combine", shoal::detail::Activity::combine, epoch, "notify",
                  "its expert outputs"};
  return exchange_notices(group, step, notice, nullptr, nullptr);
}

}  // namespace shoal::ep::host
