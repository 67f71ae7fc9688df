// A PE that is killed, or whose control plane aborts, in any phase of World::open: the others are told by name, and
// soon (requirement D9).

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <string>

#include "support/process.hpp"
#include "support/step_bootstrap.hpp"
#include "support/worlds.hpp"

namespace shoal::test {
namespace {

using Clock = std::chrono::steady_clock;
using When = StepBootstrap::When;

struct Place {
  const char* step;
  When when;
};

/// Every all-gather of World::open. After "transports" a PE is waited for inside the transports' connect, where no
/// all-gather reaches.
constexpr Place kPlaces[] = {
    {"bootstrap", When::before},  {"identity", When::before},     {"heap", When::before},
    {"transports", When::before}, {"transports", When::after},    {"connectivity", When::before},
    {"teams", When::before},      {"final barrier", When::before}};

std::string argument_of(const Place& place) {
  return std::string(place.when == When::before ? "before " : "after ") + place.step;
}

std::string name_of_place(const testing::TestParamInfo<Place>& info) {
  std::string name = argument_of(info.param);
  for (char& c : name)
    if (c == ' ') c = '_';
  return name;
}

Environment environment() {
  return {{"SHOAL_SYMMETRIC_SIZE", "4M"}, {"SHOAL_TIMEOUT_MS", "30000"}, {"SHOAL_BOOTSTRAP_TIMEOUT_MS", "30000"}};
}

/// The settings' bootstrap; on PE 1 that does `what` at the place that the argument names.
std::shared_ptr<Bootstrap> bootstrap_of(const PeContext& pe, const std::function<void(Bootstrap&)>& what) {
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

class OpeningPe : public testing::TestWithParam<Place> {};

TEST_P(OpeningPe, ThatIsKilledIsNamedByAll) {
  PeGroup group = start_pes(3, "stop_while_opening", {.env = environment(), .argument = argument_of(GetParam())});
  ASSERT_TRUE(group.pes[1].wait_for_output("stopped")) << group.pes[1].err();
  const auto start = Clock::now();
  group.pes[1].send(SIGKILL);
  const auto results = wait_all(group.pes);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5)) << "at once, not after SHOAL_BOOTSTRAP_TIMEOUT_MS";
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const std::size_t pe : {0u, 2u}) {
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    EXPECT_NE(results[pe].out.find("peer_failed: "), std::string::npos) << results[pe].out;
    EXPECT_NE(results[pe].out.find("PE 1"), std::string::npos) << results[pe].out;
    EXPECT_NE(results[pe].out.find("ended"), std::string::npos) << results[pe].out;
  }
}

TEST_P(OpeningPe, WhoseBootstrapAbortsTellsAllWhy) {
  const auto start = Clock::now();
  const auto results =
      run_pes(3, "abort_while_opening", {.env = environment(), .argument = argument_of(GetParam())});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10)) << "at once, not after SHOAL_BOOTSTRAP_TIMEOUT_MS";
  for (std::size_t pe = 0; pe < results.size(); ++pe) {
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    EXPECT_NE(results[pe].out.find(pe == 1 ? "system: " : "peer_failed: "), std::string::npos) << results[pe].out;
    EXPECT_NE(results[pe].out.find("the launcher lost its tongue"), std::string::npos)
        << "PE " << pe << ": " << results[pe].out;
    if (pe != 1) EXPECT_NE(results[pe].out.find("PE 1"), std::string::npos) << results[pe].out;
  }
}

INSTANTIATE_TEST_SUITE_P(In, OpeningPe, testing::ValuesIn(kPlaces), name_of_place);

}  // namespace
}  // namespace shoal::test
