// SPDX-License-Identifier: Apache-2.0
// Atomics, signals, waits and barriers in kernels: values, order of data and signal, deadlines and
// their reports. Heaps are found through one window, or through a table: when some are out of
// reach, and with CUDA IPC.
#include <gtest/gtest.h>

#include <string>

#include "gpu/device/world.hpp"
#include "shoal/collective.hpp"
#include "shoal/device.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using device::Block;
using device::Thread;
using device::Warp;

// Atomics.

/// Every thread of every PE on words of PE 0: 0 adds, 1 or, 2 xor (twice: back to 0), 3 a
/// compare-and-swap loop, 4 and, 5 swaps a token around, 6 sums the swapped values.
template <typename T>
__global__ void update(const __grid_constant__ device::World world, T* words) {
  const auto bit = static_cast<T>(T{1} << world.my_pe);
  for (int i = 0; i < 10; ++i) atomic_fetch_add(world, words, T{3}, 0);
  if (threadIdx.x == 0) {
    atomic_fetch_or(world, words + 1, bit, 0);
    atomic_fetch_and(world, words + 4, static_cast<T>(~bit), 0);
    const T token = atomic_swap(world, words + 5, static_cast<T>(world.my_pe + 1), 0);
    atomic_fetch_add(world, words + 6, token, 0);
  }
  for (int i = 0; i < 2; ++i)
    atomic_fetch_xor(world, words + 2, static_cast<T>(threadIdx.x * 7 + 1), 0);
  for (T seen = device::atomic_fetch(world, words + 3, 0);;) {
    const T before = atomic_compare_swap(world, words + 3, seen, static_cast<T>(seen + 2), 0);
    if (before == seen) break;
    seen = before;
  }
  // A word of the neighbor that no other PE writes.
  const Pe next = (world.my_pe + 1) % world.n_pes;
  if (threadIdx.x == 0)
    device::atomic_set(world, words + 7, static_cast<T>(world.my_pe - 100), next);
}

template <typename T>
void check_atomics(World& world, const TestStream& stream) {
  const Pe n = world.n_pes();
  const auto words = world.heap().allocate<T>(8);
  fill(world, words, {0, 0, 0, 0, static_cast<T>((T{1} << n) - 1), 0, 0, 0});
  barrier(world.team());
  constexpr int kThreads = 64;
  device::launch_collective(world, stream, {.grid = 2, .block = kThreads}, update<T>,
                            cuda::device_world(world), words.data());
  stream.synchronize();
  barrier(world.team());
  const auto got = fetch(world, words);
  EXPECT_EQ(got[7], static_cast<T>(left(world) - 100));
  if (world.my_pe() == 0) {
    const T threads = static_cast<T>(2 * kThreads * n);
    EXPECT_EQ(got[0], static_cast<T>(30 * threads));
    EXPECT_EQ(got[1], static_cast<T>((T{1} << n) - 1));
    EXPECT_EQ(got[2], T{0});
    EXPECT_EQ(got[3], static_cast<T>(2 * threads));
    EXPECT_EQ(got[4], T{0});
    // Two blocks of each PE put a token in; the last is still there.
    EXPECT_EQ(static_cast<T>(got[5] + got[6]), static_cast<T>(n * (n + 1)));
  }
  barrier(world.team());
}

TEST(DeviceAtomics, Int32Small) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, check_atomics<std::int32_t>);
}
TEST(DeviceAtomics, EightPes) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, check_atomics<std::int32_t>);
  run_gpu_pes(8, check_atomics<std::uint32_t>);
  run_gpu_pes(8, check_atomics<std::int64_t>);
  run_gpu_pes(8, check_atomics<std::uint64_t>);
}

// Order of data and signals.

constexpr std::size_t kWords = 700;

/// Order of a flag after its row: by put_signal; by a signal; by put_value after fence or quiet;
/// the same for rows that are written through peer_pointer.
enum class Sent { put_signal, signal, fence, quiet, pointers };

