// SPDX-License-Identifier: Apache-2.0
#include "ep/plan/layout.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "ep/cuda/layout.hpp"
#include "ep/host/internode/wire.hpp"
#include "ep/plan/cursor.hpp"
#include "shoal/settings.hpp"

namespace shoal::ep {
namespace detail {
namespace {

constexpr std::size_t kPage = kPageBytes;

void require_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  require(value >= low && value <= high, Code::invalid_argument,
          "ep::GroupOptions.{} is {}; allowed: {} to {}", name, value, low, high);
}

}  // namespace

Shape make_shape(const GroupOptions& options, std::int32_t ranks, std::int32_t nodes,
                 const Settings& settings) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24, kMaxHidden = std::int64_t{1} << 20,
                         kMaxExperts = 1 << 16;
  require_range("max_tokens", options.max_tokens, 0, kMaxTokens);
  require_range("low_latency_max_tokens", options.low_latency_max_tokens, 0, kMaxTokens);
  require(
      options.max_tokens > 0 || options.low_latency_max_tokens > 0, Code::invalid_argument,
      "ep::GroupOptions has neither max_tokens (normal mode) nor low_latency_max_tokens; at least one must be "
      "positive");
  require_range("hidden", options.hidden, 1, kMaxHidden);
  require_range("top_k", options.top_k, 1, kMaxTopK);
  require_range("experts", options.experts, 1, kMaxExperts);
  require_range("max_scales", options.max_scales, 0, kMaxHidden);
  require_range("live_results", options.live_results, 1, 1024);
  require_range("threads", options.threads, 0, 1024);
  require_range("timeout", options.timeout.count(), 0, 24LL * 3600 * 1000);
  require(options.experts % ranks == 0, Code::invalid_argument,
          "ep::GroupOptions.experts is {}; it must be divisible by the {} members of the team",
          options.experts, ranks);
  require(options.dtype == DataType::bfloat16 || options.dtype == DataType::float16 ||
              options.dtype == DataType::float32 || options.dtype == DataType::float8_e4m3,
          Code::invalid_argument,
          "ep::GroupOptions.dtype is {}; allowed: bfloat16, float16, float32, float8_e4m3",
          name_of(options.dtype));
  const std::size_t element = size_of(options.dtype);
  require(options.hidden * element % 16 == 0, Code::invalid_argument,
          "a row of hidden = {} channels of {} has {} bytes; it must be a multiple of 16 bytes",
          options.hidden, name_of(options.dtype), options.hidden * element);
  require(
      options.low_latency_max_tokens == 0 || options.hidden % 8 == 0, Code::invalid_argument,
      "ep::GroupOptions.hidden is {}; low-latency mode moves bfloat16 rows, which must be a multiple of 16 bytes "
      "(8 channels)",
      options.hidden);

  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();
  require(
      options.max_tokens * ranks <= kMaxRows && options.low_latency_max_tokens * ranks <= kMaxRows,
      Code::invalid_argument,
      "ep::GroupOptions: {} members times {} tokens; at most {} rows can be received by one member",
      ranks, std::max(options.max_tokens, options.low_latency_max_tokens), kMaxRows);

  Shape shape;
  shape.ranks = ranks;
  shape.experts = options.experts;
  shape.local_experts = options.experts / ranks;
  shape.top_k = options.top_k;
  shape.hidden = options.hidden;
  shape.max_tokens = options.max_tokens;
  shape.low_latency_max_tokens = options.low_latency_max_tokens;
  shape.max_scales = options.max_scales > 0 ? options.max_scales : scale_groups(options.hidden);
  shape.live_results = options.live_results;
  shape.combine_staging = options.combine_staging;
  shape.mask_failed = options.mask_failed;
  shape.max_row_bytes = options.hidden * element;
  shape.max_answer_bytes =
      options.hidden * std::max<std::size_t>(element, 2);  // experts answer float8 rows in 16 bits
  shape.nodes = nodes;
  if (nodes > 1 && shape.max_tokens > 0) {
    const TokenMessage token(shape.max_row_bytes, shape.max_scales * 4, shape.top_k, true);
    const AnswerMessage answer(shape.max_answer_bytes, shape.top_k, true);
    shape.chunk_depth = static_cast<std::uint64_t>(settings.ep_depth);
    shape.chunk_bytes = align_up(
        std::max(settings.ep_chunk, sizeof(ChunkHeader) + std::max(token.total, answer.total)),
        kLine);
  }
  return shape;
}

ReceiveLayout::ReceiveLayout(std::int64_t rows, std::size_t row_bytes, std::size_t scale_bytes,
                             std::int32_t top_k) {
  Cursor cursor;
  x = cursor.take(rows * row_bytes);
  scales = cursor.take(rows * scale_bytes);
  topk_idx = cursor.take(rows * top_k * sizeof(std::int64_t));
  weights = cursor.take(rows * top_k * sizeof(float));
  source_token = cursor.take(rows * sizeof(std::int32_t));
  total = align_up(cursor.at, kPage);
}

