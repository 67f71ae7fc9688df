// SPDX-License-Identifier: Apache-2.0
// The proxy of a world whose heaps are in GPU memory, on a fake CUDA driver: threads post in place
// of kernels, and staging carries the requests to other (emulated) nodes.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <cstring>
#include <vector>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"
#include "shoal/device/detail/proxy_ring.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/ofi.hpp"
#include "support/world/verbs.hpp"
#include "transport/proxy/thread_platform.hpp"

namespace shoal::test {
namespace {

using device::proxy::Kind;
using device::proxy::Outcome;
using device::proxy::Request;
using device::proxy::Ticket;
using Producer = device::proxy::Producer<transport::proxy::ThreadPlatform>;

Settings proxy_settings() {
  Settings settings = world_settings();
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{8} << 20;
  settings.node_size = 2;
  return settings;
}

void check_requests(World& world) {
  constexpr std::size_t kWords = 3000;
  auto words = world.heap().allocate<std::uint64_t>(kWords + 2);
  const device::World view = cuda::device_world(world);
  ASSERT_NE(view.proxy, nullptr);
  const device::proxy::Ring& ring = *view.proxy;  // the fake GPU's memory is the host's
  const Pe far = (world.my_pe() + 2) % 4;
  const auto offset = [&](std::size_t word) { return world.heap().offset_of(&words[word]); };
  std::vector<std::uint64_t> source(kWords);
  for (std::size_t i = 0; i < kWords; ++i)
    source[i] = i * 5 + static_cast<std::uint64_t>(world.my_pe());
  barrier(world.team());
  Ticket ticket = 0;
  const Request put{.kind = Kind::put,
                    .flags = device::proxy::kSignalAdd,
                    .pe = far,
                    .offset = offset(0),
                    .source = reinterpret_cast<std::uintptr_t>(source.data()),
                    .bytes = kWords * 8,
                    .signal_offset = offset(kWords),
                    .signal_value = 7};
  ASSERT_EQ(Producer::post(ring, put, ticket), Outcome::ok);
  ASSERT_EQ(Producer::wait(ring, ticket), Outcome::ok);
  const Request add{.kind = Kind::atomic,
                    .op = AtomicOp::add,
                    .width = 8,
                    .flags = device::proxy::kResult,
                    .pe = far,
                    .offset = offset(kWords + 1),
                    .operand = 3};
  for (std::uint64_t i = 0; i < 50; ++i) {
    std::uint64_t before = 99;
    ASSERT_EQ(Producer::post(ring, add, ticket), Outcome::ok);
    ASSERT_EQ(Producer::wait_value(ring, ticket, before), Outcome::ok);
    EXPECT_EQ(before, 3 * i);
  }
  EXPECT_EQ(Producer::wait_all(ring, Producer::quiet_ticket(ring)), Outcome::ok);
  barrier(world.team());
  std::vector<std::uint64_t> got(kWords + 2);
  world.get(got, words.on(world.my_pe()));
  for (std::size_t i = 0; i < kWords; ++i)
    ASSERT_EQ(got[i], i * 5 + static_cast<std::uint64_t>(far)) << i;
  std::vector<std::uint64_t> back(kWords);
  const Request get{.kind = Kind::get,
                    .pe = far,
                    .offset = offset(0),
                    .source = reinterpret_cast<std::uintptr_t>(back.data()),
                    .bytes = kWords * 8};
  ASSERT_EQ(Producer::post(ring, get, ticket), Outcome::ok);
  ASSERT_EQ(Producer::wait(ring, ticket), Outcome::ok);
  EXPECT_EQ(back, source);
  EXPECT_EQ(got[kWords], 7U);
  EXPECT_EQ(got[kWords + 1], 150U);
  EXPECT_FALSE(cuda::take_failure(world).has_value());
  barrier(world.team());
}

TEST(DeviceProxy, ServesPesOfOtherNodes) {
  {
    const FakeCuda fake({.gpus = 4});
    run_threads(4, proxy_settings(), check_requests);
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(DeviceProxy, ServesPesOfOtherNodesOverOfi) {
  SHOAL_SKIP_WITHOUT_OFI();
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "libfabric is not instrumented";
#endif
  const FakeCuda fake({.gpus = 4});
  Settings settings = proxy_settings();
  settings.transport_inside = "ofi";
  settings.ofi_provider = "tcp;ofi_rxm";
  run_threads(4, settings, check_requests);
}

// Data go by RDMA, or through staging where `gpu_memory` is "off".
class DeviceProxyWithVerbs : public WithVerbs, public testing::WithParamInterface<const char*> {};

TEST_P(DeviceProxyWithVerbs, ServesPesOfOtherNodes) {
  {
    const FakeCuda fake({.gpus = 4});
    Settings settings = verbs_settings();
    settings.heap = "cuda";
    settings.symmetric_size = std::size_t{8} << 20;
    settings.node_size = 2;
    settings.transport_inside = "automatic";
    settings.transport_between = "verbs,staged";
    settings.verbs_gpu_memory = GetParam();
    run_threads(4, settings, check_requests);
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

INSTANTIATE_TEST_SUITE_P(GpuMemory, DeviceProxyWithVerbs, testing::Values("automatic", "off"),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST(DeviceProxy, IsThereOnlyWhereItIsNeeded) {
  const FakeCuda fake({.gpus = 4});
  Settings settings = proxy_settings();
  settings.proxy_slots = 0;
  run_threads(4, settings,
              [](World& world) { EXPECT_EQ(cuda::device_world(world).proxy, nullptr); });
  settings = proxy_settings();
  settings.node_size = 4;
  run_threads(4, settings,
              [](World& world) { EXPECT_EQ(cuda::device_world(world).proxy, nullptr); });
}

TEST(DeviceProxy, FailuresReachTheHost) {
  const FakeCuda fake({.gpus = 4});
  run_threads(4, proxy_settings(), [](World& world) {
    const device::proxy::Ring& ring = *cuda::device_world(world).proxy;
    const Pe far = (world.my_pe() + 2) % 4;
    Ticket ticket = 0;
    const Request bad{
        .kind = Kind::put_value, .width = 8, .pe = far, .offset = world.heap().size()};
    ASSERT_EQ(Producer::post(ring, bad, ticket), Outcome::ok);
    EXPECT_EQ(Producer::wait(ring, ticket), Outcome::failed);
    expect_error(Code::invalid_argument, "put_value of 8 bytes to PE " + std::to_string(far),
                 [&] { cuda::check_failures(world); });
    barrier(world.team());
  });
}

}  // namespace
}  // namespace shoal::test

#endif
