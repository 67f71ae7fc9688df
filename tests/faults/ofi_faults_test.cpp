// SPDX-License-Identifier: Apache-2.0
// Errors of a PE whose peer over libfabric or verbs dies or stops.
// @traits slow
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "device/device_side.hpp"
#include "shoal/cuda.hpp"
#include "shoal/device/detail/gda/path.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/gda/host_platform.hpp"
#include "support/process/process.hpp"
#include "support/world/ofi.hpp"
#include "support/world/verbs.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

Environment environment(const char* timeout, const char* provider = "tcp;ofi_rxm") {
  return {{"SHOAL_SYMMETRIC_SIZE", "4M"},          {"SHOAL_TIMEOUT_MS", timeout},
          {"SHOAL_BOOTSTRAP_TIMEOUT_MS", "10000"}, {"SHOAL_TRANSPORT_INSIDE", "ofi"},
          {"SHOAL_TRANSPORT_BETWEEN", "ofi"},      {"SHOAL_OFI_PROVIDER", provider}};
}

// PE 1 does nothing; the others operate on it until an operation fails.
SHOAL_PE_BODY(operate_on_pe_1) {
  World world = World::open({pe.settings, nullptr});
  const auto box = world.heap().allocate<std::byte>(1 << 20);
  const auto flag = world.heap().allocate<std::uint64_t>(1);
  if (world.my_pe() == 1) {
    std::cout << "ready" << std::endl;
    for (;;) pause();
  }
  std::vector<std::byte> data(1 << 20);
  try {
    for (int i = 0;; ++i) {
      if (i == (pe.argument == "wait" ? 0 : 10)) std::cout << "ready" << std::endl;
      if (pe.argument == "put") world.put(box.on(1), std::span<const std::byte>(data));
      if (pe.argument == "get") world.get(std::span(data), box.on(1));
      if (pe.argument == "atomic") world.atomic_fetch_add(flag.on(1), std::uint64_t{1});
      if (pe.argument == "signal") world.signal_add(flag.on(1), 1);
      if (pe.argument == "quiet") {
        world.put_nbi(box.on(1).subspan(0, 100), std::span<const std::byte>(data.data(), 100));
        world.quiet();
      }
      if (pe.argument == "wait") world.wait_until(flag.data(), Compare::equal, 1);
    }
  } catch (const Error& error) {
    std::cout << name_of(error.code()) << ": " << error.what() << std::endl;
  }
}

/// Waits without the timeout of the world, which is short here.
void wait_for_word(std::uint64_t& word) {
  while (std::atomic_ref(word).load() == 0) usleep(1000);
}

/// Calls `operation` until it times out. The memory that it used may then be freed and reused.
template <typename Operation>
void expect_timeout(const Operation& operation) {
  expect_error(Code::timeout, {}, [&] {
    for (;;) operation();
  });
}

// PE 0 stops PE 1, gives up a blocking call, reuses or unmaps its local memory, and lets PE 1
// continue, which serves the call late.
SHOAL_PE_BODY(give_up_a_call) {
  World world = World::open({pe.settings, nullptr});
  constexpr std::size_t kBytes = 4096;
  const auto box = world.heap().allocate<std::byte>(kBytes);
  const auto process = world.heap().allocate<std::uint64_t>(1);
  std::fill_n(box.data(), kBytes, std::byte{1});
  if (world.my_pe() == 1) {
    world.put_value(process.on(0)[0], static_cast<std::uint64_t>(getpid()));
    wait_for_word(*process.data());
    return;
  }
  wait_for_word(*process.data());
  const auto other = static_cast<pid_t>(*process.data());
  void* const pages =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const std::span local(static_cast<std::byte*>(pages), kBytes);
  kill(other, SIGSTOP);
  if (pe.argument == "get") {
    expect_timeout([&] { world.get(local, box.on(1)); });
  } else {
    expect_timeout([&] { world.put(box.on(1), std::span<const std::byte>(local)); });
    munmap(pages, kBytes);
  }
  std::fill_n(box.data(), kBytes, std::byte{2});
  if (pe.argument == "get") std::ranges::fill(local, std::byte{3});
  kill(other, SIGCONT);
  world.atomic_fetch(process.on(1));  // PE 1 serves requests again
  world.put_value(process.on(1)[0], std::uint64_t{1});
  world.quiet();
  if (pe.argument == "get")
    EXPECT_EQ(std::ranges::count(local, std::byte{3}), kBytes) << "the late reply was stored";
}

