// SPDX-License-Identifier: Apache-2.0
// shoal-info --live and --flight: rates, wait matrices, files that are no records.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "info/live.hpp"
#include "support/expect_error.hpp"

namespace shoal::info {
namespace {

using observe::GroupRecord;
using observe::PeRecord;
using test::expect_error;
using test::expect_parts;

/// Rank `rank` of four; it has waited `wait_ms` for each other rank, and `slow_ms` for rank 2.
PeRecord record(std::int32_t rank, std::int64_t wait_ms, std::int64_t slow_ms,
                std::int64_t read_s) {
  GroupRecord group;
  group.number = 1;
  group.rank = rank;
  group.pes = {0, 1, 2, 3};
  group.totals = {{"dispatch", static_cast<std::uint64_t>(100 * read_s), 0, 0,
                   static_cast<std::uint64_t>(5'000'000 * read_s), 0}};
  for (std::int32_t peer = 0; peer < 4; ++peer)
    group.peers.push_back(
        {0, 0, 1, peer == rank ? 0 : (peer == 2 ? slow_ms : wait_ms) * 1'000'000});
  group.first_expert = 2 * rank;
  group.expert_rows = {100, static_cast<std::uint64_t>(50 * rank)};
  group.launches = {{.epoch = 1,
                     .operation = "dispatch",
                     .phases = {{"notify", 5}, {"send", 7}, {"receive", 9}},
                     .end_ns = 11}};
  PeRecord pe;
  pe.world = 7;
  pe.pe = rank;
  pe.n_pes = 4;
  pe.pid = 4000 + rank;
  pe.host = "a \"quoted\" host";
  pe.read_ns = read_s * 1'000'000'000;
  pe.groups = {group};
  return pe;
}

std::vector<PeRecord> all(std::int64_t wait_ms, std::int64_t slow_ms, std::int64_t read_s) {
  std::vector<PeRecord> records;
  for (std::int32_t rank = 0; rank < 4; ++rank)
    records.push_back(record(rank, wait_ms, slow_ms, read_s));
  return records;
}

TEST(InfoLive, PlacesAreAddressesOrOffsets) {
  EXPECT_EQ(place_from("0x7f00000010").value, 0x7f00000010U);
  EXPECT_FALSE(place_from("0x7f00000010").is_offset);
  EXPECT_EQ(place_from("+4096").value, 4096U);
  EXPECT_TRUE(place_from("+4096").is_offset);
  EXPECT_EQ(place_from("+0x20").value, 32U);
  for (const char* const text : {"", "+", "0x", "12", "0xg", "+1x", "0x11111111111111111"})
    expect_error(Code::invalid_argument, "--locate is \"", [&] { place_from(text); });
}

TEST(InfoLive, ShowsRatesBetweenTwoReadings) {
  const std::string text = activity_text(all(110, 510, 12), all(10, 10, 10));
  expect_parts(text,
               {"0000000000000007  0 of 4  4000  100.0", "5.0", "35 %", "outside of the library"});
  expect_parts(activity_text(all(1, 1, 1), {}), {"-"});
}

/// Records of four ranks on two nodes; each has sent `rows` rows of 1 MB to the rank with its index
/// on the other node.
std::vector<PeRecord> of_two_nodes(std::uint64_t rows, std::int64_t read_s) {
  std::vector<PeRecord> records = all(1, 1, read_s);
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    observe::PeerTotals& rail = records[rank].groups[0].peers[(rank + 2) % 4];
    rail.network_rows = rows;
    rail.network_bytes = rows * 1'000'000;
  }
  return records;
}

TEST(InfoLive, ShowsRatesOfRowsThatCrossANetwork) {
  const auto before = of_two_nodes(100, 10), now = of_two_nodes(150, 12);
  expect_parts(activity_text(now, before),
               {"MB/s  network rows/s  network MB/s  waiting", "5.0   25.0            25.0  "});
  expect_parts(activity_text(now, {}), {"-     -               -             -  "});

  auto matrices = network_matrices(now, before);
  ASSERT_EQ(matrices.size(), 1U);
  EXPECT_EQ(matrices[0].values[1], (std::vector<double>{0, 0, 0, 25}));
  EXPECT_EQ(matrices[0].values[2], (std::vector<double>{25, 0, 0, 0}));
  matrices[0].values[1][3] = 12.5;
  expect_parts(network_text(matrices[0]),
               {"rows send to columns; \"@\" is up to 25.000 MB/s", "    0   @ \n", "    1    =\n",
                "    3  @  \n", "rank 1 sends 12.5 MB/s, receives 25.0 MB/s"});
  expect_parts(live_svg({}, {}, matrices), {"<svg", "rank 1 sends 12.500 MB/s to rank 3"});
}

TEST(InfoLive, ShowsNoNetworkWithoutRowsThatCrossOne) {
  const auto records = all(1, 1, 2), before = all(1, 1, 1);
  EXPECT_EQ(activity_text(records, before).find("network"), std::string::npos);
  EXPECT_TRUE(network_matrices(records, before).empty());
  EXPECT_TRUE(network_matrices(of_two_nodes(100, 2), {}).empty()) << "no rate of one reading";
  EXPECT_TRUE(network_matrices(of_two_nodes(100, 2), of_two_nodes(100, 1)).empty());
}

TEST(InfoLive, AGroupThatWasClosedLeavesNoNegativeRates) {
  auto now = of_two_nodes(150, 12);
  for (PeRecord& pe : now) pe.groups.clear();
  expect_parts(activity_text(now, of_two_nodes(100, 10)),
               {"0 of 4  4000  0.0           0.0   0 %"});
}

TEST(InfoLive, TheHeatMapNamesASlowRank) {
  const auto matrices = wait_matrices(all(1, 200, 1), {});
  ASSERT_EQ(matrices.size(), 1U);
  EXPECT_EQ(matrices[0].values[0][2], 200);
  EXPECT_EQ(matrices[0].values[2][1], 1);
  const std::string text = heat_map_text(matrices[0]);
  expect_parts(text, {"    0   @ \n", "    2     \n", "rank 2 is slow: others wait 200.000 ms"});
  // A tooltip for each pair.
  expect_parts(live_svg(matrices, {}), {"<svg", "rank 0 waits 200.000 ms for rank 2"});
  EXPECT_EQ(wait_matrices(all(1, 200, 1), all(1, 50, 1))[0].values[3][2], 150);
  EXPECT_TRUE(wait_matrices(all(0, 0, 1), {}).empty());

  auto with_barriers = all(0, 0, 1);
  for (PeRecord& pe : with_barriers) pe.peers.resize(4);
  with_barriers[1].peers[3].wait_ns = 7'000'000;
  const auto of_world = wait_matrices(with_barriers, {});
  ASSERT_EQ(of_world.size(), 1U);
  EXPECT_EQ(of_world[0].title, "world 0000000000000007, collectives");
  EXPECT_EQ(of_world[0].values[1][3], 7);
}

TEST(InfoLive, TheHeatMapNamesASlowLink) {
  auto records = all(10, 10, 1);
  records[3].groups[0].peers[0].wait_ns = 100'000'000;
  expect_parts(heat_map_text(wait_matrices(records, {})[0]),
               {"rank 3 waits 100.000 ms for rank 0"});
}

TEST(InfoLive, ShowsTheLoadOfExpertsAndNamesHotOnes) {
  auto records = all(1, 1, 1);
  records.erase(records.begin() + 1);
  records[1].groups[0].expert_rows = {100, 900};
  const auto loads = expert_loads(records, {});
  ASSERT_EQ(loads.size(), 1U);
  EXPECT_EQ(loads[0].rows, (std::vector<std::uint64_t>{100, 0, 0, 0, 100, 900, 100, 150}));
  EXPECT_EQ(loads[0].known, (std::vector<bool>{true, false, true, true}));
  expect_parts(expert_loads_text(loads[0]),
               {"\"@\" is up to 900 rows", "0 .   100 rows", "1 no record here", "2 .@  1000 rows",
                "expert 5 of rank 2 is hot: 900 rows, 4.0 times the mean"});
  expect_parts(live_svg({}, loads), {"<svg", "expert 5 of rank 2: 900 rows"});
  EXPECT_EQ(expert_loads(records, all(1, 1, 1))[0].rows[5], 800U) << "since the first reading";
  EXPECT_TRUE(expert_loads(records, records).empty());
}

TEST(InfoLive, ShowsRanksWithDifferentNumbersOfExperts) {
  auto records = all(1, 1, 1);
  records[0].groups[0].expert_rows = {10, 20, 900};
  records[1].groups[0].expert_rows = {};
  for (std::int32_t rank = 1; rank < 4; ++rank) ++records[rank].groups[0].first_expert;
  records[2].groups[0].first_expert = 3;
  records[3].groups[0].first_expert = 5;
  records[3].groups[0].expert_rows = {40};
  const auto loads = expert_loads(records, {});
  ASSERT_EQ(loads.size(), 1U);
  EXPECT_EQ(loads[0].rows, (std::vector<std::uint64_t>{10, 20, 900, 100, 100, 40}));
  expect_parts(expert_loads_text(loads[0]), {"930 rows", "1   0 rows", "200 rows", "40 rows",
                                             "expert 2 of rank 0 is hot: 900 rows"});
  expect_parts(live_svg({}, loads),
               {"expert 2 of rank 0: 900 rows", "expert 5 of rank 3: 40 rows"});
}

TEST(InfoLive, PageHasTheWholeReport) {
  const auto now = all(1, 200, 2), before = all(1, 1, 1);
  LivePage page = {.title = "Jobs of <one> user",
                   .reload_seconds = 2,
                   .activity = activity_rows(now, before),
                   .who_waits = "ranks 0 & 1 wait",
                   .svg = live_svg(wait_matrices(now, {}), {})};
  expect_parts(live_html(page), {"<!DOCTYPE html>", "http-equiv=\"refresh\" content=\"2\"",
                                 "<title>Jobs of &lt;one&gt; user</title>", "<th>operations/s</th>",
                                 "<td>2 of 4</td>", "<pre>ranks 0 &amp; 1 wait</pre>",
                                 "rank 0 waits 200.000 ms for rank 2", "</html>"});
  page.reload_seconds = 0;
  EXPECT_EQ(live_html(page).find("refresh"), std::string::npos) << "the last report";
}

TEST(InfoLive, ReadsBackWhatToJsonWrites) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("shoal-live-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  expect_error(Code::invalid_argument, "no files shoal_flight_*.json there",
               [&] { observe::read_files(folder); });
  auto written = of_two_nodes(100, 1);
  for (PeRecord& pe : written) {  // each field with a value of its own
    pe.activity = "barrier 3";
    pe.active = true;
    pe.awaited = 2;
    pe.failure = "a \"failure\"";
    pe.totals = {{"barrier", 11, 12, 13, 14, 15}};
    pe.peers = {{21, 22, 23, 24}};
    pe.histograms = {{"barrier", "call", 31, 32, {33, 34}}};
    GroupRecord& group = pe.groups[0];
    group.n_hosts = 41;
    group.failure = "why";
    group.histograms = {{"dispatch", "notify", 51, 52, {53}}};
    group.operations = {{.id = 61,
                         .epoch = 62,
                         .operation = "combine",
                         .state = "failed",
                         .start_ns = 63,
                         .end_ns = 64,
                         .phases = {{"send", 65}},
                         .awaited = 3,
                         .rows = 66,
                         .bytes = 67,
                         .wait_ns = 68,
                         .waiting = true}};
    group.launches.push_back({71, "dispatch", {{"notify", 72}}, 73, 74, 75});
  }
  for (const PeRecord& pe : written)
    std::ofstream(folder / ("shoal_flight_" + std::to_string(pe.pe) + ".json"))
        << observe::to_json(pe);
  const auto read = observe::read_files(folder);
  ASSERT_EQ(read.size(), written.size());
  for (std::size_t rank = 0; rank < read.size(); ++rank)
    EXPECT_EQ(observe::to_json(read[rank]), observe::to_json(written[rank]));
  EXPECT_EQ(read[0].peers[0].wait_ns, 24);
  EXPECT_EQ(read[0].totals[0].time_ns, 15);
  EXPECT_EQ(read[0].groups[0].operations[0].wait_ns, 68);
  EXPECT_EQ(read[0].groups[0].launches.back().bytes, 75U);
  std::ofstream(folder / "shoal_flight_9.json") << R"({"pe": 9})";
  EXPECT_EQ(observe::read_files(folder).size(), written.size()) << "the others are not hidden";
  // A text that an older version has cut inside a character.
  written[0].failure = "caf\xc3";
  std::ofstream(folder / "shoal_flight_0.json") << observe::to_json(written[0]);
  EXPECT_EQ(observe::read_files(folder)[0].failure, "caf?");
  for (const PeRecord& pe : written)
    std::filesystem::remove(folder / ("shoal_flight_" + std::to_string(pe.pe) + ".json"));
  expect_error(Code::invalid_argument, "shoal_flight_9.json: it is not the record of a PE",
               [&] { observe::read_files(folder); });
  std::filesystem::remove(folder / "shoal_flight_9.json");
  // A reader that opened a FIFO would wait for a writer.
  ASSERT_EQ(mkfifo((folder / "shoal_flight_8.json").c_str(), 0600), 0);
  expect_error(Code::invalid_argument, "shoal_flight_8.json: it is no regular file",
               [&] { observe::read_files(folder); });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shoal::info
