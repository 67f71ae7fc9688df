// SPDX-License-Identifier: Apache-2.0
// The C ABI of groups and of normal mode with PEs as threads, bit by bit against the references of
// checks/ep/case.hpp.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <vector>

#include "support/capi/capi_ep.hpp"

namespace shoal::test {
namespace {

void check_rows(const EpCase& c, const ExpectedDispatch& wanted, const shoal_tensor& x) {
  const auto rows = static_cast<std::int64_t>(wanted.source_token.size());
  ASSERT_EQ(x.shape[0], rows);
  ASSERT_EQ(x.shape[1], c.hidden);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t ch = 0; ch < c.hidden; ++ch)
      ASSERT_EQ(static_cast<const std::uint16_t*>(x.data)[i * c.hidden + ch],
                c.value(wanted.source_rank[i], wanted.source_token[i], ch));
}

/// Bytes of numbers behind a pointer of a result.
template <typename T>
void expect_numbers(const char* what, const T* got, const std::vector<T>& wanted) {
  if (wanted.empty()) return;  // of a rank without experts
  ASSERT_NE(got, nullptr) << what;
  expect_same(what, got, wanted.data(), wanted.size() * sizeof(T), sizeof(T));
}

TEST(CApiEp, RoutingSaysWhereTokensGo) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_routing routing = route(pe);
    EXPECT_EQ(routing.tokens, c.tokens(pe.me));
    EXPECT_EQ(routing.ranks, c.ranks);
    EXPECT_EQ(routing.experts, c.experts);
    EXPECT_EQ(routing.rank_counts.dtype, SHOAL_NONE) << "of groups on GPUs";
    const auto topk_idx = c.topk(pe.me);
    expect_same("topk_idx", routing.topk_idx.data, topk_idx.data(), topk_idx.size() * 8, 8);
    std::vector<std::int32_t> per_rank(c.ranks), per_expert(c.experts);
    for (const std::int64_t expert : topk_idx)
      if (expert >= 0) ++per_expert[expert];
    for (std::int64_t t = 0; t < routing.tokens; ++t)
      for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
        int32_t inside = -1;
        ok(shoal_ep_is_token_in_rank(&routing, t, rank, &inside));
        const auto first = topk_idx.begin() + t * c.top_k;
        const bool wanted = std::any_of(first, first + c.top_k,
                                        [&](auto e) { return e >= 0 && c.rank_of(e) == rank; });
        EXPECT_EQ(inside, wanted ? 1 : 0);
        per_rank[rank] += inside;
      }
    expect_numbers("tokens_per_rank", routing.tokens_per_rank, per_rank);
    expect_numbers("tokens_per_expert", routing.tokens_per_expert, per_expert);
    ok(shoal_ep_routing_release(&routing));
    EXPECT_EQ(routing.owner, nullptr);
    EXPECT_EQ(routing.topk_idx.dtype, SHOAL_NONE);
    ok(shoal_ep_routing_release(&routing));  // again: nothing
  });
}

