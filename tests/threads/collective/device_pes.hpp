// SPDX-License-Identifier: Apache-2.0
// device_pes.hpp: PEs whose heaps are host memory, for device functions that are compiled as C++.
// A PE is a thread; its heap holds the words of a team, memory for packets, and the rest.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "fake_gpu/fake_gpu.hpp"
#include "shoal/device/collective.cuh"

namespace shoal::test {

struct DevicePesOptions {
  std::vector<Pe> team = {};  ///< numbers in the world, by index in the team
  Pe n_pes = 2;
  std::uint64_t slot_bytes = 256;
  std::uint64_t packet_limit = 128;
  std::uint64_t one_shot_limit = 512;
  std::uint64_t timeout_ms = 20'000;
};

class DevicePes {
 public:
  static constexpr std::size_t kHeapBytes = std::size_t{1} << 18;
  static constexpr std::size_t kFree = std::size_t{64} << 10;  ///< offset of what tests may use

  explicit DevicePes(const DevicePesOptions& options)
      : options_(options),
        memory_(static_cast<std::size_t>(options.n_pes) * kHeapBytes / sizeof(Line)),
        reports_(static_cast<std::size_t>(options.n_pes)) {
    if (options_.team.empty())
      for (Pe pe = 0; pe < options_.n_pes; ++pe) options_.team.push_back(pe);
  }

  std::byte* heap(Pe pe) {
    return reinterpret_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(pe) * kHeapBytes;
  }
  device::World world(Pe pe) {
    device::World world{};
    world.heap = heap(pe);
    world.window = heap(0);
    world.stride = kHeapBytes;
    world.heap_bytes = kHeapBytes;
    world.timeout_ns = options_.timeout_ms * 1'000'000;
    world.failure = &reports_[static_cast<std::size_t>(pe)];
    world.my_pe = pe;
    world.n_pes = options_.n_pes;
    return world;
  }
  /// Team of the PE with this index in it.
  device::Team team(Pe index) {
    device::Team team{};
    const auto size = static_cast<Pe>(options_.team.size());
    auto* const words =
        reinterpret_cast<std::uint64_t*>(heap(options_.team[static_cast<std::size_t>(index)]));
    team.arrived = words;
    team.epoch = words + options_.n_pes;
    team.finished = team.epoch + 1;
    team.generation = 3;
    team.my_pe = index;
    team.size = size;
    if (options_.slot_bytes != 0) team.packets = reinterpret_cast<std::byte*>(words) + 4096;
    team.slot_bytes = options_.slot_bytes;
    team.packet_limit = options_.packet_limit;
    team.one_shot_limit = options_.one_shot_limit;
    for (std::size_t i = 0; i < options_.team.size(); ++i) {
      const Pe pe = options_.team[i];
      team.pes[i] = static_cast<std::uint16_t>(pe);
      team.members[pe / 64] |= std::uint64_t{1} << (pe % 64);
    }
    return team;
  }
  const device::FailureReport& report(Pe pe) const {
    return reports_[static_cast<std::size_t>(pe)];
  }

  /// Runs `body(index in the team)` on every PE of the team.
  void run(const std::function<void(Pe)>& body) const {
    std::vector<std::thread> threads;
    for (Pe index = 0; index < static_cast<Pe>(options_.team.size()); ++index)
      threads.emplace_back([&body, index] { body(index); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct alignas(256) Line {
    std::byte bytes[256];
  };

  DevicePesOptions options_;
  std::vector<Line> memory_;
  std::vector<device::FailureReport> reports_;
};

}  // namespace shoal::test