/// signal_fetch until `round`, for ten seconds or so.
__device__ bool fetched(const std::uint64_t* flag, std::uint64_t round) {
  for (int polls = 0; polls < 1 << 23; ++polls) {
    if (device::signal_fetch(flag) >= round) return true;
    __nanosleep(1000);
  }
  return false;
}

/// Rounds of a ring: fill, send with a flag, wait, check. `flags` 0: round that arrived; 1: round
/// that the receiver has checked. `data` [2, kWords]: the words to send, and those received.
/// `wrong` counts words that are not of their round.
template <typename S, Sent kSent>
__global__ void ring(const __grid_constant__ device::World world, std::uint64_t* data,
                     std::uint64_t* flags, std::uint64_t* wrong, std::uint64_t rounds, Pe next,
                     Pe previous) {
  constexpr bool kIsValue = kSent == Sent::fence || kSent == Sent::quiet || kSent == Sent::pointers;
  const S scope;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    for (std::size_t i = scope.rank(); i < kWords; i += scope.size())
      data[i] = round * 1000 + static_cast<std::uint64_t>(world.my_pe) + i;
    if constexpr (kSent == Sent::put_signal) {
      put_signal(scope, world, data + kWords, data, kWords, flags, SignalOp::set, round, next);
    } else if constexpr (kSent == Sent::pointers) {
      for (std::size_t i = scope.rank(); i < kWords; i += scope.size())
        *device::peer_pointer(world, data + kWords + i, next) = data[i];
    } else {
      put(scope, world, data + kWords, data, kWords, next);
    }
    if constexpr (kSent == Sent::signal) signal(scope, world, flags, SignalOp::add, 1, next);
    if constexpr (kSent == Sent::fence || kSent == Sent::pointers) fence(scope);
    if constexpr (kSent == Sent::quiet) quiet(scope);
    if constexpr (kIsValue) {
      if (scope.rank() == 0) put_value(world, flags, round, next);
      if (!fetched(flags, round)) {
        atomicAdd(reinterpret_cast<unsigned long long*>(wrong), 1ULL << 32);
        return;
      }
    } else if (!wait_until(scope, world, flags, Compare::greater_equal, round)) {
      return;
    }
    std::uint64_t bad = 0;
    for (std::size_t i = scope.rank(); i < kWords; i += scope.size())
      bad += data[kWords + i] != round * 1000 + static_cast<std::uint64_t>(previous) + i;
    if (bad != 0) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), bad);
    signal(scope, world, flags + 1, SignalOp::set, round, previous);
    if (!wait_until(scope, world, flags + 1, Compare::equal, round)) return;
  }
}

template <typename S, Sent kSent>
void check_ring(World& world, const TestStream& stream, unsigned threads, std::uint64_t rounds) {
  const auto data = world.heap().allocate<std::uint64_t>(2 * kWords);
  const auto flags = world.heap().allocate<std::uint64_t>(2);
  const auto wrong = world.heap().allocate<std::uint64_t>(1);
  device::launch_collective(world, stream, {.grid = 1, .block = threads}, ring<S, kSent>,
                            cuda::device_world(world), data.data(), flags.data(), wrong.data(),
                            rounds, right(world), left(world));
  stream.synchronize();
  cuda::check_failures(world);
  EXPECT_EQ(fetch(world, wrong)[0], 0u)
      << "words of another round, and 2^32 for each thread that missed a flag";
  EXPECT_EQ(fetch(world, flags), (std::vector<std::uint64_t>{rounds, rounds}));
  barrier(world.team());
}

template <typename S, Sent kSent>
void run_ring(Pe n_pes, unsigned threads, std::uint64_t rounds) {
  run_gpu_pes(n_pes, [=](World& world, const TestStream& stream) {
    check_ring<S, kSent>(world, stream, threads, rounds);
  });
}

