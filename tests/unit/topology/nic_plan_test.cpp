// SPDX-License-Identifier: Apache-2.0
// The NIC plan on described machines: by distance, by the user's bindings, for the whole host;
// rails.
#include "topology/nic_plan.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/built.hpp"
#include "support/expect_error.hpp"

namespace shoal::topology {
namespace {

Machine described(const std::string& name) {
  return read_machine(test::source_file("tests/data/machines/" + name + ".xml"));
}

/// The NICs of each seat: "mlx5_0:1 mlx5_1:1+mlx5_2:1".
std::string text_of(const Machine& machine, const NicPlan& plan) {
  std::vector<std::string> seats;
  for (const auto& nics : plan.of_seat) {
    std::vector<std::string> labels;
    for (const NicUse& use : nics)
      labels.push_back(machine.nics[static_cast<std::size_t>(use.nic)].label());
    seats.push_back(fmt::format("{}", fmt::join(labels, "+")));
  }
  return fmt::format("{}", fmt::join(seats, " "));
}

std::string plan_text(const Machine& machine, const NicBinding& binding = {}) {
  return text_of(machine, plan_nics(machine, host_seats(machine, 0), binding));
}

/// GPUs and NICs below one host bridge, as virtual machines show them.
Machine flat(int gpus, int nics) {
  Machine machine;
  for (int i = 0; i < gpus; ++i)
    machine.gpus.push_back({{{"pci0000:00", fmt::format("0000:00:{:02x}.0", i)}, 0}});
  for (int i = 0; i < nics; ++i) {
    Nic nic;
    nic.name = fmt::format("mlx5_{}", i);
    nic.at = {{"pci0000:00", fmt::format("0000:00:{:02x}.0", 16 + i)}, 0};
    nic.rate = 400;
    machine.nics.push_back(nic);
  }
  put_in_order(machine);
  return machine;
}

TEST(NicPlan, OfTheDescribedMachines) {
  EXPECT_EQ(plan_text(described("dgx_h100")),
            "mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1");
  EXPECT_EQ(plan_text(described("hgx_4_nics")),
            "mlx5_0:1 mlx5_0:1 mlx5_1:1 mlx5_1:1 mlx5_2:1 mlx5_2:1 mlx5_3:1 mlx5_3:1");
  // First one port of each card, then the second ports.
  EXPECT_EQ(plan_text(described("dual_port")),
            "mlx5_0:1 mlx5_1:1 mlx5_0:2 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_3:2 mlx5_5:1");
  // One NIC on either plane; else PEs of one plane would not reach those of the other.
  EXPECT_EQ(
      plan_text(described("two_planes")),
      "mlx5_0:1+mlx5_1:1 mlx5_0:1+mlx5_1:1 mlx5_2:1+mlx5_3:1 mlx5_2:1+mlx5_3:1 mlx5_4:1+mlx5_5:1 "
      "mlx5_4:1+mlx5_5:1 mlx5_6:1+mlx5_7:1 mlx5_6:1+mlx5_7:1");
  EXPECT_EQ(plan_text(flat(2, 5)), "mlx5_0:1+mlx5_2:1 mlx5_1:1+mlx5_3:1")
      << "several NICs per PE if there are more NICs than PEs";
  EXPECT_EQ(plan_text(flat(3, 0)), "  ");
}

TEST(NicPlan, LeavesOutOtherNics) {
  const Machine machine = described("dgx_h100");
  const NicPlan plan = plan_nics(machine, host_seats(machine, 0), {});
  EXPECT_NE(plan.unused[1].find("less than half as fast"), std::string::npos)
      << "although mlx5_8 is also nearest to GPU 0";
  EXPECT_EQ(plan.unused.back(), "there are RDMA devices");
  EXPECT_EQ(plan.unused[0], "");

  Machine mixed = flat(4, 6);
  mixed.nics[4].plane = mixed.nics[5].plane = 1;
  mixed.nics[1].up = false;
  EXPECT_EQ(plan_text(mixed), "mlx5_0:1 mlx5_2:1 mlx5_3:1 mlx5_0:1")
      << "a small plane, a port that is down";
  mixed.nics[0].kind = mixed.nics[2].kind = mixed.nics[3].kind = Nic::Kind::software;
  mixed.nics[4].kind = mixed.nics[5].kind = Nic::Kind::network;
  EXPECT_EQ(plan_text(mixed), "mlx5_4 mlx5_5 mlx5_4 mlx5_5");
}

// Overlapping sets of nearest NICs, which no tree has, need the second round.
TEST(NicPlan, SecondRoundBalances) {
  const auto n = Distance::pix, f = Distance::sys;
  const std::vector<std::vector<Distance>> table{
      {n, n, f}, {n, n, f}, {f, n, n}, {n, f, f}, {n, f, f}};
  const std::vector<std::int32_t> card{0, 1, 2};
  const auto plan = assign_by_distance(table, card, 1);
  EXPECT_EQ(plan, (std::vector<std::vector<std::int32_t>>{{1}, {1}, {2}, {0}, {0}}));
}

TEST(NicPlan, TheUsersOrderIsHonoured) {
  const Machine machine = flat(4, 4);
  EXPECT_EQ(plan_text(machine, {"mlx5_3,mlx5_0:1", false, ""}),
            "mlx5_3:1 mlx5_0:1 mlx5_3:1 mlx5_0:1");
  EXPECT_EQ(plan_text(machine, {"mlx5_0:1 , mlx5_3", false, ""}),
            "mlx5_0:1 mlx5_3:1 mlx5_0:1 mlx5_3:1");
  EXPECT_EQ(plan_text(machine, {"^mlx5_0,mlx5_2:1", false, ""}),
            "mlx5_1:1 mlx5_3:1 mlx5_1:1 mlx5_3:1");
  EXPECT_EQ(plan_text(machine, {"", true, ""}), "mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1");
  EXPECT_EQ(plan_text(machine, {"mlx5_2,mlx5_1,mlx5_0", true, ""}),
            "mlx5_2:1 mlx5_1:1 mlx5_0:1 mlx5_2:1");
  EXPECT_EQ(plan_text(machine, {"", false, "mlx5_3:1:2,mlx5_1,mlx5_3"}),
            "mlx5_3:1 mlx5_3:1 mlx5_1:1 mlx5_3:1");

  const Machine dgx = described("dgx_h100");
  EXPECT_EQ(plan_text(dgx, {"mlx5_7,mlx5_0,mlx5_8", false, ""}),
            "mlx5_0:1 mlx5_8:1 mlx5_0:1 mlx5_8:1 mlx5_7:1 mlx5_7:1 mlx5_7:1 mlx5_7:1")
      << "a list restricts the choice; distance still decides";
  EXPECT_EQ(plan_text(dgx, {"ens6", false, ""}), "ens6 ens6 ens6 ens6 ens6 ens6 ens6 ens6");
  EXPECT_EQ(plan_text(described("dual_port"), {"mlx5_3", true, ""}),
            "mlx5_3:1 mlx5_3:2 mlx5_3:1 mlx5_3:2 mlx5_3:1 mlx5_3:2 mlx5_3:1 mlx5_3:2")
      << "a name without a port stands for all its ports";
}

// Eight PEs on two cards of two ports each. The entries count the PEs of the host, also where a
// rail group has one PE of each host, whose index within the group is another.
TEST(NicPlan, AMappingGivesEachPortToConsecutivePes) {
  Machine machine = flat(8, 2);
  for (int card = 0; card < 2; ++card) {
    Nic second = machine.nics[static_cast<std::size_t>(card)];
    second.port = 2;
    machine.nics.push_back(second);
  }
  put_in_order(machine);
  const auto settings = Settings::from([](const std::string& name) -> std::optional<std::string> {
    if (name == "NVSHMEM_ENABLE_NIC_PE_MAPPING") return "1";
    if (name == "NVSHMEM_HCA_PE_MAPPING") return "mlx5_0:1:2,mlx5_0:2:2,mlx5_1:1:2,mlx5_1:2:2";
    return std::nullopt;
  });
  // NVSHMEM reads the mapping only together with its switch, which alone asks for a round robin.
  const NicBinding binding = nic_binding(settings);
  EXPECT_TRUE(binding.round_robin);
  const char* const wanted =
      "mlx5_0:1 mlx5_0:1 mlx5_0:2 mlx5_0:2 mlx5_1:1 mlx5_1:1 mlx5_1:2 mlx5_1:2";
  EXPECT_EQ(plan_text(machine, binding), wanted);
  // Without GPUs, PE i of the host has seat i.
  machine.gpus.clear();
  const auto seats = host_seats(machine, 8);
  EXPECT_EQ(text_of(machine, plan_nics(machine, seats, binding)), wanted);
  for (std::int32_t pe = 0; pe < 8; ++pe) EXPECT_EQ(seat_of(machine, 8, "", pe), pe);
}

TEST(NicPlan, ComesFromTheSettings) {
  const auto settings = Settings::from([](const std::string& name) -> std::optional<std::string> {
    if (name == "NVSHMEM_HCA_LIST") return "mlx5_1";
    if (name == "NVSHMEM_ENABLE_NIC_PE_MAPPING") return "1";
    if (name == "NVSHMEM_HCA_PE_MAPPING") return "mlx5_0:1:8";
    return std::nullopt;
  });
  const NicBinding binding = nic_binding(settings);
  EXPECT_EQ(binding.list, "mlx5_1");
  EXPECT_TRUE(binding.round_robin);
  EXPECT_EQ(binding.mapping, "mlx5_0:1:8");
}

TEST(NicPlan, RefusesWhatDoesNotFit) {
  Machine machine = flat(4, 4);
  machine.nics[3].up = false;
  const struct {
    NicBinding binding;
    const char* text;
  } cases[] = {
      {{"mlx5_O", false, ""},
       "SHOAL_NIC_LIST is \"mlx5_O\": no NIC is called \"mlx5_O\"; did you mean mlx5_0?"},
      {{"mlx5_0,quite_other", true, ""},
       "called \"quite_other\". This host has: mlx5_0:1, mlx5_1:1, mlx5_2:1, mlx5_3:1 (down)"},
      {{"^mlx5_9", false, ""}, "no NIC is called \"mlx5_9\"; did you mean mlx5_"},
      {{"mlx5_0:2", false, ""}, "\"mlx5_0:2\" names a port that mlx5_0 does not have"},
      {{"mlx5_3:1", false, ""}, "\"mlx5_3:1\" is down; connect it or take it out"},
      {{"mlx5_3", false, ""}, "\"mlx5_3\" is down"},
      {{"mlx5_0,mlx5_1,mlx5_0:1", false, ""}, "mlx5_0:1 is listed twice; to give a port more PEs"},
      {{"^mlx5_0,mlx5_1,mlx5_2", false, ""}, "nothing is left"},
      {{"mlx5_0,", false, ""}, "\"\" is malformed; allowed: a comma list of name or name:port"},
      {{"mlx5_0:one", false, ""}, "\"mlx5_0:one\" is malformed"},
      {{"mlx5_0:0", false, ""}, "\"mlx5_0:0\" is malformed"},
      {{"mlx5_0:1:2", false, ""}, "\"mlx5_0:1:2\" is malformed"},
      {{"mlx5_0,^mlx5_1", false, ""}, "\"^mlx5_1\" is malformed"},
      {{"", false, "^mlx5_1"}, "SHOAL_NIC_MAPPING is \"^mlx5_1\": \"^mlx5_1\" is malformed"},
      {{"", false, "mlx5_0:1:0"}, "\"mlx5_0:1:0\" is malformed"},
      {{"", false, "mlx5_0:1:99999999999"}, "is malformed"},
      {{"", false, "mlx5_0:1:2,mlx5_7:1:2"}, "no NIC is called \"mlx5_7\""},
      {{"", false, "mlx5_0:1:2,mlx5_1:1:1"},
       "has places for 3 PEs, and this host has 4; such as \"mlx5_0:1:2,mlx5_1:1:2\""},
      {{"", false, "mlx5_0:1:4,mlx5_1:1:4"}, "has places for 8 PEs, and this host has 4"},
      {{"mlx5_0", false, "mlx5_0:1:4"},
       "so SHOAL_NIC_LIST must not be set with it; it is \"mlx5_0\""},
  };
  for (const auto& [binding, text] : cases)
    test::expect_error(Code::invalid_argument, text,
                       [&] { plan_nics(machine, host_seats(machine, 0), binding); });
  test::expect_error(Code::invalid_argument, "this host has no NICs", [] {
    plan_nics(flat(1, 0), host_seats(flat(1, 0), 0), {"mlx5_0", false, ""});
  });
}

TEST(NicPlan, SeatsBelongToTheHost) {
  const Machine machine = described("hgx_4_nics");
  EXPECT_EQ(host_seats(machine, 3).size(), 8U) << "one per GPU, for any number of PEs";
  EXPECT_EQ(seat_of(machine, 8, "00000000:13:00.0", 5), 0) << "the GPU decides, not the index";
  EXPECT_EQ(seat_of(machine, 8, machine.gpus[6].at.pci(), 0), 6);
  EXPECT_EQ(seat_of(machine, 8, "", 9), 1);
  test::expect_error(Code::invalid_argument, "this machine has no GPU 0000:99:00.0",
                     [&] { seat_of(machine, 8, "0000:99:00.0", 0); });
  EXPECT_EQ(host_seats(flat(0, 2), 3).size(), 3U);
  EXPECT_EQ(plan_text(flat(0, 2)), "mlx5_0:1+mlx5_1:1");
  const Machine plain = flat(0, 2);
  EXPECT_EQ(text_of(plain, plan_nics(plain, host_seats(plain, 3), {})),
            "mlx5_0:1 mlx5_1:1 mlx5_0:1");
}

TEST(NicPlan, SaysWhatIsMissing) {
  const Machine machine = flat(2, 2);
  const auto seats = host_seats(machine, 0);
  const auto found = remarks(machine, seats, plan_nics(machine, seats, {}));
  ASSERT_EQ(found.size(), 2U);
  test::expect_parts(found[1], {"GPU 1 (0000:00:01.0) is PHB away from its NIC mlx5_1:1"});
  test::expect_parts(remarks(flat(1, 0), host_seats(flat(1, 0), 0),
                             plan_nics(flat(1, 0), host_seats(flat(1, 0), 0), {}))
                         .at(0),
                     {"no NIC is there"});
  const Machine dgx = described("dgx_h100");
  EXPECT_TRUE(remarks(dgx, host_seats(dgx, 0), plan_nics(dgx, host_seats(dgx, 0), {})).empty());
}

TEST(NicPlan, HasNoRemarkOnRdmaWithoutAnRdmaDevice) {
  Machine machine = flat(2, 2);
  const auto seats = host_seats(machine, 0);
  for (const Nic::Kind kind : {Nic::Kind::network, Nic::Kind::software}) {
    for (Nic& nic : machine.nics) nic.kind = kind;
    const auto found = remarks(machine, seats, plan_nics(machine, seats, {}));
    for (const std::string& remark : found)
      EXPECT_EQ(remark.find("GPUDirect RDMA"), std::string::npos) << remark;
  }
}

TEST(NicPlan, SaysThatPlanesDiffer) {
  const Machine machine = described("two_planes");
  const auto seats = host_seats(machine, 0);
  const auto found =
      remarks(machine, seats, plan_nics(machine, seats, {"mlx5_0,mlx5_1", true, ""}));
  test::expect_parts(found.back(), {"seats 0 and 1 have NICs on different planes, [0] and [1]"});
  EXPECT_TRUE(remarks(machine, seats, plan_nics(machine, seats, {})).empty());
}

TEST(Rails, JoinEqualIndices) {
  std::vector<HostIdentity> hosts;
  for (const char* id : {"a", "b", "b", "a"}) hosts.push_back({id, id});
  EXPECT_EQ(rails(place(hosts, 0)), (std::vector<std::vector<Pe>>{{0, 1}, {3, 2}}));
  EXPECT_TRUE(rails({}).empty());
}

TEST(Rails, NeedACommonNetwork) {
  const Machine machine = described("two_planes");
  const auto seats = host_seats(machine, 0);
  const auto end = [&](std::int32_t host, std::size_t seat, const NicBinding& binding) {
    const NicPlan plan = plan_nics(machine, seats, binding);
    RailEnd result{
        host, host == 0 ? "first" : "second", {}, networks_of(machine, plan.of_seat[seat])};
    for (const NicUse& use : plan.of_seat[seat])
      result.nics.push_back(machine.nics[static_cast<std::size_t>(use.nic)].label());
    return result;
  };
  const NicBinding all, even{"mlx5_0,mlx5_2", false, ""}, odd{"mlx5_1,mlx5_3", false, ""};
  EXPECT_EQ(end(0, 5, all).networks, (std::vector<std::string>{"plane 0", "plane 1"}));
  const std::vector<std::vector<Pe>> two_rails{{0, 2}, {1, 3}};
  EXPECT_NO_THROW(check_rails(
      two_rails, std::vector{end(0, 0, all), end(0, 1, all), end(1, 0, even), end(1, 1, odd)}));
  test::expect_error(
      Code::unsupported,
      "rail 1 is cut: PE 1 on host first has mlx5_0:1 on [plane 0], PE 3 on host second has mlx5_1:1 on [plane 1]",
      [&] {
        check_rails(two_rails,
                    std::vector{end(0, 0, even), end(0, 1, even), end(1, 0, even), end(1, 1, odd)});
      });
  // PEs of one host form no rail, and unknown networks are not checked.
  EXPECT_NO_THROW(check_rails(std::vector<std::vector<Pe>>{{0, 1}},
                              std::vector{end(0, 0, even), end(0, 0, odd)}));
  RailEnd unknown = end(1, 0, odd);
  unknown.networks.clear();
  EXPECT_NO_THROW(
      check_rails(std::vector<std::vector<Pe>>{{0, 1}}, std::vector{end(0, 0, even), unknown}));
}

// Plane numbers count the planes that are up on one host. Only names are comparable between hosts.
TEST(Rails, CompareNamesAndNotNumbersOfPlanes) {
  const auto port = [](const char* name, std::int32_t plane, const char* network) {
    return Nic{name, 1, Nic::Kind::rdma, {}, 0, plane, true, network};
  };
  Machine whole, half;
  whole.nics = {port("a", 0, "InfiniBand x"), port("b", 1, "InfiniBand y")};
  half.nics = {port("b", 0, "InfiniBand y")};
  const std::vector<NicUse> second{{1, Distance::pix}}, first{{0, Distance::pix}};
  const std::vector<std::vector<Pe>> rail{{0, 1}};
  EXPECT_NO_THROW(
      check_rails(rail, std::vector<RailEnd>{{0, "h0", {"b"}, networks_of(whole, second)},
                                             {1, "h1", {"b"}, networks_of(half, first)}}));
  EXPECT_THROW(check_rails(rail, std::vector<RailEnd>{{0, "h0", {"a"}, networks_of(whole, first)},
                                                      {1, "h1", {"b"}, networks_of(half, first)}}),
               Error);
  half.nics[0].network.clear();
  EXPECT_TRUE(networks_of(half, first).empty());
}

}  // namespace
}  // namespace shoal::topology
