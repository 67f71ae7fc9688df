// SPDX-License-Identifier: Apache-2.0
// shoal-info --doctor: every check on a healthy host, and after one change at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "info/doctor.hpp"
#include "shoal/ep/options.hpp"
#include "support/built.hpp"
#include "support/expect_error.hpp"

namespace shoal::info {
namespace {

namespace fs = std::filesystem;

const fs::path kSystems = test::source_file("tests/data/doctor");

/// A copy of a described system, to be modified.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    std::string pattern = (fs::temp_directory_path() / "shoal-doctor-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    fs::copy(kSystems / name, folder_, fs::copy_options::recursive);
  }
  ~Copy() { fs::remove_all(folder_); }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  void write(const std::string& path, const std::string& content) const {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path, std::ios::binary) << content;
  }
  void remove(const std::string& path) const {
    ASSERT_GT(fs::remove_all(folder_ / path), 0u) << path;
  }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

/// The program's subject, but with both networks present, independent of this build.
Subject subject_of(const fs::path& folder, std::int32_t pes = 0) {
  Subject subject = collect_subject(folder.string(), pes);
  subject.cuda = "13.0.88 for 90a";
  subject.nvshmem.clear();
  subject.networks = {{"ofi", "libshoal_transport_ofi.so", "libfabric 1.17.0", ""},
                      {"ucx", "libshoal_transport_ucx.so", "UCX 1.13.1", ""}};
  return subject;
}

Finding find(const std::vector<Finding>& findings, std::string_view name) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& f) { return f.name == name; });
  if (found != findings.end()) return *found;
  ADD_FAILURE() << "no check is called " << name;
  return {};
}

/// Checks the finding `name` of `subject`: its state, a part of what was found, a part of the
/// remedy.
void expect(const Subject& subject, std::string_view name, State state, std::string_view found,
            std::string_view remedy) {
  const Finding finding = find(examine(subject), name);
  EXPECT_EQ(finding.state, state) << name << ": " << finding.found;
  EXPECT_NE(finding.found.find(found), std::string::npos) << name << ": " << finding.found;
  EXPECT_NE(finding.remedy.find(remedy), std::string::npos) << name << ": " << finding.remedy;
}

using Change = std::function<void(const Copy&)>;
Change written(std::string path, std::string content) {
  return [=](const Copy& copy) { copy.write(path, content); };
}
Change removed(std::string path) {
  return [=](const Copy& copy) { copy.remove(path); };
}

/// The same after one change to the healthy DGX.
void expect_after(const Change& change, std::string_view name, State state, std::string_view found,
                  std::string_view remedy) {
  const Copy copy("dgx");
  change(copy);
  expect(subject_of(copy.folder()), name, state, found, remedy);
}

TEST(Doctor, StatesHaveColoursOnRequest) {
  const std::vector<Finding> findings = {fault("a", "b", "c")};
  EXPECT_EQ(to_text(findings).find('\x1b'), std::string::npos);
  test::expect_parts(to_text(findings, true), {"\x1b[1;31mfault           \x1b[0mb"});
}

TEST(Doctor, FindsNothingOnAHealthyHost) {
  for (const Finding& finding : examine(subject_of(kSystems / "dgx")))
    EXPECT_TRUE(finding.state == State::ok || finding.name == "MPS" || finding.name == "NVLink" ||
                finding.name == "CUDA version" || finding.name == "NCCL version" ||
                finding.name == "NVSHMEM version")
        << finding.name << ": " << finding.found;
}

TEST(Doctor, FindsNothingOnALaptop) {
  const auto findings = examine(subject_of(kSystems / "laptop"));
  for (const Finding& finding : findings)
    EXPECT_TRUE(finding.state == State::ok || finding.state == State::not_applicable)
        << finding.name << ": " << finding.found;
  for (const auto* const name :
       {"GPU driver", "PeerMappingOverride", "EnableStreamMemOPs", "GPUDirect RDMA", "GDRCopy",
        "NVSwitch", "RDMA ports", "RDMA access", "RoCE", "PCIe ACS", "IOMMU", "locked memory"})
    EXPECT_EQ(find(findings, name).state, State::not_applicable) << name;
}

