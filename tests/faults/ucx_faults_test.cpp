// SPDX-License-Identifier: Apache-2.0
// Errors of the ucx transport when a PE dies, stops, or never connects. These
// tests use no world, so that only the transport can notice the end of a process.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "memory/host/segment.hpp"
#include "shoal/bootstrap.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"
#include "support/world/ucx.hpp"
#include "transport/module.hpp"

namespace shoal::test {
namespace {

using transport::Transport;
namespace capability = transport::capability;

constexpr std::size_t kSegmentBytes = std::size_t{4} << 20;
constexpr std::chrono::milliseconds kHandshakeLimit{2'000};

/// One PE's transport, connected to all other PEs.
struct Rig {
  explicit Rig(const PeContext& pe) : settings(pe.settings), bootstrap(make_bootstrap(settings)) {
    const auto n = static_cast<std::size_t>(bootstrap->n_pes());
    const std::vector<std::int32_t> one_host(n, 0);
    segment = memory::Segment::create(kSegmentBytes);
    transport::Context context;
    context.my_pe = bootstrap->pe();
    context.n_pes = bootstrap->n_pes();
    context.host_of = context.node_of = one_host;
    context.segment = segment;
    context.settings = &settings;
    context.wanted.assign(n, true);
    context.wanted[static_cast<std::size_t>(bootstrap->pe())] = false;
    context.timeout = 2 * kHandshakeLimit;  // the other half is for what follows it
    context.check = [] {};
    transport = transport::make_network("ucx", context);
    const auto addresses = bootstrap->all_gather(transport->address(), "address");
    if (pe.argument == "PE 1 does not connect" && bootstrap->pe() == 1) return;
    transport->connect(addresses);
  }

  Settings settings;
  std::unique_ptr<Bootstrap> bootstrap;
  std::shared_ptr<memory::Segment> segment;
  std::unique_ptr<Transport> transport;
};

template <typename Call>
void print_error(const char* what, Call&& call) {
  try {
    call();
    std::cout << what << ": no error" << std::endl;
  } catch (const Error& error) {
    std::cout << what << ": " << name_of(error.code()) << ": " << error.what() << std::endl;
  }
}

/// Operations between the remaining PEs still work.
void expect_alive(Rig& rig, Pe pe) {
  EXPECT_EQ(rig.transport->reach(pe).capabilities, capability::all_operations)
      << rig.transport->reach(pe).reason;
  const std::uint64_t mine = 77 + static_cast<std::uint64_t>(rig.bootstrap->pe());
  rig.transport->put(pe, 8192, &mine, sizeof mine);
  EXPECT_EQ(rig.transport->atomic(pe, AtomicOp::fetch, 8192, 0, 0, 8), mine);
  std::vector<std::byte> out(100'000, std::byte{5}), in(100'000);
  const std::uint64_t rounds = rig.transport->atomic(pe, AtomicOp::fetch, 8200, 0, 0, 8) + 1;
  rig.transport->put_signal(pe, 16384, out.data(), out.size(), 8200, SignalOp::set, rounds);
  EXPECT_EQ(rig.transport->atomic(pe, AtomicOp::fetch, 8200, 0, 0, 8), rounds)
      << "messages keep their order";
  rig.transport->get(in.data(), pe, 16384, in.size());
  EXPECT_EQ(in, out);
  // Neither PE leaves before the other has seen it alive.
  rig.transport->signal(pe, 8208, SignalOp::set, 1);
  const std::atomic_ref<std::uint64_t> met(
      *reinterpret_cast<std::uint64_t*>(rig.segment->base() + 8208));
  EXPECT_TRUE(wait_for([&] { return met.load() == 1; }));
}

SHOAL_PE_BODY(lose_pe_1) {
  Rig rig(pe);
  Transport& transport = *rig.transport;
  const bool busy = pe.argument == "busy";
  if (!busy || rig.bootstrap->pe() == 1) std::cout << "ready" << std::endl;
  if (rig.bootstrap->pe() == 1)
    for (;;) pause();
  const Pe other = 2 - rig.bootstrap->pe();
  if (busy) {
    // Data and signals are in flight all the time.
    const std::vector<std::byte> out(300'000, std::byte{1});
    print_error("stream", [&] {
      for (int i = 0;; ++i) {
        if (i == 100) std::cout << "ready" << std::endl;
        transport.put_nbi(1, 0, out.data(), out.size());
        transport.signal(1, 1 << 20, SignalOp::add, 1);
        transport.atomic(1, AtomicOp::add, (1 << 20) + 8, 1, 0, 8);
      }
    });
  }
  wait_for([&] { return !transport.ended().empty(); });
  ASSERT_EQ(transport.ended().size(), 1u);
  EXPECT_EQ(transport.ended()[0].pe, 1);
  std::cout << "ended: " << transport.ended()[0].description << std::endl;
  const std::uint64_t word = 1;
  print_error("put", [&] { transport.put(1, 0, &word, sizeof word); });
  print_error("atomic", [&] { transport.atomic(1, AtomicOp::add, 0, 1, 0, 8); });
  print_error("quiet", [&] { transport.quiet(); });
  print_error("second quiet", [&] { transport.quiet(); });
  expect_alive(rig, other);
  const auto ended = transport.ended();
  EXPECT_EQ(
      std::count_if(ended.begin(), ended.end(), [](const auto& entry) { return entry.pe == 1; }), 1)
      << "once";
  rig.bootstrap->close();
  rig.transport.reset();
}

SHOAL_PE_BODY(wait_for_stopped_pe_1) {
  Rig rig(pe);
  Transport& transport = *rig.transport;
  const pid_t mine = getpid();
  const auto bytes = std::as_bytes(std::span(&mine, 1));
  const auto pids = rig.bootstrap->all_gather({bytes.begin(), bytes.end()}, "process");
  std::cout << "ready" << std::endl;
  if (rig.bootstrap->pe() == 1)
    for (;;) pause();
  pid_t stopped = 0;
  std::memcpy(&stopped, pids[1].data(), sizeof stopped);
  ASSERT_TRUE(wait_for([&] { return process_state(stopped) == 'T'; }));
  const std::vector<std::byte> out(kSegmentBytes, std::byte{1});
  print_error("atomic", [&] { transport.atomic(1, AtomicOp::add, 0, 1, 0, 8); });
  print_error("signals", [&] {
    for (int i = 0; i < 100'000; ++i) transport.signal(1, 0, SignalOp::add, 1);
  });
  print_error("puts", [&] {
    for (int i = 0; i < 100; ++i) transport.put_nbi(1, 0, out.data(), out.size());
  });
  print_error("quiet", [&] { transport.quiet(); });
  EXPECT_TRUE(transport.ended().empty());
  expect_alive(rig, 2 - rig.bootstrap->pe());
  rig.bootstrap->close();
  rig.transport.reset();
}

SHOAL_PE_BODY(connect_without_pe_1) {
  Rig rig(pe);
  if (rig.bootstrap->pe() != 1) {
    const transport::Reach reach = rig.transport->reach(1);
    EXPECT_EQ(reach.capabilities, 0u);
    std::cout << "PE 1: " << reach.reason << std::endl;
    print_error("put", [&] { rig.transport->put(1, 0, &rig, 8); });
    expect_alive(rig, 2 - rig.bootstrap->pe());
    EXPECT_TRUE(rig.transport->ended().empty()) << "it was never connected";
  }
  rig.bootstrap->barrier("end");
}

class UcxFault : public WithUcx {
 protected:
  static Environment environment(const std::string& timeout) {
    return {{"SHOAL_UCX_TLS", "tcp,self"},
            {"SHOAL_TIMEOUT_MS", timeout},
            {"SHOAL_BOOTSTRAP_TIMEOUT_MS", "10000"}};
  }

  /// Starts three PEs, sends PE 1 a signal, and returns what the others print.
  static std::vector<ProcessResult> run(const char* body, const std::string& argument, int signal,
                                        const std::string& timeout) {
    PeGroup group = start_pes(3, body, {.env = environment(timeout), .argument = argument});
    for (Process& process : group.pes)
      EXPECT_TRUE(process.wait_for_output("ready")) << process.err();
    group.pes[1].send(signal);
    std::vector<ProcessResult> results;
    for (const std::size_t pe : {0u, 2u}) results.push_back(group.pes[pe].wait());
    for (const ProcessResult& result : results) EXPECT_TRUE(result.ok()) << result.describe();
    return results;
  }
};

/// UCX does not print what Shoal reports as errors.
void expect_ucx_silent(const ProcessResult& result) {
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out.find(" UCX "), std::string::npos) << result.out;
}

// The connection reports a dead PE at once. The other PEs continue.
TEST_F(UcxFault, ADeadPeIsReported) {
  for (const ProcessResult& result : run("lose_pe_1", "", SIGKILL, kNever)) {
    expect_parts(result.out,
                 {"ended: its connection (ucx) ended: ", "put: peer_failed: put of 8 bytes",
                  "has lost PE 1", "quiet: no error"});
    expect_ucx_silent(result);
  }
}

TEST_F(UcxFault, ADeadPeEndsOperationsUnderWay) {
  for (const ProcessResult& result : run("lose_pe_1", "busy", SIGKILL, kNever)) {
    expect_parts(result.out, {"stream: peer_failed: ", "second quiet: no error"});
    expect_ucx_silent(result);
  }
}

// Every wait has a deadline; its message names the setting.
TEST_F(UcxFault, AStoppedPeRunsIntoTheTimeout) {
  for (const ProcessResult& result : run("wait_for_stopped_pe_1", "", SIGSTOP, "1000")) {
    expect_parts(result.out,
                 {"atomic: timeout: ", "signals: timeout: ", "puts: timeout: ", "quiet: timeout: ",
                  "timed out after 1000 ms", "Setting: SHOAL_TIMEOUT_MS"});
  }
}

TEST_F(UcxFault, APeThatDoesNotConnectIsUnreached) {
  const auto results = run_pes(3, "connect_without_pe_1",
                               {.env = environment(kNever), .argument = "PE 1 does not connect"});
  expect_success(results);
  for (const std::size_t pe : {0u, 2u}) {
    expect_parts(results[pe].out,
                 {fmt::format("PE 1: it did not answer within {} ms", kHandshakeLimit.count()),
                  "SHOAL_UCX_TLS \"tcp,self\"", "put: unsupported: "});
  }
}

}  // namespace
}  // namespace shoal::test
