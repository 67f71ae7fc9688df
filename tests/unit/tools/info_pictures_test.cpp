// SPDX-License-Identifier: Apache-2.0
// Texts and pictures of shoal-info.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "info/live.hpp"
#include "info/system.hpp"
#include "info/text.hpp"
#include "info/topology.hpp"
#include "info/world.hpp"
#include "support/built.hpp"
#include "support/expect_error.hpp"

namespace shoal::info {
namespace {

using Kind = TreeNode::Kind;

Topology topology_of(const std::string& machine) {
  return collect_topology(test::source_file("tests/data/machines/" + machine + ".xml"), 0);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size()))
    ++found;
  return found;
}

std::size_t devices(const TreeNode& node) {
  std::size_t sum = node.kind == Kind::gpu || node.kind == Kind::nic;
  for (const TreeNode& child : node.children) sum += devices(child);
  return sum;
}

TEST(Text, TablesAreAligned) {
  EXPECT_EQ(table({{"a", "long", "x"}, {"bbb", "", "y z"}}, 1), " a    long  x\n bbb        y z\n");
  EXPECT_EQ(table({{"only"}}), "  only\n");
  EXPECT_EQ(wrap("one two three four", 9, 2), "one two\n  three\n  four");
  EXPECT_EQ(wrap("averylongword b", 4, 0), "averylongword\nb");
  EXPECT_EQ(bytes_text(64 << 20), "64 MiB");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(ranges({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
  EXPECT_EQ(count_text(1, "PE") + count_text(2, "PE"), "1 PE2 PEs");
}

TEST(TreeOfAMachine, ShowsSwitchesAndOmitsBridgesWithOneChild) {
  const Topology topology = topology_of("dgx_h100");
  const TreeNode tree = tree_of(topology.machine);
  ASSERT_EQ(tree.children.size(), 2u);
  EXPECT_EQ(tree.children[0].label, "NUMA node 0");
  ASSERT_EQ(tree.children[0].children.size(), 4u);
  const TreeNode& first = tree.children[0].children[0];
  EXPECT_EQ(first.label, "PCIe switch 0000:11:00.0 on pci0000:10");
  ASSERT_EQ(first.children.size(), 4u);  // the card with two names has no box of its own
  EXPECT_EQ(first.children[0].label, "GPU 0");
  EXPECT_EQ(first.children[1].label, "mlx5_0:1");
  EXPECT_EQ(tree.children[1].children[3].children[1].label, "mlx5_7:1");
}

TEST(TreeOfAMachine, LosesNoDevice) {
  for (const auto* const machine : {"dgx_h100", "hgx_4_nics", "dual_port", "two_planes"}) {
    const Topology topology = topology_of(machine);
    EXPECT_EQ(devices(tree_of(topology.machine)),
              topology.machine.gpus.size() + topology.machine.nics.size())
        << machine;
  }
}

TEST(TreeOfAMachine, ShowsDevicesWithoutAKnownPlace) {
  topology::Machine machine;
  machine.nics.push_back({"veth0", 1, topology::Nic::Kind::software, {{}, -1}, 0, 0, true});
  machine.gpus.push_back({{{"pci0000:00", "0000:00:02.0"}, -1}});
  const TreeNode tree = tree_of(machine);
  ASSERT_EQ(tree.children.size(), 2u);
  EXPECT_EQ(tree.children[0].label, "NUMA node not known");
  EXPECT_EQ(tree.children[0].children[0].label, "host bridge pci0000:00");
  EXPECT_EQ(tree.children[1].label, "no PCI device");
}

TEST(DistancesOfAMachine, ShowNvLinkLinksBetweenGpus) {
  Topology topology = topology_of("dgx_h100");
  const auto pci = [&](std::size_t gpu) {
    return std::string(topology.machine.gpus[gpu].at.pci());
  };
  const auto cell = [&] {  // of GPU 0 and GPU 1
    const std::string text = to_text(topology);
    const std::size_t row = text.find("\n  GPU 0", text.find("Distances (")) + 1;
    return words_of(text.substr(row, text.find('\n', row) - row)).at(3);
  };
  const auto json = [&] { return to_json(topology)["distances"][0]; };
  EXPECT_EQ(cell(), "NODE");
  EXPECT_EQ(json()["nvlinks"], 0);
  const topology::NvLink link{.active = true, .peer = topology::NvLink::Peer::nvswitch};
  topology.nvlinks.gpus = {{pci(0), std::vector(18, link)}, {pci(1), std::vector(18, link)}};
  EXPECT_EQ(cell(), "NV18");
  EXPECT_EQ(json()["nvlinks"], 18);
  EXPECT_EQ(json()["distance"], "NODE") << "the distance over PCIe";
}

TEST(PictureOfAMachine, IsWellFormedAndHasEveryDevice) {
  for (const auto* const machine : {"dgx_h100", "hgx_4_nics", "dual_port", "two_planes"}) {
    const Topology topology = topology_of(machine);
    const std::string svg = to_svg(topology);
    EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
    EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    for (const topology::Nic& nic : topology.machine.nics)
      EXPECT_GE(count(svg, ">" + nic.label() + "<"), 1u) << machine;
    for (std::size_t gpu = 0; gpu < topology.machine.gpus.size(); ++gpu)
      EXPECT_GE(count(svg, ">GPU " + std::to_string(gpu) + "<"), 1u) << machine;
  }
}

TEST(Topology, ListsTheUsersOfANic) {
  const Topology topology = topology_of("hgx_4_nics");
  std::size_t uses = 0;
  for (std::size_t nic = 0; nic < topology.machine.nics.size(); ++nic)
    uses += users_of(topology, nic).size();
  EXPECT_EQ(uses, 8u);
  EXPECT_EQ(users_of(topology, 0).size(), 2u);
  const nlohmann::json json = to_json(topology);
  EXPECT_EQ(json["gpus"].size(), 8u);
  EXPECT_EQ(json["seats"][0]["nics"][0]["distance"], "PIX");
}

/// The part of `text` that follows `before`, up to `after`.
std::string between(const std::string& text, const std::string& before, char after) {
  const std::size_t at = text.find(before);
  if (at == std::string::npos) return "";
  const std::size_t start = at + before.size();
  return text.substr(start, text.find(after, start) - start);
}

/// Texts of a picture that leave its page, with `kShare` of the font size per character: Helvetica,
/// Arial and Inter need at most that for such texts.
std::vector<std::string> cut_texts(const std::string& svg) {
  constexpr double kShare = 0.56;
  const double width = std::stod(between(svg, "viewBox=\"0 0 ", ' '));
  std::vector<std::string> cut;
  for (std::size_t at = svg.find("<text "); at != std::string::npos;
       at = svg.find("<text ", at + 1)) {
    const std::string element = svg.substr(at, svg.find('<', at + 1) + 1 - at);
    const std::string text = between(element, ">", '<');
    const std::string anchor = between(element, "text-anchor=\"", '"');
    const double length = kShare * std::stod(between(element, "font-size=\"", '"')) *
                          static_cast<double>(text.length());
    const double before = anchor == "end" ? 1 : anchor == "middle" ? 0.5 : 0;
    const double left = std::stod(between(element, " x=\"", '"')) - length * before;
    if (left < 0 || left + length > width) cut.push_back(text);
  }
  return cut;
}

/// Colours that a dark scheme leaves as they are although they are nearly white or black.
std::vector<std::string> unthemed_colours(const std::string& svg) {
  constexpr double kShares[] = {0.3, 0.59, 0.11};
  std::vector<std::string> found;
  for (const std::string name : {"fill=\"#", "stroke=\"#"})
    for (std::size_t at = svg.find(name); at != std::string::npos; at = svg.find(name, at + 1)) {
      const std::string digits = svg.substr(at + name.size(), 6);
      double luminance = 0;
      for (std::size_t i = 0; i < 3; ++i)
        luminance += kShares[i] * std::stoi(digits.substr(2 * i, 2), nullptr, 16) / 255;
      const std::string attribute = name + digits + "\"";
      const bool themed = svg.find("svg [" + attribute + "]") != std::string::npos;
      if ((luminance < 0.25 || luminance > 0.85) && !themed) found.push_back(attribute);
    }
  return found;
}

WorldView two_pes();

TEST(Pictures, CutNoTextAndFollowADarkScheme) {
  RankMatrix matrix{"world 0123456789abcdef, group 1", {}};
  matrix.values.assign(4, std::vector<double>(4, 1234.5));
  ExpertLoads loads{"world 0123456789abcdef, group 1",
                    std::vector<std::uint64_t>(8, 1'000'000'000),
                    std::vector<bool>(4, true),
                    {{0, 2}, {2, 2}, {4, 2}, {6, 2}}};
  std::vector<std::string> pictures = {live_svg({matrix}, {loads}, {matrix}),
                                       timeline_svg(two_pes()), to_svg(collect_topology("", 1))};
  for (const auto* const machine : {"dgx_h100", "hgx_4_nics", "dual_port", "two_planes"})
    pictures.push_back(to_svg(topology_of(machine)));
  for (const std::string& svg : pictures) {
    EXPECT_EQ(cut_texts(svg), std::vector<std::string>{}) << svg;
    EXPECT_EQ(unthemed_colours(svg), std::vector<std::string>{});
    EXPECT_EQ(count(svg, "@media (prefers-color-scheme: dark)"), 1u);
  }
  const std::string page = live_html({.title = "Running jobs", .who_waits = "", .svg = ""});
  EXPECT_EQ(count(page, "@media (prefers-color-scheme: dark)"), 1u);
}

/// Two PEs: PE 1 works for 6 ms in the second phase; PE 0 works for 1 ms and waits for PE 1.
WorldView two_pes() {
  using namespace std::chrono_literals;
  WorldView view;
  view.timelines = {{{{"bootstrap", 2ms, 0ms}, {"heap", 7ms, 6ms}}},
                    {{{"bootstrap", 3ms, 1ms}, {"heap", 6ms, 0ms}}}};
  return view;
}

TEST(Timeline, NamesThePeThatWorksLongest) {
  const std::string text = timeline_text(two_pes());
  test::expect_parts(text,
                     {"Start of a world of 2 PEs: 9.00 ms", "heap       7.00  1.00-6.00    PE 1",
                      "bootstrap  3.00  2.00-2.00    PE 0"});
  EXPECT_EQ(timeline_json(two_pes())["pes"][0]["phases"][1]["waited_ms"], 6.0);
}

TEST(Timeline, BarsFillTheLineAndShowWaiting) {
  const std::string text = timeline_text(two_pes());
  // 48 characters for 10 ms: 14 for bootstrap, 2 of 3 ms work; 34 for heap, 6 of 7 ms work.
  EXPECT_EQ(count(text, "█") - 1, 9u + 29u);  // one is in the legend
  EXPECT_EQ(count(text, "░") - 1, 5u + 5u);
}

TEST(Timeline, PictureHasABarForEveryPhaseOfEveryPe) {
  const std::string svg = timeline_svg(two_pes());
  EXPECT_EQ(count(svg, "<title>heap: "), 4u);  // work and waiting of two PEs
  EXPECT_EQ(count(svg, ">PE 1<"), 1u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(Timeline, OfNothingIsNoDivisionByZero) {
  WorldView view;
  view.timelines = {{{{"settings", std::chrono::nanoseconds(0), std::chrono::nanoseconds(0)}}}};
  EXPECT_EQ(timeline_svg(view).find("nan"), std::string::npos);
  test::expect_parts(timeline_text(view), {"settings"});
}

/// A world of `n` PEs on nodes of `per_node`: shm inside a node, ofi between nodes.
WorldView world_of(Pe n, Pe per_node) {
  WorldView view;
  for (Pe pe = 0; pe < n; ++pe)
    view.connectivity.pes.push_back(
        {"h", 0, pe / per_node, std::vector<std::string>{"eth" + std::to_string(pe % 2)}});
  const std::string all = "put get atomics signals";
  for (Pe a = 0; a < n; ++a)
    for (Pe b = a; b < n; ++b) {
      const bool near = a / per_node == b / per_node;
      view.connectivity.pairs.push_back(
          {a,
           b,
           {{"self", "load-store " + all, a == b, a == b ? "the PE itself" : "another PE"},
            {"shm", "load-store " + all, a != b && near, near ? "first" : "on another host"},
            {"ofi", all, !near, near ? "not wanted" : "first that does everything"}}});
    }
  return view;
}

TEST(ConnectivityText, GroupsPairsThatAreAlike) {
  const std::string text = connectivity_text(world_of(8, 4));
  EXPECT_EQ(count(text, "  every PE with itself\n"), 1u) << text;
  EXPECT_EQ(count(text, "  every pair inside a node\n"), 1u) << text;
  EXPECT_EQ(count(text, "  every pair between nodes\n"), 1u) << text;
  EXPECT_EQ(count(text, "    * ofi"), 1u) << text;
  test::expect_parts(
      text, {"      shm   on another host\n", "PE   5  o  o  o  o  s  .  s  s\n", "NICs: eth1"});
}

TEST(ConnectivityText, ListsThePairsOfAnOddGroup) {
  WorldView view = world_of(4, 4);
  for (auto& pair : view.connectivity.pairs)
    if (pair.a != pair.b && pair.b == 3)
      pair.transports[1] = {"shm", "nothing", false, "in another network namespace"};
  const std::string text = connectivity_text(view);
  test::expect_parts(text,
                     {"  PE 0 with 3; PE 1 with 3; PE 2 with 3\n    * none  no transport reaches\n",
                      "  PE 0 with 1-2; PE 1 with 2\n", "PE   3  -  -  -  .\n"});
  const nlohmann::json json = connectivity_json(view);
  EXPECT_EQ(json["pairs"].size(), 10u);
  EXPECT_TRUE(json["pairs"][3]["chosen"].is_null());
  EXPECT_EQ(json["pairs"][1]["chosen"], "shm");
}

TEST(ConnectivityText, OfManyPesStaysShort) {
  const std::string text = connectivity_text(world_of(64, 8));
  EXPECT_LT(count(text, "\n"), 64u + 20u);
  EXPECT_EQ(text.find("chosen transport of each pair"), std::string::npos);
}

}  // namespace
}  // namespace shoal::info
