// SPDX-License-Identifier: Apache-2.0
#include "ep/group/checks.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "base/check.hpp"
#include "ep/group/aligned_rows.hpp"
#include "ep/group/modes.hpp"
#include "ep/plan/limits.hpp"
#include "ep/plan/row_format.hpp"

namespace shoal::ep::detail {
namespace {

std::string names(std::initializer_list<DataType> dtypes) {
  std::vector<std::string_view> list;
  for (DataType dtype : dtypes) list.push_back(name_of(dtype));
  return fmt::format("{}", fmt::join(list, " or "));
}

bool has_shape(const ConstTensorView& tensor, std::initializer_list<std::int64_t> shape) {
  return tensor.rank == static_cast<int>(shape.size()) &&
         std::equal(shape.begin(), shape.end(), tensor.shape.begin());
}

}  // namespace

void check_tensor(const GroupState& group, const char* call, const char* name,
                  const ConstTensorView& tensor, std::initializer_list<std::int64_t> shape,
                  std::initializer_list<DataType> dtypes) {
  const bool dtype_allowed = std::find(dtypes.begin(), dtypes.end(), tensor.dtype) != dtypes.end();
  require(
      has_shape(tensor, shape) && dtype_allowed, Code::invalid_argument,
      "SHOAL-N570: {}: {} is {}; it must be {} [{}]", call, name, [&] { return tensor.describe(); },
      [&] { return names(dtypes); }, fmt::join(shape, ", "));
  require(tensor.contiguous(), Code::invalid_argument,
          "SHOAL-N571: {}: {} is not contiguous: strides [{}]; pass a contiguous copy", call, name,
          fmt::join(tensor.strides.begin(), tensor.strides.begin() + tensor.rank, ", "));
  check_device(group.device, call, name, tensor);
  require(tensor.size() == 0 || tensor.data != nullptr, Code::invalid_argument,
          "SHOAL-N572: {}: {} has no data", call, name);
}

/// Tiles are written in words.
constexpr std::uintptr_t kTileAlignment = sizeof(std::uint32_t);

void check_tiles(const GroupState& group, const char* call, const char* name,
                 const ConstTensorView& tiles, const ConstTensorView& words, std::int64_t rows) {
  require(words.dtype == DataType::int32, Code::invalid_argument,
          "SHOAL-N582: {}: {} are tiles, which hold scales of one byte, four to an int32; the "
          "scales are {}",
          call, name, [&] { return words.describe(); });
  check_tensor(group, call, name, tiles,
               {(rows + kTileRows - 1) / kTileRows, words.shape[1], kTileRows * 4},
               {DataType::uint8, DataType::float8_e4m3});
  const auto address = reinterpret_cast<std::uintptr_t>(tiles.data);
  require(address % kTileAlignment == 0, Code::invalid_argument,
          "SHOAL-N573: {}: {} starts at {:#x}; tiles start at a multiple of {} bytes", call, name,
          address, kTileAlignment);
}

void check_row_address(const char* call, const char* name, const ConstTensorView& rows) {
  require(
      rows.device.kind == DeviceKind::host || rows_aligned(rows), Code::invalid_argument,
      "SHOAL-N573: {}: {} starts at {}; rows in GPU memory must start at a multiple of {} bytes",
      call, name, rows.data, kRowAlignment);
}

/// Like check_tensor, but rows in GPU memory may be strided, as the weights of received rows are.
void check_rows_of(const GroupState& group, const char* call, const char* name,
                   const ConstTensorView& tensor, std::initializer_list<std::int64_t> shape,
                   std::initializer_list<DataType> dtypes) {
  ConstTensorView rows = tensor;
  if (group.device.kind == DeviceKind::cuda && rows.rank == 2 && rows.strides[0] >= rows.shape[1])
    rows.strides[0] = rows.shape[1];
  check_tensor(group, call, name, rows, shape, dtypes);
}

void check_routing(const GroupState& group, const Routing& routing) {
  const RoutingState* const state = state_of(routing).get();
  require(state != nullptr, Code::invalid_argument, "SHOAL-N574: dispatch: the routing is empty");
  const Shape &theirs = state->shape, &ours = group.shape;
  require(
      theirs.ranks == ours.ranks && theirs.experts == ours.experts && theirs.top_k == ours.top_k,
      Code::invalid_argument,
      "SHOAL-N574: dispatch: the routing is of a group of {} ranks, {} experts and top_k {}; "
      "this group has {}, {} and {}",
      theirs.ranks, theirs.experts, theirs.top_k, ours.ranks, ours.experts, ours.top_k);
  // Staged groups have their routings made by the host backend.
  const auto in_gpu_memory = [](BackendKind kind) { return kind == BackendKind::cuda; };
  const BackendKind kind = group.backend->normal().kind;
  require(
      in_gpu_memory(state->backend) == in_gpu_memory(kind), Code::invalid_argument,
      "SHOAL-N574: dispatch: the routing was made by a group of the {} backend; this group uses "
      "the {} backend",
      name_of(state->backend), name_of(kind));
  require(state->tokens <= group.shape.max_tokens, Code::invalid_argument,
          "SHOAL-N575: dispatch: {} tokens; this group was made for at most {} "
          "(GroupOptions.max_tokens)",
          state->tokens, group.shape.max_tokens);
}

void check_launch(const GroupState& group, const char* call, const Launch& launch) {
  constexpr std::int32_t kMaxSms = 1024;
  require(launch.sms >= 0 && launch.sms <= kMaxSms, Code::invalid_argument,
          "SHOAL-N576: {}: Launch.sms is {}; allowed: 0 to {}", call, launch.sms, kMaxSms);
  require(group.device.kind == DeviceKind::cuda ||
              (launch.stream == nullptr && launch.after == nullptr && launch.done == nullptr),
          Code::invalid_argument,
          "SHOAL-N577: {}: Launch names a CUDA stream or event, but this group lies on the host "
          "(SHOAL_HEAP)",
          call);
}

void check_route_options(const GroupState& group, std::int64_t tokens,
                         const RouteOptions& options) {
  const auto check = [&](const char* name, const ConstTensorView& array,
                         std::initializer_list<std::int64_t> shape, DataType dtype) {
    if (array.defined()) check_tensor(group, "route", name, array, shape, {dtype});
  };
  const auto& shape = group.shape;
  check("RouteOptions.is_token_in_rank", options.is_token_in_rank, {tokens, shape.ranks},
        DataType::uint8);
  check("RouteOptions.tokens_per_rank", options.tokens_per_rank, {shape.ranks}, DataType::int32);
  check("RouteOptions.tokens_per_expert", options.tokens_per_expert, {shape.experts},
        DataType::int32);
  check("RouteOptions.tokens_per_node", options.tokens_per_node, {group.nodes.count},
        DataType::int32);
}

void check_global_scale(const char* call, const ConstTensorView& given) {
  for (std::int64_t e = 0; e < given.size(); ++e) {
    const float scale = given.as<float>()[e];
    require(scale > 0 && scale <= std::numeric_limits<float>::max(), Code::invalid_argument,
            "SHOAL-N583: {}: global_scale is {}; allowed: positive and finite", call, scale);
  }
}

namespace {

/// The options of a dispatch that say how rows are encoded.
void check_format(const GroupState& group, const char* call, Quantize quantize,
                  const ConstTensorView& global_scale, bool row_per_expert = false) {
  require(quantize <= Quantize::nvfp4, Code::invalid_argument,
          "SHOAL-N584: {}: quantize has the unknown value {}; allowed: 0 (none) to {} (nvfp4)",
          call, static_cast<int>(quantize), static_cast<int>(Quantize::nvfp4));
  const char* const name = name_of(quantize);
  require(group.shape.hidden % hidden_multiple(quantize) == 0, Code::invalid_argument,
          "SHOAL-N580: {}: hidden is {}; rows in {} must be a multiple of {} channels", call,
          group.shape.hidden, name, hidden_multiple(quantize));
  if (!global_scale.defined()) return;
  require(quantize == Quantize::nvfp4, Code::invalid_argument,
          "SHOAL-N582: {}: global_scale is for nvfp4; quantize is {}", call, name);
  const std::int64_t experts = group.shape.experts;
  const bool each = experts > 1 && global_scale.rank == 1 && global_scale.shape[0] == experts;
  require(!each || row_per_expert, Code::invalid_argument,
          "SHOAL-N582: {}: global_scale has a scale per expert, and rows of this call travel once "
          "per rank; allowed here: float32 [1], or expert-major dispatches",
          call);
  require(!each || group.nodes.count == 1, Code::unsupported,
          "SHOAL-N592: {}: global_scale has a scale per expert, and rows travel once per node "
          "between the {} nodes of this group; allowed here: float32 [1]",
          call, group.nodes.count);
  check_tensor(group, call, "global_scale", global_scale, {each ? experts : 1},
               {DataType::float32});
  if (group.device.kind == DeviceKind::host) check_global_scale(call, global_scale);
}

void check_scale_layout(const char* call, Quantize quantize, ScaleLayout layout) {
  require(layout <= ScaleLayout::tiles, Code::invalid_argument,
          "SHOAL-N584: {}: scale_layout has the unknown value {}; allowed: 0 (automatic) to {} "
          "(tiles)",
          call, static_cast<int>(layout), static_cast<int>(ScaleLayout::tiles));
  require(layout != ScaleLayout::tiles || has_byte_scales(quantize), Code::invalid_argument,
          "SHOAL-N582: {}: scale_layout is tiles, which needs scales of one byte: fp8_ue8m0, mxfp8 "
          "or nvfp4; quantize is {}",
          call, name_of(quantize));
}

/// The encoding of the rows of a combine.
void check_combine_format(const GroupState& group, const char* call, Quantize quantize) {
  const bool allowed =
      quantize == Quantize::none || quantize == Quantize::fp8 || quantize == Quantize::mxfp8;
  require(allowed || quantize > Quantize::nvfp4, Code::invalid_argument,
          "SHOAL-N583: {}: quantize is {}; allowed for the rows of a combine: none, fp8 and mxfp8",
          call, name_of(quantize));
  check_format(group, call, quantize, {});
}

/// Scales may take the room that narrow rows leave.
void check_room_for_scales(const GroupState& group, Quantize quantize, std::size_t row_bytes) {
  const Shape& shape = group.shape;
  const auto bytes = static_cast<std::size_t>(
      4 * RowFormat(quantize).scale_words(shape.hidden, has_byte_scales(quantize)));
  const auto room = static_cast<std::size_t>(4 * shape.max_scales);
  require(
      row_bytes + bytes <= shape.max_row_bytes + room, Code::invalid_argument,
      "SHOAL-N581: dispatch: rows of {} have {} bytes and {} of scales; this group was made for "
      "at most {} and {} (GroupOptions.dtype, GroupOptions.max_scales)",
      name_of(quantize), row_bytes, bytes, shape.max_row_bytes, room);
}

}  // namespace

void check_rows(const GroupState& group, const ConstTensorView& x, std::int64_t tokens,
                const AnyDispatchOptions& options, const HandleState* cached) {
  require(
      group.shape.max_tokens > 0, Code::invalid_argument,
      "SHOAL-N578: dispatch: this group was made without normal mode (GroupOptions.max_tokens is "
      "0)");
  const Quantize quantize = options.quantize;
  const bool encoded = quantize != Quantize::none;
  const bool expert_major = cached != nullptr ? cached->expert_alignment > 0 : options.expert_major;
  check_format(group, "dispatch", quantize, options.global_scale, expert_major);
  const bool opaque = x.rank == 2 && (x.dtype == DataType::int8 || x.dtype == DataType::uint8);
  const std::int64_t columns = opaque && !encoded ? x.shape[1] : group.shape.hidden;
  if (encoded)
    check_tensor(group, "dispatch", "x (with quantize)", x, {tokens, columns},
                 {DataType::bfloat16});
  else
    check_tensor(group, "dispatch", "x", x, {tokens, columns},
                 {DataType::bfloat16, DataType::float16, DataType::float32, DataType::float8_e4m3,
                  DataType::int8, DataType::uint8});
  const RowFormat format(quantize);
  const std::size_t row_bytes =
      encoded ? format.row_bytes(x.shape[1]) : x.shape[1] * size_of(x.dtype);
  const std::string_view dtype = encoded ? name_of(quantize) : name_of(x.dtype);
  require(row_bytes <= group.shape.max_row_bytes, Code::invalid_argument,
          "SHOAL-N579: dispatch: rows of {} have {} bytes; this group was made for at most {} "
          "(GroupOptions.dtype is {})",
          dtype, row_bytes, group.shape.max_row_bytes, name_of(group.options.dtype));
  require(row_bytes % 16 == 0 && row_bytes > 0, Code::invalid_argument,
          "SHOAL-N580: dispatch: rows of {} have {} bytes; they must be a positive multiple of 16",
          dtype, row_bytes);
  if (encoded) check_room_for_scales(group, quantize, row_bytes);
  check_row_address("dispatch", "x", x);
}

void check_dispatch_options(const GroupState& group, const ConstTensorView& x,
                            const AnyDispatchOptions& options, const HandleState* cached) {
  const std::int64_t tokens = x.shape[0];
  check_launch(group, "dispatch", options.launch);
  require(options.quantize == Quantize::none || !options.scales.defined(), Code::invalid_argument,
          "SHOAL-N582: dispatch: DispatchOptions.scales with quantize, which makes them");
  if (options.weights.defined())
    check_tensor(group, "dispatch", "DispatchOptions.weights", options.weights,
                 {tokens, group.shape.top_k}, {DataType::float32});
  if (const ConstTensorView& scales = options.scales; scales.defined()) {
    require(
        scales.rank == 2 && scales.shape[0] == tokens && scales.shape[1] >= 1 &&
            scales.shape[1] <= group.shape.max_scales &&
            (scales.dtype == DataType::float32 || scales.dtype == DataType::int32),
        Code::invalid_argument,
        "SHOAL-N581: dispatch: DispatchOptions.scales is {}; it must be float32 or int32 [{}, 1 to "
        "{}] (GroupOptions.max_scales)",
        [&] { return scales.describe(); }, tokens, group.shape.max_scales);
    check_device(group.device, "dispatch", "DispatchOptions.scales", scales);
    require(tokens == 0 || scales.data != nullptr, Code::invalid_argument,
            "SHOAL-N572: dispatch: DispatchOptions.scales has no data");
  }
  require(
      !options.all_weights ||
          (!options.expert_major && (cached == nullptr || cached->expert_alignment == 0)),
      Code::invalid_argument,
      "SHOAL-N582: dispatch: DispatchOptions.all_weights with an expert-major layout, whose rows "
      "have one weight each");
  require(options.expert_alignment >= 1 && options.expert_alignment <= kMaxExpertAlignment,
          Code::invalid_argument,
          "SHOAL-N583: dispatch: DispatchOptions.expert_alignment is {}; allowed: 1 to {}",
          options.expert_alignment, kMaxExpertAlignment);
  require(
      cached == nullptr || !options.expert_major || cached->expert_alignment > 0,
      Code::invalid_argument,
      "SHOAL-N582: dispatch: DispatchOptions.expert_major with a handle of a dispatch without it; "
      "the layout is the handle's");
  const std::int32_t alignment = cached != nullptr      ? cached->expert_alignment
                                 : options.expert_major ? options.expert_alignment
                                                        : 0;
  const std::int64_t most =
      alignment > 0 ? std::min<std::int64_t>(group.shape.max_expert_major_rows(alignment),
                                             std::numeric_limits<std::int32_t>::max())
                    : group.shape.max_received();
  require(
      options.worst_case_rows >= 0 && options.worst_case_rows <= most, Code::invalid_argument,
      "SHOAL-N583: dispatch: DispatchOptions.worst_case_rows is {}; allowed: 0 to {} ({})",
      options.worst_case_rows, most,
      alignment > 0
          ? "ranks * GroupOptions.max_tokens * local experts of a token, and the gaps of expert_alignment"
          : "ranks * GroupOptions.max_tokens");
}

void check_combine(const GroupState& group, const ConstTensorView& y, const HandleState& handle,
                   const CombineOptions& options) {
  const std::int64_t hidden = group.shape.hidden, tokens = handle.routing->tokens;
  check_launch(group, "combine", options.launch);
  const bool summed = options.topk_rows.defined(), encoded = options.quantize != Quantize::none;
  check_combine_format(group, "combine", options.quantize);
  const std::initializer_list<std::int64_t> y_shape = {
      summed && y.rank == 2 ? y.shape[0] : handle.result_rows, hidden};
  if (encoded)
    check_tensor(group, "combine", "y (with quantize)", y, y_shape, {DataType::bfloat16});
  else
    check_tensor(group, "combine", "y", y, y_shape,
                 {DataType::bfloat16, DataType::float16, DataType::float32});
  for (const auto& [name, array, dtype] :
       {std::tuple{"CombineOptions.topk_idx", options.topk_idx, DataType::int64},
        std::tuple{"CombineOptions.topk_rows", options.topk_rows, DataType::int32}}) {
    if (!array.defined()) continue;
    require(
        handle.expert_alignment == 0, Code::invalid_argument,
        "SHOAL-N582: combine: {} is for rank-major layouts; this handle has an expert-major one",
        name);
    check_tensor(group, "combine", name, array, {handle.result_rows, group.shape.top_k}, {dtype});
  }
  require(
      !options.unsummed || handle.expert_alignment > 0, Code::invalid_argument,
      "SHOAL-N582: combine: CombineOptions.unsummed is for expert-major layouts; this handle has "
      "a rank-major one, whose rows are summed at the rank of the experts");
  require(
      !options.unsummed || options.bias.empty(), Code::invalid_argument,
      "SHOAL-N582: combine: CombineOptions.bias with CombineOptions.unsummed, which adds nothing");
  require(
      !options.unsummed || options.quantize == Quantize::none, Code::invalid_argument,
      "SHOAL-N582: combine: CombineOptions.quantize {} with CombineOptions.unsummed, whose rows "
      "travel as they are; choose one",
      name_of(options.quantize));
  const std::size_t row_bytes = hidden * size_of(y.dtype);
  require(row_bytes <= group.shape.max_combine_row_bytes, Code::invalid_argument,
          "SHOAL-N579: combine: rows of {} have {} bytes; this group was made for at most {} "
          "(GroupOptions.dtype is {})",
          name_of(y.dtype), row_bytes, group.shape.max_combine_row_bytes,
          name_of(group.options.dtype));
  require(row_bytes % 16 == 0, Code::invalid_argument,
          "SHOAL-N580: combine: rows of {} have {} bytes; they must be a multiple of 16",
          name_of(y.dtype), row_bytes);
  check_row_address("combine", "y", y);
  if (options.weights.defined() && summed)
    check_tensor(group, "combine", "CombineOptions.weights", options.weights, {y.shape[0]},
                 {DataType::float32});
  else if (options.weights.defined())
    check_rows_of(group, "combine", "CombineOptions.weights", options.weights,
                  {handle.result_rows, handle.topk_slots(group.shape.top_k)}, {DataType::float32});
  require(options.bias.size() <= 2, Code::invalid_argument,
          "SHOAL-N583: combine: CombineOptions.bias has {} tensors; at most 2 are allowed",
          options.bias.size());
  for (const ConstTensorView& bias : options.bias) {
    check_tensor(group, "combine", "CombineOptions.bias", bias, {tokens, hidden}, {y.dtype});
    check_row_address("combine", "a tensor of CombineOptions.bias", bias);
  }
  if (options.out.defined()) {
    group.shape.with_combined_extents(tokens, options.unsummed, [&](auto extents) {
      check_tensor(group, "combine", "CombineOptions.out", options.out, extents, {y.dtype});
    });
    check_row_address("combine", "CombineOptions.out", options.out);
  }
  if (options.out_weights.defined()) {
    require(options.weights.defined(), Code::invalid_argument,
            "SHOAL-N582: combine: CombineOptions.out_weights without CombineOptions.weights");
    check_tensor(group, "combine", "CombineOptions.out_weights", options.out_weights,
                 {tokens, group.shape.top_k}, {DataType::float32});
  }
}

void check_room_for_encoded(const GroupState& group, Quantize quantize, const ConstTensorView& y,
                            std::int64_t rows, std::size_t room) {
  require(group.shape.combine_staging, Code::invalid_argument,
          "SHOAL-N565: combine: quantize is {}, which encodes y to memory of the group, and this "
          "group was made without room for it (GroupOptions.combine_staging)",
          name_of(quantize));
  const std::size_t row_bytes = static_cast<std::size_t>(y.shape[1]) * size_of(y.dtype);
  require(static_cast<std::size_t>(rows) * row_bytes <= room, Code::invalid_argument,
          "SHOAL-N565: combine: with quantize {} there is room for {} rows of y where they are "
          "encoded, and there are {}. Raise GroupOptions.max_tokens (now {})",
          name_of(quantize), room / row_bytes, rows, group.shape.max_tokens);
}

void check_low_latency_mode(const GroupState& group, const char* call) {
  require(group.shape.low_latency_max_tokens > 0, Code::invalid_argument,
          "SHOAL-N578: {}: this group was made without low-latency mode "
          "(GroupOptions.low_latency_max_tokens is 0)",
          call);
}

namespace {

void check_wait_ns(const GroupState& group, const char* call, const ConstTensorView& wait_ns) {
  if (wait_ns.defined())
    check_tensor(group, call, "wait_ns", wait_ns, {group.shape.ranks}, {DataType::int64});
}

}  // namespace

void check_low_latency_dispatch(const GroupState& group, const ConstTensorView& x,
                                const ConstTensorView& topk_idx,
                                const LowLatencyDispatchOptions& options) {
  const char* call = "low_latency_dispatch";
  check_low_latency_mode(group, call);
  check_launch(group, call, options.launch);
  check_topk(topk_idx, group.shape, group.device, group.shape.low_latency_max_tokens, call);
  check_tensor(group, call, "x", x, {topk_idx.shape[0], group.shape.hidden}, {DataType::bfloat16});
  check_row_address(call, "x", x);
  check_format(group, call, options.quantize, options.global_scale);
  check_scale_layout(call, options.quantize, options.scale_layout);
  if (options.tokens_per_expert.defined())
    check_tensor(group, call, "tokens_per_expert (in C and Python expert_counts)",
                 options.tokens_per_expert, {group.shape.local_experts}, {DataType::int32});
  check_wait_ns(group, call, options.wait_ns);
  if (options.weights.defined())
    check_tensor(group, call, "weights", options.weights, {topk_idx.shape[0], group.shape.top_k},
                 {DataType::float32});
}

void check_low_latency_combine(const GroupState& group, const ConstTensorView& y,
                               const ConstTensorView& topk_idx, const ConstTensorView& weights,
                               const LowLatencyHandleState* handle,
                               const LowLatencyCombineOptions& options) {
  const char* call = "low_latency_combine";
  check_low_latency_mode(group, call);
  check_launch(group, call, options.launch);
  require(handle != nullptr && handle->group.lock().get() == &group, Code::invalid_argument,
          "SHOAL-N585: {}: the handle is not of a low_latency_dispatch of this group that has been "
          "received",
          call);
  const auto& shape = group.shape;
  const std::int64_t tokens = handle->routing->tokens;
  if (weights.defined() || !options.unsummed)
    check_tensor(group, call, "weights", weights, {tokens, shape.top_k}, {DataType::float32});
  require(
      topk_idx.rank == 2 && topk_idx.shape[0] == tokens && topk_idx.shape[1] == shape.top_k,
      Code::invalid_argument, "SHOAL-N586: {}: topk_idx is {}; the dispatch had [{}, {}]", call,
      [&] { return topk_idx.describe(); }, tokens, shape.top_k);
  check_topk(topk_idx, shape, group.device, shape.low_latency_max_tokens, call);
  if (group.device.kind == DeviceKind::host) {
    const Tensor given = checked_topk(topk_idx, shape, shape.low_latency_max_tokens, call);
    require(given.bytes() == 0 ||
                std::memcmp(given.data, handle->routing->topk_idx.data, given.bytes()) == 0,
            Code::invalid_argument, "SHOAL-N586: {}: topk_idx differs from that of the dispatch",
            call);
  }
  const bool quantized = options.quantize != Quantize::none;
  check_combine_format(group, call, options.quantize);
  require(!(options.log_fmt && quantized), Code::invalid_argument,
          "SHOAL-N582: {}: log_fmt and quantize {} both encode y on its way; choose one", call,
          name_of(options.quantize));
  require(!((options.log_fmt || quantized) && options.zero_copy), Code::invalid_argument,
          "SHOAL-N582: {}: {} encodes y on its way and zero_copy does not move it; choose one",
          call, options.log_fmt ? "log_fmt" : "quantize");
  require(
      options.reduction <= Reduction::exact, Code::invalid_argument,
      "SHOAL-N584: {}: reduction has the unknown value {}; allowed: 0 (automatic) to {} (exact)",
      call, static_cast<int>(options.reduction), static_cast<int>(Reduction::exact));
  require(!options.unsummed || options.reduction != Reduction::per_rank, Code::invalid_argument,
          "SHOAL-N582: {}: unsummed with reduction per_rank, which sums the rows of a rank before "
          "they travel; choose one",
          call);
  const std::int64_t rows = shape.low_latency_rows();
  if (options.zero_copy) {
    const TensorView buffer = group.combine_buffer;
    require(
        y.data == buffer.data && y.dtype == DataType::bfloat16 && y.device == group.device &&
            has_shape(y, {shape.local_experts, rows, shape.hidden}) && y.strides == buffer.strides,
        Code::invalid_argument,
        "SHOAL-N587: {}: with zero_copy y must be the view that next_combine_buffer returned for "
        "this call",
        call);
  } else {
    check_tensor(group, call, "y", y, {shape.local_experts, rows, shape.hidden},
                 {DataType::bfloat16});
    check_row_address(call, "y", y);
  }
  if (options.out.defined()) {
    shape.with_combined_extents(tokens, options.unsummed, [&](auto extents) {
      check_tensor(group, call, "out", options.out, extents, {DataType::bfloat16});
    });
    check_row_address(call, "out", options.out);
  }
  check_wait_ns(group, call, options.wait_ns);
}

void fail_no_room(const GroupState& group, Pe pe, std::int64_t rows) {
  fail(Code::exhausted,
       "SHOAL-N567: dispatch: PE {} has no room for another result (up to {} rows): its receive "
       "area of {} bytes is taken by results that are still held{}. Release them, or raise "
       "GroupOptions.live_results (now {}) or max_tokens",
       pe, rows, group.plan.arena_bytes,
       group.arena.keeps() ? ", or by the results of dispatches in CUDA graphs that still exist"
                           : "",
       group.shape.live_results);
}

}  // namespace shoal::ep::detail