TEST(Doctor, EveryFaultHasARemedyAndNothingElseHasOne) {
  for (const auto* const system : {"dgx", "faulty", "laptop"})
    for (const Finding& finding : examine(subject_of(kSystems / system))) {
      const bool ill = finding.state == State::warning || finding.state == State::fault;
      EXPECT_EQ(ill, !finding.remedy.empty()) << finding.name;
      EXPECT_NE(finding.found, "") << finding.name;
    }
}

TEST(Doctor, FindsAllFaultsOfTheFaultySystem) {
  const auto findings = examine(subject_of(kSystems / "faulty"));
  EXPECT_TRUE(has_fault(findings));
  for (const auto* const name : {"driver version", "GPUDirect RDMA", "RDMA access", "locked memory",
                                 "open files", "host identity"})
    EXPECT_EQ(find(findings, name).state, State::fault) << name;
  for (const auto* const name :
       {"PeerMappingOverride", "EnableStreamMemOPs", "driver options", "GDRCopy", "NVSwitch",
        "NIC firmware", "RDMA ports", "RoCE", "PCIe ACS", "IOMMU", "memory for heaps", "huge pages",
        "/dev/shm", "processors", "kernel"})
    EXPECT_EQ(find(findings, name).state, State::warning) << name;
}

TEST(DoctorOfDrivers, Driver) {
  expect_after(removed("proc/driver/nvidia/version"), "GPU driver", State::fault,
               "8 NVIDIA GPUs on the PCI bus", "--gpus all");
  Subject blind = subject_of(kSystems / "dgx");
  blind.described = false;
  blind.gpus.unavailable = "cuInit: CUDA_ERROR_NO_DEVICE";
  expect(blind, "GPU driver", State::fault, "CUDA sees no GPU: cuInit", "SHOAL_HEAP=host");
}

TEST(DoctorOfDrivers, LiveParameters) {
  const std::string params = "proc/driver/nvidia/params";
  expect_after(written(params, "EnableStreamMemOPs: 1\nRegistryDwords: \"\"\n"),
               "PeerMappingOverride", State::warning, "RegistryDwords is \"\"",
               "PeerMappingOverride=1;");
  expect_after(
      written(params, "EnableStreamMemOPs: 1\nRegistryDwords: \"PeerMappingOverride=0\"\n"),
      "PeerMappingOverride", State::warning, "PeerMappingOverride=0", "modprobe.d");
  expect_after(
      written(params, "EnableStreamMemOPs: 0\nRegistryDwords: \"PeerMappingOverride=1;\"\n"),
      "EnableStreamMemOPs", State::warning, "live: 0", "NVreg_EnableStreamMemOPs=1");
  // If the driver has 64-bit operations, the parameter is not relevant.
  Subject subject = subject_of(kSystems / "faulty");
  subject.gpus.gpus.resize(1);
  subject.gpus.gpus[0].stream_memory_ops = true;
  expect(subject, "EnableStreamMemOPs", State::ok, "every GPU", "");
}

TEST(DoctorOfDrivers, OptionsThatAreNotLiveYet) {
  expect_after(written("proc/driver/nvidia/params",
                       "EnableStreamMemOPs: 0\nRegistryDwords: \"PeerMappingOverride=1;\"\n"),
               "driver options", State::warning,
               "EnableStreamMemOPs is 1 in /etc/modprobe.d/nvidia.conf, but live 0", "reboot");
  expect_after(removed("etc/modprobe.d/nvidia.conf"), "driver options", State::ok,
               "none in modprobe.d", "");
  // Comments, other modules and parameters that the driver does not show are ignored.
  expect_after(
      written(
          "etc/modprobe.d/nvidia.conf",
          "#options nvidia NVreg_EnableMSI=0\noptions nvidia_drm modeset=1\noptions nvidia NVreg_Hidden=1\n"),
      "driver options", State::ok, "", "");
}

