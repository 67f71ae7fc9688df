// SPDX-License-Identifier: Apache-2.0
// A network that fails at start or in its first operations is replaced by the next one, on all PEs,
// with a warning. One that fails later ends the operation, which is not repeated. PEs are threads;
// processes/fallback_test.cpp has processes and shared memory.
// @traits polls, uninstrumented
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "checks/transport/worlds.hpp"
#ifdef SHOAL_WITH_CUDA
#include "checks/world/gpu_heap.hpp"
#include "support/cuda/fake_cuda.hpp"
#endif
#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "shoal/connectivity.hpp"
#include "support/built.hpp"
#include "support/expect_error.hpp"
#include "support/made_up.hpp"
#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>

#include "fake_ibverbs/module.hpp"
#endif

namespace shoal::test {
namespace {

constexpr Pe kPes = 3;

/// Three PEs that prefer `first` and have ofi as well.
Settings settings_of(const std::string& first) {
  Settings settings = world_settings();
  settings.transport_inside = settings.transport_between = first + ",ofi";
  settings.ofi_provider = "tcp;ofi_rxm";
  settings.max_teams = 40;
  return settings;
}

/// Every pair uses `transport`, over which operations work. Returns what PE 0 reports of `dropped`
/// for a pair.
std::string check_world(const Settings& settings, const std::string& transport,
                        const std::string& dropped) {
  std::string why;
  run_threads(kPes, settings, [&](World& world) {
    for (Pe pe = 0; pe < kPes; ++pe)
      if (pe != world.my_pe())
        expect(world.describe_transport(pe).starts_with(transport + ": "),
               world.describe_transport(pe));
    check_rma(world);
    check_atomics(world);
    check_signals(world);
    const ConnectivityReport report = world.connectivity();
    for (const TransportVerdict& verdict : report.pairs[1].transports)
      if (world.my_pe() == 0 && verdict.transport == dropped) why = verdict.why;
  });
  return why;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++times;
  return times;
}

/// The world falls back to ofi, and one PE warns, with `reason`.
void expect_fallback(const Settings& settings, const std::string& dropped,
                     const std::string& reason) {
  testing::internal::CaptureStderr();
  std::string why;
  try {
    why = check_world(settings, "ofi", dropped);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  const std::string log = testing::internal::GetCapturedStderr();
  expect_parts(why, {"dropped for all, since between PE ", reason});
  expect_parts(log, {"transport " + dropped + " is not used (dropped for all", reason,
                     "): ofi takes its place (SHOAL_TRANSPORT_INSIDE="});
  EXPECT_EQ(count(log, "dropped for all"), 1u) << log;
}

struct Fault {
  const char* name;
  const char* fault;  ///< step, PE, the PE that it concerns
  const char* reason;
};

void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

class Faulty : public testing::Test {
 protected:
  void SetUp() override {
    if (*kFaultyTransports == '\0') GTEST_SKIP() << "this build has no libfabric";
  }
  void TearDown() override { unsetenv("SHOAL_TEST_FAULT"); }
  static Settings settings(const char* fault) {
    setenv("SHOAL_TEST_FAULT", fault, 1);
    Settings settings = settings_of("ucx");
    settings.plugin_dir = kFaultyTransports;
    return settings;
  }
};
class Fallback : public Faulty, public testing::WithParamInterface<Fault> {};

TEST_F(Faulty, ANetworkWithoutAFaultIsUsed) {
  EXPECT_EQ(check_world(settings("none -1 -1"), "ucx", "ofi"),
            "not loaded: ucx comes first and does everything");
}

TEST_P(Fallback, TakesTheNextTransport) {
  expect_fallback(settings(GetParam().fault), "ucx", GetParam().reason);
}

INSTANTIATE_TEST_SUITE_P(
    Start, Fallback,
    testing::Values(Fault{"OnOnePe", "start 1 -1", "PE 1 to PE 0: a made-up fault of the start"},
                    Fault{"OnAll", "start -1 -1", "PE 0 to PE 1: a made-up fault of the start"},
                    Fault{"Address", "address 2 -1", "PE 2 to PE 0: a made-up fault of address"},
                    Fault{"Open", "open 1 -1", "PE 1 to PE 0: a made-up fault of open"},
                    Fault{"Connect", "connect 1 -1", "PE 1 to PE 0: a made-up fault of connect"},
                    Fault{"OnePairUp", "unreached 1 2", "PE 1 to PE 2: a made-up fault of the"},
                    Fault{"OnePairDown", "unreached 2 1", "PE 2 to PE 1: a made-up fault of the"}),
    testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(
    FirstOperation, Fallback,
    testing::Values(Fault{"Put", "put 1 2", "PE 1 to PE 2: its first operations failed (limit "},
                    Fault{"PutDown", "put 2 1", ": a made-up fault of put"},
                    Fault{"Get", "get 1 2", ": a made-up fault of get"},
                    Fault{"Atomic", "atomic 2 0", ": a made-up fault of atomic"},
                    Fault{"Signal", "signal 0 2", ": a made-up fault of signal"},
                    Fault{"AnyPair", "signal -1 -1", "PE 2 to PE 0: its first operations"},
                    Fault{"PutIsLost", "lose-put 1 2", "a get did not return what a put"},
                    Fault{"GetIsLost", "lose-get 2 1", "a get did not return what a put"},
                    Fault{"AtomicIsLost", "lose-atomic 1 0", "an atomic did not return what"},
                    Fault{"SignalIsLost", "lose-signal 0 1", "an atomic did not return what"}),
    testing::PrintToStringParamName());

// The trial of one network is not mistaken for that of another one, which wrote to the same place.
TEST_F(Faulty, AFaultOfTheSecondNetworkIsSeen) {
  for (const char* fault : {"lose-put 1 2", "lose-signal 1 2"}) {
    Settings chosen = settings(fault);
    chosen.transport_between = "ofi,ucx";  // all are on one node, but this order comes first
    expect_parts(check_world(chosen, "ofi", "ucx"), {"PE 1 to PE 2: its first operations failed"});
  }
}

// The trial ends after a part of SHOAL_BOOTSTRAP_TIMEOUT_MS, whatever SHOAL_TIMEOUT_MS is.
TEST_F(Faulty, AFirstOperationThatHangsIsBoundedInTime) {
  Settings chosen = settings("hang-put 1 2");
  chosen.bootstrap_timeout = std::chrono::milliseconds(8000);
  chosen.timeout = std::chrono::minutes(10);
  expect_fallback(chosen, "ucx",
                  "PE 1 to PE 2: its first operations failed (limit 2000 ms): a made-up");
}

#ifdef SHOAL_WITH_CUDA
// A NIC that does not write to GPU memory, although its library says that it does.
TEST_F(Faulty, ALostPutToGpuMemoryFallsBack) {
  const FakeCuda fake({.gpus = 1});
  Settings chosen = with_gpu_heap(settings("lose-heap 2 1"), "ucx,ofi,staged");
  std::string why;
  testing::internal::CaptureStderr();
  run_threads(kPes, chosen, [&](World& world) {
    check_rma(world);
    expect(world.describe_transport((world.my_pe() + 1) % kPes).ends_with("control ofi"),
           world.describe_transport((world.my_pe() + 1) % kPes));
  });
  expect_parts(
      testing::internal::GetCapturedStderr(),
      {"transport ucx is not used (dropped for all, since between PE 1 and PE 2",
       "in GPU memory (settings: SHOAL_VERBS_GPU_MEMORY, SHOAL_OFI_GPU_MEMORY): a get did"});
}
#endif

// Without another transport the start fails on all PEs, with the fault.
TEST_F(Faulty, WithoutAnotherTransportTheStartFails) {
  Settings chosen = settings("put 1 2");
  chosen.transport_inside = "ucx";
  expect_error(Code::unsupported, "PE 1 to PE 2: its first operations failed",
               [&] { run_threads(kPes, chosen, [](World&) {}); });
}

#if __has_include(<infiniband/verbs.h>)
class FakeVerbsFallback : public WithFakeVerbs {
 protected:
  void SetUp() override {
    if (*kFaultyTransports == '\0') GTEST_SKIP() << "this build has no libfabric";
    WithFakeVerbs::SetUp();
  }
  static Settings settings() {
    Settings settings = settings_of("verbs");
    settings.verbs_library = kFakeIbverbs;
    return settings;
  }
};

TEST_F(FakeVerbsFallback, AQueuePairQuota) {
  reset({.create_limit = 3});
  expect_fallback(settings(), "verbs", "SHOAL_VERBS_QUEUE_PAIRS");
}

TEST_F(FakeVerbsFallback, AQueuePairThatDoesNotConnect) {
  reset({.refused_state = IBV_QPS_RTR});
  expect_fallback(settings(), "verbs", "PE 0 to PE 1: ");
}

TEST_F(FakeVerbsFallback, AFirstRequestOfEachKind) {
  for (const int opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    reset({.fail_opcode = opcode});
    expect_fallback(settings(), "verbs", " is in error: ");
  }
}

// A connection that fails later ends the operation. The error names what else the two PEs have, and
// nothing is applied twice.
TEST_F(FakeVerbsFallback, ALaterFailureEndsTheOperation) {
  for (const bool atomics : {true, false}) {
    reset({});
    std::atomic<bool> failed{false};
    std::uint64_t done = 0, applied = 0;
    std::string message;
    try {
      run_threads(2, settings(), [&](World& world) {
        const auto word = world.heap().allocate<std::uint64_t>(1);
        *word.data() = 0;
        barrier(world.team());
        if (world.my_pe() == 1) {
          while (!failed) std::this_thread::yield();
          applied = std::atomic_ref(*word.data()).load();
          return;
        }
        try {
          for (;; ++done) {
            if (done == 20) reset({.fail_after = 0});
            if (atomics)
              world.atomic_fetch_add(word.on(1), std::uint64_t{1});
            else
              world.signal_add(word.on(1), 1), world.quiet();
          }
        } catch (const Error& error) {
          message = error.what();
        }
        failed = true;
      });
    } catch (const Error&) {  // the world has failed; what is looked at came before
    }
    expect_parts(message,
                 {"transport verbs has lost PE 1: ", "; both PEs also have shm, ofi (not tried)",
                  "Setting: SHOAL_TRANSPORT_INSIDE"});
    EXPECT_EQ(done, 20u);
    EXPECT_GE(applied, done);
    EXPECT_LE(applied, done + 1) << "an operation was repeated";
  }
}
#endif

}  // namespace
}  // namespace shoal::test
