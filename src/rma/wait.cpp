// SPDX-License-Identifier: Apache-2.0
// The wait and test families: one loop over variables of either width.
#include <atomic>

#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "team/teams.hpp"
#include "world/state.hpp"

namespace shoal {
namespace {

/// The variables where the host can read them. Those in GPU memory are fetched together.
class Snapshot {
 public:
  Snapshot(detail::WorldState& world, const void* variables, std::size_t bytes)
      : variables_(variables) {
    if (world.memory().cuda() == nullptr) return;
    fetched_.resize((bytes + sizeof fetched_[0] - 1) / sizeof fetched_[0]);
    const Pe me = world.my_pe();
    const detail::HeapRoute route = world.fabric().heap_route(me, transport::capability::get);
    route.transport.get(fetched_.data(), me, route.start + world.heap().offset_of(variables),
                        bytes);
    variables_ = fetched_.data();
  }
  const void* data() const noexcept { return variables_; }

 private:
  const void* variables_;
  std::vector<std::uint64_t> fetched_;
};

template <typename T>
T load(const void* variables, std::size_t index) {
  // atomic_ref takes no const in C++20.
  auto* const variable = const_cast<T*>(static_cast<const T*>(variables)) + index;
  return std::atomic_ref<T>(*variable).load(std::memory_order_acquire);
}

template <typename T>
bool holds_at(const void* variables, std::size_t index, const void* values, std::size_t value_index,
              Compare compare) {
  return detail::holds(load<T>(variables, index), compare,
                       static_cast<const T*>(values)[value_index]);
}

constexpr const char* symbol_of(Compare compare) {
  constexpr const char* symbols[] = {"==", "!=", ">", ">=", "<", "<="};
  return symbols[static_cast<std::size_t>(compare)];
}

}  // namespace

World::WaitResult World::test_words(const Words& words, Compare compare, Quorum quorum) const {
  detail::WorldState& world = state();
  require(
      words.skip.empty() || words.skip.size() == words.count, Code::invalid_argument,
      "SHOAL-N796: wait or test: skip has {} elements for {} variables; allowed: none, or one each",
      words.skip.size(), words.count);
  require(words.value_count == 1 || words.value_count == words.count, Code::invalid_argument,
          "SHOAL-N796: wait or test: {} values for {} variables; allowed: 1, or one each",
          words.value_count, words.count);
  if (words.count == 0) return {quorum == Quorum::all, {}};
  require(
      world.heap().contains(words.variables, words.count * words.width) &&
          reinterpret_cast<std::uintptr_t>(words.variables) % words.width == 0,
      Code::invalid_argument,
      "SHOAL-N803: wait or test: {} variables of {} bytes at {} are not aligned words of this PE's "
      "symmetric heap of {} bytes at {}",
      words.count, words.width, words.variables, world.heap().size(),
      static_cast<const void*>(world.heap().base()));

  const Snapshot snapshot(world, words.variables, words.count * words.width);
  const void* const variables = snapshot.data();
  const auto satisfied = [&](std::size_t i) {
    const std::size_t v = words.value_count == 1 ? 0 : i;
    if (words.width == 8)
      return words.is_signed ? holds_at<std::int64_t>(variables, i, words.values, v, compare)
                             : holds_at<std::uint64_t>(variables, i, words.values, v, compare);
    return words.is_signed ? holds_at<std::int32_t>(variables, i, words.values, v, compare)
                           : holds_at<std::uint32_t>(variables, i, words.values, v, compare);
  };
  WaitResult result;
  std::size_t considered = 0;
  const std::size_t first = quorum == Quorum::any ? world.waits().rotation % words.count : 0;
  for (std::size_t step = 0; step < words.count; ++step) {
    const std::size_t i = (first + step) % words.count;
    if (!words.skip.empty() && words.skip[i] != 0) continue;
    ++considered;
    if (!satisfied(i)) {
      if (quorum == Quorum::all) return {false, {}};
      continue;
    }
    if (quorum != Quorum::all) result.indices.push_back(i);
    if (quorum == Quorum::any) {
      ++world.waits().rotation;
      break;
    }
  }
  result.satisfied = quorum == Quorum::all || considered == 0 || !result.indices.empty();
  return result;
}

World::WaitResult World::wait_words(const Words& words, Compare compare, Quorum quorum) const {
  detail::WorldState& world = state();
  WaitResult result = test_words(words, compare, quorum);
  if (result.satisfied || words.count == 0) return result;
  world.progress().set(detail::Activity::waiting, world.teams().world_team().epoch, "wait_until");
  const auto ready = [&] {
    result = test_words(words, compare, quorum);
    return result.satisfied;
  };
  const auto outcome = world.memory().cuda() != nullptr
                           ? world.waits().poll_elsewhere(ready, world.waits().deadline())
                           : world.waits().poll(ready, world.waits().deadline());
  world.progress().set(detail::Activity::idle, world.teams().world_team().epoch, "wait_until");
  if (outcome == detail::WaitOutcome::ready) return result;
  const Snapshot last(world, words.variables, words.width);
  const auto seen =
      words.width == 8 ? load<std::int64_t>(last.data(), 0) : load<std::int32_t>(last.data(), 0);
  const auto wanted = words.width == 8 ? *static_cast<const std::int64_t*>(words.values)
                                       : *static_cast<const std::int32_t*>(words.values);
  world.waits().throw_failed(
      outcome, "wait_until",
      fmt::format(
          "waiting for {} of {} variables at heap offset {}, the first to be {} {}, seen {}",
          quorum == Quorum::all ? "all" : "one", words.count,
          world.heap().offset_of(words.variables), symbol_of(compare), wanted, seen));
}

std::uint64_t World::signal_fetch(const std::uint64_t* flag) const {
  require(state().heap().contains(flag, sizeof *flag) &&
              reinterpret_cast<std::uintptr_t>(flag) % sizeof *flag == 0,
          Code::invalid_argument,
          "SHOAL-N803: signal_fetch: {} is not an aligned word of {} bytes of this PE's symmetric "
          "heap of {} bytes at {}",
          static_cast<const void*>(flag), sizeof *flag, state().heap().size(),
          static_cast<const void*>(state().heap().base()));
  return load<std::uint64_t>(Snapshot(state(), flag, sizeof *flag).data(), 0);
}

}  // namespace shoal