// PE 1 stops in the middle of its reply to a read of PE 0, which closes its world. Argument: what
// the timeout says of the read.
SHOAL_PE_BODY(close_in_the_middle_of_a_read) {
  World world = World::open({pe.settings, nullptr});
  constexpr std::size_t kBytes = 48 << 20;
  const auto box = world.heap().allocate<std::byte>(kBytes);
  const auto process = world.heap().allocate<std::uint64_t>(1);
  std::memset(box.data(), world.my_pe(), kBytes);
  if (world.my_pe() == 1) {
    world.put_value(process.on(0)[0], static_cast<std::uint64_t>(getpid()));
    for (;;) pause();
  }
  wait_for_word(*process.data());
  world.get_nbi(std::span(box.data(), kBytes), box.on(1));
  while (std::atomic_ref(box.data()[0]).load() == std::byte{0}) usleep(10);
  kill(static_cast<pid_t>(*process.data()), SIGSTOP);
  expect_error(Code::timeout, pe.argument, [&] { world.quiet(); });
  EXPECT_EQ(box.data()[kBytes - 1], std::byte{0}) << "the read is complete";
  world = World();
  // The exit skips the leak check of sanitizers: libfabric's objects stay open.
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

class OfiPeer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { SHOAL_SKIP_WITHOUT_OFI(); }
};
/// True if the library names provider net among those that suit.
bool has_net() {
  Settings settings = ofi_settings();
  settings.ofi_provider = "no such provider";
  try {
    run_threads(2, settings, [](World&) {});
  } catch (const Error& error) {
    const std::string_view what = error.what();
    const std::size_t names = what.find("suitable providers: ");
    return names != what.npos && what.find("net", names) < what.find("Setting", names);
  }
  return false;
}

/// Over libfabric's provider net, which few versions have.
class NetPeer : public OfiPeer {
 protected:
  void SetUp() override {
    OfiPeer::SetUp();
    if (IsSkipped()) return;
    Settings settings = ofi_settings();
    settings.ofi_provider = "net";
    try {
      run_threads(2, settings, [](World&) {});
    } catch (const Error& error) {
      if (error.code() != Code::unsupported || has_net()) throw;
      GTEST_SKIP() << "no net here: " << error.what();
    }
  }
};
class VerbsPeer : public WithVerbs, public testing::WithParamInterface<const char*> {};

void kill_pe_1(const Environment& chosen, const char* operation) {
  PeGroup group = start_pes(3, "operate_on_pe_1", {.env = chosen, .argument = operation});
  for (Process& process : group.pes) ASSERT_TRUE(process.wait_for_output("ready")) << process.err();
  group.pes[1].send(SIGKILL);
  const auto results = wait_all(group.pes);
  for (const std::size_t pe : {0u, 2u}) {
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    expect_parts(results[pe].out, {"peer_failed: ", "PE 1"});
  }
}

TEST_P(OfiPeer, IsReportedWhenItDies) {
  kill_pe_1(environment(kNever), GetParam());
}

TEST_P(NetPeer, IsReportedWhenItDies) {
  kill_pe_1(environment(kNever, "net"), GetParam());
}

// Retries are exceeded after 8 * 67 ms.
TEST_P(VerbsPeer, IsReportedWhenItDies) {
  Environment chosen = verbs_environment(kNever);
  chosen["SHOAL_VERBS_TIMEOUT"] = "14";
  kill_pe_1(chosen, GetParam());
}

const auto kOperations = testing::Values("put", "get", "atomic", "signal", "quiet", "wait");
const auto name_of_operation = [](const auto& parameter) { return std::string(parameter.param); };
INSTANTIATE_TEST_SUITE_P(Operations, OfiPeer, kOperations, name_of_operation);
INSTANTIATE_TEST_SUITE_P(Operations, NetPeer, kOperations, name_of_operation);
INSTANTIATE_TEST_SUITE_P(Operations, VerbsPeer, kOperations, name_of_operation);

// A stopped PE is not dead: the deadline passes, and the message names the network.
void stop_pe_1(const Environment& chosen, const std::string& network) {
  PeGroup group = start_pes(2, "operate_on_pe_1", {.env = chosen, .argument = "atomic"});
  for (Process& process : group.pes) ASSERT_TRUE(process.wait_for_output("ready")) << process.err();
  group.pes[1].send(SIGSTOP);
  const ProcessResult result = group.pes[0].wait();
  EXPECT_TRUE(result.ok()) << result.describe();
  expect_parts(result.out, {"timeout: ", network, "SHOAL_TIMEOUT_MS"});
}

TEST(OfiStoppedPeer, TimesOut) {
  SHOAL_SKIP_WITHOUT_OFI();
  stop_pe_1(environment("1500"), "tcp;ofi_rxm");
}