void match_reference(const EpCase& c) {
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_dispatch_options options = SHOAL_EP_DISPATCH_OPTIONS_INIT;
    options.weights = &pe.weights;
    options.expert_alignment = 4;
    shoal_ep_dispatched got = dispatch(pe, &options);
    ExpectedDispatch wanted = expected_dispatch(c, pe.me);
    const auto rows = static_cast<std::int64_t>(wanted.source_token.size());
    EXPECT_EQ(got.rows, rows);
    EXPECT_EQ(got.ranks, c.ranks);
    EXPECT_EQ(got.local_experts, c.experts_of(pe.me));
    check_rows(c, wanted, got.x);
    expect_same("source_token", got.source_token.data, wanted.source_token.data(), rows * 4, 4);
    expect_same("topk_idx", got.topk_idx.data, wanted.topk_idx.data(), rows * c.top_k * 8, 8);
    expect_same("topk_weights", got.topk_weights.data, wanted.weights.data(), rows * c.top_k * 4,
                4);
    for (std::int64_t& tokens : wanted.tokens_per_expert) tokens = (tokens + 3) / 4 * 4;
    expect_numbers("tokens_per_expert", got.tokens_per_expert, wanted.tokens_per_expert);
    expect_numbers("rows_per_source", got.rows_per_source, wanted.rows_per_source);
    EXPECT_EQ(got.scales.dtype, SHOAL_NONE);
    EXPECT_EQ(got.expert_first_row.dtype, SHOAL_NONE);

    // Combine with two biases, into memory of the caller.
    std::vector<std::uint16_t> bias(2 * pe.x.shape[0] * c.hidden), out(bias.size() / 2);
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = bf16_of(static_cast<float>(i % 13) / 4);
    const std::vector<std::uint16_t> first(bias.begin(),
                                           bias.begin() + static_cast<std::ptrdiff_t>(out.size())),
        second(bias.begin() + static_cast<std::ptrdiff_t>(out.size()), bias.end());
    const TensorView like(bias.data(), DataType::bfloat16, {pe.x.shape[0], c.hidden});
    shoal_tensor biases[2] = {c_tensor(like), c_tensor(like)}, target = c_tensor(like);
    biases[1].data = bias.data() + out.size();
    target.data = out.data();
    shoal_ep_combine_options combining = SHOAL_EP_COMBINE_OPTIONS_INIT;
    combining.bias = biases;
    combining.biases = 2;
    combining.out = &target;
    combining.weights = &got.topk_weights;
    ep::Dispatched view;
    view.x = Tensor(view_of(got.x), nullptr);
    view.topk_idx = Tensor(view_of(got.topk_idx), nullptr);
    view.topk_weights = Tensor(view_of(got.topk_weights), nullptr);
    view.rows = got.rows;
    const Tensor expert_output = expert_output_of(c, pe.me, view);
    const shoal_tensor y = c_tensor(expert_output);
    shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
    ok(shoal_ep_combine(pe.group, &y, got.handle, &combining, &combined));
    EXPECT_EQ(combined.x.data, out.data());
    const auto sums = expected_combine(c, pe.me, &first, &second);
    expect_same("combined", out.data(), sums.data(), sums.size() * 2, 2);
    combining.quantize = SHOAL_MXFP8;
    shoal_ep_combined encoded = SHOAL_EP_COMBINED_INIT;
    ok(shoal_ep_combine(pe.group, &y, got.handle, &combining, &encoded));
    const auto passed = expected_combine(c, pe.me, &first, &second,
                                         combine_travel(ep::detail::CombineEncoding::mxfp8));
    expect_same("combined in mxfp8", out.data(), passed.data(), passed.size() * 2, 2);
    ok(shoal_ep_combined_release(&encoded));
    ASSERT_EQ(combined.topk_weights.dtype, SHOAL_FLOAT32);
    EXPECT_EQ(combined.topk_weights.shape[1], c.top_k);
    ok(shoal_ep_combined_release(&combined));
    ok(shoal_ep_dispatched_release(&got));
    ok(shoal_ep_group_close(pe.group));
  });
}

TEST(CApiEp, NormalModeMatchesTheReference) {
  match_reference(small_case());
}

TEST(CApiEp, NormalModeMatchesTheReferenceWithUnevenExperts) {
  EpCase c = small_case();
  c.experts = 7;
  match_reference(c);
  c.first_expert = {0, 5, 5, 7};
  c.none_expert = 7;
  match_reference(c);
}

TEST(CApiEp, ExpandedLayoutMatchesTheReference) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_dispatch_options options = SHOAL_EP_DISPATCH_OPTIONS_INIT;
    options.expert_major = 1;
    options.expert_alignment = 8;
    options.weights = &pe.weights;
    const ExpectedExpertMajor wanted = expected_expert_major(c, pe.me, 8);
    shoal_ep_dispatched got = dispatch(pe, &options);
    ASSERT_EQ(got.rows, wanted.rows());
    expect_same("source_token", got.source_token.data, wanted.source_token.data(), got.rows * 4, 4);
    expect_same("topk_idx", got.topk_idx.data, wanted.topk_idx.data(), got.rows * 8, 8);
    expect_same("topk_weights", got.topk_weights.data, wanted.weights.data(), got.rows * 4, 4);
    expect_same("expert_first_row", got.expert_first_row.data, wanted.first_row.data(),
                wanted.first_row.size() * 4, 4);
    for (std::int64_t i = 0; i < got.rows; ++i)
      if (wanted.source_token[i] >= 0)
        EXPECT_EQ(static_cast<const std::uint16_t*>(got.x.data)[i * c.hidden + 3],
                  c.value(wanted.source_rank[i], wanted.source_token[i], 3));
    ok(shoal_ep_dispatched_release(&got));
  });
}

