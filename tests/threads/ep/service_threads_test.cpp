// SPDX-License-Identifier: Apache-2.0
// The library's own threads never run the program's signal handlers, except for their own faults.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "checks/ep/normal.hpp"
#include "shoal/bootstrap.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/process/threads_called.hpp"
#include "support/proxy/world_proxy.hpp"
#include "support/world/ofi.hpp"
#include "support/world/verbs.hpp"
#ifdef SHOAL_WITH_CUDA
#include "support/cuda/fake_cuda.hpp"
#endif

namespace shoal::test {
namespace {

void expect_signals_blocked(const std::string& thread) {
  // A thread that has just been started blocks all signals.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (all_block(thread, SIGSEGV) && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_FALSE(all_block(thread, SIGSEGV)) << thread;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD})
    EXPECT_TRUE(all_block(thread, signal)) << thread << ", signal " << signal;
}

TEST(ServiceThreads, OfAsynchronousOperations) {
  const EpCase c{.ranks = 2, .experts = 4, .top_k = 2, .hidden = 64, .max_tokens = 8};
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    const Inputs in(c, world.my_pe());
    ep::Group group(world.team(), options_for(c));
    (void)group.dispatch_async(in.x, group.route(in.topk_idx)).get();
    expect_signals_blocked("shoal-ep");
    barrier(world.team());
  });
}

TEST(ServiceThreads, OfProxies) {
  run_threads(1, ep_settings(), [](World& world) {
    const WorldProxy proxy(world, 4);
    expect_signals_blocked("shoal-proxy");
  });
}

TEST(ServiceThreads, OfTheBootstrap) {
  const UniqueId id = UniqueId::create();
  expect_signals_blocked("shoal-root");
}

TEST(ServiceThreads, OfNetworks) {
  SHOAL_SKIP_WITHOUT_OFI();
  run_threads(2, ofi_settings(), [](World& world) {
    expect_signals_blocked("shoal-ofi");
    barrier(world.team());
  });
}

using ServiceThreadsWithVerbs = WithVerbs;
TEST_F(ServiceThreadsWithVerbs, OfNetworks) {
  run_threads(2, verbs_settings(), [](World& world) {
    expect_signals_blocked("shoal-verbs");
    barrier(world.team());
  });
}

#ifdef SHOAL_WITH_CUDA
TEST(ServiceThreads, OfStagedTransports) {
  const FakeCuda fake({.gpus = 2});
  Settings settings = ep_settings();
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{8} << 20;
  settings.node_size = 1;
  settings.transport_between = "staged";
  run_threads(2, settings, [](World& world) {
    expect_signals_blocked("shoal-staged");
    barrier(world.team());
  });
}
#endif

}  // namespace
}  // namespace shoal::test
