// SPDX-License-Identifier: Apache-2.0
// EP with a process per PE: the same checks over shared memory.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "checks/ep/normal.hpp"
#include "shoal/world.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

EpCase shape(std::int32_t ranks) {
  return {.ranks = ranks, .experts = ranks * 4, .top_k = 6, .hidden = 512, .max_tokens = 30};
}

SHOAL_PE_BODY(both_modes) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = shape(world.n_pes());
  ep::Group group(world.team(), options_for(c));
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    EpCase now = c;
    now.seed = seed;
    check_normal(group, now);
    check_low_latency(group, now, ep::Reduction::per_rank, seed % 2 == 0);
    check_low_latency_quantized(group, now, ep::Quantize::fp8_ue8m0);
  }
  group.close();
  world.close();
}

TEST(EpProcesses, BothModesMatchTheReference) {
  for (const std::int32_t ranks : {1, 3, 8}) expect_success(run_pes(ranks, "both_modes"));
}

std::chrono::nanoseconds processor_time() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

SHOAL_PE_BODY(idle_between_send_and_receive) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = shape(world.n_pes());
  ep::Group group(world.team(), options_for(c));
  const Inputs in(c, world.my_pe());
  const auto idle = [] {
    const auto before = processor_time();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return processor_time() - before;
  };
  constexpr std::chrono::milliseconds kAllowed(5);  // a thread that polled would take 50
  for (int i = 0; i < 3; ++i) {
    ep::PendingDispatch rows =
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none});
    EXPECT_LT(idle(), kAllowed);
    const ep::LowLatencyReceived got = rows.receive();
    ep::PendingCombine pending =
        group.low_latency_combine(got.x, in.topk_idx, in.weights, got.handle);
    EXPECT_LT(idle(), kAllowed);
    pending.receive();
  }
  group.close();
  world.close();
}

TEST(EpProcesses, NothingRunsBetweenSendAndReceive) {
  expect_success(run_pes(2, "idle_between_send_and_receive"));
}

/// Resources of the process, as the kernel counts them.
struct Counts {
  std::size_t threads = 0, files = 0, libraries = 0;
  std::size_t shared_kib = 0;  ///< memory of the heap that this process has mapped

  static Counts now() {
    Counts counts;
    const auto entries = [](const char* folder) {
      const std::filesystem::directory_iterator all(folder);
      return static_cast<std::size_t>(std::distance(begin(all), end(all)));
    };
    counts.threads = entries("/proc/self/task");
    counts.files = entries("/proc/self/fd");
    std::ifstream maps("/proc/self/smaps");
    bool of_heap = false;
    for (std::string line; std::getline(maps, line);) {
      if (line.find(':') != line.find_first_of(":-")) {  // the line of a mapping
        of_heap = line.find("/memfd:shoal-heap") != std::string::npos;
        counts.libraries += line.find(".so") != std::string::npos ? 1 : 0;
      } else if (of_heap && line.starts_with("Rss:")) {
        counts.shared_kib += std::stoul(line.substr(4));
      }
    }
    return counts;
  }
  bool operator==(const Counts&) const = default;
  friend void PrintTo(const Counts& counts, std::ostream* to) {
    *to << counts.threads << " threads, " << counts.files << " files, " << counts.libraries
        << " mappings of libraries, " << counts.shared_kib << " KiB of the heap";
  }
};

/// Page faults of this thread in a call.
long faults_of(const std::function<void()>& call) {
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  const long before = faults();
  call();
  return faults() - before;
}

/// A pair in each mode and form, of tokens that load some experts more than others.
std::vector<std::function<void()>> pairs_of(ep::Group& group, const Inputs& in) {
  std::vector<std::function<void()>> pairs;
  pairs.emplace_back([&] {
    const ep::Dispatched got =
        group.dispatch(in.x, group.route(in.topk_idx), {.weights = in.weights});
    group.combine(got.x, got.handle);
  });
  const ep::GroupOptions& options = group.options();
  const Tensor rows =
      Tensor::empty(options.dtype, {options.max_tokens * group.team().size(), options.hidden});
  std::memset(rows.data, 0, rows.bytes());
  pairs.emplace_back([&, rows] {
    const ep::Dispatched got = group.dispatch(in.x, group.route(in.topk_idx));
    const TensorView y(rows.data, rows.dtype, {got.x.shape[0], got.x.shape[1]});
    group.combine(y, got.handle);  // a copy to the staging area
  });
  for (const ep::Quantize quantize : {ep::Quantize::none, ep::Quantize::fp8})
    pairs.emplace_back([&, quantize] {
      const ep::LowLatencyReceived got =
          group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = quantize}).receive();
      const bool in_place = quantize == ep::Quantize::fp8;
      const TensorView y = in_place ? group.next_combine_buffer() : TensorView(got.x);
      group.low_latency_combine(y, in.topk_idx, in.weights, got.handle, {.zero_copy = in_place})
          .receive();
    });
  return pairs;
}

// Page faults of a later pair: code, and one array of sums, which the C library may place anew.
constexpr long kFewFaults = 64 + 256;

/// argument: "preinitialize", "warmup", or "" for neither.
SHOAL_PE_BODY(first_pairs) {
  World world = World::open({pe.settings, nullptr});
  // The case is so large that a first pair without a warm-up touches thousands of pages.
  const EpCase c{.ranks = world.n_pes(),
                 .experts = 8 * world.n_pes(),
                 .top_k = 4,
                 .hidden = 4096,
                 .max_tokens = 128,
                 .holes = 0,
                 .full = true};
  const Inputs in(c, world.my_pe());
  ep::GroupOptions options = options_for(c);
  options.preinitialize = pe.argument == "preinitialize";
  ep::Group group(world.team(), options);
  if (pe.argument == "warmup") group.warmup();
  long first_touch = 0;
  for (const auto& pair : pairs_of(group, in)) {
    const Counts before = Counts::now();
    const long first = faults_of(pair);
    const Counts after = Counts::now();
    std::vector<long> later(4);
    for (long& faults : later) faults = faults_of(pair);
    const auto [least, most] = std::ranges::minmax(later);
    if (pe.argument.empty()) {
      first_touch += first - least;
      continue;
    }
    EXPECT_EQ(before, after);
    EXPECT_LE(first, most + kFewFaults);
  }
  // Without the warm-up, the first pairs touch much new memory: the bound above is not trivial.
  if (pe.argument.empty()) EXPECT_GT(first_touch, 2 * kFewFaults);
  group.close();
  world.close();
}

TEST(EpProcesses, FirstPairsAfterAWarmUpTouchNoNewMemory) {
  for (const char* how : {"preinitialize", "warmup", ""})
    expect_success(run_pes(2, "first_pairs", {.argument = how}));
}

}  // namespace
}  // namespace shoal::test