TEST(CApiEp, ACopiedHandleOutlivesItsResult) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_dispatched first = dispatch(pe, nullptr);
    shoal_ep_handle* handle = nullptr;
    ok(shoal_ep_handle_copy(first.handle, &handle));
    expect_failure(shoal_ep_handle_copy(first.handle, nullptr), SHOAL_INVALID_ARGUMENT,
                   "copy is NULL");
    ok(shoal_ep_dispatched_release(&first));
    EXPECT_EQ(first.handle, nullptr);
    for (int repeat = 0; repeat < 3; ++repeat) {
      shoal_ep_dispatched again = SHOAL_EP_DISPATCHED_INIT;
      ok(shoal_ep_dispatch_cached(pe.group, &pe.x, handle, nullptr, &again));
      check_rows(c, expected_dispatch(c, pe.me), again.x);
      EXPECT_EQ(again.topk_idx.dtype, SHOAL_NONE);
      EXPECT_EQ(again.tokens_per_expert, nullptr);
      shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
      ok(shoal_ep_combine(pe.group, &again.x, handle, nullptr, &combined));
      EXPECT_EQ(combined.x.shape[0], c.tokens(pe.me));
      ok(shoal_ep_combined_release(&combined));
      ok(shoal_ep_dispatched_release(&again));
    }
    ok(shoal_ep_handle_destroy(handle));
  });
}

TEST(CApiEp, WorstCaseRowsAndCopyOut) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_dispatch_options options = SHOAL_EP_DISPATCH_OPTIONS_INIT;
    options.worst_case_rows = c.ranks * c.max_tokens;
    options.copy_out = 1;
    shoal_ep_dispatched got = dispatch(pe, &options);
    EXPECT_EQ(got.x.shape[0], options.worst_case_rows);
    EXPECT_EQ(got.tokens_per_expert, nullptr);
    ok(shoal_ep_group_close(pe.group));  // a copy holds no memory of the group
    ok(shoal_ep_dispatched_release(&got));
  });
}

TEST(CApiEp, ScalesTravelWithTheirRows) {
  EpCase c = small_case();
  c.hidden = 256;
  run_case(c, [&](GroupRank& pe) {
    const std::int64_t tokens = c.tokens(pe.me);
    std::vector<std::uint8_t> rows(tokens * c.hidden, 0x38);
    std::vector<float> values(tokens * 2);
    for (std::int64_t i = 0; i < tokens * 2; ++i) values[i] = static_cast<float>(pe.me * 1000 + i);
    const shoal_tensor x = c_tensor({rows.data(), DataType::float8_e4m3, {tokens, c.hidden}}),
                       scales = c_tensor({values.data(), DataType::float32, {tokens, 2}});
    shoal_ep_dispatch_options options = SHOAL_EP_DISPATCH_OPTIONS_INIT;
    options.scales = &scales;
    shoal_ep_routing routing = route(pe);
    shoal_ep_dispatched got = SHOAL_EP_DISPATCHED_INIT;
    ok(shoal_ep_dispatch(pe.group, &x, &routing, &options, &got));
    EXPECT_EQ(got.x.dtype, SHOAL_FLOAT8_E4M3);
    ASSERT_EQ(got.scales.dtype, SHOAL_FLOAT32);
    const ExpectedDispatch wanted = expected_dispatch(c, pe.me);
    ASSERT_EQ(got.scales.shape[0], static_cast<std::int64_t>(wanted.source_token.size()));
    for (std::int64_t i = 0; i < got.rows; ++i)
      for (std::int64_t n = 0; n < 2; ++n)
        EXPECT_EQ(
            static_cast<const float*>(got.scales.data)[i * got.scales.strides[0] + n],
            static_cast<float>(wanted.source_rank[i] * 1000 + wanted.source_token[i] * 2 + n));
    ok(shoal_ep_dispatched_release(&got));
    ok(shoal_ep_routing_release(&routing));
  });
}

