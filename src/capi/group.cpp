// SPDX-License-Identifier: Apache-2.0
// group.cpp: groups and their queries; options that both modes share.
#include <limits>

#include "capi/ep.hpp"

namespace shoal::capi {
namespace {

ep::GroupOptions group_options(const shoal_ep_group_options* given, const char* call) {
  const shoal_ep_group_options defaults = SHOAL_EP_GROUP_OPTIONS_INIT;
  const auto c = read_struct("shoal_ep_group_options", &required(given, call, "options"), defaults);
  // In nanoseconds, as C++ counts, it must fit std::int64_t.
  constexpr std::int64_t kMostMs = std::numeric_limits<std::int64_t>::max() / 1'000'000;
  require(c.timeout_ms <= kMostMs && c.timeout_ms >= -kMostMs, Code::invalid_argument,
          "SHOAL-N881: {}: shoal_ep_group_options.timeout_ms is {}; allowed: up to {}", call,
          c.timeout_ms, kMostMs);
  require(
      c.first_experts >= 0 && (c.first_experts == 0 || c.first_expert != nullptr),
      Code::invalid_argument,
      "SHOAL-N881: {}: shoal_ep_group_options.first_experts is {} and first_expert {}; allowed: "
      "0, or as many numbers as first_expert has",
      call, c.first_experts, c.first_expert == nullptr ? "NULL" : "an array");
  return {
      .max_tokens = c.max_tokens,
      .hidden = c.hidden,
      .top_k = c.top_k,
      .experts = c.experts,
      .first_expert = std::vector(c.first_expert, c.first_expert + c.first_experts),
      .none_expert = c.none_expert == 0 ? -1 : c.none_expert,
      .dtype = enumeration(c.dtype, DataType::float64, call, "shoal_ep_group_options.dtype"),
      .max_scales = c.max_scales,
      .live_results = c.live_results,
      .low_latency_max_tokens = c.low_latency_max_tokens,
      .preinitialize = c.preinitialize != 0,
      .mask_failed = c.mask_failed != 0,
      .timeout = std::chrono::milliseconds(c.timeout_ms),
      .threads = c.threads,
      .combine_staging = c.combine_staging != 0,
      .chunk_bytes = c.chunk_bytes,
      .chunks_in_flight = c.chunks_in_flight,
  };
}

DeviceKind heap_kind(std::int32_t heap, const char* call) {
  return enumeration(heap, DeviceKind::cuda, call, "heap");
}

std::int32_t first_expert_of(const ep::Group& group, std::int32_t rank, const char* call) {
  const std::vector<std::int32_t>& first = group.first_expert();
  const auto ranks = static_cast<std::int32_t>(first.size()) - 1;
  require(rank >= 0 && rank <= ranks, Code::invalid_argument,
          "SHOAL-N881: {}: rank is {}; allowed: 0 to {}", call, rank, ranks);
  return first[static_cast<std::size_t>(rank)];
}

shoal_ep_statistics statistics_of(const ep::Statistics& s) {
  shoal_ep_statistics c = SHOAL_EP_STATISTICS_INIT;
  c.dispatches = s.dispatches;
  c.combines = s.combines;
  c.low_latency_dispatches = s.low_latency_dispatches;
  c.low_latency_combines = s.low_latency_combines;
  c.rows_sent = s.rows_sent;
  c.rows_received = s.rows_received;
  c.dispatch_ns = s.dispatch_time.count();
  c.combine_ns = s.combine_time.count();
  c.low_latency_dispatch_ns = s.low_latency_dispatch_time.count();
  c.low_latency_combine_ns = s.low_latency_combine_time.count();
  c.wait_ns = s.wait_time.count();
  return c;
}

}  // namespace

ep::Group& group_of(shoal_ep_group* group, const char* call) {
  return required(group, call, "group").value;
}
const ep::Group& group_of(const shoal_ep_group* group, const char* call) {
  return required(group, call, "group").value;
}

ep::Launch launch_of(const shoal_ep_launch* given) {
  const shoal_ep_launch defaults = SHOAL_EP_LAUNCH_INIT;
  const shoal_ep_launch c = read_struct("shoal_ep_launch", given, defaults);
  check_reserved("shoal_ep_launch", c.reserved);
  return {.stream = static_cast<Stream>(c.stream),
          .after = static_cast<Event>(c.after),
          .done = static_cast<Event>(c.done),
          .sms = c.sms};
}

void check_reserved(const char* name, std::int32_t value) {
  require(value == 0, Code::invalid_argument, "SHOAL-N882: {}.reserved is {}; it must be 0", name,
          value);
}

}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_ep_size_hint(const shoal_ep_group_options* options, int32_t ranks, int32_t heap,
                                shoal_ep_sizes* sizes) {
  const char* call = "shoal_ep_size_hint";
  return guarded([&] {
    check_fillable(call, "shoal_ep_sizes", sizes);
    const shoal::ep::SizeHint hint =
        shoal::ep::size_hint(group_options(options, call), ranks, heap_kind(heap, call));
    fill_struct(sizes, {sizeof *sizes, hint.control, hint.normal, hint.low_latency, hint.total(),
                        hint.results});
  });
}

