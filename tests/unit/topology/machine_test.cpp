// SPDX-License-Identifier: Apache-2.0
// The description of a machine: distances, PCI addresses, hwloc's XML, additions from sysfs.
#include "topology/machine.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/built.hpp"
#include "support/expect_error.hpp"
#include "topology/sysfs.hpp"

namespace shoal::topology {
namespace {

namespace fs = std::filesystem;

Location at(std::vector<std::string> path, std::int32_t numa = -1) {
  return {std::move(path), numa};
}

std::string machine_file(const std::string& name) {
  return test::source_file("tests/data/machines/" + name);
}

std::vector<std::string> labels(const Machine& machine) {
  std::vector<std::string> result;
  for (const Nic& nic : machine.nics) result.push_back(nic.label());
  return result;
}

const Nic& nic_called(const Machine& machine, const std::string& label) {
  for (const Nic& nic : machine.nics)
    if (nic.label() == label) return nic;
  ADD_FAILURE() << "no " << label;
  return machine.nics.front();
}

TEST(Distance, GrowsWithWhatLiesBetween) {
  const Location gpu =
      at({"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:01.0", "0000:19:00.0"}, 0);
  const struct {
    Location other;
    Distance expected;
    const char* what;
  } cases[] = {
      {gpu, Distance::pix, "itself"},
      {at({"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:01.0", "0000:19:00.1"}, 0),
       Distance::pix, "function"},
      {at({"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"}, 0),
       Distance::pix, "switch"},
      {at({"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0",
           "0000:1a:00.0", "0000:1b:00.0"},
          0),
       Distance::pxb, "switch below the switch"},
      {at({"pci0000:15", "0000:15:01.0", "0000:1c:00.0", "0000:1d:00.0"}, 0), Distance::pxb,
       "only the root port"},
      {at({"pci0000:15", "0000:15:02.0", "0000:1e:00.0"}, 0), Distance::phb, "host bridge"},
      {at({"pci0000:40", "0000:40:01.0", "0000:41:00.0"}, 0), Distance::node, "NUMA node"},
      {at({"pci0000:40", "0000:40:01.0", "0000:41:00.0"}, 1), Distance::sys, "other NUMA node"},
      {at({"pci0000:40", "0000:40:01.0", "0000:41:00.0"}, -1), Distance::sys, "unknown NUMA node"},
      {at({}, 0), Distance::node, "memory"},
      {at({}, -1), Distance::sys, "memory in an unknown place"},
  };
  for (const auto& [other, expected, what] : cases) {
    EXPECT_EQ(distance(gpu, other), expected) << what;
    EXPECT_EQ(distance(other, gpu), expected) << what;
  }
  EXPECT_EQ(distance(at({}, -1), at({}, -1)), Distance::sys) << "two unknown places are not equal";
  EXPECT_EQ(name_of(Distance::pix), "PIX");
  EXPECT_EQ(name_of(Distance::sys), "SYS");
}

TEST(PciAddress, HasOneForm) {
  for (const char* text : {"0000:3B:00.0", "00000000:3b:00.0", "3b:00.0", "0:3b:0.0"})
    EXPECT_EQ(normal_pci_address(text), "0000:3b:00.0") << text;
  EXPECT_EQ(normal_pci_address("10000:e1:1f.7"), "10000:e1:1f.7");
  for (const char* text : {"", "gpu", "0000:3b:00", ":3b:00.0", "0000:3b:00.8", "0000:3b:20.0",
                           "0000:1ff:00.0", "3b.0", "0000:-1:00.0", "x:3b:00.0"})
    test::expect_error(Code::invalid_argument,
                       "is no PCI address; allowed: ", [&] { normal_pci_address(text); });
}

TEST(DescribedMachine, DgxH100) {
  const Machine machine = read_machine(machine_file("dgx_h100.xml"));
  EXPECT_EQ(machine.numa_nodes, 2);
  ASSERT_EQ(machine.gpus.size(), 8U);
  EXPECT_EQ(labels(machine),
            (std::vector<std::string>{"mlx5_0:1", "mlx5_8:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1",
                                      "mlx5_4:1", "mlx5_5:1", "mlx5_6:1", "mlx5_7:1", "ens6"}));
  EXPECT_EQ(machine.gpus[0].at,
            at({"pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"}, 0));
  for (std::size_t gpu = 0; gpu < 8; ++gpu)
    for (std::size_t nic = 0; nic < 8; ++nic)
      EXPECT_EQ(distance(machine.gpus[gpu].at,
                         nic_called(machine, "mlx5_" + std::to_string(nic) + ":1").at),
                gpu == nic           ? Distance::pix
                : gpu / 4 == nic / 4 ? Distance::node
                                     : Distance::sys)
          << gpu << " " << nic;
  const Nic& storage = nic_called(machine, "mlx5_8:1");
  EXPECT_EQ(storage.rate, 100);
  EXPECT_EQ(distance(storage.at, nic_called(machine, "ens6").at), Distance::pix);
  EXPECT_EQ(nic_called(machine, "ens6").kind, Nic::Kind::network);
}

TEST(DescribedMachine, PortsAndPlanes) {
  const Machine dual = read_machine(machine_file("dual_port.xml"));
  EXPECT_EQ(labels(dual),
            (std::vector<std::string>{"mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1",
                                      "mlx5_3:2", "mlx5_4:1", "mlx5_5:1"}));
  EXPECT_EQ(dual.nics[0].at, dual.nics[1].at);
  EXPECT_EQ(dual.nics[2].at.pci().substr(0, 10), dual.nics[3].at.pci().substr(0, 10));
  const Machine planes = read_machine(machine_file("two_planes.xml"));
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(planes.nics[i].plane, static_cast<std::int32_t>(i % 2));
  EXPECT_EQ(read_machine(machine_file("hgx_4_nics.xml")).nics.size(), 4U);
}

TEST(DescribedMachine, HasToBeOne) {
  for (const char* name : {"nothing.xml", "README.md"})
    test::expect_error(Code::invalid_argument,
                       std::string(name) + " does not describe a machine; allowed: ", [&] {
                         read_machine(machine_file(name));
                       });
}

TEST(ThisMachine, CanBeRead) {
  const Machine machine = read_machine();
  EXPECT_GE(machine.numa_nodes, 1);
  for (const Nic& nic : machine.nics) EXPECT_NE(nic.name, "lo");
}

/// A folder with the network ports of a /sys.
class Sysfs : public ::testing::Test {
 protected:
  Sysfs() { fs::create_directories(root); }
  ~Sysfs() override { fs::remove_all(root); }

  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text << "\n";
  }

