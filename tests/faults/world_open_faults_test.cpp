// SPDX-License-Identifier: Apache-2.0
// A PE that is killed, or whose control plane aborts, in any phase of World::open. The other PEs
// soon fail and name it.
// @traits slow

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <tuple>
#include <vector>

#include "checks/world/operations.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"
#include "support/world/step_bootstrap.hpp"

namespace shoal::test {
namespace {

using When = StepBootstrap::When;

/// The all-gathers of World::open, and the middle of the phases in which PEs wait for each other
/// outside an all-gather: in the connect of a transport.
constexpr const char* kSteps[] = {"bootstrap",    "identity", "heap",         "transports",
                                  "connectivity", "teams",    "final barrier"};
constexpr const char* kNetworkSteps[] = {"NIC choice", "network", "network links",
                                         "network map"};  // of a world that wants one

std::vector<std::string> places() {
  std::vector<std::string> all{"after transports"};
  for (const char* step : kSteps) all.push_back(std::string("before ") + step);
#ifdef SHOAL_WITH_OFI
  all.emplace_back("after network");
  for (const char* step : kNetworkSteps) all.push_back(std::string("before ") + step);
#endif
  return all;
}

std::string name_of_place(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

Environment environment(const std::string& place) {
  Environment environment{{"SHOAL_SYMMETRIC_SIZE", "4M"},
                          {"SHOAL_TIMEOUT_MS", kNever},
                          {"SHOAL_BOOTSTRAP_TIMEOUT_MS", kNever}};
  for (const char* step : kNetworkSteps)
    if (place.ends_with(step))
      environment.insert(
          {{"SHOAL_TRANSPORT_INSIDE", "ofi"}, {"SHOAL_OFI_PROVIDER", "tcp;ofi_rxm"}});
#ifdef __SANITIZE_ADDRESS__
  // libfabric 1.17 sometimes leaks a pending connection when its endpoint is closed.
  if (place == "after network") environment.insert({"ASAN_OPTIONS", "detect_leaks=0"});
#endif
  return environment;
}

/// The bootstrap of the settings. On PE 1 it does `what` at the place that the argument names.
std::shared_ptr<Bootstrap> bootstrap_of(const PeContext& pe,
                                        const std::function<void(Bootstrap&)>& what) {
  std::shared_ptr<Bootstrap> plain = make_bootstrap(pe.settings);
  if (pe.settings.pe != 1) return plain;
  const auto action = [plain = plain.get(), what] { what(*plain); };
  const bool before = pe.argument.starts_with("before ");
  return std::make_shared<StepBootstrap>(plain, pe.argument.substr(pe.argument.find(' ') + 1),
                                         before ? When::before : When::after, action);
}

void open_and_print_error(const PeContext& pe, const std::shared_ptr<Bootstrap>& bootstrap) {
  try {
    World::open({pe.settings, bootstrap});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    std::cout << name_of(error.code()) << ": " << error.what() << std::endl;
  }
}

SHOAL_PE_BODY(stop_while_opening) {
  open_and_print_error(pe, bootstrap_of(pe, [](Bootstrap&) {
                         std::cout << "stopped" << std::endl;
                         for (;;) pause();
                       }));
}

SHOAL_PE_BODY(abort_while_opening) {
  open_and_print_error(pe, bootstrap_of(pe, [](Bootstrap& bootstrap) {
                         const Error error(Code::system, "the launcher lost its tongue");
                         bootstrap.abort(error.what());
                         throw error;
                       }));
}

SHOAL_PE_BODY(throw_while_opening) {
  open_and_print_error(pe, bootstrap_of(pe, [](Bootstrap&) {
                         throw Error(Code::system, "the launcher lost its tongue");
                       }));
}

class KilledWhileOpening : public testing::TestWithParam<std::string> {};
/// Parameters: the body that the PEs run. One has a bootstrap that reports the failure itself, and
/// one that leaves it to World::open.
class FailsWhileOpening : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(KilledWhileOpening, IsNamedByAll) {
  PeGroup group =
      start_pes(3, "stop_while_opening", {.env = environment(GetParam()), .argument = GetParam()});
  ASSERT_TRUE(group.pes[1].wait_for_output("stopped")) << group.pes[1].err();
  group.pes[1].send(SIGKILL);
  const auto results = wait_all(group.pes);
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const std::size_t pe : {0u, 2u}) {
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    expect_parts(results[pe].out, {"peer_failed: ", "PE 1", "ended"});
  }
}

TEST_P(FailsWhileOpening, TellsAllWhy) {
  const auto& [place, body] = GetParam();
  const auto results = run_pes(3, body, {.env = environment(place), .argument = place});
  for (std::size_t pe = 0; pe < results.size(); ++pe) {
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    expect_parts(results[pe].out,
                 {pe == 1 ? "system: " : "peer_failed: ", "the launcher lost its tongue"});
    if (pe != 1) expect_parts(results[pe].out, {"PE 1"});
  }
}

INSTANTIATE_TEST_SUITE_P(In, KilledWhileOpening, testing::ValuesIn(places()), name_of_place);
INSTANTIATE_TEST_SUITE_P(In, FailsWhileOpening,
                         testing::Combine(testing::ValuesIn(places()),
                                          testing::Values(std::string("abort_while_opening"),
                                                          std::string("throw_while_opening"))));

}  // namespace
}  // namespace shoal::test
