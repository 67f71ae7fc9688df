// SPDX-License-Identifier: Apache-2.0
#include "ep/plan/shape.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "ep/plan/limits.hpp"

namespace shoal::ep::detail {
namespace {

void require_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  require(value >= low && value <= high, Code::invalid_argument,
          "SHOAL-N605: ep::GroupOptions.{} is {}; allowed: {} to {}", name, value, low, high);
}

}  // namespace

std::string Shape::none_ids() const {
  return none_expert == -1 ? "-1" : "-1 or " + std::to_string(none_expert);
}

Shape make_shape(const GroupOptions& options, std::int32_t ranks, std::int32_t nodes) {
  require_range("max_tokens", options.max_tokens, 0, kMaxTokens);
  require_range("low_latency_max_tokens", options.low_latency_max_tokens, 0, kMaxTokens);
  require(options.max_tokens > 0 || options.low_latency_max_tokens > 0, Code::invalid_argument,
          "SHOAL-N606: ep::GroupOptions has neither max_tokens (normal mode) nor "
          "low_latency_max_tokens; at least one must be positive");
  require_range("hidden", options.hidden, 1, kMaxHidden);
  require_range("top_k", options.top_k, 1, kMaxTopK);
  require_range("experts", options.experts, 1, kMaxExperts);
  require(
      options.none_expert == -1 || options.none_expert >= options.experts, Code::invalid_argument,
      "SHOAL-N605: ep::GroupOptions.none_expert is {}; allowed: -1, or {} (GroupOptions.experts) "
      "and above",
      options.none_expert, options.experts);
  require_range("max_scales", options.max_scales, 0, kMaxHidden);
  require_range("live_results", options.live_results, 1, 1024);
  require_range("threads", options.threads, 0, 1024);
  constexpr std::int64_t kMinChunk = 4096, kMaxChunk = std::int64_t{1} << 30, kMaxChunks = 1024;
  if (options.chunk_bytes != 0)
    require_range("chunk_bytes", options.chunk_bytes, kMinChunk, kMaxChunk);
  require_range("chunks_in_flight", options.chunks_in_flight, 0, kMaxChunks);
  require_range("timeout", options.timeout.count(), 0, 24LL * 3600 * 1000);
  require(
      options.dtype == DataType::bfloat16 || options.dtype == DataType::float16 ||
          options.dtype == DataType::float32 || options.dtype == DataType::float8_e4m3,
      Code::invalid_argument,
      "SHOAL-N605: ep::GroupOptions.dtype is {}; allowed: bfloat16, float16, float32, float8_e4m3",
      name_of(options.dtype));
  const std::size_t element = size_of(options.dtype);
  require(
      options.hidden * element % 16 == 0, Code::invalid_argument,
      "SHOAL-N580: a row of hidden = {} channels of {} has {} bytes; it must be a multiple of 16 "
      "bytes",
      options.hidden, name_of(options.dtype), options.hidden * element);
  require(
      options.low_latency_max_tokens == 0 || options.hidden % 8 == 0, Code::invalid_argument,
      "SHOAL-N580: ep::GroupOptions.hidden is {}; low-latency mode moves bfloat16 rows, which must "
      "be a multiple of 16 bytes (8 channels)",
      options.hidden);

  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();
  require(
      options.max_tokens * ranks <= kMaxRows && options.low_latency_max_tokens * ranks <= kMaxRows,
      Code::invalid_argument,
      "SHOAL-N608: ep::GroupOptions: {} ranks times {} tokens (max_tokens, low_latency_max_tokens); "
      "at most {} rows can be received by one rank",
      ranks, std::max(options.max_tokens, options.low_latency_max_tokens), kMaxRows);

  Shape shape;
  shape.ranks = ranks;
  shape.experts = options.experts;
  shape.none_expert = options.none_expert;
  shape.partition = std::make_shared<Partition>(options.experts, ranks, options.first_expert);
  shape.local_experts = shape.partition->largest();
  shape.top_k = options.top_k;
  shape.hidden = options.hidden;
  shape.max_tokens = options.max_tokens;
  shape.low_latency_max_tokens = options.low_latency_max_tokens;
  shape.max_scales = options.max_scales > 0 ? options.max_scales : scale_groups(options.hidden);
  shape.live_results = options.live_results;
  shape.combine_staging = options.combine_staging;
  shape.mask_failed = options.mask_failed;
  shape.chunk_bytes = options.chunk_bytes;
  shape.chunks_in_flight = options.chunks_in_flight;
  shape.max_row_bytes = options.hidden * element;
  // The expert output of float8 rows has 16 bits per channel.
  shape.max_combine_row_bytes = options.hidden * std::max<std::size_t>(element, 2);
  shape.nodes = nodes;
  return shape;
}

}  // namespace shoal::ep::detail