  /// A device of a class, below `path` in devices/; an empty path means not on PCI.
  void device(const std::string& kind, const std::string& name, const std::string& path,
              int numa = 0) {
    fs::create_directories(root / "class" / kind / name);
    if (path.empty()) return;
    write(fs::path("devices") / path / "numa_node", std::to_string(numa));
    fs::create_directory_symlink(fs::absolute(root / "devices" / path),
                                 root / "class" / kind / name / "device");
  }

  void port(const std::string& name, int number, const std::string& state, const std::string& rate,
            const std::string& layer, const std::string& gid) {
    const fs::path directory =
        fs::path("class/infiniband") / name / "ports" / std::to_string(number);
    write(directory / "state", state);
    write(directory / "rate", rate);
    write(directory / "link_layer", layer);
    write(directory / "gids/0", gid);
  }

  fs::path root = fs::temp_directory_path() / ("shoal_sysfs_" + std::to_string(getpid()));
};

TEST_F(Sysfs, SaysWhatHwlocDoesNotKnow) {
  device("infiniband", "mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0", 1);
  port("mlx5_0", 1, "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand",
       "fe80:0000:0000:0001:0000:0000:0000:0001");
  port("mlx5_0", 2, "1: DOWN", "10 Gb/sec (4X SDR)", "InfiniBand",
       "fe80:0000:0000:0000:0000:0000:0000:0001");
  device("infiniband", "mlx5_1", "pci0000:20/0000:20:01.0/0000:21:00.0", 1);
  port("mlx5_1", 1, "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand",
       "fe80:0000:0000:0002:0000:0000:0000:0002");
  device("infiniband", "mlx5_2", "pci0000:22/0000:22:01.0/0000:23:00.0", -1);
  port("mlx5_2", 1, "4: ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand",
       "fe80:0000:0000:0001:0000:0000:0000:0003");
  device("cxi", "cxi0", "pci0000:30/0000:30:01.0/0000:31:00.0");
  device("net", "eth0", "pci0000:00/0000:00:03.0/virtio2");
  write("class/net/eth0/type", "1");
  write("class/net/eth0/operstate", "up");
  write("class/net/eth0/speed", "25000");
  device("net", "veth0", "");
  write("class/net/veth0/type", "1");
  write("class/net/veth0/operstate", "unknown");
  write("class/net/veth0/speed", "-1");
  device("net", "lo", "");
  write("class/net/lo/type", "772");
  device("net", "docker0", "");
  write("class/net/docker0/type", "1");
  fs::create_directories(root / "class/net/docker0/bridge");

  Machine machine;
  machine.numa_nodes = 2;
  machine.nics.push_back({"mlx5_2", 1, Nic::Kind::rdma,
                          at({"pci0000:22", "0000:22:01.0", "0000:23:00.0"}), 0, 0, true});
  machine.gpus.push_back({at({"pci0000:15", "0000:15:01.0", "0000:17:00.0"})});
  write("bus/pci/devices/0000:17:00.0/numa_node", "1");
  complete_from_sysfs(machine, root);
  put_in_order(machine);

  EXPECT_EQ(labels(machine), (std::vector<std::string>{"mlx5_0:1", "mlx5_0:2", "mlx5_1:1",
                                                       "mlx5_2:1", "cxi0:1", "eth0", "veth0"}));
  EXPECT_EQ(machine.gpus[0].at.numa, 1);
  EXPECT_EQ(nic_called(machine, "mlx5_0:1").at,
            at({"pci0000:15", "0000:15:01.0", "0000:16:00.0"}, 1));
  EXPECT_TRUE(nic_called(machine, "mlx5_0:1").up);
  EXPECT_FALSE(nic_called(machine, "mlx5_0:2").up);
  EXPECT_EQ(nic_called(machine, "mlx5_0:1").rate, 400);
  EXPECT_EQ(nic_called(machine, "mlx5_2:1").rate, 200);
  EXPECT_EQ(nic_called(machine, "mlx5_0:1").plane, 0);
  EXPECT_EQ(nic_called(machine, "mlx5_1:1").plane, 1);
  EXPECT_EQ(nic_called(machine, "mlx5_2:1").plane, 0) << "same subnet as mlx5_0";
  EXPECT_EQ(nic_called(machine, "mlx5_2:1").network, nic_called(machine, "mlx5_0:1").network);
  EXPECT_TRUE(nic_called(machine, "mlx5_0:1").network.starts_with("InfiniBand fe80:"))
      << nic_called(machine, "mlx5_0:1").network;
  EXPECT_EQ(nic_called(machine, "veth0").network, "")
      << "the network of an Ethernet port is unknown";
  EXPECT_EQ(nic_called(machine, "eth0").at.path,
            (std::vector<std::string>{"pci0000:00", "0000:00:03.0"}));
  EXPECT_EQ(nic_called(machine, "eth0").rate, 25);
  EXPECT_EQ(nic_called(machine, "veth0").kind, Nic::Kind::software);
  EXPECT_TRUE(nic_called(machine, "veth0").up);
  EXPECT_EQ(nic_called(machine, "veth0").rate, 0);
}

TEST_F(Sysfs, MayBeMissing) {
  Machine machine;
  machine.nics.push_back(
      {"mlx5_0", 1, Nic::Kind::rdma, at({"pci0000:15", "0000:16:00.0"}, 1), 400, 3, true});
  complete_from_sysfs(machine, root / "no such folder");
  EXPECT_EQ(machine.nics.size(), 1U);
  EXPECT_EQ(machine.nics[0].plane, 3);
  EXPECT_TRUE(machine.nics[0].up);
}

}  // namespace
}  // namespace shoal::topology
