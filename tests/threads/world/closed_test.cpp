// SPDX-License-Identifier: Apache-2.0
// Every call on a closed world, its teams or its heap throws Error{closed} (shoal/world.hpp).

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "shoal/detail/access.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

struct Named {
  const char* name;
  std::function<void()> call;
};

/// Arguments of the calls, taken from the world before it was closed.
struct Remains {
  World world;
  SymmetricHeap* heap;
  Team team, split;
  RemoteSpan<std::int64_t> data;
  RemoteSpan<std::uint64_t> flag;
  std::int64_t* words;
  std::uint64_t* signals;
};

constexpr std::size_t kWords = 16;
std::array<std::int64_t, kWords> buffer{};

std::vector<Named> queries(const Remains& r) {
  const World& w = r.world;
  return {
      {"my_pe", [&] { w.my_pe(); }},
      {"n_pes", [&] { w.n_pes(); }},
      {"my_pe_on_node", [&] { w.my_pe_on_node(); }},
      {"pes_per_node", [&] { w.pes_per_node(); }},
      {"team", [&] { w.team(); }},
      {"node_team", [&] { w.node_team(); }},
      {"shared_team", [&] { w.shared_team(); }},
      {"same_index_team", [&] { w.same_index_team(); }},
      {"self_team", [&] { w.self_team(); }},
      {"heap", [&] { w.heap(); }},
      {"settings", [&] { w.settings(); }},
      {"init_phases", [&] { w.init_phases(); }},
      {"bootstrap", [&] { w.bootstrap(); }},
      {"describe_transport", [&] { w.describe_transport(0); }},
      {"connectivity", [&] { w.connectivity(); }},
      {"state", [&] { detail::Access::state(w); }},
  };
}

std::vector<Named> one_sided(const Remains& r) {
  const World& w = r.world;
  const auto local = [] { return std::span<std::int64_t>(buffer).first(4); };
  const RemoteSpan<std::int64_t> four = r.data.subspan(0, 4), word = r.data[0];
  return {
      {"put", [=, &w] { w.put(four, local()); }},
      {"get", [=, &w] { w.get(local(), four); }},
      {"put_nbi", [=, &w] { w.put_nbi(four, local()); }},
      {"get_nbi", [=, &w] { w.get_nbi(local(), four); }},
      {"put_value", [=, &w] { w.put_value(word, 1); }},
      {"get_value", [=, &w] { w.get_value(word); }},
      {"put of nothing", [=, &w] { w.put(r.data.subspan(0, 0), {}); }},
      {"put_strided", [=, &w] { w.put_strided(four, 1, buffer.data(), 1, 4); }},
      {"get_strided", [=, &w] { w.get_strided(buffer.data(), 1, four, 1, 4); }},
      {"atomic_fetch", [=, &w] { w.atomic_fetch(word); }},
      {"atomic_set", [=, &w] { w.atomic_set(word, 1); }},
      {"atomic_fetch_add", [=, &w] { w.atomic_fetch_add(word, 1); }},
      {"atomic_fetch_and", [=, &w] { w.atomic_fetch_and(word, 1); }},
      {"atomic_fetch_or", [=, &w] { w.atomic_fetch_or(word, 1); }},
      {"atomic_fetch_xor", [=, &w] { w.atomic_fetch_xor(word, 1); }},
      {"atomic_swap", [=, &w] { w.atomic_swap(word, 1); }},
      {"atomic_compare_swap", [=, &w] { w.atomic_compare_swap(word, 1, 2); }},
      {"signal_set", [=, &w] { w.signal_set(r.flag, 1); }},
      {"signal_add", [=, &w] { w.signal_add(r.flag, 1); }},
      {"put_signal", [=, &w] { w.put_signal(four, local(), r.flag, SignalOp::set, 1); }},
      {"fence", [&w] { w.fence(); }},
      {"quiet", [&w] { w.quiet(); }},
  };
}

/// Their memory is unmapped: the calls must not access it.
std::vector<Named> waits(const Remains& r) {
  const World& w = r.world;
  const std::span<const std::int64_t> words(r.words, 4), none;
  static const std::vector<std::int64_t> zero{0};
  return {
      {"signal_fetch", [&] { w.signal_fetch(r.signals); }},
      {"signal_wait_until", [&] { w.signal_wait_until(r.signals, Compare::equal, 0); }},
      {"wait_until", [&] { w.wait_until(r.words, Compare::equal, 0); }},
      {"test", [&] { w.test(r.words, Compare::equal, 0); }},
      {"wait_all", [=, &w] { w.wait_all(words, Compare::equal, zero); }},
      {"test_all", [=, &w] { w.test_all(words, Compare::equal, zero); }},
      {"wait_any", [=, &w] { w.wait_any(words, Compare::equal, zero); }},
      {"test_any", [=, &w] { w.test_any(words, Compare::equal, zero); }},
      {"wait_some", [=, &w] { w.wait_some(words, Compare::equal, zero); }},
      {"test_some", [=, &w] { w.test_some(words, Compare::equal, zero); }},
      {"wait_all of nothing", [=, &w] { w.wait_all(none, Compare::equal, zero); }},
  };
}