TEST(DeviceSignals, RingSmall) {
  SHOAL_NEEDS_GPU();
  run_ring<Block, Sent::put_signal>(2, 64, 3);
}
TEST(DeviceSignals, CarryTheDataBeforeThem) {
  SHOAL_NEEDS_GPU();
  run_ring<Thread, Sent::put_signal>(8, 1, 20);
  run_ring<Warp, Sent::put_signal>(8, 32, 200);
  run_ring<Block, Sent::put_signal>(8, 256, 500);
  run_ring<Block, Sent::signal>(8, 224, 500);
}

template <Sent kSent>
void check_order_in_every_scope() {
  run_ring<Thread, kSent>(8, 1, 20);
  run_ring<Warp, kSent>(8, 32, 200);
  run_ring<Block, kSent>(8, 224, 500);
}

TEST(DeviceOrder, RingSmall) {
  SHOAL_NEEDS_GPU();
  run_ring<Block, Sent::fence>(2, 64, 3);
  run_ring<Warp, Sent::quiet>(2, 32, 3);
  run_ring<Block, Sent::pointers>(2, 96, 3);
}
TEST(DeviceOrder, FenceKeepsAPutBeforeTheFlag) {
  SHOAL_NEEDS_GPU();
  check_order_in_every_scope<Sent::fence>();
}
TEST(DeviceOrder, QuietCompletesAPutBeforeTheFlag) {
  SHOAL_NEEDS_GPU();
  check_order_in_every_scope<Sent::quiet>();
}
TEST(DeviceOrder, FenceKeepsStoresThroughPointersBeforeTheFlag) {
  SHOAL_NEEDS_GPU();
  check_order_in_every_scope<Sent::pointers>();
}

// Several variables.

/// Every PE signals all PEs; each waits for all, then takes them one by one with wait_until_any.
/// `order` [n_pes]: indices in the order taken; then the results of the tests.
template <typename S>
__global__ void gather(const __grid_constant__ device::World world, std::uint64_t* flags,
                       int* taken, std::int64_t* order) {
  const S scope;
  for (Pe pe = 0; pe < world.n_pes; ++pe)
    signal(scope, world, flags + world.my_pe, SignalOp::set, 5, pe);
  const auto n = static_cast<std::size_t>(world.n_pes);
  if (!wait_until_all(scope, world, flags, n, Compare::equal, 5)) return;
  for (std::size_t k = 0; k < n; ++k) {
    const std::size_t index = wait_until_any(scope, world, flags, n, Compare::equal, 5, taken);
    if (index == device::kNoIndex) return;
    if (scope.rank() == 0) {
      order[k] = static_cast<std::int64_t>(index);
      taken[index] = 1;
    }
    scope.sync();
  }
  const bool none =
      wait_until_any(scope, world, flags, n, Compare::equal, 5, taken) == device::kNoIndex;
  const bool all = test_all(scope, flags, n, Compare::greater, 4) &&
                   !test_all(scope, flags, n, Compare::less, 5);
  const bool skipped =
      test_all(scope, flags, n, Compare::less, 5, taken);  // all of them are excluded
  const bool any = test_any(scope, flags, n, Compare::not_equal, 5) == device::kNoIndex &&
                   test_any(scope, flags, n, Compare::less_equal, 5) == 0;
  const bool one = device::test(scope, flags + n - 1, Compare::equal, 5) &&
                   !device::test(scope, flags, Compare::equal, 4);
  if (scope.rank() == 0) order[n] = none + 2 * all + 4 * skipped + 8 * any + 16 * one;
}

template <typename S>
void check_gather(World& world, const TestStream& stream, unsigned threads) {
  const auto n = static_cast<std::size_t>(world.n_pes());
  const auto flags = world.heap().allocate<std::uint64_t>(n);
  const auto taken = world.heap().allocate<int>(n);
  const auto order = world.heap().allocate<std::int64_t>(n + 1);
  device::launch_collective(world, stream, {.grid = 1, .block = threads}, gather<S>,
                            cuda::device_world(world), flags.data(), taken.data(), order.data());
  stream.synchronize();
  cuda::check_failures(world);
  const auto got = fetch(world, order);
  for (std::size_t k = 0; k < n; ++k)
    EXPECT_EQ(got[k], static_cast<std::int64_t>(k)) << "the lowest first";
  EXPECT_EQ(got[n], 31);
  barrier(world.team());
}

