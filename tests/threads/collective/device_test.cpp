// SPDX-License-Identifier: Apache-2.0
// Collectives in kernels, run on the CPU with threads as PEs: the thread sanitizer sees all
// accesses of the thread scope, and fibers stand for the threads of blocks and grids where no
// sanitizer runs.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <random>

#include "collective/elementwise.hpp"
#include "collective/reduce_kernel.hpp"
#include "support/fiber_context.hpp"
#include "threads/collective/device_pes.hpp"

namespace shoal::test {
namespace {

namespace dd = device::detail;

/// Threads that perform a collective on each PE.
enum class Performers { thread, warp, block, grid };

/// Runs `body(crew)` on all threads of the crew of one PE. Returns whether all returned true.
template <typename Body>
bool perform(Performers performers, const Body& body) {
  if (performers == Performers::thread) return body(dd::ScopeCrew<device::Thread>{});
  static thread_local bool ok;
  ok = true;
  fake_gpu::run_concurrently();
  const auto run = [&](auto crew, std::uint32_t blocks, std::uint32_t threads) {
    fake_gpu::run(
        [&] {
          if (!body(crew)) ok = false;
        },
        blocks, threads);
  };
  if (performers == Performers::warp) run(dd::ScopeCrew<device::Warp>{}, 1, 32);
  if (performers == Performers::block) run(dd::ScopeCrew<device::Block>{}, 1, 96);
  if (performers == Performers::grid) run(dd::GridCrew{}, 3, 64);
  return ok;
}

/// Element `i` of PE `pe` in round `round`: small, so that products stay finite, and not all exact.
template <typename T>
T made_up(Pe pe, std::uint32_t round, std::size_t i) {
  const std::uint32_t bits = (static_cast<std::uint32_t>(i) * 2654435761U) ^
                             (static_cast<std::uint32_t>(pe) * 40503U) ^ (round * 97U);
  const auto small = static_cast<float>(bits % 1021) / 256.0F - 1.5F;
  if constexpr (std::is_same_v<T, device::BFloat16>) {
    return {bfloat16_from_float(small)};
  } else if constexpr (std::is_same_v<T, device::Float16>) {
    return {float16_from_float(small)};
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(small) / T{3};
  } else {
    return static_cast<T>(bits);
  }
}

template <typename T>
collective::ElementKernel host_kernel(ReduceOp op) {
  if constexpr (std::is_same_v<T, device::BFloat16>) {
    return collective::kernel_of(DataType::bfloat16, op);
  } else if constexpr (std::is_same_v<T, device::Float16>) {
    return collective::kernel_of(DataType::float16, op);
  } else {
    return collective::kernel_for<T>(op);
  }
}

/// One PE of a sequence of collectives: draws, fills, calls, compares.
class Sequence {
 public:
  Sequence(DevicePes& pes, Pe index, Performers performers, std::uint32_t seed)
      : world_(pes.world(static_cast<Pe>(pes.team(index).pes[index]))),
        team_(pes.team(index)),
        performers_(performers),
        random_(seed),
        jitter_(seed + static_cast<std::uint32_t>(index)) {}

  void run(int rounds) {
    for (int i = 0; i < rounds && !::testing::Test::HasFailure(); ++i) {
      ++round_;
      if (jitter_() % 4 == 0) std::this_thread::yield();
      const std::uint64_t before = *team_.epoch;
      switch (random_() % 7) {
        case 0:
          reduce_some<std::int32_t>();
          break;
        case 1:
          reduce_some<std::uint8_t>();
          break;
        case 2:
          reduce_some<float>();
          break;
        case 3:
          reduce_some<device::BFloat16>();
          break;
        case 4:
          reduce_some<device::Float16>();
          break;
        case 5:
          reduce_some<double>();
          break;
        default:
          move_some();
      }
      // Once for all groups together. The first epoch of a team is not 1.
      if (before != 0) {
        EXPECT_LE(*team_.epoch - before, 2u) << "epochs of a collective";
      }
    }
  }