std::vector<Named> heap_calls(const Remains& r) {
  SymmetricHeap& heap = *r.heap;
  return {
      {"malloc", [&] { heap.malloc(64); }},
      {"malloc of nothing", [&] { heap.malloc(0); }},
      {"align", [&] { heap.align(256, 64); }},
      {"calloc", [&] { heap.calloc(8, 8); }},
      {"allocate", [&] { heap.allocate<int>(4); }},
      {"free", [&] { heap.free(r.words); }},
      {"register_buffer", [&] { heap.register_buffer(buffer.data(), sizeof buffer); }},
      {"unregister_buffer", [&] { heap.unregister_buffer(buffer.data()); }},
      {"peer_pointer", [&] { heap.peer_pointer(r.words, 0); }},
      {"offset_of", [&] { heap.offset_of(r.words); }},
      {"used", [&] { heap.used(); }},
      {"largest_free", [&] { heap.largest_free(); }},
  };
}

std::vector<Named> team_calls(Remains& r) {
  return {
      {"make_team_id", [&] { r.world.make_team_id(); }},
      {"make_team", [&] { r.world.make_team(1, 1, 0); }},
      {"split_strided", [&] { r.team.split_strided(0, 1, 1); }},
      {"split_strided of a split", [&] { r.split.split_strided(0, 1, 1); }},
      {"split_2d", [&] { r.team.split_2d(1); }},
      {"world_pe", [&] { r.team.world_pe(0); }},
      {"translate", [&] { r.team.translate(0, r.split); }},
      {"destroy", [&] { r.split.free(); }},
      {"destroy a predefined team", [&] { r.team.free(); }},
  };
}

std::vector<Named> collectives(const Remains& r) {
  const Team& team = r.team;
  std::int64_t* const target = r.words;
  std::int64_t* const source = r.words + kWords / 2;
  static const std::vector<std::size_t> sizes{8, 8}, offsets{0, 8};
  return {
      {"barrier", [&] { barrier(team); }},
      {"barrier of a split", [&] { barrier(r.split); }},
      {"sync", [&] { sync(team); }},
      {"broadcast", [=, &team] { broadcast_bytes(team, target, source, 8, 0); }},
      {"all_gather", [=, &team] { all_gather_bytes(team, target, source, 8); }},
      {"all_gather of nothing", [=, &team] { all_gather_bytes(team, target, source, 0); }},
      {"all_to_all", [=, &team] { all_to_all_bytes(team, target, source, 8); }},
      {"all_to_all_v",
       [=, &team] { all_to_all_v_bytes(team, target, sizes, offsets, source, sizes, offsets); }},
      {"reduce", [=, &team] { reduce(team, DataType::int64, ReduceOp::sum, target, source, 1); }},
      {"reduce_scatter",
       [=, &team] { reduce_scatter(team, DataType::int64, ReduceOp::sum, target, source, 1); }},
  };
}

void expect_closed(const std::vector<Named>& calls) {
  for (const Named& named : calls) {
    SCOPED_TRACE(named.name);
    expect_error(Code::closed, "closed", named.call);
  }
}

class ClosedWorld : public testing::TestWithParam<std::int64_t> {};

// Without load-store reach (SHOAL_NODE_SIZE 1) the calls take other paths, with the same result.
TEST_P(ClosedWorld, RefusesEveryCall) {
  Settings settings = world_settings();
  settings.node_size = GetParam();
  run_threads(2, settings, [](World& world) {
    const auto data = world.heap().allocate<std::int64_t>(kWords);
    const auto flags = world.heap().allocate<std::uint64_t>(2);
    const Pe other = 1 - world.my_pe();
    Remains remains{
        world,          &world.heap(),   world.team(), world.team().split_strided(0, 1, 2),
        data.on(other), flags.on(other), data.data(),  flags.data()};
    world.close();
    for (const auto& calls : {queries(remains), one_sided(remains), waits(remains),
                              heap_calls(remains), team_calls(remains), collectives(remains)})
      expect_closed(calls);
    EXPECT_FALSE(world.is_open());
    EXPECT_FALSE(remains.heap->contains(data.data()));
    EXPECT_EQ(remains.heap->base(), nullptr);
    EXPECT_EQ(remains.heap->size(), 0u);
    EXPECT_NO_THROW(world.close());
    EXPECT_NO_THROW(remains.heap->free(nullptr));
  });
}

INSTANTIATE_TEST_SUITE_P(NodeSizes, ClosedWorld, testing::Values(0, 1),
                         testing::PrintToStringParamName());

// A handle that was never opened is closed as well.
TEST(ClosedWorldHandle, ThatIsEmptyRefuses) {
  const World world;
  EXPECT_FALSE(world.is_open());
  expect_error(Code::closed, "closed", [&] { world.n_pes(); });
  expect_error(Code::closed, "closed", [&] { world.put_value(RemoteSpan<int>{{0, 0}, 1}, 1); });
  expect_error(Code::closed, "closed", [&] { world.heap(); });
}

}  // namespace
}  // namespace shoal::test