template <typename S>
void run_gather(Pe n_pes, unsigned threads) {
  run_gpu_pes(n_pes, [=](World& world, const TestStream& stream) {
    check_gather<S>(world, stream, threads);
  });
}

TEST(DeviceWaits, SeveralVariablesSmall) {
  SHOAL_NEEDS_GPU();
  run_gather<Warp>(2, 32);
}
TEST(DeviceWaits, SeveralVariablesInEveryScope) {
  SHOAL_NEEDS_GPU();
  run_gather<Thread>(8, 1);
  run_gather<Warp>(8, 32);
  run_gather<Block>(8, 20);  // less than a warp
  run_gather<Block>(8, 100);
}

template <typename T>
__global__ void compare_with(const T* variable, T value, int* results) {
  const Compare all[] = {Compare::equal,         Compare::not_equal, Compare::greater,
                         Compare::greater_equal, Compare::less,      Compare::less_equal};
  for (int i = 0; i < 6; ++i) results[i] = device::test(Thread{}, variable, all[i], value);
}

TEST(DeviceWaits, ComparesSignedAndUnsignedSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(1, [](World& world, const TestStream& stream) {
    const auto word = world.heap().allocate<std::int64_t>(1);
    const auto results = world.heap().allocate<int>(6);
    fill(world, word, {-1});
    const auto check = [&](auto value, std::vector<int> expected) {
      device::launch_collective(
          world, stream, {.grid = 1, .block = 1}, compare_with<decltype(value)>,
          reinterpret_cast<const decltype(value)*>(word.data()), value, results.data());
      stream.synchronize();
      EXPECT_EQ(fetch(world, results), expected);
    };
    check(std::int64_t{0}, {0, 1, 0, 0, 1, 1});
    check(std::uint64_t{0}, {0, 1, 1, 1, 0, 0});
    check(std::int32_t{-1}, {1, 0, 0, 1, 0, 1});
    check(std::uint32_t{7}, {0, 1, 1, 1, 0, 0});
  });
}

// Barriers.

/// Every PE writes to all PEs, with a barrier before and after. `table` [n_pes].
template <typename S>
__global__ void cross(const __grid_constant__ device::World world,
                      const __grid_constant__ device::Team team, std::uint64_t* table,
                      std::uint64_t* wrong, std::uint64_t rounds) {
  const S scope;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    for (Pe pe = static_cast<Pe>(scope.rank()); pe < world.n_pes;
         pe += static_cast<Pe>(scope.size()))
      if (device::detail::is_member(team, pe))
        put_value(world, table + world.my_pe, round * 100 + world.my_pe, pe);
    if (!barrier(scope, world, team)) return;
    std::uint64_t bad = 0;
    for (Pe pe = static_cast<Pe>(scope.rank()); pe < world.n_pes;
         pe += static_cast<Pe>(scope.size()))
      if (device::detail::is_member(team, pe))
        bad += table[pe] != round * 100 + static_cast<std::uint64_t>(pe);
    if (bad != 0) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), bad);
    if (!barrier(scope, world, team)) return;
  }
}

template <typename S>
void check_barrier(World& world, const TestStream& stream, const Team& team, unsigned threads,
                   std::uint64_t rounds) {
  const auto table = world.heap().allocate<std::uint64_t>(static_cast<std::size_t>(world.n_pes()));
  const auto wrong = world.heap().allocate<std::uint64_t>(1);
  if (team.valid())
    device::launch_collective(world, stream, {.grid = 1, .block = threads}, cross<S>,
                              cuda::device_world(world), cuda::device_team(team), table.data(),
                              wrong.data(), rounds);
  stream.synchronize();
  cuda::check_failures(world);
  EXPECT_EQ(fetch(world, wrong)[0], 0u);
  barrier(world.team());
}

