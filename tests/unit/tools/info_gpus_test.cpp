// SPDX-License-Identifier: Apache-2.0
// The GPU section of shoal-info on a driver without a GPU: peer access, capabilities, several PEs
// on one GPU.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <nlohmann/json.hpp>

#include "info/gpus.hpp"
#include "support/cuda/fake_cuda.hpp"

namespace shoal::info {
namespace {

using test::FakeCuda;

/// The section for the fake driver, with a folder of an MPS daemon.
Gpus gpus_of(const test::FakeCudaOptions& options, const std::string& mps = "") {
  const FakeCuda fake(options);
  return {memory::describe_gpus(), mps};
}

void expect_text(const Gpus& gpus, const std::string& text) {
  EXPECT_NE(to_text(gpus).find(text), std::string::npos) << "expected \"" << text << "\" in\n"
                                                         << to_text(gpus);
}

TEST(InfoGpus, NamesThePairsWithoutPeerAccess) {
  // GPU 1 reaches GPU 2, but not the reverse; GPU 0 reaches both.
  const auto reaches = [](int from, int to) { return from == 0 || to == 0 || from < to; };
  const Gpus gpus = gpus_of({.gpus = 3, .peer_access = reaches});
  expect_text(gpus,
              "  peer access, from the GPU of the row:\n"
              "  GPU 0: self, yes, yes\n"
              "  GPU 1: yes, self, yes\n"
              "  GPU 2: yes, no, self\n");
  const nlohmann::json json = to_json(gpus);
  EXPECT_EQ(json["gpus"][1]["peers"], (nlohmann::json{"yes", "self", "yes"}));
  EXPECT_EQ(json["gpus"][2]["peers"], (nlohmann::json{"yes", "no", "self"}));
}

TEST(InfoGpus, ShowsAccessWithoutAtomics) {
  const Gpus gpus = gpus_of({.gpus = 2, .native_atomics = false});
  expect_text(gpus, "GPU 0: self, yes, no atomics\n");
  EXPECT_EQ(to_json(gpus)["gpus"][1]["peers"][0], "yes, no atomics");
}

TEST(InfoGpus, SaysWhatEachCanDo) {
  const Gpus plain = gpus_of({.gpus = 1, .fabric = false});
  expect_text(
      plain,
      "GPUs: 1, CUDA driver 13.0\n  GPU 0: Fake GPU, 0000:00:00.0, 1.0 GiB, 132 SMs, compute capability 9.0\n");
  expect_text(
      plain,
      "virtual memory: yes; handles: fd yes, fabric no; 64-bit stream memory operations: no; NVLink multicast: no");
  EXPECT_EQ(to_json(plain)["gpus"][0]["nvlink_multicast"], false);
  EXPECT_EQ(to_json(plain)["gpus"][0]["stream_memory_operations"], false);

  const Gpus rich = gpus_of({.gpus = 1, .multicast = true, .stream_memory_ops = true});
  expect_text(rich,
              "fabric yes; 64-bit stream memory operations: yes; NVLink multicast: yes (not used)");
  EXPECT_EQ(to_json(rich)["gpus"][0]["nvlink_multicast"], true);
  EXPECT_EQ(to_json(rich)["gpus"][0]["stream_memory_operations"], true);
}

TEST(InfoGpus, ReportsFabricHandlesOnlyWhereTheyCanBeExported) {
  const Gpus refused =
      gpus_of({.gpus = 1, .failing_function = "mem_export", .failure = CUDA_ERROR_NOT_PERMITTED});
  expect_text(refused, "handles: fd yes, fabric no (");
  EXPECT_EQ(to_json(refused)["gpus"][0]["handle_fabric"], false);
  EXPECT_NE(to_json(refused)["gpus"][0]["fabric_refused"], "");
  const Gpus full =
      gpus_of({.gpus = 1, .failing_function = "mem_create", .failure = CUDA_ERROR_OUT_OF_MEMORY});
  expect_text(full, "fabric no (");
  const Gpus without = gpus_of({.gpus = 1, .fabric = false});
  expect_text(without, "fabric no;");
  EXPECT_EQ(to_json(without)["gpus"][0]["fabric_refused"], "");

  const FakeCuda fake({.gpus = 2});
  EXPECT_TRUE(memory::describe_gpus().gpus[1].has_fabric);
  EXPECT_EQ(FakeCuda::leaks(), "") << "what was exported is released";
}

TEST(InfoGpus, ShowsNvLinks) {
  Gpus gpus = gpus_of({.gpus = 2});
  expect_text(gpus, "         NVLink: not known\n");
  const std::string first = gpus.report.gpus[0].pci, second = gpus.report.gpus[1].pci;
  const topology::NvLink link{.active = true,
                              .peer = topology::NvLink::Peer::nvswitch,
                              .pci = "0000:06:00.0",
                              .version = 4};
  gpus.nvlinks.gpus = {{first, {link, link, {}}, ""}, {second, {}, "no permission"}};
  expect_text(gpus, "         NVLink: 2 of 3 links active: 2 to switches; NVLink version 4\n");
  expect_text(gpus, "         NVLink: not known: no permission\n");
  const nlohmann::json json = to_json(gpus)["gpus"];
  EXPECT_EQ(json[0]["nvlinks"],
            nlohmann::json::parse(
                R"([{"active": true, "peer": "switch", "pci": "0000:06:00.0", "version": 4},
                    {"active": true, "peer": "switch", "pci": "0000:06:00.0", "version": 4},
                    {"active": false, "peer": "", "pci": "", "version": 0}])"));
  EXPECT_EQ(json[0]["nvlinks_unavailable"], "");
  EXPECT_EQ(json[1]["nvlinks_unavailable"], "no permission");
}

TEST(InfoGpus, SaysHowSeveralPesShareAGpu) {
  const Gpus without = gpus_of({.gpus = 1}), with = gpus_of({.gpus = 1}, "/run/mps");
  expect_text(
      without,
      "several PEs per GPU: yes; threads run at the same time, processes by turns (no MPS daemon)");
  expect_text(with, "several PEs per GPU: yes; processes run at the same time by MPS (/run/mps)");
  EXPECT_EQ(to_json(without)["mps"], "");
  EXPECT_EQ(to_json(with)["mps"], "/run/mps");
}

TEST(InfoGpus, SaysWhyThereAreNone) {
  const Gpus gpus = gpus_of({.gpus = 0});
  EXPECT_EQ(to_text(gpus), "GPUs: none: the CUDA driver reports no GPU\n");
  EXPECT_EQ(to_json(gpus)["unavailable"], "the CUDA driver reports no GPU");
  EXPECT_TRUE(to_json(gpus)["gpus"].empty());
}

}  // namespace
}  // namespace shoal::info

#endif
