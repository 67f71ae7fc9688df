// SPDX-License-Identifier: Apache-2.0
// The C ABI of low-latency mode with PEs as threads, bit by bit against the references of
// checks/ep/case.hpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/capi/capi_ep.hpp"

namespace shoal::test {
namespace {

/// The fields that the C++ references check.
ep::LowLatencyReceived cpp_received(const shoal_ep_low_latency_received& got) {
  ep::LowLatencyReceived view;
  view.x = Tensor(view_of(got.x), nullptr);
  view.scales = Tensor(view_of(got.scales), nullptr);
  view.counts = Tensor(view_of(got.counts), nullptr);
  view.source_token = Tensor(view_of(got.source_token), nullptr);
  view.layout = Tensor(view_of(got.layout), nullptr);
  return view;
}

shoal_ep_low_latency_received receive(GroupRank& pe,
                                      const shoal_ep_low_latency_dispatch_options* options) {
  shoal_ep_pending_dispatch* pending = nullptr;
  ok(shoal_ep_low_latency_dispatch(pe.group, &pe.x, &pe.topk_idx, options, &pending));
  int32_t ready = -1;
  ok(shoal_ep_pending_dispatch_ready(pending, &ready));
  EXPECT_TRUE(ready == 0 || ready == 1);
  shoal_ep_low_latency_received got = SHOAL_EP_LOW_LATENCY_RECEIVED_INIT;
  ok(shoal_ep_pending_dispatch_receive(pending, &got));
  shoal_ep_low_latency_received twice = SHOAL_EP_LOW_LATENCY_RECEIVED_INIT;
  expect_failure(shoal_ep_pending_dispatch_receive(pending, &twice), SHOAL_INVALID_ARGUMENT,
                 "has been received");
  ok(shoal_ep_pending_dispatch_destroy(pending));
  return got;
}

void match_reference(const EpCase& c) {
  run_case(c, [&](GroupRank& pe) {
    for (const int32_t reduction : {SHOAL_PER_RANK, SHOAL_EXACT})
      for (const int32_t zero_copy : {0, 1}) {
        shoal_ep_low_latency_dispatch_options options = SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT;
        options.quantize = SHOAL_QUANTIZE_NONE;
        shoal_ep_low_latency_received got = receive(pe, &options);
        check_low_latency_received(c, pe.me, cpp_received(got));
        EXPECT_EQ(got.scales.dtype, SHOAL_NONE);

        const Tensor room = Tensor::empty(DataType::bfloat16,
                                          {c.local_experts(), c.ranks * c.max_tokens, c.hidden});
        shoal_tensor y = c_tensor(room);
        if (zero_copy != 0) ok(shoal_ep_next_combine_buffer(pe.group, &y));
        write_low_latency_expert_output(c, pe.me, cpp_received(got), view_of(y));
        shoal_ep_low_latency_combine_options combining = SHOAL_EP_LOW_LATENCY_COMBINE_OPTIONS_INIT;
        combining.reduction = reduction;
        combining.zero_copy = zero_copy;
        shoal_ep_pending_combine* pending = nullptr;
        ok(shoal_ep_low_latency_combine(pe.group, &y, &pe.topk_idx, &pe.weights, got.handle,
                                        &combining, &pending));
        int32_t ready = -1;
        ok(shoal_ep_pending_combine_ready(pending, &ready));
        shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
        ok(shoal_ep_pending_combine_receive(pending, &combined));
        ok(shoal_ep_pending_combine_destroy(pending));
        const auto wanted = expected_low_latency(c, pe.me, static_cast<ep::Reduction>(reduction));
        ASSERT_EQ(combined.x.shape[0], c.tokens(pe.me));
        expect_same("combined", combined.x.data, wanted.data(), wanted.size() * 2, 2);
        EXPECT_EQ(combined.topk_weights.dtype, SHOAL_NONE);
        ok(shoal_ep_combined_release(&combined));
        ok(shoal_ep_low_latency_received_release(&got));
      }
  });
}

TEST(CApiLowLatency, MatchesTheReference) {
  match_reference(small_case());
}

TEST(CApiLowLatency, MatchesTheReferenceWithUnevenExperts) {
  EpCase c = small_case();
  c.experts = 7;
  match_reference(c);
  c.first_expert = {0, 5, 5};
  c.none_expert = 7;
  match_reference(c);
}

TEST(CApiLowLatency, UnsummedRowsNeedNoWeights) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_low_latency_dispatch_options options = SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT;
    options.quantize = SHOAL_QUANTIZE_NONE;
    shoal_ep_low_latency_received got = receive(pe, &options);
    shoal_tensor y = SHOAL_TENSOR_NONE;
    ok(shoal_ep_next_combine_buffer(pe.group, &y));
    write_low_latency_expert_output(c, pe.me, cpp_received(got), view_of(y));
    shoal_ep_low_latency_combine_options combining = SHOAL_EP_LOW_LATENCY_COMBINE_OPTIONS_INIT;
    combining.zero_copy = 1;
    shoal_ep_pending_combine* pending = nullptr;
    EXPECT_EQ(shoal_ep_low_latency_combine(pe.group, &y, &pe.topk_idx, nullptr, got.handle,
                                           &combining, &pending),
              SHOAL_INVALID_ARGUMENT);
    combining.unsummed = 1;
    ok(shoal_ep_low_latency_combine(pe.group, &y, &pe.topk_idx, nullptr, got.handle, &combining,
                                    &pending));
    shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
    ok(shoal_ep_pending_combine_receive(pending, &combined));
    ok(shoal_ep_pending_combine_destroy(pending));
    const auto wanted = expected_unsummed(c, pe.me);
    ASSERT_EQ(combined.x.rank, 3);
    expect_same("rows", combined.x.data, wanted.data(), wanted.size() * 2, 2);
    ok(shoal_ep_combined_release(&combined));
    ok(shoal_ep_low_latency_received_release(&got));
  });
}