TEST(DeviceBarrier, TwoPesSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) {
    check_barrier<Block>(world, stream, world.team(), 64, 3);
  });
}
TEST(DeviceBarrier, WorldAndTeamsOneAfterAnother) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, [](World& world, const TestStream& stream) {
    check_barrier<Block>(world, stream, world.team(), 128, 200);
    check_barrier<Warp>(world, stream, world.team(), 32, 100);
    check_barrier<Thread>(world, stream, world.team(), 1, 20);
    for (int i = 0; i < 3; ++i) {  // repeats an index with other PEs and another count of barriers
      Team team = world.team().split_strided(i, 2, i == 0 ? 4 : 3);
      check_barrier<Block>(world, stream, team, 64, 10 + static_cast<std::uint64_t>(i));
      if (team.valid()) team.free();
      barrier(world.team());
    }
  });
}

// A captured launch rejoins the capturing stream, and its barriers continue to count across
// replays.
TEST(DeviceBarrier, IsCapturedAndReplayed) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, [](World& world, const TestStream& stream) {
    const auto table = world.heap().allocate<std::uint64_t>(8);
    const auto wrong = world.heap().allocate<std::uint64_t>(1);
    device::resident_blocks(world, cross<Block>, 64, 0);  // loads it
    barrier(world.team());
    const Graph graph(stream, [&] {
      device::launch_collective(world, stream, {.grid = 1, .block = 64}, cross<Block>,
                                cuda::device_world(world), cuda::device_team(world.team()),
                                table.data(), wrong.data(), std::uint64_t{3});
    });
    for (int replay = 0; replay < 20; ++replay) graph.replay();
    stream.synchronize();
    cuda::check_failures(world);
    EXPECT_EQ(fetch(world, wrong)[0], 0u);
    EXPECT_EQ(fetch(world, table)[static_cast<std::size_t>(world.my_pe())],
              300u + static_cast<unsigned>(world.my_pe()));
    barrier(world.team());
  });
}

// Heaps that are found by a table.

TEST(DeviceTable, RingsAndBarriersOfANodeSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      4,
      [](World& world, const TestStream& stream) {
        ASSERT_NE(cuda::device_world(world).bases, nullptr);
        check_ring<Block, Sent::put_signal>(world, stream, 64, 20);
        check_ring<Warp, Sent::fence>(world, stream, 32, 20);
        check_ring<Block, Sent::pointers>(world, stream, 96, 20);
        check_barrier<Block>(world, stream, world.shared_team(), 64, 20);
      },
      settings_in_nodes());
}

SHOAL_PE_BODY(signals) {
  run_gpu_process(pe, [](World& world, const TestStream& stream) {
    check_atomics<std::int32_t>(world, stream);
    check_atomics<std::uint64_t>(world, stream);
    check_ring<Thread, Sent::quiet>(world, stream, 1, 5);
    check_ring<Warp, Sent::put_signal>(world, stream, 32, 20);
    check_ring<Block, Sent::signal>(world, stream, 224, 20);
    check_ring<Block, Sent::pointers>(world, stream, 96, 20);
    check_gather<Block>(world, stream, 100);
    check_barrier<Block>(world, stream, world.team(), 64, 20);
    Team odd = world.team().split_strided(1, 2, 2);
    check_barrier<Warp>(world, stream, odd, 32, 10);
    if (odd.valid()) odd.free();
    barrier(world.team());
  });
}

TEST(DeviceSignalsAmongProcesses, ByTheUsualHandle) {
  SHOAL_NEEDS_GPU();
  run_gpu_processes("signals", "automatic");
}
TEST(DeviceSignalsAmongProcesses, ByCudaIpc) {
  SHOAL_NEEDS_GPU();
  run_gpu_processes("signals", "ipc");
}

// Failures.

