// SPDX-License-Identifier: Apache-2.0
// The ofi transport in worlds of threads: every operation between two PEs uses an endpoint of
// tcp;ofi_rxm on the loopback interface.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "checks/collective/reference.hpp"
#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/made_up.hpp"
#include "support/process/progress_time.hpp"
#include "support/process/threads_called.hpp"
#include "support/world/ofi.hpp"
#include "world/fabric/fabric.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

void sync(World& world) {
  world.state().sync(world.team().state(), "test");
}

class OfiWorld : public testing::TestWithParam<Pe> {
 protected:
  void SetUp() override { SHOAL_SKIP_WITHOUT_OFI(); }
};

std::string pes(const testing::TestParamInfo<Pe>& info) {
  return std::to_string(info.param) + "_pes";
}

TEST_P(OfiWorld, DoesEveryOperation) {
  Settings settings = ofi_settings();
  settings.max_teams = 40;
  run_threads(GetParam(), settings, [](World& world) {
    for (Pe pe = 0; pe < world.n_pes(); ++pe)
      if (pe != world.my_pe())
        expect(world.describe_transport(pe).starts_with("ofi: "), world.describe_transport(pe));
    check_everything(world);
  });
}

TEST_P(OfiWorld, RunsCollectives) {
  Settings settings = ofi_settings();
  settings.symmetric_size = 32 << 20;
  run_threads(GetParam(), settings, [](World& world) { run_random_collectives(world, 25, 7); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, OfiWorld, testing::Values(2, 3, 5), pes);

struct Tuning {
  const char* name;
  std::int64_t depth;
  std::size_t chunk;
  const char* wait;
  std::int64_t core;
};

class OfiTuning : public testing::TestWithParam<Tuning> {
 protected:
  void SetUp() override { SHOAL_SKIP_WITHOUT_OFI(); }
  static Settings tuned() {
    Settings settings = ofi_settings();
    settings.symmetric_size = 32 << 20;
    settings.network_depth = GetParam().depth;
    settings.network_chunk = GetParam().chunk;
    settings.progress_wait = GetParam().wait;
    settings.progress_core = GetParam().core;
    return settings;
  }
};

void fill(std::byte* memory, std::size_t bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes; ++i)
    memory[i] = static_cast<std::byte>(mix(seed + i / 8) >> (8 * (i % 8)));
}

bool holds(const std::byte* memory, std::size_t bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (memory[i] != static_cast<std::byte>(mix(seed + i / 8) >> (8 * (i % 8)))) return false;
  return true;
}

// Sizes around the chunk, odd addresses, one and many requests in flight.
TEST_P(OfiTuning, MovesTransfersLongerThanAChunk) {
  run_threads(2, tuned(), [](World& world) {
    constexpr std::size_t kBytes = (5 << 20) + 123;
    const auto box = world.heap().allocate<std::byte>(kBytes);
    std::vector<std::byte> mine(kBytes), back(kBytes);
    const Pe other = 1 - world.my_pe();
    std::uint64_t seed = 1;
    for (const std::size_t bytes : {std::size_t{5}, std::size_t{4096}, GetParam().chunk - 1,
                                    GetParam().chunk + 1, kBytes - 3}) {
      if (bytes > kBytes - 3) continue;
      ++seed;
      fill(mine.data(), bytes, seed * 1000 + static_cast<std::uint64_t>(world.my_pe()));
      world.put(box.on(other).subspan(3, bytes), std::span<const std::byte>(mine.data(), bytes));
      world.quiet();
      sync(world);
      expect(holds(box.data() + 3, bytes, seed * 1000 + static_cast<std::uint64_t>(other)),
             "put is whole");
      world.get(std::span(back.data(), bytes), box.on(other).subspan(3, bytes));
      expect(std::memcmp(back.data(), mine.data(), bytes) == 0, "get is whole");
      sync(world);
    }
  });
}

std::size_t most_in_flight(World& world, Pe pe) {
  return world.state().fabric().route(pe).most_in_flight();
}

TEST_P(OfiTuning, KeepsManyRequestsInFlightBounded) {
  run_threads(2, tuned(), [](World& world) {
    constexpr std::size_t kCount = 3000, kBytes = 96;
    const auto box = world.heap().allocate<std::byte>(kCount * kBytes);
    const auto words = world.heap().allocate<std::uint64_t>(kCount);
    const Pe other = 1 - world.my_pe();
    std::vector<std::byte> mine(kCount * kBytes);
    fill(mine.data(), mine.size(), static_cast<std::uint64_t>(world.my_pe()));
    for (std::size_t i = 0; i < kCount; ++i) {
      world.put_nbi(box.on(other).subspan(i * kBytes, kBytes),
                    std::span<const std::byte>(mine.data() + i * kBytes, kBytes));
      world.put_value(words.on(other)[i], i * 3 + 1);
      world.atomic_fetch_add(words.on(other)[i], std::uint64_t{1});
    }
    world.quiet();
    sync(world);
    expect(holds(box.data(), mine.size(), static_cast<std::uint64_t>(other)), "data");
    for (std::size_t i = 0; i < kCount; ++i)
      expect(words[i] == i * 3 + 2, fmt::format("word {} is {}", i, words[i]));
    // Both ways at once, from the heap into the heap.
    const auto copy = world.heap().allocate<std::byte>(kCount * kBytes);
    for (std::size_t i = 0; i < kCount; ++i)
      world.get_nbi(std::span(copy.data() + i * kBytes, kBytes),
                    box.on(other).subspan(i * kBytes, kBytes));
    world.quiet();
    expect(std::memcmp(copy.data(), mine.data(), mine.size()) == 0, "what came back");
    const std::size_t most = most_in_flight(world, other),
                      depth = static_cast<std::size_t>(GetParam().depth);
    expect(most <= depth && most >= std::min<std::size_t>(depth, 4),
           fmt::format("{} were in flight at most", most));
    sync(world);
  });
}

// A PE that sees the signal sees the data, for any size, and for blocking and nbi puts.
TEST_P(OfiTuning, SignalsAfterData) {
  const int rounds = GetParam().depth == 1 ? 2000 : 10'000;
  run_threads(2, tuned(), [&](World& world) {
    constexpr std::size_t kSizes[] = {8, 24, 200, 1024, 5000};
    const auto box = world.heap().allocate<std::byte>(8192);
    const auto flag = world.heap().allocate<std::uint64_t>(2);
    std::vector<std::byte> data(8192);
    const Pe me = world.my_pe();
    for (int i = 1; i <= rounds; ++i) {
      const auto number = static_cast<std::uint64_t>(i);
      const std::size_t bytes = kSizes[mix(number) % std::size(kSizes)];
      if (me == i % 2) {
        fill(data.data(), bytes, number);
        const std::span<const std::byte> source(data.data(), bytes);
        const auto target = box.on(1 - me).subspan(0, bytes);
        switch (i / 2 % 3) {
          case 0:
            world.put_signal(target, source, flag.on(1 - me)[0], SignalOp::set, number);
            break;
          case 1:
            world.put(target, source);
            world.signal_set(flag.on(1 - me)[0], number);
            break;
          default:
            world.put_nbi(target, source);
            world.fence();
            world.put_value(flag.on(1 - me)[0], number);
            world.quiet();
        }
      } else {
        world.signal_wait_until(&flag[0], Compare::equal, number);
        expect(holds(box.data(), bytes, number),
               fmt::format("round {}: the signal came before {} bytes", i, bytes));
      }
    }
    sync(world);
  });
}

TEST_P(OfiTuning, RunsCollectives) {
  run_threads(3, tuned(), [](World& world) {
    run_random_collectives(world, std::string_view(GetParam().wait) == "spin" ? 3 : 10, 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Tunings, OfiTuning,
                         testing::Values(Tuning{"default", 256, 1 << 20, "yield", -1},
                                         Tuning{"depth_1", 1, 1 << 20, "yield", -1},
                                         Tuning{"small_chunk", 4, 4096, "yield", -1},
                                         Tuning{"sleep", 256, 1 << 20, "sleep", -1}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

// Few steps: a progress thread that spins on the core of a PE costs it a time slice per step.
TEST(OfiProgress, SpinsOnCoresOfItsOwn) {
  SHOAL_SKIP_WITHOUT_OFI();
  Settings settings = ofi_settings();
  settings.progress_wait = "spin";
  settings.progress_core = 0;
  run_threads(2, settings, [](World& world) {
    if (cores_of(0).contains(0) && cores_of(0).contains(1)) {
      expect(cores_of("shoal-ofi") == std::set<std::set<int>>{{0}, {1}},
             "a core for the progress thread of each PE, from core 0 on");
    }
    sync(world);
    const auto box = world.heap().allocate<std::byte>(5000);
    const auto flag = world.heap().allocate<std::uint64_t>(1);
    std::vector<std::byte> data(box.size());
    const Pe other = 1 - world.my_pe();
    for (std::uint64_t i = 1; i <= 5; ++i) {
      fill(data.data(), data.size(), i);
      world.put_signal(box.on(other), std::span<const std::byte>(data), flag.on(other),
                       SignalOp::set, i);
      world.signal_wait_until(flag.data(), Compare::greater_equal, i);
      expect(holds(box.data(), box.size(), i), "the signal came before the data");
      sync(world);
    }
  });
}

TEST(OfiProgress, FollowsTheProgressWaitSetting) {
  SHOAL_SKIP_WITHOUT_OFI();
  expect_progress_waits_as_told(ofi_settings(), "shoal-ofi");
}

// A fence orders two puts to different places for a PE that polls without a signal, whatever the
// provider's write order.
TEST(OfiOrder, FenceOrdersPuts) {
  SHOAL_SKIP_WITHOUT_OFI();
  run_threads(2, ofi_settings(), [](World& world) {
    constexpr std::size_t kWords = 512;
    const auto first = world.heap().allocate<std::uint64_t>(kWords);
    const auto second = world.heap().allocate<std::uint64_t>(kWords);
    std::vector<std::uint64_t> data(kWords);
    const auto last = [](const SymmetricArray<std::uint64_t>& array) {
      return std::atomic_ref(array.data()[kWords - 1]).load(std::memory_order_acquire);
    };
    constexpr std::uint64_t kRounds = 500;
    if (world.my_pe() == 0) {
      for (std::uint64_t i = 1; i <= kRounds; ++i) {
        std::fill(data.begin(), data.end(), i);
        world.put_nbi(first.on(1), std::span<const std::uint64_t>(data));
        world.fence();
        world.put(second.on(1), std::span<const std::uint64_t>(data));
        world.quiet();
      }
    } else {
      for (std::uint64_t seen = 0; seen < kRounds;) {
        seen = std::max(seen, last(second));
        expect(last(first) >= seen, "the second put was seen before the first");
        std::this_thread::yield();
      }
    }
    sync(world);
  });
}

void update_together(World& world) {
  constexpr std::uint64_t kTimes = 2000;
  const auto words = world.heap().allocate<std::uint64_t>(8);
  const auto small = world.heap().allocate<std::uint32_t>(8);
  expect(world.describe_transport((world.my_pe() + 1) % 2 + world.my_pe() / 2 * 2).find("shm") !=
             std::string::npos,
         "shm inside");
  expect(world.describe_transport((world.my_pe() + 2) % 4).find("ofi") != std::string::npos,
         "ofi between");
  const auto n = static_cast<std::uint64_t>(world.n_pes());
  for (std::uint64_t i = 0; i < kTimes; ++i) {
    world.atomic_fetch_add(words.on(0)[0], std::uint64_t{1});
    world.atomic_fetch_add(words.on(3)[1], std::uint64_t{3});
    world.signal_add(words.on(0)[2], 1);
    world.atomic_fetch_add(small.on(2)[0], 1U);
    world.atomic_fetch_xor(words.on(1)[3], std::uint64_t{1} << world.my_pe());
  }
  world.quiet();
  sync(world);
  expect(world.atomic_fetch(words.on(0)[0]) == n * kTimes, "atomic_add");
  expect(world.atomic_fetch(words.on(3)[1]) == 3 * n * kTimes, "atomic_fetch_add");
  expect(world.atomic_fetch(words.on(0)[2]) == n * kTimes, "signal_add");
  expect(world.atomic_fetch(small.on(2)[0]) == n * kTimes, "32-bit atomic_add");
  expect(world.atomic_fetch(words.on(1)[3]) == 0, "atomic_fetch_xor");
  sync(world);
}

// Atomics over the network and instructions through shared memory update the same words.
TEST(OfiMixed, SharesWordsWithSharedMemory) {
  SHOAL_SKIP_WITHOUT_OFI();
  Settings settings = world_settings();
  settings.transport_between = "ofi";
  settings.node_size = 2;
  run_threads(4, settings, [](World& world) {
    update_together(world);
    check_everything(world);
  });
}

// Other providers register and address memory differently, and order less.
class OfiProvider : public testing::TestWithParam<const char*> {};

TEST_P(OfiProvider, DoesEveryOperation) {
  SHOAL_SKIP_WITHOUT_OFI();
#ifdef __SANITIZE_ADDRESS__
  if (std::string_view(GetParam()).starts_with("net"))
    GTEST_SKIP() << "libfabric's net provider does not free all that it takes";
#endif
  Settings settings = ofi_settings();
  settings.max_teams = 40;
  settings.ofi_provider = GetParam();
  try {
    run_threads(3, settings, [](World&) {});
  } catch (const Error& error) {
    if (error.code() != Code::unsupported) throw;
    GTEST_SKIP() << "no " << GetParam() << " here: " << error.what();
  }
  run_threads(3, settings, [](World& world) {
    for (Pe pe = 0; pe < world.n_pes(); ++pe)
      if (pe != world.my_pe())
        expect(world.describe_transport(pe).starts_with("ofi: "), world.describe_transport(pe));
    check_everything(world);
    run_random_collectives(world, 10, 5);
  });
}

INSTANTIATE_TEST_SUITE_P(Others, OfiProvider,
                         testing::Values("net;ofi_rxm", "net", "shm", "udp;ofi_rxd"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), ';', '_');
                           return name;
                         });

TEST(OfiChoiceOfProvider, NamesAProviderThatDoesNotExist) {
  SHOAL_SKIP_WITHOUT_OFI();
  Settings settings = ofi_settings();
  settings.ofi_provider = "no_such_provider";
  expect_error(Code::unsupported, "SHOAL_OFI_PROVIDER",
               [&] { run_threads(2, settings, [](World&) {}); });
  expect_error(Code::unsupported, "no_such_provider",
               [&] { run_threads(2, settings, [](World&) {}); });
}

TEST(OfiThreads, SeveralThreadsOfAPeOperateAtOnce) {
  SHOAL_SKIP_WITHOUT_OFI();
  run_threads(2, ofi_settings(), [](World& world) {
    constexpr std::size_t kThreads = 3, kTimes = 300, kBytes = 3000;
    const auto box = world.heap().allocate<std::byte>(kThreads * kBytes);
    const auto count = world.heap().allocate<std::uint64_t>(kThreads);
    const Pe other = 1 - world.my_pe();
    std::vector<std::thread> threads;
    std::vector<std::string> failures(kThreads);
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        try {
          std::vector<std::byte> data(kBytes), back(kBytes);
          fill(data.data(), kBytes, t);
          const auto mine = box.on(other).subspan(t * kBytes, kBytes);
          for (std::size_t i = 0; i < kTimes; ++i) {
            world.put(mine, std::span<const std::byte>(data));
            world.quiet();
            world.get(std::span(back), mine);
            expect(back == data, "round trip");
            expect(world.atomic_fetch_add(count.on(other)[t], std::uint64_t{1}) == i, "count");
          }
        } catch (const std::exception& error) {
          failures[t] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures) expect(failure.empty(), failure);
    sync(world);
  });
}

}  // namespace
}  // namespace shoal::test
