// SPDX-License-Identifier: Apache-2.0
// nic_faults.hpp: faults of the queues that kernels on the fake GPU drive. Include it after
// fake_gpu.hpp.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <string>

#include "fake_gpu/nic_worlds.hpp"
#include "shoal/device/detail/nic.cuh"
#include "support/expect_error.hpp"

namespace shoal::test::fake_gpu {

namespace gda = device::gda;

/// In memory of the fake GPU.
inline gda::Route& route_of(const NicWorld& world, Pe pe) {
  return const_cast<gda::Route&>(world.world.gda->by_pe[pe]);
}

/// The NIC of `pe` refuses all that `world` sends from now on, as after the end of a registration.
inline void revoke_key(const NicWorld& world, Pe pe) {
  route_of(world, pe).heap.key ^= 0x5500;
}

/// Puts the queue pairs between both into the error state: a request of `ends` is refused.
inline void end_queue_pairs(const NicWorld& ends, Pe pe) {
  gda::Route route = route_of(ends, pe);
  route.heap.key ^= 0x5500;
  gda::HostPlatform platform;
  const std::uint64_t value = 0;
  for (std::uint32_t i = 0; i < route.n_queues; ++i)
    (void)gda::put(*ends.world.gda, route, i, {0, &value, sizeof value}, nullptr, platform);
}

/// The same at `ends` alone, by requests whose source is refused: the NIC of `pe` gets no answer.
inline void silence_queue_pairs(const NicWorld& ends, Pe pe) {
  gda::Route route = route_of(ends, pe);
  route.local_key ^= 0x5500;
  gda::HostPlatform platform;
  for (std::uint32_t i = 0; i < route.n_queues; ++i)
    (void)gda::put(*ends.world.gda, route, i, {0, ends.memory, 64}, nullptr, platform);
}

/// Sets the time for which posts of `world` wait for room.
inline void set_queue_timeout(const NicWorld& world, std::chrono::nanoseconds timeout) {
  const_cast<gda::Routes*>(world.world.gda)->timeout_ns =
      static_cast<std::uint64_t>(timeout.count());
}

/// The NIC sees none of the doorbells of `world` towards `pe` from now on.
inline void lose_doorbells(const NicWorld& world, Pe pe) {
  static std::uint32_t record;
  static std::uint64_t doorbell;
  const gda::Route& route = route_of(world, pe);
  for (std::uint32_t i = 0; i < route.n_queues; ++i) {
    auto& queue = const_cast<gda::Queue&>(route.queues[i]);
    queue.sends.record = &record;
    queue.sends.doorbell = &doorbell;
  }
}

inline void expect_parts(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) test::expect_parts(text, {part});
}

}  // namespace shoal::test::fake_gpu