 private:
  static constexpr std::size_t kArea = std::size_t{64} << 10;
  static constexpr std::size_t kPulled = 700;  ///< bytes; larger broadcasts are read
  static constexpr std::byte kGuard{0xa5};

  std::byte* source_area() const { return world_.heap + DevicePes::kFree; }
  std::byte* target_area() const { return world_.heap + DevicePes::kFree + kArea; }
  std::size_t n() const { return static_cast<std::size_t>(team_.size); }
  std::size_t me() const { return static_cast<std::size_t>(team_.my_pe); }

  /// Sizes around the limits between algorithms, aligned and not.
  std::size_t draw_count(std::size_t element) {
    const std::size_t bytes[] = {0, 8, 120, 128, 136, 500, 1024, 3000};
    return (bytes[random_() % std::size(bytes)] + random_() % 16) / element;
  }
  std::size_t draw_shift(std::size_t element) { return random_() % 3 == 0 ? element : 0; }

  template <typename T>
  std::vector<T> source_of(std::size_t pe, std::size_t count) const {
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = made_up<T>(static_cast<Pe>(pe), round_, i);
    return values;
  }
  template <typename T>
  static std::string text_of(std::span<const T> values) {
    return ::testing::PrintToString(std::vector<std::uint8_t>(
        reinterpret_cast<const std::uint8_t*>(values.data()),
        reinterpret_cast<const std::uint8_t*>(values.data() + values.size())));
  }
  /// The target is `expected`, and no byte around it was written.
  template <typename T>
  void expect_result(const std::byte* target, std::span<const T> expected, const char* what) const {
    const std::size_t bytes = expected.size_bytes();
    EXPECT_TRUE(bytes == 0 || std::memcmp(target, expected.data(), bytes) == 0)
        << what << ", round " << round_ << ", PE " << me() << ", " << bytes << " bytes";
    for (int i = 1; i <= 16; ++i) {
      EXPECT_EQ(target[-i], kGuard) << what << ", round " << round_ << ", PE " << me();
      EXPECT_EQ(target[bytes + static_cast<std::size_t>(i) - 1], kGuard)
          << what << ", round " << round_ << ", PE " << me();
    }
  }
  template <typename T>
  T* place(std::byte* area, std::size_t shift) {
    std::memset(area, static_cast<int>(kGuard), kArea);
    return reinterpret_cast<T*>(area + 64 + shift);
  }
  template <typename T>
  static void fill(T* to, const std::vector<T>& values) {
    if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
  }

  template <typename T>
  void reduce_some() {
    const auto op = static_cast<ReduceOp>(random_() % (std::is_integral_v<T> ? 7 : 4));
    const bool scatter = random_() % 3 == 0, in_place = random_() % 3 == 0;
    const std::size_t count = draw_count(sizeof(T));
    const std::size_t shift = draw_shift(sizeof(T)), other = draw_shift(sizeof(T));
    const std::size_t elements = scatter ? count * n() : count;
    T* const source = place<T>(source_area(), shift);
    T* target = place<T>(target_area(), other);
    fill(source, source_of<T>(me(), elements));
    if (in_place) target = scatter ? source + me() * count : source;

    const auto call = [&](const auto& crew, auto operation) {
      using Op = decltype(operation);
      return scatter ? dd::reduce_scatter_by<Op, T>(crew, world_, team_, operation, target,
                                                    static_cast<const T*>(source), count)
                     : dd::reduce_by<Op, T>(crew, world_, team_, operation, target,
                                            static_cast<const T*>(source), count);
    };
    const bool ok = perform(performers_, [&](const auto& crew) {
      switch (op) {
        case ReduceOp::sum:
          return call(crew, device::Sum{});
        case ReduceOp::prod:
          return call(crew, device::Prod{});
        case ReduceOp::min:
          return call(crew, device::Min{});
        case ReduceOp::max:
          return call(crew, device::Max{});
        default:
          break;
      }
      if constexpr (std::is_integral_v<T>) {
        if (op == ReduceOp::bit_and) return call(crew, device::BitAnd{});
        if (op == ReduceOp::bit_or) return call(crew, device::BitOr{});
        return call(crew, device::BitXor{});
      }
      return false;
    });
    EXPECT_TRUE(ok);

    std::vector<std::vector<T>> all;
    std::vector<const void*> sources;
    for (std::size_t pe = 0; pe < n(); ++pe) all.push_back(source_of<T>(pe, elements));
    const std::size_t first = scatter ? me() * count : 0;
    for (const std::vector<T>& values : all) sources.push_back(values.data() + first);
    std::vector<T> expected(count);
    if (count != 0) host_kernel<T>(op)(expected.data(), sources, count);
    if (in_place) {
      EXPECT_TRUE(count == 0 || std::memcmp(target, expected.data(), count * sizeof(T)) == 0)
          << "in place, round " << round_ << ", PE " << me();
    } else {
      expect_result<T>(reinterpret_cast<const std::byte*>(target), expected,
                       scatter ? "reduce_scatter" : "reduce");
    }
  }

