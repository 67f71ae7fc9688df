// SPDX-License-Identifier: Apache-2.0
// Traces and counters of the emulated NIC.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/trace.hpp"
#include "rig.hpp"

namespace shoal::emulator::test {
namespace {

TEST(EmulatorTrace, HoldsEveryPacketAndIsValidJson) {
  std::ostringstream output;
  std::vector<std::string> lines;
  std::uint64_t sent = 0;
  {
    PerfettoTrace trace(output);
    NetworkOptions options;
    options.nic.trace = [&](const TraceEvent& event) {
      trace.add(event);
      lines.push_back(to_text(event));
    };
    Pair pair(options);
    pair.a.write(pair.b, 0, 0, 10000);
    (void)pair.sent();
    sent = pair.a.pair->counters().packets_sent + pair.b.pair->counters().packets_sent;
    EXPECT_EQ(pair.a.pair->counters().packets_sent, 3U);
    EXPECT_EQ(pair.a.pair->counters().bytes_sent, 10000U);
    EXPECT_EQ(pair.b.pair->counters().bytes_received, 10000U);
    EXPECT_EQ(pair.a.pair->counters().requests, 1U);
    EXPECT_EQ(pair.a.pair->counters().completions, 1U);
    EXPECT_EQ(pair.network.nic(0).counters().doorbells, 1U);
    EXPECT_EQ(pair.network.nic(0).destroy_queue_pair(pair.a.pair->number()), Status::ok);
  }
  const auto json = nlohmann::json::parse(output.str());
  std::uint64_t packets = 0;
  for (const auto& event : json.at("traceEvents"))
    packets += event.at("name").get<std::string>().starts_with("sent") ? 1 : 0;
  EXPECT_EQ(packets, sent);
  EXPECT_EQ(json.at("traceEvents").size(), lines.size());
  const auto& last = json.at("traceEvents").back();
  EXPECT_EQ(last.at("name"), "destroyed");
  EXPECT_EQ(last.at("args").at("bytes_sent"), 10000U);
  EXPECT_FALSE(last.at("args").contains("timeouts")) << "counters of 0 are omitted";
  EXPECT_NE(lines.back().find(" destroyed 0 - 0 doorbells=1 requests=1 completions=1 "
                              "packets_sent=3 "),
            std::string::npos)
      << lines.back();
  EXPECT_NE(std::find_if(lines.begin(), lines.end(),
                         [](const std::string& line) {
                           return line.find("nic 1 qp 1 sent 0 write 4096") != std::string::npos;
                         }),
            lines.end())
      << lines.at(4);
}

}  // namespace
}  // namespace shoal::emulator::test