void stop_in_the_middle_of_a_read(Environment chosen, const std::string& reads) {
  chosen["SHOAL_SYMMETRIC_SIZE"] = "64M";
  chosen["SHOAL_NETWORK_CHUNK"] = "64M";
  PeGroup group = start_pes(2, "close_in_the_middle_of_a_read", {.env = chosen, .argument = reads});
  const ProcessResult result = group.pes[0].wait();
  EXPECT_TRUE(result.ok()) << result.describe();
}

TEST(OfiStoppedPeer, StopsInTheMiddleOfARead) {
  SHOAL_SKIP_WITHOUT_OFI();
  stop_in_the_middle_of_a_read(environment("2000"), "1 reads are in flight");
}

class GivenUp : public testing::TestWithParam<const char*> {};
class GivenUpOverVerbs : public WithVerbs, public testing::WithParamInterface<const char*> {};

void give_up_a_call(const Environment& chosen, const char* call) {
  PeGroup group = start_pes(2, "give_up_a_call", {.env = chosen, .argument = call});
  for (const ProcessResult& result : wait_all(group.pes))
    EXPECT_TRUE(result.ok()) << result.describe();
}

TEST_P(GivenUp, LeavesLocalMemoryAlone) {
  SHOAL_SKIP_WITHOUT_OFI();
  give_up_a_call(environment("2000"), GetParam());
}

// An emulated NIC stops with its process: without a limit of retries it looks like a slow one.
Environment patient_environment(const char* timeout_ms) {
  Environment chosen = verbs_environment(timeout_ms);
  chosen["SHOAL_VERBS_TIMEOUT"] = "20";  // 4 s, eight times
  return chosen;
}

TEST_P(GivenUpOverVerbs, LeavesLocalMemoryAlone) {
  give_up_a_call(patient_environment("2000"), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Calls, GivenUp, testing::Values("put", "get"), name_of_operation);
INSTANTIATE_TEST_SUITE_P(Calls, GivenUpOverVerbs, testing::Values("put", "get"), name_of_operation);

TEST_F(WithVerbs, AStoppedPeerTimesOut) {
  stop_pe_1(patient_environment("1500"), "queue pair 1 of 1 for PE 1 on ");
}

#ifdef SHOAL_WITH_CUDA
// PE 0 puts to PE 1 as kernels do, by a queue pair of its NIC, until that has ended.
SHOAL_PE_BODY(post_to_pe_1) {
  const FakeCuda fake({.gpus = 2});
  World world = World::open({pe.settings, nullptr});
  const auto word = world.heap().allocate<std::uint64_t>(1);
  const device::gda::Routes& routes = *cuda::device_world(world).gda;
  std::cout << "ready" << std::endl;
  if (world.my_pe() == 1) {
    for (;;) pause();
  }
  const std::uint64_t value = 1;
  const device::gda::Transfer transfer{world.heap().offset_of(word.data()), &value, sizeof value};
  device::gda::HostPlatform platform;
  while (device::gda::put(routes, routes.by_pe[1], 0, transfer, nullptr, platform).outcome ==
         device::gda::Outcome::ok) {
  }
  const auto failure =
      state_of(world).device_side()->nic_failure(1, cuda::launch_context(world).priority);
  std::cout << (failure ? failure->what() : "no failure") << std::endl;
  _exit(0);  // the world has failed and cannot be closed
}

TEST_F(WithVerbs, AKilledPeerEndsTheQueuesOfKernels) {
  Environment chosen = kernel_queues_environment();
  chosen["SHOAL_SYMMETRIC_SIZE"] = "8M";
  chosen["SHOAL_TIMEOUT_MS"] = "30000";
  chosen["SHOAL_VERBS_TIMEOUT"] = "17";  // 0.5 s, twice
  chosen["SHOAL_VERBS_RETRIES"] = "1";
  PeGroup group = start_pes(2, "post_to_pe_1", {.env = chosen});
  for (Process& process : group.pes)
    ASSERT_TRUE(process.wait_for_output("ready", std::chrono::seconds(60))) << process.err();
  group.pes[1].send(SIGKILL);
  const auto results = wait_all(group.pes);
  EXPECT_EQ(results[1].signal, SIGKILL);
  expect_parts(results[0].out,
               {"queue pair ", " to PE 1 has ended: request ", "transport retry counter exceeded",
                "the peer or the link is lost; settings: SHOAL_VERBS_RETRIES"});
}
#endif

// 192 reads of 256 KiB, one after the other: the whole takes 2 s.
TEST_F(WithVerbs, APeerStopsInTheMiddleOfARead) {
  Environment chosen = patient_environment("2000");
  chosen["SHOAL_EMULATOR_MAX_RD_ATOMIC"] = "1";
  chosen["SHOAL_EMULATOR_DELAY_US"] = "5000";
  stop_in_the_middle_of_a_read(chosen, " reads are in flight");
}

}  // namespace
}  // namespace shoal::test