  void move_some() {
    using T = std::uint16_t;
    const std::uint32_t kind = random_() % 5;
    const std::size_t count = draw_count(sizeof(T));
    const std::size_t shift = draw_shift(sizeof(T)), other = draw_shift(sizeof(T));
    const auto root = static_cast<std::size_t>(random_() % n());
    T* const source = place<T>(source_area(), shift);
    T* const target = place<T>(target_area(), other);
    auto* const to = reinterpret_cast<std::byte*>(target);
    const auto* const from = reinterpret_cast<const std::byte*>(source);
    const std::size_t bytes = count * sizeof(T);
    std::vector<T> expected;
    const auto append = [&](std::size_t pe, std::size_t first, std::size_t length,
                            std::size_t total) {
      const std::vector<T> values = source_of<T>(pe, total);
      expected.insert(expected.end(), values.begin() + static_cast<std::ptrdiff_t>(first),
                      values.begin() + static_cast<std::ptrdiff_t>(first + length));
    };
    bool ok = false;
    if (kind == 0) {
      fill(source, source_of<T>(me(), count));
      ok = perform(performers_, [&](const auto& crew) {
        return dd::broadcast_by<T>(crew, world_, team_, to, from, bytes, static_cast<Pe>(root),
                                   kPulled);
      });
      append(root, 0, count, count);
    } else if (kind == 1) {
      fill(source, source_of<T>(me(), count));
      ok = perform(performers_, [&](const auto& crew) {
        return dd::spread_by<T>(crew, world_, team_, to, from, bytes, 0);
      });
      for (std::size_t pe = 0; pe < n(); ++pe) append(pe, 0, count, count);
    } else if (kind == 2) {
      fill(source, source_of<T>(me(), count * n()));
      ok = perform(performers_, [&](const auto& crew) {
        return dd::spread_by<T>(crew, world_, team_, to, from, bytes, bytes);
      });
      for (std::size_t pe = 0; pe < n(); ++pe) append(pe, me() * count, count, count * n());
    } else if (kind == 3) {
      ok = perform(performers_, [&](const auto& crew) {
        return dd::meet_and_finish(crew, world_, team_, dd::next_epoch(team_, *team_.epoch), true);
      });
    } else {
      ok = all_to_all_v(target, source, expected);
    }
    EXPECT_TRUE(ok);
    expect_result<T>(to, expected, "movement");
  }

