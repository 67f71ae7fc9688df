// SPDX-License-Identifier: Apache-2.0
// Operations and collectives on streams of PEs that the GPU does not reach by loads and stores, and
// collectives of more PEs than one kernel serves. A fake driver stands for the GPUs; streams run at
// once on the CPU, and their requests take the real ring and the real proxy.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <cstring>
#include <memory>
#include <vector>

#include "checks/world/host_device_side.hpp"
#include "collective/host_forms.hpp"
#include "collective/reduce_kernel.hpp"
#include "shoal/cuda_collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "team/exchange.hpp"
#include "transport/proxy/thread_platform.hpp"

namespace shoal::test {
namespace {

using collective::kernels::Launch;
using collective::kernels::ReduceArguments;
using cuda::ElementType;
using cuda::StreamCollectives;
using device::proxy::Outcome;
using Producer = device::proxy::Producer<transport::proxy::ThreadPlatform>;

/// Posts where CudaDeviceSide starts a kernel that posts.
class PostingDeviceSide final : public HostDeviceSide {
 public:
  explicit PostingDeviceSide(World& world) : HostDeviceSide(world, 1) {}

  /// Keeps the proxy of the device side that this one replaces.
  void take_proxy_of(std::shared_ptr<detail::DeviceSide> before) {
    before_ = std::move(before);
    if (before_ != nullptr) world_.proxy = before_->world().proxy;
  }

  void post(cuda::Stream, const detail::Posts& posts) const override {
    ++n_posts;
    device::proxy::Request request = posts.request;
    if (posts.result != nullptr) request.flags |= device::proxy::kResult;
    device::proxy::Ticket ticket = 0;
    for (std::size_t i = 0; i < posts.count; ++i) {
      ASSERT_EQ(Producer::post(*world_.proxy, request, ticket), Outcome::ok);
      request.offset += posts.offset_stride;
      request.source += posts.source_stride;
    }
    std::uint64_t before = 0;
    if (posts.result != nullptr) {
      ASSERT_EQ(Producer::wait_value(*world_.proxy, ticket, before), Outcome::ok);
      std::memcpy(posts.result, &before, request.width);
    } else if (posts.complete) {
      ASSERT_EQ(Producer::wait(*world_.proxy, ticket), Outcome::ok);
    }
  }
  void fetch_block(cuda::Stream, const device::AllToAllV& v, Pe index, Pe me,
                   Pe pe) const override {
    std::uint64_t bytes = 0, from = 0;
    get(&bytes, v.send_bytes + me, sizeof bytes, pe);
    get(&from, v.send_offsets + me, sizeof from, pe);
    if (v.received != nullptr) v.received[index] = bytes;
    get(static_cast<std::byte*>(v.target) + v.receive_offsets[index],
        static_cast<const std::byte*>(v.source) + from, bytes, pe);
  }
  void drain(cuda::Stream) const override {
    ASSERT_EQ(Producer::wait_all(*world_.proxy, Producer::quiet_ticket(*world_.proxy)),
              Outcome::ok);
  }
  void barrier(cuda::Stream, const device::Team& team) const override {
    for (const Team& known : teams)
      if (team_words(known.index()) == team.arrived)
        return detail::sync(state_of(known), "barrier of a stream");
    FAIL() << "a barrier of an unknown team";
  }

  std::vector<Team> teams;
  mutable int n_posts = 0;

 private:
  void get(void* target, const void* source, std::size_t bytes, Pe pe) const {
    const auto offset =
        static_cast<std::size_t>(static_cast<const std::byte*>(source) - world_.heap);
    if (std::byte* const base = bases_[static_cast<std::size_t>(pe)])
      return void(std::memcpy(target, base + offset, bytes));
    detail::Posts posts;
    posts.request.kind = device::proxy::Kind::get;
    posts.request.pe = pe;
    posts.request.offset = offset;
    posts.request.source = reinterpret_cast<std::uintptr_t>(target);
    posts.request.bytes = bytes;
    post(nullptr, posts);
  }