TEST(DoctorOfDrivers, GpuDirectRdma) {
  const auto without = written("proc/modules", "gdrdrv 1 0 - Live 0x0\n");
  expect_after(without, "GPUDirect RDMA", State::ok, "dma-buf: open kernel modules on Linux 6.8",
               "");
  expect_after(
      [&](const Copy& c) {
        without(c);
        c.write("proc/sys/kernel/osrelease", "5.4.0\n");
      },
      "GPUDirect RDMA", State::fault, "Linux 5.4", "modprobe nvidia_peermem");
  expect_after(
      [&](const Copy& c) {
        without(c);
        c.write("proc/driver/nvidia/version", "NVIDIA UNIX x86_64 Kernel Module\n");
      },
      "GPUDirect RDMA", State::fault, "proprietary", "open kernel modules");
  const auto without_nics = [](const Copy& c) {
    c.write("proc/modules", "");
    c.write("proc/driver/nvidia/version", "NVIDIA UNIX x86_64 Kernel Module\n");
    c.remove("sys/class/infiniband");
  };
  expect_after(without_nics, "GPUDirect RDMA", State::not_applicable, "lacks one of them", "");
  expect_after(without_nics, "GDRCopy", State::not_applicable, "between GPUs and NICs", "");
  expect_after(written("proc/modules", "nvidia_peermem 1 0 - Live 0x0\n"), "GDRCopy",
               State::warning, "gdrdrv is not loaded", "modprobe gdrdrv");
  expect_after(removed("dev/gdrdrv"), "GDRCopy", State::warning, "/dev/gdrdrv is not there",
               "--device /dev/gdrdrv");
}

TEST(DoctorOfDrivers, SwitchesAndSharing) {
  expect_after(removed("proc/4242"), "NVSwitch", State::warning, "4 switches",
               "nvidia-fabricmanager");
  expect(subject_of(kSystems / "dgx", 16), "MPS", State::warning, "16 PEs share 8 GPUs",
         "nvidia-cuda-mps-control -d");
  const Copy copy("dgx");
  copy.write("tmp/nvidia-mps/control", "");
  expect(subject_of(copy.folder(), 16), "MPS", State::ok, "16 PEs share 8 GPUs", "");
}

TEST(DoctorOfDrivers, NvLinkState) {
  Subject subject = subject_of(kSystems / "dgx");
  expect(subject, "NVLink", State::not_applicable, "only a driver", "");
  subject.described = false;
  const topology::NvLink up{.active = true}, down{};
  subject.nvlinks.gpus = {{"0000:13:00.0", {up, up}}, {"0000:23:00.0", {up, up}}};
  expect(subject, "NVLink", State::ok, "all 4 links of 2 GPUs are active", "");
  subject.nvlinks.gpus[1].links[0] = down;
  expect(subject, "NVLink", State::warning, "some links are down: GPU 1: 1 of 2 active",
         "nvidia-smi nvlink --status");
  subject.nvlinks.gpus[1].links = {up};
  expect(subject, "NVLink", State::warning, "GPU 1: 1 of 1 active", "nvidia-smi");
  subject.nvlinks.gpus[1] = {"0000:23:00.0", {}, "not permitted"};
  expect(subject, "NVLink", State::not_applicable, "GPU 1: not permitted", "");
  subject.nvlinks.gpus = {{"0000:13:00.0", {}}, {"0000:23:00.0", {}}};
  expect(subject, "NVLink", State::not_applicable, "PCIe", "");
  subject.nvlinks.unavailable = "no libnvidia-ml.so.1";
  expect(subject, "NVLink", State::not_applicable, "no libnvidia-ml.so.1", "");
}

TEST(DoctorOfVersions, Driver) {
  Subject subject = subject_of(kSystems / "dgx");
  expect(subject, "driver version", State::ok, "580.95.05; CUDA 13.0.88 for 90a of this build", "");
  const Copy copy("dgx");
  const auto with_driver = [&](const std::string& version) {
    copy.write("proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX Open Kernel Module for "
               "x86_64  " +
                   version + "  Release Build\n");
    return subject_of(copy.folder());
  };
  expect(with_driver("580.65.06"), "driver version", State::ok, "580.65.06", "");
  expect(with_driver("580.65.05"), "driver version", State::fault, "580.65.05", "580.65.06");
  subject = with_driver("570.124.06");
  expect(subject, "driver version", State::fault, "570.124.06", "580.65.06 or later");
  subject.cuda = "12.8.61 for 90a";
  expect(subject, "driver version", State::ok, "needs 525.60.13", "");
  subject.cuda = "none";
  expect(subject, "driver version", State::ok, "no CUDA", "");
}