TEST(CApiEp, GroupOptionsReachTheGroup) {
  const EpCase c = small_case();
  shoal_ep_group_options options = c_options(c);
  options.threads = 3;
  run_pes(c.ranks, [&](shoal_world* world) {
    const auto threads = [] {
      return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                           std::filesystem::directory_iterator());
    };
    shoal_team* all = nullptr;
    ok(shoal_world_team(world, SHOAL_TEAM_WORLD, &all));
    const auto before = threads();
    ok(shoal_barrier(all));
    GroupRank pe(c, world, options);
    EXPECT_EQ(threads(), before + 2 * c.ranks);
    ok(shoal_barrier(all));
    ok(shoal_team_destroy(all));
  });
}

TEST(CApiEp, ResultsOutliveTheirGroup) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_dispatched got = dispatch(pe, nullptr);
    shoal_ep_routing routing = route(pe);
    expect_failure(shoal_ep_dispatch(pe.group, &pe.x, &routing, nullptr, &got),
                   SHOAL_INVALID_ARGUMENT, "the shoal_ep_dispatched still holds a result");
    expect_failure(shoal_ep_route(pe.group, &pe.topk_idx, nullptr, &routing),
                   SHOAL_INVALID_ARGUMENT, "the shoal_ep_routing still holds a result");
    ok(shoal_ep_group_close(pe.group));
    ok(shoal_ep_group_close(pe.group));
    shoal_ep_combined sums = SHOAL_EP_COMBINED_INIT;
    expect_failure(shoal_ep_combine(pe.group, &got.x, got.handle, nullptr, &sums), SHOAL_CLOSED,
                   "the group is closed that made the handle (dispatch 1)");
    ok(shoal_ep_dispatched_release(&got));
    ok(shoal_ep_routing_release(&routing));
    expect_failure(shoal_ep_route(pe.group, &pe.topk_idx, nullptr, &routing), SHOAL_CLOSED,
                   "the group is closed");
  });
}

TEST(CApiEp, FuturesHandOutTheirResults) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_routing routing = route(pe);
    shoal_ep_future *dispatching = nullptr, *combining = nullptr;
    ok(shoal_ep_dispatch_async(pe.group, &pe.x, &routing, nullptr, &dispatching));
    shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
    expect_failure(shoal_ep_future_combined(dispatching, &combined), SHOAL_INVALID_ARGUMENT,
                   "of another operation");
    shoal_ep_dispatched got = SHOAL_EP_DISPATCHED_INIT;
    ok(shoal_ep_future_dispatched(dispatching, &got));
    check_rows(c, expected_dispatch(c, pe.me), got.x);
    EXPECT_EQ(got.local_experts, c.local_experts());
    int32_t ready = 0;
    ok(shoal_ep_future_ready(dispatching, &ready));
    EXPECT_EQ(ready, 1);
    shoal_ep_dispatched twice = SHOAL_EP_DISPATCHED_INIT;
    expect_failure(shoal_ep_future_dispatched(dispatching, &twice), SHOAL_INVALID_ARGUMENT,
                   "its result was taken");

    ok(shoal_ep_combine_async(pe.group, &got.x, got.handle, nullptr, &combining));
    ok(shoal_ep_future_combined(combining, &combined));
    EXPECT_EQ(combined.x.shape[0], c.tokens(pe.me));
    ok(shoal_ep_combined_release(&combined));
    ok(shoal_ep_future_destroy(combining));
    ok(shoal_ep_combine_async(pe.group, &got.x, got.handle, nullptr, &combining));
    ok(shoal_ep_future_destroy(combining));  // waits, and drops the result

    shoal_tensor wrong = pe.x;
    wrong.dtype = SHOAL_FLOAT64;
    shoal_ep_future* failing = nullptr;
    ok(shoal_ep_dispatch_async(pe.group, &wrong, &routing, nullptr, &failing));
    expect_failure(shoal_ep_future_dispatched(failing, &twice), SHOAL_INVALID_ARGUMENT,
                   "x is float64");
    ok(shoal_ep_future_destroy(failing));
    ok(shoal_ep_future_destroy(dispatching));
    ok(shoal_ep_dispatched_release(&got));
    ok(shoal_ep_routing_release(&routing));
  });
}