template <typename S>
__global__ void wait_in_vain(const __grid_constant__ device::World world, const std::int32_t* word,
                             int* result) {
  const S scope;
  const bool one = wait_until(scope, world, word, Compare::greater_equal, 7);
  if (scope.rank() == 0) *result = one ? 1 : 2;
}
__global__ void wait_for_any(const __grid_constant__ device::World world,
                             const std::uint64_t* words) {
  wait_until_any(Block{}, world, words, 3, Compare::greater, 4);
}
__global__ void wait_for_team(const __grid_constant__ device::World world,
                              const __grid_constant__ device::Team team) {
  barrier(Block{}, world, team);
}
__global__ void use_bad_address(const __grid_constant__ device::World world, int* target,
                                std::size_t count, Pe pe) {
  put(Block{}, world, target, target, count, pe);
}
/// got: 0 if there is no address, 1 if it is that of this PE, 2 if it is another.
__global__ void use_peer_pointer(const __grid_constant__ device::World world, int* local, Pe pe,
                                 int* got) {
  int* const there = device::peer_pointer(world, local, pe);
  *got = there == nullptr ? 0 : there == local ? 1 : 2;
}

TEST(DeviceFailures, DeadlinesSayWhoWaitedForWhat) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) {
    const auto words = world.heap().allocate<std::int32_t>(8);
    const auto result = world.heap().allocate<int>(1);
    fill(world, words, {-3});
    device::World view = cuda::device_world(world);
    EXPECT_EQ(view.timeout_ns, 20'000'000'000U);
    view.timeout_ns = 100'000'000;
    const auto offset = std::to_string(world.heap().offset_of(words.data()));
    const std::string who = "on PE " + std::to_string(world.my_pe()) + " of 2";
    const auto check = [&](const std::string& text) {
      stream.synchronize();
      expect_error(Code::timeout, text, [&] { cuda::check_failures(world); });
      EXPECT_FALSE(cuda::take_failure(world).has_value()) << "it is reported once";
    };
    const std::string variable =
        "the 4-byte variable at heap offset " + offset + " to be >= 7, seen -3";
    device::launch_collective(world, stream, {.grid = 1, .block = 64}, wait_in_vain<Block>, view,
                              words.data(), result.data());
    check(who + ": waiting for " + variable);
    EXPECT_EQ(fetch(world, result)[0], 2);
    device::launch_collective(world, stream, {.grid = 1, .block = 32}, wait_in_vain<Warp>, view,
                              words.data(), result.data());
    check("wait_until on the GPU timed out after 1");  // 100 ms and a bit
    device::launch_collective(world, stream, {.grid = 1, .block = 64}, wait_for_any, view,
                              reinterpret_cast<const std::uint64_t*>(words.data() + 4));
    check("wait_until_any on the GPU timed out");
    // A barrier that only one of two PEs enters.
    if (world.my_pe() == 1) {
      device::launch_collective(world, stream, {.grid = 1, .block = 32}, wait_for_team, view,
                                cuda::device_team(world.team()));
      check("waiting for PE 0, expected barrier 1, seen 0");
    }
    barrier(world.team());
  });
}

TEST(DeviceFailures, BadAddressesDoNothingAndAreReported) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) {
    const auto words = world.heap().allocate<int>(4);
    const auto check = [&](int* target, std::size_t count, Pe pe, const std::string& text) {
      device::launch_collective(world, stream, {.grid = 1, .block = 64}, use_bad_address,
                                cuda::device_world(world), target, count, pe);
      stream.synchronize();
      expect_error(Code::invalid_argument, text, [&] { cuda::check_failures(world); });
    };
    check(words.data(), 4, 2, "of PE 2, which do not exist");
    check(words.data(), 4, -1, "of PE -1, which do not exist");
    check(words.data(), world.heap().size(), 0, "which do not exist");
    check(words.data(), SIZE_MAX / 2, 0, "which do not exist");
    check(reinterpret_cast<int*>(world.heap().base()) - 1, 1, 0,
          "4 bytes at heap offset -4 of PE 0");
    EXPECT_EQ(fetch(world, words), std::vector<int>(4));
    barrier(world.team());
  });
}