TEST(DoctorOfVersions, Cuda) {
  Subject subject = subject_of(kSystems / "dgx");
  subject.gpus.driver_version = 13'000;
  expect(subject, "CUDA version", State::ok, "the driver has CUDA 13.0", "");
  subject.gpus.driver_version = 12'090;
  expect(subject, "CUDA version", State::fault, "CUDA 12.9", "CUDA 13 or later");
}

TEST(DoctorOfVersions, Nccl) {
  Subject subject = subject_of(kSystems / "dgx");
  subject.settings.collective_nccl = "all";
  subject.nccl = {"2.18.5", ""};
  expect(subject, "NCCL version", State::warning, "NCCL 2.18.5", "SHOAL_COLLECTIVE_NCCL=off");
  subject.nccl = {"2.19.3", ""};
  expect(subject, "NCCL version", State::ok, "NCCL 2.19.3", "");
  subject.nccl = {"", "libnccl.so.2: cannot open"};
  expect(subject, "NCCL version", State::warning, "cannot open", "SHOAL_NCCL_LIBRARY");
  subject.settings.collective_nccl = "off";
  expect(subject, "NCCL version", State::not_applicable, "not needed", "");
}

TEST(DoctorOfVersions, Firmware) {
  const auto with = [](const std::string& version) {
    return written("sys/class/infiniband/mlx5_3/fw_ver", version + "\n");
  };
  expect_after(with("28.35.2000"), "NIC firmware", State::ok, "all 9 NICs", "");
  expect_after(with("28.33.2028"), "NIC firmware", State::warning,
               "1 of 9 NICs are older than 28.35.2000: mlx5_3 (ConnectX-7) has 28.33.2028",
               "mlxfwmanager");
  expect_after(with("99.1.1"), "NIC firmware", State::ok, "all 8 NICs", "");
}

TEST(DoctorOfVersions, NvshmemOfPrograms) {
  const Copy copy("laptop");
  const auto header = [](int patch) {
    return "#define NVSHMEM_VENDOR_MAJOR_VERSION 3\n#define NVSHMEM_VENDOR_MINOR_VERSION 3\n"
           "#define NVSHMEM_VENDOR_PATCH_VERSION " +
           std::to_string(patch) + "\n";
  };
  Subject subject = subject_of(copy.folder());
  expect(subject, "NVSHMEM version", State::not_applicable, "Shoal needs none", "");
  copy.write("opt/nvshmem/include/non_abi/nvshmem_version.h", header(8));
  copy.write("venv/nvidia_nvshmem_cu12-3.3.20.dist-info/METADATA", "");
  subject.nvshmem = find_nvshmem(subject.system, {"/opt/nvshmem", "/venv", "/nowhere"});
  expect(subject, "NVSHMEM version", State::warning, "3.3.8 in /opt/nvshmem", "3.3.9");
  copy.write("opt/nvshmem/include/non_abi/nvshmem_version.h", header(9));
  subject.nvshmem = find_nvshmem(subject.system, {"/opt/nvshmem", "/venv"});
  expect(subject, "NVSHMEM version", State::ok, "3.3.9 in /opt/nvshmem; 3.3.20 in /venv", "");
}

TEST(DoctorOfGroups, QueueDepth) {
  Subject subject = subject_of(kSystems / "dgx");
  expect(subject, "group queue depth", State::ok,
         "assumed group (--ep names another) of 128 tokens, 7168 channels, top 8 of 256 experts, "
         "16 ranks on 2 nodes",
         "");
  subject.group = ep_shape_from("4096,7168,8,256,8");
  expect(subject, "group queue depth", State::not_applicable, "no rank is on another node", "");
  subject.group = ep_shape_from("1024,7168,8,256,16");
  subject.settings.network_depth = 16;
  expect(subject, "group queue depth", State::warning, "SHOAL_NETWORK_DEPTH=16 allows fewer",
         "the settings");
  subject.settings.network_depth = 256;
  subject.settings.verbs_depth = 16;
  expect(subject, "group queue depth", State::warning, "send queues have 16", "the settings");
}