/// A child that PE 0 forks while its operation waits for the other PEs.
TEST(CApiEp, AForkDoesNotWaitForFutures) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_routing routing = route(pe);
    shoal_ep_future* future = nullptr;
    shoal_ep_dispatched got = SHOAL_EP_DISPATCHED_INIT;
    if (pe.me == 0) {
      ok(shoal_ep_dispatch_async(pe.group, &pe.x, &routing, nullptr, &future));
      const pid_t child = fork();
      if (child == 0) {
        alarm(30);  // ends a child that waits
        const bool refused = shoal_ep_future_dispatched(future, &got) == SHOAL_CLOSED;
        _exit(refused && shoal_ep_future_destroy(future) == SHOAL_OK ? 0 : 1);
      }
      int status = -1;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    ok(shoal_sync(pe.team));
    if (pe.me != 0) ok(shoal_ep_dispatch_async(pe.group, &pe.x, &routing, nullptr, &future));
    ok(shoal_ep_future_dispatched(future, &got));
    check_rows(c, expected_dispatch(c, pe.me), got.x);
    ok(shoal_ep_future_destroy(future));
    ok(shoal_ep_dispatched_release(&got));
    ok(shoal_ep_routing_release(&routing));
  });
}

TEST(CApiEp, StatisticsWarmupAndSynchronize) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    ok(shoal_ep_group_warmup(pe.group));
    shoal_ep_dispatched got = dispatch(pe, nullptr);
    ok(shoal_ep_group_synchronize(pe.group));
    shoal_ep_statistics statistics = SHOAL_EP_STATISTICS_INIT;
    ok(shoal_ep_group_statistics(pe.group, &statistics));
    EXPECT_EQ(statistics.dispatches, 1u) << "a warmup does not count";
    EXPECT_EQ(statistics.combines, 0u);
    EXPECT_EQ(statistics.rows_received, static_cast<std::uint64_t>(got.rows));
    shoal_ep_routing routing = route(pe);
    const auto sent = std::accumulate(routing.tokens_per_rank, routing.tokens_per_rank + c.ranks,
                                      std::uint64_t{0});
    EXPECT_EQ(statistics.rows_sent, sent);
    ok(shoal_ep_routing_release(&routing));
    EXPECT_GT(statistics.dispatch_ns, 0);
    EXPECT_EQ(statistics.low_latency_combine_ns, 0);
    int32_t local_experts = 0, first = -1;
    ok(shoal_ep_group_local_experts(pe.group, &local_experts));
    EXPECT_EQ(local_experts, c.local_experts());
    ok(shoal_ep_group_max_local_experts(pe.group, &local_experts));
    EXPECT_EQ(local_experts, c.local_experts());
    for (int32_t rank = 0; rank <= c.ranks; ++rank) {
      ok(shoal_ep_group_first_expert(pe.group, rank, &first));
      EXPECT_EQ(first, c.first_of(rank));
    }
    expect_failure(shoal_ep_group_first_expert(pe.group, c.ranks + 1, &first),
                   SHOAL_INVALID_ARGUMENT, "allowed: 0 to 3");
    void* stream = &statistics;
    ok(shoal_ep_group_stream(pe.group, &stream));
    EXPECT_EQ(stream, nullptr);
    ok(shoal_ep_dispatched_release(&got));
  });
}

