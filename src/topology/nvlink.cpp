// SPDX-License-Identifier: Apache-2.0
// NVML is opened at run time. Its functions are declared here, because its header comes with the
// CUDA toolkit, which a build may lack.
#include "topology/nvlink.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "shoal/error.hpp"
#include "topology/machine.hpp"

namespace shoal::topology {
namespace {

/// More than any GPU has. NVML refuses numbers beyond those of a GPU.
constexpr unsigned kMostLinks = 64;

/// nvmlIntNvLinkDeviceType_t.
NvLink::Peer peer_of(unsigned kind) {
  constexpr NvLink::Peer kinds[] = {NvLink::Peer::gpu, NvLink::Peer::cpu, NvLink::Peer::nvswitch};
  return kind < std::size(kinds) ? kinds[kind] : NvLink::Peer::unknown;
}

std::string normal_or_empty(std::string_view pci) {
  try {
    return normal_pci_address(pci);
  } catch (const Error&) {
    return "";
  }
}

std::string error_of(const Nvml& nvml, const char* function, int result) {
  const char* const text = nvml.error_text(result);
  return fmt::format("{} failed: {}", function,
                     text != nullptr ? text : fmt::format("NVML error {}", result).c_str());
}

NvLink active_link(const Nvml& nvml, Nvml::Device device, unsigned number) {
  NvLink link;
  link.active = true;
  unsigned value = 0;
  if (nvml.link_version != nullptr && nvml.link_version(device, number, &value) == 0)
    link.version = static_cast<std::int32_t>(value);
  if (nvml.link_peer != nullptr && nvml.link_peer(device, number, &value) == 0)
    link.peer = peer_of(value);
  Nvml::PciInfo info{};
  if (nvml.link_pci != nullptr && nvml.link_pci(device, number, &info) == 0) {
    info.address[sizeof info.address - 1] = '\0';
    link.pci = normal_or_empty(info.address);
  }
  return link;
}

NvLinkGpu read_gpu(const Nvml& nvml, const std::string& pci) {
  NvLinkGpu gpu{.pci = normal_or_empty(pci), .links = {}};
  Nvml::Device device{};
  if (const int result = nvml.device_at(pci.c_str(), &device); result != 0) {
    gpu.unavailable = error_of(nvml, "nvmlDeviceGetHandleByPciBusId", result);
    return gpu;
  }
  for (unsigned number = 0; number < kMostLinks; ++number) {
    unsigned active = 0;
    const int result = nvml.link_state(device, number, &active);
    if (result == Nvml::kNotSupported) continue;  // a GPU without this link, or without any
    if (result == Nvml::kInvalidArgument) break;
    if (result != 0) {
      gpu.unavailable = error_of(nvml, "nvmlDeviceGetNvLinkState", result);
      gpu.links.clear();
      return gpu;
    }
    gpu.links.push_back(active != 0 ? active_link(nvml, device, number) : NvLink{});
  }
  return gpu;
}

/// An active link to a GPU of the list is one to a GPU, whether or not NVML has said so.
void name_known_peers(NvLinks& links) {
  for (NvLinkGpu& gpu : links.gpus)
    for (NvLink& link : gpu.links)
      if (link.active && link.peer == NvLink::Peer::unknown && links.of(link.pci) != nullptr)
        link.peer = NvLink::Peer::gpu;
}

std::int32_t count(const NvLinkGpu& gpu, NvLink::Peer peer, std::string_view pci = {}) {
  return static_cast<std::int32_t>(
      std::count_if(gpu.links.begin(), gpu.links.end(), [&](const NvLink& link) {
        return link.active && link.peer == peer && (pci.empty() || link.pci == pci);
      }));
}

struct Loaded {
  Nvml table;
  std::string why;  // empty if the library is usable
};

Loaded load() {
  Loaded loaded;
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    loaded.why =
        fmt::format("NVML cannot be loaded ({})", reason != nullptr ? reason : "libnvidia-ml.so.1");
    return loaded;
  }
  const auto resolve = [&](const char* name, auto& function, bool needed = true) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && needed && loaded.why.empty())
      loaded.why = fmt::format("libnvidia-ml.so.1 has no {}", name);
  };
  Nvml& table = loaded.table;
  resolve("nvmlInit_v2", table.init);
  resolve("nvmlShutdown", table.shutdown);
  resolve("nvmlErrorString", table.error_text);
  resolve("nvmlDeviceGetHandleByPciBusId_v2", table.device_at);
  resolve("nvmlDeviceGetNvLinkState", table.link_state);
  resolve("nvmlDeviceGetNvLinkVersion", table.link_version, false);
  resolve("nvmlDeviceGetNvLinkRemotePciInfo_v2", table.link_pci, false);
  resolve("nvmlDeviceGetNvLinkRemoteDeviceType", table.link_peer, false);
  return loaded;
}

}  // namespace