TEST(DoctorOfGroups, HeapAndMemory) {
  Subject subject = subject_of(kSystems / "dgx");
  subject.group = ep_shape_from("128,7168,8,256,16");
  const ep::SizeHint hint = ep::size_hint({.max_tokens = 128,
                                           .hidden = 7168,
                                           .top_k = 8,
                                           .experts = 256,
                                           .low_latency_max_tokens = 128},
                                          16, DeviceKind::host, 2);
  subject.settings.symmetric_size = hint.total();
  expect(subject, "group heap", State::ok, "group of 128 tokens", "");
  --subject.settings.symmetric_size;
  expect(subject, "group heap", State::warning, "both together do not", "SHOAL_SYMMETRIC_SIZE=");
  subject.settings.symmetric_size = hint.control + std::max(hint.normal, hint.low_latency) - 1;
  expect(subject, "group heap", State::fault, "low-latency mode", "SHOAL_SYMMETRIC_SIZE=");

  // A group that the user has not named is an assumption: a warning, no fault.
  subject.group.given = false;
  expect(subject, "group heap", State::warning, "assumed group", "SHOAL_SYMMETRIC_SIZE=");
  subject.group.given = true;

  expect(subject, "group memory", State::ok, "host memory", "");
  const Copy copy("dgx");
  copy.write("sys/fs/cgroup/system.slice/job/memory.max",
             std::to_string(8 * hint.total() - 1) + "\n");
  Subject small = subject_of(copy.folder());
  small.group = subject.group;
  expect(small, "group memory", State::fault, "host memory", "fewer tokens");
  small.settings.heap = "cuda";
  expect(small, "group memory", State::not_applicable, "not known", "");
  small.gpus.gpus.resize(8);
  for (auto& gpu : small.gpus.gpus) gpu.memory = std::uint64_t{1} << 20;
  expect(small, "group memory", State::fault, "the memory of a GPU", "fewer tokens");
  for (auto& gpu : small.gpus.gpus) gpu.memory = std::uint64_t{80} << 30;
  expect(small, "group memory", State::ok, "the memory of a GPU", "");
}

TEST(DoctorOfGroups, ShapesAreChecked) {
  for (const char* bad : {"", "1,2,3,4", "1,2,3,4,5,6", "128,7168,8,256,x", "0,7168,8,256,8"})
    test::expect_error(Code::invalid_argument, "TOKENS,HIDDEN,TOPK,EXPERTS,RANKS",
                       [&] { ep_shape_from(bad); });
  test::expect_error(Code::invalid_argument, "", [] { ep_shape_from("128,7168,129,256,8"); });
  EXPECT_EQ(ep_shape_from("128,7168,8,256,7").ranks, 7);
  EXPECT_EQ(assumed_ep_shape(3).experts % 6, 0);
}

TEST(DoctorOfNetworks, Modules) {
  Subject subject = subject_of(kSystems / "dgx");
  subject.networks[0].missing = "libshoal_transport_ofi.so is not there";
  expect(subject, "network modules", State::ok, "ucx (UCX 1.13.1)", "");
  subject.networks[1].missing = "libshoal_transport_ucx.so is not there";
  expect(subject, "network modules", State::warning, "libshoal_transport_ofi.so is not there",
         "SHOAL_PLUGIN_DIR");
}

TEST(DoctorOfNetworks, Ports) {
  const auto down = [](const Copy& c, int nic) {
    c.write("sys/class/infiniband/mlx5_" + std::to_string(nic) + "/ports/1/state", "2: INIT\n");
  };
  expect_after([&](const Copy& c) { down(c, 3); }, "RDMA ports", State::warning,
               "1 of 9 are not active: mlx5_3:1 (2: INIT)", "opensm");
  expect_after(
      [&](const Copy& c) {
        for (int i = 0; i < 9; ++i) down(c, i);
      },
      "RDMA ports", State::fault, "9 of 9", "ibstat");
  expect_after(removed("dev/infiniband"), "RDMA access", State::fault, "uverbs",
               "--device=/dev/infiniband");
  expect_after(removed("sys/class/infiniband/mlx5_8/ports/1/gid_attrs/types/1"), "RoCE",
               State::warning, "no RoCE v2 address: mlx5_8:1", "SHOAL_NIC_LIST=^mlx5_8:1");
}