TEST(CApiEp, BadArgumentsAreNamedAndTheGroupStaysUsable) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_routing routing = route(pe);
    shoal_ep_dispatched got = SHOAL_EP_DISPATCHED_INIT;
    const auto refused = [&](const shoal_tensor* x, const shoal_ep_dispatch_options* options,
                             const char* text) {
      expect_failure(shoal_ep_dispatch(pe.group, x, &routing, options, &got),
                     SHOAL_INVALID_ARGUMENT, text);
      EXPECT_EQ(got.owner, nullptr);
    };
    refused(nullptr, nullptr, "shoal_ep_dispatch: x is NULL");
    shoal_tensor bad = pe.x;
    bad.rank = 9;
    refused(&bad, nullptr, "shoal_ep_dispatch: x.rank is 9");
    bad = pe.x;
    bad.data = nullptr;
    refused(&bad, nullptr, "shoal_ep_dispatch: x.data is NULL");
    bad = pe.topk_idx;
    bad.data = nullptr;
    shoal_ep_routing unused = SHOAL_EP_ROUTING_INIT;
    expect_failure(shoal_ep_route(pe.group, &bad, nullptr, &unused), SHOAL_INVALID_ARGUMENT,
                   "shoal_ep_route: topk_idx.data is NULL");
    bad = pe.x;
    bad.dtype = SHOAL_FLOAT64;
    refused(&bad, nullptr, "x is float64");
    bad = pe.x, bad.device = 2;
    refused(&bad, nullptr, "the device of a tensor is 2");
    bad = pe.x, bad.device = SHOAL_CUDA;
    refused(&bad, nullptr, "x is on GPU 0");
    shoal_ep_dispatch_options options = SHOAL_EP_DISPATCH_OPTIONS_INIT;
    options.weights = &pe.topk_idx;
    refused(&pe.x, &options, "DispatchOptions.weights is int64");
    options = SHOAL_EP_DISPATCH_OPTIONS_INIT;
    options.quantize = 6;
    refused(&pe.x, &options, "shoal_ep_dispatch_options.quantize is 6");
    shoal_ep_launch launch = SHOAL_EP_LAUNCH_INIT;
    launch.sms = -1;
    options = SHOAL_EP_DISPATCH_OPTIONS_INIT;
    options.launch = &launch;
    refused(&pe.x, &options, "Launch.sms is -1");
    for (void* shoal_ep_launch::* const member :
         {&shoal_ep_launch::stream, &shoal_ep_launch::after, &shoal_ep_launch::done}) {
      launch = SHOAL_EP_LAUNCH_INIT;
      launch.*member = &launch;
      refused(&pe.x, &options, "Launch names a CUDA stream or event");
    }
    launch = SHOAL_EP_LAUNCH_INIT, launch.size = 3;
    refused(&pe.x, &options, "shoal_ep_launch.size is 3");

    expect_failure(shoal_ep_dispatch_cached(pe.group, &pe.x, nullptr, nullptr, &got),
                   SHOAL_INVALID_ARGUMENT, "handle is NULL");
    shoal_ep_low_latency_dispatch_options send = SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT;
    send.quantize = 6;
    shoal_ep_pending_dispatch* pending = nullptr;
    expect_failure(shoal_ep_low_latency_dispatch(pe.group, &pe.x, &pe.topk_idx, &send, &pending),
                   SHOAL_INVALID_ARGUMENT,
                   "shoal_ep_low_latency_dispatch_options.quantize is 6; allowed: 0 to 5");
    EXPECT_EQ(pending, nullptr);

    ok(shoal_ep_dispatch(pe.group, &pe.x, &routing, nullptr, &got));
    check_rows(c, expected_dispatch(c, pe.me), got.x);
    shoal_ep_combine_options combining = SHOAL_EP_COMBINE_OPTIONS_INIT;
    combining.biases = 3;
    shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
    expect_failure(shoal_ep_combine(pe.group, &got.x, got.handle, &combining, &combined),
                   SHOAL_INVALID_ARGUMENT, "shoal_ep_combine_options.biases is 3; allowed: 0 to 2");
    combining.biases = 1;
    expect_failure(shoal_ep_combine(pe.group, &got.x, got.handle, &combining, &combined),
                   SHOAL_INVALID_ARGUMENT, "shoal_ep_combine_options.bias is NULL");
    ok(shoal_ep_combine(pe.group, &got.x, got.handle, nullptr, &combined));
    ok(shoal_ep_combined_release(&combined));
    ok(shoal_ep_dispatched_release(&got));
    ok(shoal_ep_routing_release(&routing));
  });
}