TEST(CApiLowLatency, OptionsReachTheLibrary) {
  const EpCase c = small_case();
  run_case(c, [&](GroupRank& pe) {
    std::vector<std::int32_t> counts(c.local_experts(), 100);
    std::vector<std::int64_t> waited(c.ranks, -1);
    const shoal_tensor counts_tensor =
                           c_tensor({counts.data(), DataType::int32, {c.local_experts()}}),
                       waited_tensor = c_tensor({waited.data(), DataType::int64, {c.ranks}});
    for (const int32_t quantize : {SHOAL_FP8, SHOAL_FP8_POWER_OF_TWO, SHOAL_FP8_UE8M0}) {
      shoal_ep_low_latency_dispatch_options options = SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT;
      options.quantize = quantize;
      options.expert_counts = &counts_tensor;
      options.wait_ns = &waited_tensor;
      options.weights = &pe.weights;
      options.defer_receive = 0;
      shoal_ep_low_latency_received got = receive(pe, quantize == SHOAL_FP8 ? nullptr : &options);
      check_low_latency_received(c, pe.me, cpp_received(got));
      check_low_latency_scales(c, pe.me, cpp_received(got), static_cast<ep::Quantize>(quantize));
      for (std::int32_t e = 0; e < c.local_experts() && quantize == SHOAL_FP8_POWER_OF_TWO; ++e)
        EXPECT_EQ(counts[e], 100 + static_cast<const std::int32_t*>(got.counts.data)[e]);
      ok(shoal_ep_low_latency_received_release(&got));
    }
    EXPECT_TRUE(std::any_of(waited.begin(), waited.end(), [](std::int64_t ns) { return ns >= 0; }));
  });
}