  /// PE i sends i + j + (a number of the round) elements to PE j.
  bool all_to_all_v(std::uint16_t* target, std::uint16_t* source,
                    std::vector<std::uint16_t>& expected) {
    const std::size_t base = random_() % 400;
    const auto elements = [&](std::size_t from, std::size_t to) { return from + to + base; };
    auto* const words =
        reinterpret_cast<std::uint64_t*>(world_.heap + DevicePes::kFree + 2 * kArea);
    device::AllToAllV v;
    v.target = target;
    v.source = source;
    v.send_bytes = words;
    v.send_offsets = words + n();
    std::vector<std::uint64_t> receive_offsets(n()), room(n()), received(n());
    std::size_t sent = 0, arrived = 0;
    for (std::size_t pe = 0; pe < n(); ++pe) {
      words[pe] = elements(me(), pe) * sizeof *source;
      words[n() + pe] = sent * sizeof *source;
      receive_offsets[pe] = arrived * sizeof *source;
      room[pe] = elements(pe, me()) * sizeof *source;
      std::size_t before = 0;
      for (std::size_t to = 0; to < me(); ++to) before += elements(pe, to);
      const auto values = source_of<std::uint16_t>(pe, before + elements(pe, me()));
      expected.insert(expected.end(), values.begin() + static_cast<std::ptrdiff_t>(before),
                      values.end());
      sent += elements(me(), pe);
      arrived += elements(pe, me());
    }
    fill(source, source_of<std::uint16_t>(me(), sent));
    v.receive_offsets = receive_offsets.data();
    v.receive_room = room.data();
    v.received = received.data();
    const bool ok = perform(
        performers_, [&](const auto& crew) { return dd::all_to_all_v_by(crew, world_, team_, v); });
    EXPECT_EQ(received, room);
    return ok;
  }