TEST(CApiEp, GroupsSayWhatIsWrongWithTheirOptions) {
  EpCase c = small_case();
  run_pes(c.ranks, [&](shoal_world* world) {
    shoal_team* team = nullptr;
    ok(shoal_world_team(world, SHOAL_TEAM_WORLD, &team));
    shoal_ep_group_options options = c_options(c);
    shoal_ep_group* group = nullptr;
    const int32_t first[] = {0, 5, 4};
    options.first_expert = first;
    options.first_experts = 3;
    expect_failure(shoal_ep_group_create(team, &options, &group), SHOAL_INVALID_ARGUMENT,
                   "first_expert[2] is 4; allowed: 5 to 9");
    options.first_expert = nullptr;
    expect_failure(shoal_ep_group_create(team, &options, &group), SHOAL_INVALID_ARGUMENT,
                   "first_experts is 3 and first_expert NULL");
    // Options that must be equal name themselves when they differ: so every one of them arrives.
    const auto differs = [&](const char* name, auto change) {
      options = c_options(c);
      if (GroupRank::pe_of(world) == 1) change(options);
      expect_failure(shoal_ep_group_create(team, &options, &group), SHOAL_MISMATCH, name);
    };
    differs("max_tokens", [](auto& o) { ++o.max_tokens; });
    differs("hidden", [](auto& o) { o.hidden += 128; });
    differs("top_k", [](auto& o) { --o.top_k; });
    differs("experts", [](auto& o) { o.experts *= 2; });
    differs("first_expert[1]", [](auto& o) {
      static const int32_t other[] = {0, 4, 6};
      o.first_expert = other;
      o.first_experts = 3;
    });
    differs("dtype", [](auto& o) { o.dtype = SHOAL_FLOAT32; });
    differs("max_scales", [](auto& o) { o.max_scales = 3; });
    differs("live_results", [](auto& o) { ++o.live_results; });
    differs("low_latency_max_tokens", [](auto& o) { ++o.low_latency_max_tokens; });
    differs("preinitialize", [](auto& o) { o.preinitialize = 1; });
    differs("mask_failed", [](auto& o) { o.mask_failed = 1; });
    differs("combine_staging", [](auto& o) { o.combine_staging = 0; });
    expect_failure(shoal_ep_group_create(nullptr, &options, &group), SHOAL_INVALID_ARGUMENT,
                   "team is NULL");
    EXPECT_EQ(group, nullptr);
    ok(shoal_team_destroy(team));
  });
}

TEST(CApiEp, ARankThatDoesNotComeIsATimeout) {
  const EpCase c = small_case();
  shoal_ep_group_options options = c_options(c);
  options.timeout_ms = 100;
  run_case(c, options, [&](GroupRank& pe) {
    if (pe.me != 0) {
      shoal_ep_routing routing = route(pe);
      shoal_ep_dispatched got = SHOAL_EP_DISPATCHED_INIT;
      expect_failure(shoal_ep_dispatch(pe.group, &pe.x, &routing, nullptr, &got), SHOAL_TIMEOUT,
                     "PE 0");
      EXPECT_EQ(got.owner, nullptr);
      expect_failure(shoal_ep_dispatch(pe.group, &pe.x, &routing, nullptr, &got), SHOAL_CLOSED,
                     "failed before");
      shoal_ep_statistics statistics = SHOAL_EP_STATISTICS_INIT;
      ok(shoal_ep_group_statistics(pe.group, &statistics));
      EXPECT_GE(statistics.wait_ns, 100'000'000);
      ok(shoal_ep_routing_release(&routing));
    }
    ok(shoal_barrier(pe.team));
  });
}

}  // namespace
}  // namespace shoal::test