TEST(DeviceFailures, PointersToWhatDoesNotExistAreNullSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) {
    const auto words = world.heap().allocate<int>(4);
    const auto got = world.heap().allocate<int>(1);
    const auto ask = [&](int* local, Pe pe) {
      fill(world, got, {9});
      device::launch_collective(world, stream, {.grid = 1, .block = 1}, use_peer_pointer,
                                cuda::device_world(world), local, pe, got.data());
      stream.synchronize();
      return fetch(world, got)[0];
    };
    const auto refused = [&](int* local, Pe pe, const std::string& text) {
      EXPECT_EQ(ask(local, pe), 0);
      expect_error(Code::invalid_argument, text, [&] { cuda::check_failures(world); });
    };
    EXPECT_EQ(ask(words.data() + 3, right(world)), 2);
    int* const mine = words.data();
    EXPECT_NE(ask(mine, world.my_pe()), 0);
    cuda::check_failures(world);
    refused(mine, 2, "of PE 2, which do not exist");
    refused(mine, -1, "of PE -1, which do not exist");
    refused(reinterpret_cast<int*>(world.heap().base()) - 1, 1,
            "4 bytes at heap offset -4 of PE 1");
    refused(reinterpret_cast<int*>(world.heap().base() + world.heap().size()), 0,
            "which do not exist");
    barrier(world.team());
  });
}

/// Every kind of operation on a word of `pe`, which this GPU does not reach. got: the results,
/// all zero.
__global__ void use_far_pe(const __grid_constant__ device::World world, std::uint64_t* words,
                           std::uint64_t* got, Pe pe) {
  const Block block;
  put(block, world, words, got, 1, pe);
  get(block, world, got, words, 1, pe);
  put_signal(block, world, words, got, 1, words + 1, SignalOp::set, 5, pe);
  signal(block, world, words + 1, SignalOp::add, 5, pe);
  if (block.rank() != 0) return;
  put_value(world, words, 5, pe);
  got[0] += device::get_value(world, words, pe);
  got[1] = atomic_fetch_add(world, words, 5, pe);
  got[2] = device::peer_pointer(world, words, pe) == nullptr ? 0 : 1;
}

TEST(DeviceFailures, PesOutOfReachAreReportedSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      4,
      [](World& world, const TestStream& stream) {
        const auto words = world.heap().allocate<std::uint64_t>(2);
        const auto got = world.heap().allocate<std::uint64_t>(3);
        fill(world, words, {70, 71});
        barrier(world.team());
        const Pe far = (world.my_pe() + 2) % 4;
        const std::string who = "an operation in a kernel of PE " + std::to_string(world.my_pe()) +
                                " of 4 names PE " + std::to_string(far) +
                                ", whose heap its GPU does not reach";
        device::launch_collective(world, stream, {.grid = 1, .block = 64}, use_far_pe,
                                  cuda::device_world(world), words.data(), got.data(), far);
        stream.synchronize();
        expect_error(Code::unsupported, who, [&] { cuda::check_failures(world); });
        EXPECT_FALSE(cuda::take_failure(world).has_value()) << "the first alone is kept";
        EXPECT_EQ(fetch(world, got), std::vector<std::uint64_t>(3));
        // A barrier of both nodes ends at once.
        device::launch_collective(world, stream, {.grid = 1, .block = 64}, wait_for_team,
                                  cuda::device_world(world), cuda::device_team(world.team()));
        stream.synchronize();
        expect_error(Code::unsupported, "whose heap its GPU does not reach",
                     [&] { cuda::check_failures(world); });
        barrier(world.team());
        EXPECT_EQ(fetch(world, words), (std::vector<std::uint64_t>{70, 71}));
        // PEs in reach still work.
        check_ring<Block, Sent::put_signal>(world, stream, 64, 3);
      },
      settings_in_nodes());
}

}  // namespace
}  // namespace shoal::test
