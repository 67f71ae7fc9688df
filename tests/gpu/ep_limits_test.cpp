// What is beyond a group on GPUs says so, with the number that is allowed and the option to change, and leaves the
// world usable (E4).
#include <gtest/gtest.h>

#include "support/ep_gpu_low_latency.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

ep::GroupOptions low_latency(std::int64_t tokens, std::int64_t hidden, std::int32_t experts) {
  ep::GroupOptions options;
  options.low_latency_max_tokens = tokens;
  options.hidden = hidden;
  options.top_k = 1;
  options.experts = experts;
  return options;
}

TEST(EpGpuLimits, GroupsBeyondThemAreRefused) {
  SHOAL_SKIP_WITHOUT_GPU();
  const auto normal = [](std::int64_t tokens, std::int64_t hidden) {
    ep::GroupOptions options = low_latency(0, hidden, 2);
    options.max_tokens = tokens;
    options.combine_staging = false;
    options.live_results = 1;
    return options;
  };
  struct Case {
    ep::GroupOptions options;
    const char* text;
  };
  const Case cases[] = {
      {low_latency(4, 16, 65536), "low-latency mode on GPUs has at most 32768 experts a member; this group has 65536"},
      {low_latency(65536, 16, 32768), "low-latency mode on GPUs has fewer than 2147483648 rows a member"},
      {normal(4, 1 << 20), "rows of 2097152 bytes"},
  };
  run_threads(1, gpu_settings(1024), [&](World& world) {
    for (const Case& one : cases)
      expect_error(Code::unsupported, one.text, [&] { GpuGroup(world, one.options).group.warmup(); });
    GpuGroup group(world, low_latency(4, 16, 2));
    group.group.warmup();
    group.group.synchronize();
  });
}

/// A row has to fit into the shared memory of an SM while it is encoded.
TEST(EpGpuLimits, LogFmtRowsBeyondSharedMemoryAreRefused) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c{.ranks = 1, .experts = 2, .top_k = 1, .hidden = 1 << 17, .max_tokens = 4, .seed = 1, .holes = 0};
  run_threads(1, gpu_settings(256), [&](World& world) {
    GpuGroup group(world, low_latency(c.max_tokens, c.hidden, c.experts));
    const PlainInputs in(group.tensors, c, {0, 1, 1, 0});
    const ep::LowLatencyReceived got =
        group.group.low_latency_dispatch(in.x, in.topk, {.quantize = ep::Quantize::none}).receive();
    expect_error(Code::unsupported, "GroupOptions.hidden is 131072",
                 [&] { group.group.low_latency_combine(got.x, in.topk, in.weights, got.handle, {.log_fmt = true}); });
    const Tensor sums = group.group.low_latency_combine(got.x, in.topk, in.weights, got.handle).receive();
    group.group.synchronize();
    const Tensor host = group.tensors.download(sums);
    for (std::int64_t i = 0; i < host.size(); i += 1000) ASSERT_EQ(host.as<std::uint16_t>()[i], 0x3f80);
  });
}

}  // namespace
}  // namespace shoal::test
