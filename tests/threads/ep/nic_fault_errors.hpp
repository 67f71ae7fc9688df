// SPDX-License-Identifier: Apache-2.0
// nic_fault_errors.hpp: what a group of two nodes of one rank throws after faults of the queues by
// which its kernels send, for both modes. Include it after fake_gpu.hpp and in one file of a
// program.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "ep/cuda/group/fault_text.cpp"
#include "fake_gpu/nic_faults.hpp"
#include "support/wait_for.hpp"

namespace shoal::ep::cuda {

using test::fake_gpu::NicWorld;

class NicFaults : public testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kDeadline{400};
  /// A wait that the deadline does not end outlasts the test.
  static constexpr std::chrono::hours kNever{1};

  virtual const FaultReport& report(std::int32_t rank) = 0;
  /// Names the setting of the group's timeout.
  virtual const char* timeout_setting() const = 0;

  const NicWorld& world(std::int32_t rank) const {
    return worlds_.at(static_cast<std::size_t>(rank));
  }
  /// Message that the group throws on a rank; empty: none.
  std::string error(std::int32_t rank) {
    const FaultReport& found = report(rank);
    if (static_cast<Fault>(found.fault) == Fault::none) return "";
    FaultContext context;
    context.me = rank;
    context.n_pes = 2;
    context.pe = found.rank;
    context.timeout = kDeadline;
    context.timeout_setting = timeout_setting();
    context.peer = "(progress)";
    context.network = world(rank).failure(context.pe);
    return fatal_error(found, static_cast<Fault>(found.fault), context).what();
  }
  /// The same when requests in flight are complete.
  std::string error_without_network(std::int32_t rank) {
    std::string text;
    EXPECT_TRUE(test::wait_for([&] {
      text = error(rank);
      return text.find("the network") == std::string::npos;
    })) << text;
    return text;
  }
  /// "queue pair 0x7 to PE 1": the one that `rank` uses for the `spread`-th put.
  std::string queue_pair(std::int32_t rank, std::uint32_t spread = 0) const {
    const auto& route = world(rank).world.gda->by_pe[1 - rank];
    return fmt::format("queue pair {:#x} to PE {}",
                       route.queues[spread % route.n_queues].sends.number, 1 - rank);
  }

  std::vector<NicWorld> worlds_;
};

}  // namespace shoal::ep::cuda