  std::shared_ptr<detail::DeviceSide> before_;  ///< owns the proxy
};

const char* loaded(const memory::Device&) {
  return nullptr;
}
/// Stands in for the kernel that reduces fetched parts.
const char* reduce_parts(const Launch&, ElementType type, ReduceOp op,
                         const ReduceArguments& arguments) {
  if (arguments.parts == 0) return "a reduction that reads the heaps of other PEs";
  const DataType dtype = type == ElementType::bfloat16  ? DataType::bfloat16
                         : type == ElementType::float32 ? DataType::float32
                                                        : DataType::int64;
  std::vector<const void*> sources;
  for (std::size_t part = 0; part < arguments.parts; ++part)
    sources.push_back(static_cast<const std::byte*>(arguments.source) + part * arguments.stride);
  collective::kernel_of(dtype, op)(arguments.target, sources, arguments.count);
  return nullptr;
}
constexpr collective::KernelTable kTable = {loaded, nullptr, nullptr, reduce_parts};

/// Runs `body` on `n_pes` PEs.
void run(Pe n_pes, const Settings& settings,
         const std::function<void(World&, PostingDeviceSide&)>& body) {
  collective::replace_kernel_table(&kTable);
  run_threads(n_pes, settings, [&](World& world) {
    const auto side = std::make_shared<PostingDeviceSide>(world);
    side->teams.push_back(world.team());
    side->take_proxy_of(state_of(world).set_device_side(side));
    body(world, *side);
    barrier(world.team());
    side->teams.clear();  // a team keeps its world
  });
  collective::replace_kernel_table(nullptr);
}

Settings on_nodes_of(std::int64_t pes) {
  Settings settings = world_settings();
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{16} << 20;
  settings.node_size = pes;
  return settings;
}

/// Small values whose sums round, and products stay finite.
template <typename T>
T value(std::size_t pe, std::size_t i) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(1 + (pe * 37 + i * 11) % 64) / T{7};
  else
    return static_cast<T>(pe * 1000 + i);
}

template <typename T>
std::vector<T> values(std::size_t pe, std::size_t count) {
  std::vector<T> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = value<T>(pe, i);
  return all;
}

/// The collectives of a team whose PEs have the numbers `team.world_pe`; `count` elements a block.
void check_collectives(const Team& team, std::size_t count) {
  World world = team.world();
  const auto n = static_cast<std::size_t>(team.size()), me = static_cast<std::size_t>(team.my_pe());
  const StreamCollectives on(team, kStream);
  // Sizes for the whole world give all teams of a split the same offsets.
  const auto source =
      world.heap().allocate<std::int64_t>(count * static_cast<std::size_t>(world.n_pes()));
  const auto target =
      world.heap().allocate<std::int64_t>(count * static_cast<std::size_t>(world.n_pes()));
  const std::size_t bytes = count * sizeof(std::int64_t);
  const auto fill = [&] {
    const auto mine = values<std::int64_t>(me, count * n);
    std::memcpy(source.data(), mine.data(), n * bytes);
    std::memset(target.data(), 0xee, n * bytes);
  };
  for (std::size_t root = 0; root < n; root += n > 8 ? n - 1 : 1) {
    fill();
    on.broadcast_bytes(target.data(), source.data(), bytes, static_cast<Pe>(root));
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(target[i], value<std::int64_t>(root, i));
    on.barrier();
  }
  fill();
  on.all_gather_bytes(target.data(), source.data(), bytes);
  for (std::size_t pe = 0; pe < n; ++pe)
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(target[pe * count + i], value<std::int64_t>(pe, i)) << pe << " " << i;
  on.barrier();
  fill();
  on.all_to_all_bytes(target.data(), source.data(), bytes);
  for (std::size_t pe = 0; pe < n; ++pe)
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(target[pe * count + i], value<std::int64_t>(pe, me * count + i)) << pe << " " << i;
  on.barrier();
  const auto sum = [&](std::size_t i) {
    std::int64_t all = 0;
    for (std::size_t pe = 0; pe < n; ++pe) all += value<std::int64_t>(pe, i);
    return all;
  };
  fill();
  on.reduce(ReduceOp::sum, target.span().first(count), source.span().first(count));
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(target[i], sum(i)) << i;
  on.barrier();
  fill();
  on.reduce(ReduceOp::sum, source.span().first(count), source.span().first(count));  // in place
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(source[i], sum(i)) << i;
  on.barrier();
  fill();
  on.reduce_scatter(ReduceOp::sum, target.span().first(count), source.span().first(count * n));
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(target[i], sum(me * count + i)) << i;
  on.barrier();
  // Own blocks, in place.
  fill();
  on.reduce_scatter(ReduceOp::sum, source.span().subspan(me * count, count),
                    source.span().first(count * n));
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(source[me * count + i], sum(me * count + i)) << i;
  on.barrier();
  fill();
  std::memcpy(target.data() + me * count, source.data(), bytes);
  on.all_gather_bytes(target.data(), target.data() + me * count, bytes);
  for (std::size_t pe = 0; pe < n; ++pe)
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(target[pe * count + i], value<std::int64_t>(pe, i)) << pe << " " << i;
  on.barrier();
  on.broadcast_bytes(target.data(), source.data(), 0, 0);
  on.reduce(ReduceOp::sum, target.span().first(0), source.span().first(0));
  on.barrier();
  barrier(world.team());
}

TEST(InternodeStreams, RunCollectives) {
  const FakeCuda fake({.gpus = 4});
  for (const std::int64_t node_size : {2, 1})
    run(4, on_nodes_of(node_size), [](World& world, PostingDeviceSide& side) {
      ASSERT_NE(side.world().proxy, nullptr);
      check_collectives(world.team(), 3);
      EXPECT_GT(side.n_posts, 0);
      check_collectives(world.team(), 20'001);  // reduced by shares
    });
}

// Rails: teams of PEs of all nodes, with the PEs in reverse order.
TEST(InternodeStreams, RunCollectivesOfDisjointTeams) {
  const FakeCuda fake({.gpus = 4});
  run(4, on_nodes_of(2), [](World& world, PostingDeviceSide& side) {
    Team rail = world.team().split_strided(2 + world.my_pe() % 2, -2, 2);
    side.teams.push_back(rail);
    check_collectives(rail, 100);
    side.teams.pop_back();
    rail.free();
  });
}

// Sums have the bits of the host's collectives, whatever the algorithm.
TEST(InternodeStreams, AddInTheOrderOfThePes) {
  const FakeCuda fake({.gpus = 4});
  run(4, on_nodes_of(2), [](World& world, PostingDeviceSide&) {
    const StreamCollectives on(world.team(), kStream);
    const auto me = static_cast<std::size_t>(world.my_pe());
    for (const std::size_t count : {17u, 30'000u}) {
      const auto source = world.heap().allocate<float>(count);
      const auto target = world.heap().allocate<float>(count);
      const auto expected = world.heap().allocate<float>(count);
      const auto mine = values<float>(me, count);
      std::memcpy(source.data(), mine.data(), count * sizeof(float));
      reduce(world.team(), DataType::float32, ReduceOp::sum, expected.data(), source.data(), count);
      on.reduce(ReduceOp::sum, target.span(), source.span());
      EXPECT_EQ(std::memcmp(target.data(), expected.data(), count * sizeof(float)), 0);
      reduce(world.team(), DataType::bfloat16, ReduceOp::sum, expected.data(), source.data(),
             2 * count);
      on.reduce(ElementType::bfloat16, ReduceOp::sum, target.data(), source.data(), 2 * count);
      EXPECT_EQ(std::memcmp(target.data(), expected.data(), count * sizeof(float)), 0);
      barrier(world.team());
    }
  });
}

TEST(InternodeStreams, PutGetAndSignal) {
  const FakeCuda fake({.gpus = 4});
  run(4, on_nodes_of(2), [](World& world, PostingDeviceSide& side) {
    constexpr std::size_t kWords = 300'000;  // several transfers
    const auto words = world.heap().allocate<std::uint64_t>(kWords);
    const auto copy = world.heap().allocate<std::uint64_t>(kWords);
    const auto small = world.heap().allocate<std::uint64_t>(16);
    const auto signal = world.heap().allocate<std::uint64_t>(2);
    const cuda::StreamOperations on(world, kStream);
    const Pe far = (world.my_pe() + 2) % 4;
    const auto value_of = [](Pe pe, std::size_t i) {
      return static_cast<std::uint64_t>(pe) * 1'000'003 + i;
    };
    std::vector<std::uint64_t> mine(kWords);
    for (std::size_t i = 0; i < kWords; ++i) mine[i] = value_of(world.my_pe(), i);
    barrier(world.team());
    on.put(words.on(far), std::span<const std::uint64_t>(mine));
    on.signal(signal.on(far), SignalOp::add, 5);
    barrier(world.team());
    EXPECT_EQ(side.n_posts, 2);
    for (std::size_t i = 0; i < kWords; ++i) ASSERT_EQ(words[i], value_of(far, i)) << i;
    EXPECT_EQ(signal[0], 5u);
    // A get returns what this PE put there.
    on.get(std::span(copy.data(), kWords), words.on(far));
    for (std::size_t i = 0; i < kWords; ++i) ASSERT_EQ(copy[i], mine[i]) << i;
    on.put_signal(small.on(far).subspan(0, 2), std::span<const std::uint64_t>(mine).first(2),
                  signal.on(far).subspan(1, 1), SignalOp::set, 9);
    on.put_value(small.on(far).subspan(2, 1), std::uint64_t{77});
    on.put_strided(small.on(far).subspan(4, 7), 3, mine.data(), 2, 3);
    std::uint64_t before = 0;
    for (int i = 0; i < 2; ++i) on.atomic(AtomicOp::add, small.on(far).subspan(12, 1), 4, &before);
    EXPECT_EQ(before, 4u);
    on.quiet();
    barrier(world.team());
    EXPECT_EQ(small[0], value_of(far, 0));
    EXPECT_EQ(small[1], value_of(far, 1));
    EXPECT_EQ(signal[1], 9u);
    EXPECT_EQ(small[2], 77u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(small[4 + 3 * i], value_of(far, 2 * i));
    EXPECT_EQ(small[12], 8u);
    std::uint64_t back[5] = {};
    on.get_strided(back, 2, small.on(far).subspan(4, 7), 3, 3);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(back[2 * i], mine[2 * i]);
    on.barrier(world.team());
    EXPECT_FALSE(cuda::take_failure(world).has_value());
    barrier(world.team());
  });
}

TEST(InternodeStreams, NeedTheProxy) {
  const FakeCuda fake({.gpus = 4});
  Settings settings = on_nodes_of(2);
  settings.proxy_slots = 0;
  run(4, settings, [](World& world, PostingDeviceSide&) {
    const auto words = world.heap().allocate<std::uint64_t>(4);
    const Pe far = (world.my_pe() + 2) % 4;
    const cuda::StreamOperations on(world, kStream);
    expect_error(Code::unsupported, "set SHOAL_PROXY_SLOTS above 0",
                 [&] { on.signal(words.on(far).subspan(0, 1), SignalOp::set, 1); });
    expect_error(Code::unsupported, "set SHOAL_PROXY_SLOTS above 0",
                 [&] { on.barrier(world.team()); });
    expect_error(Code::unsupported, "set SHOAL_PROXY_SLOTS above 0", [&] {
      StreamCollectives(world.team(), kStream).broadcast_bytes(words.data(), words.data(), 8, 0);
    });
    barrier(world.team());
  });
}

// PE i sends 100 * i + j words to PE j, from places in reverse order.
TEST(InternodeStreams, RunAllToAllV) {
  const FakeCuda fake({.gpus = 4});
  run(4, on_nodes_of(2), [](World& world, PostingDeviceSide& side) {
    constexpr std::size_t kBlock = 400;
    const auto source = world.heap().allocate<std::uint64_t>(4 * kBlock);
    const auto tables = world.heap().allocate<std::uint64_t>(8);
    const auto me = static_cast<std::size_t>(world.my_pe());
    const auto count = [](std::size_t from, std::size_t to) { return 100 * from + to; };
    std::vector<std::uint64_t> target(4 * kBlock), places(4), received(4);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = 10'000 * me + i;
    for (std::size_t pe = 0; pe < 4; ++pe) {
      tables[pe] = count(me, pe) * 8;
      tables[4 + pe] = (3 - pe) * kBlock * 8;
      places[pe] = pe * kBlock * 8;
    }
    device::AllToAllV v;
    v.target = target.data();
    v.source = source.data();
    v.send_bytes = tables.data();
    v.send_offsets = tables.data() + 4;
    v.receive_offsets = places.data();
    v.received = received.data();
    StreamCollectives(world.team(), kStream).all_to_all_v_bytes(v);
    EXPECT_GT(side.n_posts, 0);
    for (std::size_t pe = 0; pe < 4; ++pe) {
      EXPECT_EQ(received[pe], count(pe, me) * 8);
      for (std::size_t i = 0; i < kBlock; ++i)
        ASSERT_EQ(target[pe * kBlock + i],
                  i < count(pe, me) ? 10'000 * pe + (3 - me) * kBlock + i : 0)
            << pe << " " << i;
    }
    barrier(world.team());
  });
}

// More PEs than a kernel serves, all of them on one node: copies, no requests.
TEST(StreamsOfManyPes, RunCollectives) {
  Settings settings = world_settings();
  settings.symmetric_size = std::size_t{2} << 20;
  settings.max_teams = 8;
  settings.timeout = std::chrono::seconds(200);
  run(device::Team::kMaxCollectivePes + 2, settings, [](World& world, PostingDeviceSide& side) {
    check_collectives(world.team(), 5);
    EXPECT_EQ(side.n_posts, 0);
  });
}

// The reason is named when a team is described for kernels.
TEST(InternodeStreams, KernelsHaveNoCollectives) {
  const FakeCuda fake({.gpus = 4});
  run(4, on_nodes_of(2), [](World& world, PostingDeviceSide&) {
    const auto why = [&](const Team& team) {
      return detail::kernel_collectives_obstacle(state_of(world), state_of(team));
    };
    EXPECT_EQ(why(world.node_team()), "");
    EXPECT_EQ(why(world.team()), "this GPU does not reach the heap of PE " +
                                     std::to_string(world.my_pe() < 2 ? 2 : 0) +
                                     " by loads and stores");
    barrier(world.team());
  });
}

}  // namespace
}  // namespace shoal::test

#endif