TEST(DoctorOfNetworks, PathsBetweenGpusAndNics) {
  Subject subject = subject_of(kSystems / "dgx");
  subject.remarks = {"GPU 0 (0000:13:00.0) is SYS away from its NIC mlx5_3:1"};
  expect(subject, "NIC distances", State::warning, "SYS away", "SHOAL_NIC_LIST");
  subject.machine_error = "SHOAL_NIC_LIST is \"mlx5_O\": no NIC is called \"mlx5_O\"";
  expect(subject, "NIC distances", State::fault, "mlx5_O", "docs/internals/topology.md");
  subject = subject_of(kSystems / "dgx");
  subject.machine.gpus.resize(3);
  expect(subject, "hwloc", State::warning, "it sees 3 of 8 GPUs", "/sys");

  expect_after(written("proc/cmdline", "root=/dev/sda1 intel_iommu=on\n"), "IOMMU", State::warning,
               "translates", "iommu=pt");
  expect_after(
      [](const Copy& c) {
        c.write("proc/cmdline", "root=/dev/sda1\n");
        c.write("sys/bus/pci/devices/0000:13:00.0/iommu_group/type", "identity\n");
      },
      "IOMMU", State::ok, "identity", "");
  expect_after(removed("sys/class/iommu"), "IOMMU", State::ok, "off", "");
}

TEST(DoctorOfNetworks, AccessControlServices) {
  const std::string bridge = "sys/bus/pci/devices/0000:11:00.0/config";
  /// A configuration space whose extended capabilities begin with ACS and this control register.
  const auto config = [](char control) {
    return std::string(256, '\0') + std::string{0x0d, 0, 1, 0, 0x5f, 0, control, 0};
  };
  expect_after(written(bridge, config(0x04)), "PCIe ACS", State::warning,
               "1 bridge above GPUs or NICs", "setpci -s 0000:11:00.0");
  expect_after(written(bridge, config(0x01)), "PCIe ACS", State::ok, "no bridge", "");
  // A cyclic list of capabilities ends, and so does one that leaves the file.
  expect_after(written(bridge, std::string(256, '\0') + std::string{0x03, 0, 1, 0x10, 0, 0, 0, 0}),
               "PCIe ACS", State::ok, "", "");
  // Only root reads more than the first 64 bytes.
  expect_after(
      [&](const Copy& c) {
        for (const auto* const address : {"0000:10:01.0", "0000:11:00.0", "0000:12:00.0"})
          c.write(std::string("sys/bus/pci/devices/") + address + "/config", std::string(64, '\0'));
      },
      "PCIe ACS", State::not_applicable, "as root", "");
}

TEST(DoctorOfNetworks, QueueDepth) {
  Subject subject = subject_of(kSystems / "dgx");
  subject.settings.network_depth = 16;
  expect(subject, "queue depth", State::warning, "400 Gb/s take 70", "SHOAL_NETWORK_DEPTH=128");
  subject.settings.network_depth = 70;
  expect(subject, "queue depth", State::ok, "70 requests", "");
  subject.settings.verbs_depth = 199;  // 70 transfers, 64 messages with atomics, 2 more
  expect(subject, "queue depth", State::warning, "fill 200", "SHOAL_VERBS_DEPTH=256");
  subject.settings.verbs_depth = 200;
  expect(subject, "queue depth", State::ok, "70 requests", "");

  subject.machine.nics.clear();
  expect(subject, "queue depth", State::ok, "70 requests may be in flight to each PE; there is no",
         "");
  subject.settings.verbs_depth = 199;
  expect(subject, "queue depth", State::warning, "fill 200", "SHOAL_VERBS_DEPTH=256");
}

TEST(DoctorOfHosts, Limits) {
  const auto limits = [](const std::string& locked, const std::string& files) {
    return written("proc/self/limits", "Limit  Soft  Hard  Units\nMax locked memory         " +
                                           locked + "   unlimited   bytes\n" +
                                           "Max open files            " + files +
                                           "   4096  files\n");
  };
  expect_after(limits("65536", "1024"), "locked memory", State::fault, "64 KiB",
               "ulimit -l unlimited");
  expect_after(limits("8589934592", "1024"), "locked memory", State::ok, "8 GiB", "");
  expect_after(limits("unlimited", "256"), "open files", State::fault, "256; 8 PEs here",
               "ulimit -n 560");
  expect_after(limits("unlimited", "1024"), "open files", State::ok, "1024", "");
}