  const device::World world_;
  const device::Team team_;
  const Performers performers_;
  std::mt19937 random_;
  std::mt19937 jitter_;
  std::uint32_t round_ = 0;
};

void run_sequences(const DevicePesOptions& options, Performers performers, int rounds,
                   std::uint32_t seed) {
  DevicePes pes(options);
  pes.run([&](Pe index) { Sequence(pes, index, performers, seed).run(rounds); });
  for (Pe pe = 0; pe < options.n_pes; ++pe)
    EXPECT_EQ(pes.report(pe).state, device::FailureReport::empty) << "PE " << pe;
}

TEST(DeviceCollectives, OfThreadsHaveTheBitsOfTheHost) {
  run_sequences({.n_pes = 2}, Performers::thread, 300, 1);
  run_sequences({.n_pes = 5}, Performers::thread, 120, 2);
  run_sequences({.n_pes = 1}, Performers::thread, 100, 3);
}

TEST(DeviceCollectives, OfATeamInAnotherOrder) {
  run_sequences({.team = {3, 0, 2}, .n_pes = 4}, Performers::thread, 150, 4);
}

TEST(DeviceCollectives, WithoutMemoryForPackets) {
  run_sequences({.n_pes = 3, .slot_bytes = 0}, Performers::thread, 100, 5);
}

TEST(DeviceCollectives, OfWarpsBlocksAndGrids) {
  if (!kHasFibers) GTEST_SKIP() << "fibers, which sanitizers do not follow";
  run_sequences({.n_pes = 2}, Performers::warp, 60, 6);
  run_sequences({.n_pes = 3}, Performers::block, 60, 7);
  run_sequences({.n_pes = 3}, Performers::grid, 60, 8);
}

TEST(DeviceCollectives, NameThePeThatDoesNotCome) {
  for (const std::uint64_t slot_bytes : {std::uint64_t{256}, std::uint64_t{0}}) {
    DevicePes pes({.n_pes = 3, .slot_bytes = slot_bytes, .timeout_ms = 50});
    const auto call = [&](Pe pe) {
      auto* const values = reinterpret_cast<int*>(pes.heap(pe) + DevicePes::kFree);
      return device::reduce(device::Thread{}, pes.world(pe), pes.team(pe), device::Sum{}, values,
                            values, 4);
    };
    std::thread other([&] { EXPECT_FALSE(call(2)); });
    EXPECT_FALSE(call(0));
    other.join();
    for (const Pe pe : {0, 2}) {
      EXPECT_EQ(pes.report(pe).kind, device::FailureKind::collective);
      EXPECT_EQ(pes.report(pe).awaited, 1);
      EXPECT_EQ(pes.report(pe).expected, (std::uint64_t{3} << device::Team::kEpochBits) + 1);
    }
  }
}

TEST(DeviceCollectives, DoNothingWithBadArguments) {
  DevicePes pes({.n_pes = 2, .timeout_ms = 50});
  device::World world = pes.world(0);
  const device::Team team = pes.team(0);
  int outside = 7;
  auto* const inside = reinterpret_cast<int*>(pes.heap(0) + DevicePes::kFree);
  EXPECT_FALSE(device::reduce(device::Thread{}, world, team, device::Sum{}, &outside, inside, 1));
  EXPECT_EQ(pes.report(0).kind, device::FailureKind::bad_address);
  EXPECT_EQ(outside, 7);
  EXPECT_EQ(*team.epoch, 0U);

  DevicePes more({.n_pes = 2, .timeout_ms = 50});
  EXPECT_FALSE(device::all_gather(device::Thread{}, more.world(0), more.team(0),
                                  reinterpret_cast<int*>(more.heap(0) + DevicePes::kFree),
                                  reinterpret_cast<int*>(more.heap(0) + DevicePes::kFree),
                                  DevicePes::kHeapBytes));
  EXPECT_EQ(more.report(0).kind, device::FailureKind::bad_address);

  DevicePes roots({.n_pes = 2, .timeout_ms = 50});
  EXPECT_FALSE(device::broadcast(device::Thread{}, roots.world(0), roots.team(0),
                                 reinterpret_cast<int*>(roots.heap(0) + DevicePes::kFree),
                                 reinterpret_cast<int*>(roots.heap(0) + DevicePes::kFree), 1, 2));
  EXPECT_EQ(roots.report(0).kind, device::FailureKind::bad_address);

  DevicePes far({.n_pes = 2, .timeout_ms = 50});
  world = far.world(0);
  std::byte* const bases[] = {far.heap(0), nullptr};
  world.bases = bases;
  EXPECT_FALSE(device::sync(device::Thread{}, world, far.team(0)));
  EXPECT_EQ(far.report(0).kind, device::FailureKind::no_collectives);
  EXPECT_EQ(far.report(0).awaited, 1);

  DevicePes many({.n_pes = 2, .timeout_ms = 50});
  device::Team large = many.team(0);
  large.size = 0;  // as describe_team leaves it
  EXPECT_FALSE(device::sync(device::Thread{}, many.world(0), large));
  EXPECT_EQ(many.report(0).kind, device::FailureKind::no_collectives);
  EXPECT_EQ(many.report(0).awaited, -1);
}

TEST(DeviceCollectives, CutOffABlockThatDoesNotFit) {
  DevicePes pes({.n_pes = 2});
  pes.run([&](Pe pe) {
    auto* const words = reinterpret_cast<std::uint64_t*>(pes.heap(pe) + DevicePes::kFree);
    words[0] = words[1] = 16;  // bytes
    words[2] = 0;
    words[3] = 16;  // offsets
    for (int i = 0; i < 4; ++i) words[8 + i] = static_cast<std::uint64_t>(10 * pe + i);
    std::uint64_t target[4] = {99, 99, 99, 99};
    const std::uint64_t offsets[] = {0, 16}, room[] = {16, 8};
    std::uint64_t received[2] = {};
    const device::AllToAllV v{target, words + 8, words, words + 2, offsets, room, received};
    EXPECT_FALSE(device::all_to_all_v(device::Thread{}, pes.world(pe), pes.team(pe), v));
    const auto first = static_cast<std::uint64_t>(2 * pe);
    EXPECT_EQ(target[0], first);
    EXPECT_EQ(target[1], first + 1);
    EXPECT_EQ(target[2], 10 + first);
    EXPECT_EQ(target[3], 99U);
    EXPECT_EQ(received[1], 16U);
    EXPECT_EQ(pes.report(pe).kind, device::FailureKind::block_too_large);
    EXPECT_EQ(pes.report(pe).awaited, 1);
    // The team stays usable.
    EXPECT_TRUE(device::sync(device::Thread{}, pes.world(pe), pes.team(pe)));
  });
}

}  // namespace
}  // namespace shoal::test

#endif