shoal_status shoal_ep_low_latency_size_hint(int64_t max_tokens, int64_t hidden, int32_t ranks,
                                            int32_t experts, int32_t top_k, int32_t heap,
                                            uint64_t* bytes) {
  const char* call = "shoal_ep_low_latency_size_hint";
  return guarded([&] {
    required(bytes, call, "bytes") = shoal::ep::low_latency_size_hint(
        max_tokens, hidden, ranks, experts, top_k, heap_kind(heap, call));
  });
}

shoal_status shoal_ep_group_create(const shoal_team* team, const shoal_ep_group_options* options,
                                   shoal_ep_group** group) {
  const char* call = "shoal_ep_group_create";
  return guarded([&] {
    shoal_ep_group*& out = required(group, call, "group");
    const shoal::Team& members = required(team, call, "team").value;
    out = new shoal_ep_group{shoal::ep::Group(members, group_options(options, call))};
  });
}

shoal_status shoal_ep_group_close(shoal_ep_group* group) {
  return guarded([&] { group_of(group, "shoal_ep_group_close").close(); });
}

shoal_status shoal_ep_group_destroy(shoal_ep_group* group) {
  if (group != nullptr) (void)shoal_ep_group_close(group);  // the destructor does not communicate
  return destroy(group);
}

shoal_status shoal_ep_group_local_experts(const shoal_ep_group* group, int32_t* local_experts) {
  const char* call = "shoal_ep_group_local_experts";
  return guarded([&] {
    required(local_experts, call, "local_experts") = group_of(group, call).local_experts();
  });
}

shoal_status shoal_ep_group_max_local_experts(const shoal_ep_group* group,
                                              int32_t* max_local_experts) {
  const char* call = "shoal_ep_group_max_local_experts";
  return guarded([&] {
    required(max_local_experts, call, "max_local_experts") =
        group_of(group, call).max_local_experts();
  });
}

shoal_status shoal_ep_group_first_expert(const shoal_ep_group* group, int32_t rank,
                                         int32_t* expert) {
  const char* call = "shoal_ep_group_first_expert";
  return guarded([&] {
    required(expert, call, "expert") = first_expert_of(group_of(group, call), rank, call);
  });
}

shoal_status shoal_ep_group_stream(const shoal_ep_group* group, void** stream) {
  const char* call = "shoal_ep_group_stream";
  return guarded([&] { required(stream, call, "stream") = group_of(group, call).stream(); });
}

shoal_status shoal_ep_group_statistics(const shoal_ep_group* group,
                                       shoal_ep_statistics* statistics) {
  const char* call = "shoal_ep_group_statistics";
  return guarded([&] {
    check_fillable(call, "shoal_ep_statistics", statistics);
    fill_struct(statistics, statistics_of(group_of(group, call).statistics()));
  });
}

shoal_status shoal_ep_group_warmup(shoal_ep_group* group) {
  return guarded([&] { group_of(group, "shoal_ep_group_warmup").warmup(); });
}

shoal_status shoal_ep_group_synchronize(shoal_ep_group* group) {
  return guarded([&] { group_of(group, "shoal_ep_group_synchronize").synchronize(); });
}

shoal_status shoal_ep_masked(const shoal_ep_group* group, int32_t* masked, int32_t ranks) {
  const char* call = "shoal_ep_masked";
  return guarded([&] {
    required(masked, call, "masked");
    const std::vector<int> masks = group_of(group, call).masked();
    shoal::require(std::cmp_less_equal(masks.size(), ranks), shoal::Code::invalid_argument,
                   "SHOAL-N884: {}: room for {} ranks; this group has {}", call, ranks,
                   masks.size());
    std::copy(masks.begin(), masks.end(), masked);
  });
}

shoal_status shoal_ep_set_mask(shoal_ep_group* group, int32_t rank, int32_t masked) {
  return guarded([&] { group_of(group, "shoal_ep_set_mask").set_mask(rank, masked != 0); });
}

shoal_status shoal_ep_clear_masks(shoal_ep_group* group) {
  return guarded([&] { group_of(group, "shoal_ep_clear_masks").clear_masks(); });
}