OutboxLayout::OutboxLayout(std::int64_t hidden, bool quantized) {
  Cursor cursor;
  cursor.take(hidden * (quantized ? 1 : 2));
  scales = cursor.take(quantized ? scale_groups(hidden) * sizeof(float) : 0);
  total = align_up(cursor.at, kLine);
}

GroupLayout::GroupLayout(const Shape& shape) {
  const std::size_t ranks = shape.ranks;
  Cursor cursor;
  entered = cursor.take(ranks * kLine);
  finished = cursor.take(ranks * kLine);
  slots_sent = cursor.take(ranks * kLine);
  slots_read = cursor.take(ranks * kLine);
  answers_ready = cursor.take(ranks * kLine);
  answers_read = cursor.take(ranks * kLine);
  failed = cursor.take(ranks * kLine);
  chunks_sent = cursor.take(shape.nodes * kLine);
  chunks_read = cursor.take(shape.nodes * kLine);
  notice_bytes = align_up(sizeof(Notice) + (ranks + shape.experts) * sizeof(std::int32_t), kLine);
  notices = cursor.take(2 * ranks * notice_bytes);
  slot_notices = cursor.take(2 * ranks * kLine);
  answer_notice_bytes =
      align_up(sizeof(AnswerNotice) + shape.local_experts * sizeof(std::int32_t), kLine);
  answer_notices = cursor.take(2 * ranks * answer_notice_bytes);
  control_end = align_up(cursor.at, kPage);

  cursor.at = control_end;
  arena_bytes = largest_result = 0;
  if (shape.max_tokens > 0) {
    largest_result =
        ReceiveLayout(shape.max_received(), shape.max_row_bytes, shape.max_scales * 4, shape.top_k)
            .total;
    // With n - 1 results held, of any sizes and wherever they lie, one gap of the largest size is
    // left (n gaps share at least n times it).
    arena_bytes = (2 * shape.live_results - 1) * largest_result;
  }
  arena = cursor.take(arena_bytes, kPage);
  const std::size_t staged = shape.combine_staging ? shape.max_received() : 0;
  staging = cursor.take(staged * shape.max_answer_bytes, kPage);
  staging_weights = cursor.take(staged * shape.top_k * sizeof(float), kPage);
  const std::size_t ring =
      shape.nodes > 1 ? shape.nodes * shape.chunk_depth * shape.chunk_bytes : 0;
  chunks_out = cursor.take(ring, kPage);
  chunks_in = cursor.take(ring, kPage);
  normal_end = align_up(cursor.at, kPage);

  cursor.at = normal_end;
  const std::size_t tokens = shape.low_latency_max_tokens;
  slot_bytes = align_up(sizeof(SlotHeader) + shape.top_k * sizeof(std::int32_t), 8);
  slots = cursor.take(2 * ranks * tokens * slot_bytes, kPage);
  outbox_bytes =
      std::max(OutboxLayout(shape.hidden, false).total, OutboxLayout(shape.hidden, true).total);
  outbox = cursor.take(2 * tokens * outbox_bytes, kPage);
  answer_stride = align_up(shape.hidden * 2 + scale_groups(shape.hidden) * 4,
                           16);  // LogFMT keeps its ranges before the row
  answers = cursor.take(2 * shape.local_experts * shape.low_latency_rows() * answer_stride, kPage);
  far_slots_bytes = align_up(tokens * far_header_bytes(true, shape), kLine) + tokens * outbox_bytes;
  const std::size_t far_bytes = 2 * shape.far() * far_slots_bytes;
  far_out = cursor.take(far_bytes, kPage);
  far_in = cursor.take(far_bytes, kPage);
  far_sums = cursor.take(2 * shape.far() * tokens * answer_stride, kPage);
  far_answers = cursor.take(2 * shape.far() * shape.max_answers() * answer_stride, kPage);
  total = align_up(cursor.at, kPage);
}

}  // namespace detail

SizeHint size_hint(const GroupOptions& options, std::int32_t ranks, DeviceKind heap,
                   std::int32_t nodes) {
  require(ranks >= 1, Code::invalid_argument, "size_hint for {} ranks; at least 1 is needed",
          ranks);
  require(nodes >= 1 && ranks % nodes == 0, Code::invalid_argument,
          "size_hint for {} ranks on {} nodes; they must be equally many on each", ranks, nodes);
  const detail::Shape shape = detail::make_shape(options, ranks, nodes);
  if (heap == DeviceKind::cuda) {
    const detail::DeviceLayout layout(shape);
    return {layout.control_end, layout.normal_end - layout.control_end,
            layout.total - layout.normal_end};
  }
  const detail::GroupLayout layout(shape);
  return {layout.control_end, layout.normal_end - layout.control_end,
          layout.total - layout.normal_end};
}

std::size_t low_latency_size_hint(std::int64_t max_tokens, std::int64_t hidden, std::int32_t ranks,
                                  std::int32_t experts, std::int32_t top_k, DeviceKind heap) {
  GroupOptions options;
  options.low_latency_max_tokens = max_tokens;
  options.hidden = hidden;
  options.experts = experts;
  options.top_k = top_k;
  return size_hint(options, ranks, heap).low_latency;
}

}  // namespace shoal::ep
