// SPDX-License-Identifier: Apache-2.0
// nvlink.hpp: the NVLink links of GPUs and where they lead.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::topology {

/// One link of a GPU.
struct NvLink {
  enum class Peer : std::uint8_t { gpu, cpu, nvswitch, unknown };
  bool active = false;
  Peer peer = Peer::unknown;  ///< of an active link
  std::string pci{};          ///< of the peer; empty: not known
  std::int32_t version = 0;   ///< generation of NVLink; 0: not known
};

struct NvLinkGpu {
  std::string pci;  ///< as normal_pci_address (machine.hpp) writes it
  std::vector<NvLink> links;
  std::string unavailable{};  ///< why the links are not known; empty: `links` are all there are
};

struct NvLinks {
  std::vector<NvLinkGpu> gpus;
  std::string unavailable{};  ///< why the links of no GPU are known

  /// The links of the GPU at a PCI address in any form; nullptr if there is none.
  const NvLinkGpu* of(std::string_view pci) const;
};

/// Active links that join two GPUs: those that lead from one to the other, and with NVSwitches as
/// many as both have to switches. 0: none, or not known.
std::int32_t links_between(const NvLinks& links, std::string_view a, std::string_view b);

/// "18 of 18 links active: 18 to switches; NVLink version 4", "none", "not known: <reason>".
std::string describe(const NvLinks& links, std::string_view pci);

/// NVML, NVIDIA's management library, as a table of functions. Nothing links against it.
/// Functions return 0 on success.
struct Nvml {
  using Device = struct NvmlDevice*;
  struct PciInfo {  ///< nvmlPciInfo_t
    char short_address[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
  };
  static constexpr int kInvalidArgument = 2, kNotSupported = 3;

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_text)(int result) = nullptr;
  int (*device_at)(const char* pci, Device* device) = nullptr;
  int (*link_state)(Device device, unsigned link, unsigned* active) = nullptr;
  int (*link_version)(Device device, unsigned link, unsigned* version) = nullptr;
  int (*link_pci)(Device device, unsigned link, PciInfo* peer) = nullptr;
  int (*link_peer)(Device device, unsigned link, unsigned* kind) = nullptr;
};

/// The links of the GPUs at these PCI addresses, by this machine's NVML.
NvLinks read_nvlinks(std::span<const std::string> gpus);
/// The same by any NVML, which it initialises and shuts down.
NvLinks read_nvlinks(const Nvml& nvml, std::span<const std::string> gpus);

}  // namespace shoal::topology