const NvLinkGpu* NvLinks::of(std::string_view pci) const {
  const std::string address = normal_or_empty(pci);
  if (address.empty()) return nullptr;
  const auto found = std::find_if(gpus.begin(), gpus.end(),
                                  [&](const NvLinkGpu& gpu) { return gpu.pci == address; });
  return found == gpus.end() ? nullptr : &*found;
}

std::int32_t links_between(const NvLinks& links, std::string_view a, std::string_view b) {
  const NvLinkGpu *const from = links.of(a), *const to = links.of(b);
  if (from == nullptr || to == nullptr || from == to) return 0;
  const std::int32_t direct =
      std::max(count(*from, NvLink::Peer::gpu, to->pci), count(*to, NvLink::Peer::gpu, from->pci));
  return direct +
         std::min(count(*from, NvLink::Peer::nvswitch), count(*to, NvLink::Peer::nvswitch));
}

std::string describe(const NvLinks& links, std::string_view pci) {
  if (!links.unavailable.empty()) return "not known: " + links.unavailable;
  const NvLinkGpu* const gpu = links.of(pci);
  if (gpu == nullptr) return "not known";
  if (!gpu->unavailable.empty()) return "not known: " + gpu->unavailable;
  if (gpu->links.empty()) return "none";
  std::map<std::string, int> ends;  // by what the links lead to
  std::int32_t active = 0, version = 0;
  for (const NvLink& link : gpu->links) {
    if (!link.active) continue;
    ++active;
    version = std::max(version, link.version);
    const NvLinkGpu* const peer = links.of(link.pci);
    if (link.peer == NvLink::Peer::nvswitch)
      ++ends["switches"];
    else if (link.peer == NvLink::Peer::cpu)
      ++ends["a processor"];
    else if (link.peer == NvLink::Peer::gpu && peer != nullptr)
      ++ends[fmt::format("GPU {}", peer - links.gpus.data())];
    else if (link.peer == NvLink::Peer::gpu)
      ++ends["GPUs that this process does not see"];
    else
      ++ends["unknown devices"];
  }
  std::vector<std::string> parts;
  for (const auto& [end, number] : ends) parts.push_back(fmt::format("{} to {}", number, end));
  std::string text = fmt::format("{} of {} links active", active, gpu->links.size());
  if (!parts.empty()) text += fmt::format(": {}", fmt::join(parts, ", "));
  if (version > 0) text += fmt::format("; NVLink version {}", version);
  return text;
}

NvLinks read_nvlinks(const Nvml& nvml, std::span<const std::string> gpus) {
  NvLinks links;
  if (const int result = nvml.init(); result != 0) {
    links.unavailable = error_of(nvml, "nvmlInit", result);
    return links;
  }
  for (const std::string& pci : gpus) links.gpus.push_back(read_gpu(nvml, pci));
  nvml.shutdown();
  name_known_peers(links);
  return links;
}

NvLinks read_nvlinks(std::span<const std::string> gpus) {
  if (gpus.empty()) return {};
  static const Loaded loaded = load();
  if (!loaded.why.empty()) return {.gpus = {}, .unavailable = loaded.why};
  return read_nvlinks(loaded.table, gpus);
}

}  // namespace shoal::topology
