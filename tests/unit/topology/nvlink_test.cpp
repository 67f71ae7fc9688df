// SPDX-License-Identifier: Apache-2.0
// The NVLink links of GPUs, by an NVML of the test's own.
// @traits one_thread
#include "topology/nvlink.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>

namespace shoal::topology {
namespace {

/// A link as the NVML of the test reports it.
struct Wire {
  bool active = true;
  unsigned kind = 255;  ///< 0 GPU, 1 processor, 2 switch, 255 not known
  std::string pci{};
};

/// The machine behind the NVML of the test. Its functions have no place for an argument.
struct FakeMachine {
  std::map<std::string, std::vector<Wire>> gpus;
  int init_result = 0;
  int state_result = 0;   ///< of GPUs with links
  int beyond_result = 2;  ///< for a link number that a GPU does not have
  int open = 0;           ///< initialisations that were not shut down
};
FakeMachine machine;

const std::vector<Wire>& wires(Nvml::Device device) {
  return reinterpret_cast<std::pair<const std::string, std::vector<Wire>>*>(device)->second;
}

Nvml fake() {
  Nvml nvml;
  nvml.init = [] {
    if (machine.init_result == 0) ++machine.open;
    return machine.init_result;
  };
  nvml.shutdown = [] {
    --machine.open;
    return 0;
  };
  nvml.error_text = [](int result) { return result == 9 ? "Driver Not Loaded" : nullptr; };
  nvml.device_at = [](const char* pci, Nvml::Device* device) {
    const auto found = machine.gpus.find(pci);
    if (found == machine.gpus.end()) return 6;
    *device = reinterpret_cast<Nvml::Device>(&*found);
    return 0;
  };
  nvml.link_state = [](Nvml::Device device, unsigned link, unsigned* active) {
    if (link >= wires(device).size()) return machine.beyond_result;
    *active = wires(device)[link].active ? 1 : 0;
    return machine.state_result;
  };
  nvml.link_version = [](Nvml::Device, unsigned, unsigned* version) {
    *version = 4;
    return 0;
  };
  nvml.link_pci = [](Nvml::Device device, unsigned link, Nvml::PciInfo* info) {
    std::snprintf(info->address, sizeof info->address, "%s", wires(device)[link].pci.c_str());
    return 0;
  };
  nvml.link_peer = [](Nvml::Device device, unsigned link, unsigned* kind) {
    *kind = wires(device)[link].kind;
    return 0;
  };
  return nvml;
}

const std::string kFirst = "0000:1B:00.0", kSecond = "0000:43:00.0";

class NvLinkTest : public ::testing::Test {
 protected:
  void SetUp() override { machine = {}; }
  void TearDown() override { EXPECT_EQ(machine.open, 0) << "NVML was not shut down"; }

  static NvLinks read() {
    const std::string gpus[] = {kFirst, kSecond};
    return read_nvlinks(fake(), gpus);
  }
};

TEST_F(NvLinkTest, SwitchesJoinGpusByAsManyLinksAsBothHaveToThem) {
  machine.gpus[kFirst].assign(18, {.kind = 2, .pci = "00000000:06:00.0"});
  machine.gpus[kSecond] = machine.gpus[kFirst];
  EXPECT_EQ(links_between(read(), kFirst, kSecond), 18);
  EXPECT_EQ(describe(read(), kFirst), "18 of 18 links active: 18 to switches; NVLink version 4");
  machine.gpus[kSecond][3].active = machine.gpus[kSecond][7].active = false;
  EXPECT_EQ(links_between(read(), kFirst, kSecond), 16);
  EXPECT_EQ(links_between(read(), kSecond, kFirst), 16);
  EXPECT_EQ(describe(read(), kSecond), "16 of 18 links active: 16 to switches; NVLink version 4");
}

TEST_F(NvLinkTest, DirectLinksCountByTheirPeer) {
  machine.gpus[kFirst] = {{.kind = 0, .pci = "00000000:43:00.0"},
                          {.kind = 0, .pci = "00000000:43:00.0"},
                          {.kind = 0, .pci = "00000000:99:00.0"},
                          {.kind = 1},
                          {.active = false}};
  machine.gpus[kSecond] = {{.kind = 0, .pci = "00000000:1B:00.0"},
                           {.kind = 0, .pci = "00000000:1B:00.0"}};
  const NvLinks links = read();
  EXPECT_EQ(links_between(links, kFirst, kSecond), 2);
  EXPECT_EQ(links_between(links, "0000:1b:00.0", "43:00.0"), 2) << "addresses in other forms";
  EXPECT_EQ(links_between(links, kFirst, kFirst), 0);
  EXPECT_EQ(links_between(links, kFirst, "0000:99:00.0"), 0) << "a GPU that was not asked for";
  EXPECT_EQ(describe(links, kFirst),
            "4 of 5 links active: 2 to GPU 1, 1 to GPUs that this process does not see, 1 to a "
            "processor; NVLink version 4");
}

TEST_F(NvLinkTest, OldLibrariesDoNotSayWhatAPeerIs) {
  machine.gpus[kFirst] = {{.pci = "00000000:43:00.0"}, {.pci = "00000000:06:00.0"}};
  machine.gpus[kSecond] = {{.pci = "00000000:1B:00.0"}, {.pci = "not an address"}};
  Nvml nvml = fake();
  nvml.link_peer = nullptr;
  nvml.link_version = nullptr;
  const std::string gpus[] = {kFirst, kSecond};
  const NvLinks links = read_nvlinks(nvml, gpus);
  EXPECT_EQ(links_between(links, kFirst, kSecond), 1);
  EXPECT_EQ(describe(links, kFirst), "2 of 2 links active: 1 to GPU 1, 1 to unknown devices");
}

TEST_F(NvLinkTest, GpusWithoutLinks) {
  machine.gpus[kFirst] = machine.gpus[kSecond] = {};
  for (const int beyond : {Nvml::kInvalidArgument, Nvml::kNotSupported}) {
    machine.beyond_result = beyond;
    EXPECT_EQ(describe(read(), kFirst), "none");
    EXPECT_EQ(links_between(read(), kFirst, kSecond), 0);
  }
  machine.gpus[kFirst].assign(2, {.active = false});
  EXPECT_EQ(describe(read(), kFirst), "0 of 2 links active");
}

TEST_F(NvLinkTest, ReasonsWhyLinksAreNotKnown) {
  machine.gpus[kFirst].assign(2, {.kind = 2});
  EXPECT_EQ(describe(read(), kSecond),
            "not known: nvmlDeviceGetHandleByPciBusId failed: NVML error 6");
  machine.state_result = 15;
  EXPECT_EQ(describe(read(), kFirst), "not known: nvmlDeviceGetNvLinkState failed: NVML error 15");
  EXPECT_EQ(links_between(read(), kFirst, kSecond), 0);
  machine.init_result = 9;
  EXPECT_EQ(describe(read(), kFirst), "not known: nvmlInit failed: Driver Not Loaded");
  EXPECT_EQ(describe(NvLinks{}, kFirst), "not known");
  EXPECT_TRUE(read_nvlinks(std::span<const std::string>{}).unavailable.empty());
}

}  // namespace
}  // namespace shoal::topology