TEST(CApiLowLatency, EncodedCombinesAndCopiedHandle) {
  EpCase c = small_case();
  c.hidden = 512;
  run_case(c, [&](GroupRank& pe) {
    shoal_ep_low_latency_dispatch_options options = SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT;
    options.quantize = SHOAL_QUANTIZE_NONE;
    shoal_ep_low_latency_received got = receive(pe, &options);
    const Tensor y =
        Tensor::empty(DataType::bfloat16, {c.local_experts(), c.ranks * c.max_tokens, c.hidden});
    write_low_latency_expert_output(c, pe.me, cpp_received(got), y);
    shoal_ep_low_latency_handle* handle = nullptr;
    ok(shoal_ep_low_latency_handle_copy(got.handle, &handle));
    ok(shoal_ep_low_latency_received_release(&got));
    const Tensor out = Tensor::empty(DataType::bfloat16, {c.tokens(pe.me), c.hidden});
    const shoal_tensor target = c_tensor(out), expert_output = c_tensor(y);
    for (const int32_t quantize : {SHOAL_QUANTIZE_NONE, SHOAL_FP8, SHOAL_MXFP8}) {
      shoal_ep_low_latency_combine_options combining = SHOAL_EP_LOW_LATENCY_COMBINE_OPTIONS_INIT;
      combining.log_fmt = quantize == SHOAL_QUANTIZE_NONE;
      combining.quantize = quantize;
      combining.reduction = SHOAL_EXACT;
      combining.out = &target;
      combining.defer_receive = 0;
      std::vector<std::int64_t> waited(c.ranks, -1);
      const shoal_tensor waited_tensor = c_tensor({waited.data(), DataType::int64, {c.ranks}});
      combining.wait_ns = &waited_tensor;
      shoal_ep_pending_combine* pending = nullptr;
      ok(shoal_ep_low_latency_combine(pe.group, &expert_output, &pe.topk_idx, &pe.weights, handle,
                                      &combining, &pending));
      shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
      ok(shoal_ep_pending_combine_receive(pending, &combined));
      EXPECT_EQ(combined.x.data, out.data);
      const auto encoding =
          combine_encoding(combining.log_fmt != 0, static_cast<ep::Quantize>(quantize));
      const auto wanted = expected_low_latency(c, pe.me, ep::Reduction::exact, {},
                                               combine_travels(encoding, false));
      expect_same("combined", out.data, wanted.data(), wanted.size() * 2, 2);
      EXPECT_TRUE(
          std::any_of(waited.begin(), waited.end(), [](std::int64_t ns) { return ns >= 0; }));
      ok(shoal_ep_combined_release(&combined));
      ok(shoal_ep_pending_combine_destroy(pending));
    }
    ok(shoal_ep_low_latency_handle_destroy(handle));
  });
}

TEST(CApiLowLatency, MasksAreSetAndRead) {
  const EpCase c = small_case();
  shoal_ep_group_options options = c_options(c);
  options.mask_failed = 1;
  run_case(c, options, [&](GroupRank& pe) {
    const int32_t other = (pe.me + 1) % c.ranks;
    ok(shoal_ep_set_mask(pe.group, other, 1));
    int32_t masked[3] = {7, 7, 7};
    ok(shoal_ep_masked(pe.group, masked, 3));
    for (int32_t rank = 0; rank < c.ranks; ++rank) EXPECT_EQ(masked[rank], rank == other ? 1 : 0);
    expect_failure(shoal_ep_masked(pe.group, masked, 2), SHOAL_INVALID_ARGUMENT,
                   "room for 2 ranks; this group has 3");
    expect_failure(shoal_ep_set_mask(pe.group, pe.me, 1), SHOAL_INVALID_ARGUMENT, "set_mask");
    ok(shoal_ep_clear_masks(pe.group));
    ok(shoal_ep_masked(pe.group, masked, 3));
    EXPECT_EQ(masked[other], 0);
  });
}

}  // namespace
}  // namespace shoal::test