TEST(DoctorOfHosts, Memory) {
  const std::string limit = "sys/fs/cgroup/system.slice/job/memory.max";
  expect_after(written(limit, "34359738368\n"), "memory for heaps", State::warning,
               "64 GiB of 32 GiB (limit of the control group)", "SHOAL_SYMMETRIC_SIZE=2048M");
  // The limit of an outer group counts too.
  expect_after(written("sys/fs/cgroup/system.slice/memory.max", "34359738368\n"),
               "memory for heaps", State::warning, "of 32 GiB", "docker --memory");
  expect_after(
      [&](const Copy& c) {
        c.write("proc/self/cgroup", "9:memory:/job\n3:cpu:/\n");
        c.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "34359738368\n");
      },
      "memory for heaps", State::warning, "of 32 GiB", "");
  expect_after(
      written("proc/meminfo", "MemTotal: 1048576 kB\nHugePages_Free: 256\nHugepagesize: 2048 kB\n"),
      "huge pages", State::warning, "512 MiB reserved", "vm.nr_hugepages=0");
  Subject subject = subject_of(kSystems / "faulty");
  subject.settings.heap = "cuda";
  expect(subject, "memory for heaps", State::not_applicable, "GPU memory", "");
  expect(subject, "locked memory", State::fault, "64 KiB; RDMA devices lock about 64 MiB",
         "memlock");
}

TEST(DoctorOfHosts, SharedMemory) {
  expect_after(written("proc/mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0\n"), "/dev/shm",
               State::warning, "64 MiB", "--shm-size");
  expect_after(written("proc/mounts", "shm /dev/shm tmpfs rw,size=8g,mode=1777 0 0\n"), "/dev/shm",
               State::ok, "8 GiB", "");
  expect_after(written("proc/mounts", "proc /proc proc rw 0 0\n"), "/dev/shm", State::warning,
               "not mounted", "mount -t tmpfs");
}

TEST(DoctorOfHosts, ProcessorsAndKernel) {
  expect_after(written("proc/self/status", "Cpus_allowed_list:\t0-2,8\n"), "processors",
               State::warning, "8 PEs may use 4 processors (0-2,8)", "--bind-to none");
  expect_after(written("proc/self/status", "Cpus_allowed_list:\t0-3,8-11\n"), "processors",
               State::ok, "8 processors", "");
  expect_after(written("proc/sys/kernel/osrelease", "4.18.0-553.el8\n"), "kernel", State::warning,
               "Linux 4.18", "5.3");
}

TEST(DoctorOfHosts, IdentityAndTime) {
  expect_after(removed("etc/machine-id"), "host identity", State::ok, "boot id alone", "");
  expect_after(removed("proc/sys/kernel/random/boot_id"), "host identity", State::warning,
               "machine id alone", "SHOAL_HOST_ID");
  Subject subject = subject_of(kSystems / "faulty");
  expect(subject, "host identity", State::fault, "neither", "SHOAL_HOST_ID");
  subject.settings.host_id = "a";
  expect(subject, "host identity", State::ok, "SHOAL_HOST_ID=a", "");
  subject.settings.timeout = std::chrono::milliseconds(200);
  expect(subject, "time limits", State::warning, "operations 200 ms", "SHOAL_TIMEOUT_MS=30000");
  subject.settings.timeout = std::chrono::seconds(30);
  subject.settings.bootstrap_timeout = std::chrono::milliseconds(100);
  expect(subject, "time limits", State::warning, "100 ms", "SHOAL_BOOTSTRAP_TIMEOUT_MS=60000");
}

TEST(Doctor, ListsVariablesAsUsedIgnoredOrNotUnderstood) {
  Subject subject = subject_of(kSystems / "laptop");
  subject.variables.clear();
  EXPECT_EQ(find(examine(subject), "environment").state, State::ok);
  subject.variables = inspect_environment(
      {{"NVSHMEM_DEBUG", "INFO"}, {"NVSHMEM_SRQ_DEPTH", "9"}, {"SHOAL_TIMOUT_MS", "1"}});
  const Finding finding = find(examine(subject), "environment");
  EXPECT_EQ(finding.state, State::warning);
  EXPECT_EQ(finding.found,
            "NVSHMEM_DEBUG is used as SHOAL_LOG; NVSHMEM_SRQ_DEPTH is ignored: Shoal has no "
            "equivalent; SHOAL_TIMOUT_MS is not understood: Shoal has no such setting; did you "
            "mean SHOAL_TIMEOUT_MS?");
}

}  // namespace
}  // namespace shoal::info
