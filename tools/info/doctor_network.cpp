// SPDX-License-Identifier: Apache-2.0
// Checks of NICs, of the PCI paths between them and the GPUs, and of the network settings.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "info/doctor.hpp"
#include "info/text.hpp"
#include "transport/verbs/requirements.hpp"

namespace shoal::info {
namespace {

constexpr const char* kInfiniband = "/sys/class/infiniband/";

/// One port of an RDMA device, from sysfs.
struct Port {
  std::string label, folder, state, link_layer;
};

std::vector<Port> ports_of(const Subject& subject) {
  std::vector<Port> ports;
  for (const std::string& device : subject.rdma)
    for (const std::string& port : subject.system.list(kInfiniband + device + "/ports")) {
      const std::string folder = kInfiniband + device + "/ports/" + port;
      ports.push_back({fmt::format("{}:{}", device, port), folder,
                       subject.system.line(folder + "/state"),
                       subject.system.line(folder + "/link_layer")});
    }
  return ports;
}

bool active(const Port& port) {
  return port.state.find("ACTIVE") != std::string::npos;
}

Finding modules(const Subject& subject) {
  const std::string name = "network modules";
  std::vector<std::string> there, missing;
  std::string why;  // of the first module that cannot be used
  for (const Module& module : subject.networks) {
    if (module.missing.empty())
      there.push_back(fmt::format("{} ({})", module.name, module.library));
    else
      missing.push_back(module.name);
    if (why.empty()) why = module.missing;
  }
  if (there.empty())
    return warning(
        name,
        fmt::format("none of {}, so worlds of several hosts do not open: {}",
                    fmt::join(missing, ", "), why),
        "install libfabric-dev, libucx-dev or libibverbs-dev and build Shoal again, or set SHOAL_PLUGIN_DIR to the folder of "
        "libshoal_transport_*.so");
  return ok(name, fmt::format("{}", fmt::join(there, ", ")));
}

Finding rdma_devices(const Subject& subject) {
  const std::string name = "RDMA ports";
  const std::vector<Port> ports = ports_of(subject);
  if (ports.empty())
    return not_applicable(
        name, "no RDMA device: traffic between hosts uses the tcp transport of libfabric or UCX");
  std::vector<std::string> down;
  for (const Port& port : ports)
    if (!active(port))
      down.push_back(
          fmt::format("{} ({})", port.label, port.state.empty() ? "no state" : port.state));
  if (down.empty()) return ok(name, fmt::format("all {} are active", ports.size()));
  const std::string found =
      fmt::format("{} of {} are not active: {}", down.size(), ports.size(), fmt::join(down, ", "));
  const std::string remedy =
      "ibstat; \"INIT\" waits for a subnet manager (systemctl start opensm, on one host), \"DOWN\" for a cable, a "
      "switch or ip link set DEVICE up. Ports that are down are excluded from the NIC plan";
  return down.size() == ports.size() ? fault(name, found, remedy) : warning(name, found, remedy);
}

Finding rdma_access(const Subject& subject) {
  const std::string name = "RDMA access";
  if (subject.rdma.empty()) return not_applicable(name, "no RDMA device");
  const std::vector<std::string> files = subject.system.list("/dev/infiniband");
  const auto verbs = std::count_if(files.begin(), files.end(), [](const std::string& file) {
    return file.starts_with("uverbs");
  });
  if (verbs > 0) return ok(name, fmt::format("/dev/infiniband has {} uverbs devices", verbs));
  return fault(
      name, "there are RDMA devices, but no /dev/infiniband/uverbs*: programs cannot open them",
      "in a container: --device=/dev/infiniband --cap-add=IPC_LOCK; on the host: modprobe ib_uverbs");
}

Finding roce(const Subject& subject) {
  const std::string name = "RoCE";
  std::vector<std::string> without;
  std::size_t ethernet = 0;
  for (const Port& port : ports_of(subject)) {
    if (port.link_layer != "Ethernet" || !active(port)) continue;
    ++ethernet;
    const std::string types = port.folder + "/gid_attrs/types";
    bool v2 = false;
    for (const std::string& index : subject.system.list(types))
      v2 |= subject.system.line(types + "/" + index) == "RoCE v2";
    if (!v2) without.push_back(port.label);
  }
  if (ethernet == 0) return not_applicable(name, "no active RDMA port on Ethernet");
  if (without.empty())
    return ok(name, fmt::format("all {} Ethernet ports have a RoCE v2 address", ethernet));
  return warning(
      name, fmt::format("no RoCE v2 address: {}", fmt::join(without, ", ")),
      "give the port's interface an IP address (show_gids lists the addresses), or leave the port out: "
      "SHOAL_NIC_LIST=^" +
          without.front());
}

Finding distances(const Subject& subject) {
  const std::string name = "NIC distances";
  if (!subject.machine_error.empty())
    return fault(name, subject.machine_error,
                 "correct the setting that the message names (docs/internals/topology.md)");
  if (subject.machine.gpus.empty() || subject.machine.nics.empty())
    return not_applicable(name, "no GPUs or no NICs");
  if (subject.remarks.empty()) return ok(name, "every GPU has a NIC below its own PCIe switch");
  return warning(
      name, fmt::format("{}", fmt::join(subject.remarks, "; ")),
      "see shoal-info --topology; if a nearer NIC is down or excluded, correct that, else choose with "
      "SHOAL_NIC_LIST or SHOAL_NIC_MAPPING (docs/internals/topology.md)");
}

/// Compares the GPUs that hwloc sees with those on the PCI bus.
Finding hwloc(const Subject& subject) {
  const std::string name = "hwloc";
  const std::size_t seen = subject.machine.gpus.size(), there = subject.nvidia_gpus.size();
  if (!subject.machine_error.empty() && seen == 0) return not_applicable(name, "see NIC distances");
  if (seen < there)
    return warning(
        name,
        fmt::format("it sees {} of {} GPUs, so the NIC plan has no seat for the others", seen,
                    there),
        "mount the host's /sys into the container, and do not set HWLOC_XMLFILE, HWLOC_SYNTHETIC or "
        "HWLOC_COMPONENTS");
  return ok(name, fmt::format("{} GPUs, {} NICs, {} NUMA nodes", seen, subject.machine.nics.size(),
                              subject.machine.numa_nodes));
}

/// Bridges above a GPU or an RDMA device.
std::set<std::string> bridges_above(const topology::Machine& machine) {
  std::set<std::string> bridges;
  const auto add = [&](const topology::Location& at) {
    for (std::size_t i = 0; i + 1 < at.path.size(); ++i)
      if (!at.path[i].starts_with("pci")) bridges.insert(at.path[i]);
  };
  for (const auto& gpu : machine.gpus) add(gpu.at);
  for (const auto& nic : machine.nics)
    if (nic.kind == topology::Nic::Kind::rdma) add(nic.at);
  return bridges;
}

/// The control register of a function's access control services. nullopt if the function has none,
/// or if the configuration space beyond 256 bytes is not readable.
std::optional<unsigned> acs_control(const std::string& config) {
  const auto byte = [&](std::size_t at) {
    return static_cast<unsigned>(static_cast<unsigned char>(config[at]));
  };
  const auto word = [&](std::size_t at) { return byte(at) | byte(at + 1) << 8; };
  constexpr unsigned kAcs = 0x000d;
  // Each capability starts with its number, a version (4 bits) and the offset of the next (12
  // bits).
  for (std::size_t at = 0x100, steps = 0; at >= 0x100 && at + 8 <= config.size() && steps < 64;
       ++steps) {
    if (word(at) == kAcs) return word(at + 6);
    at = word(at + 2) >> 4;
  }
  return std::nullopt;
}

Finding acs(const Subject& subject) {
  const std::string name = "PCIe ACS";
  if (!subject.gpus_and_rdma()) return not_applicable(name, "no traffic between GPUs and NICs");
  constexpr unsigned kRedirect = 0x04 | 0x08;  // requests, completions
  std::vector<std::string> redirecting;
  bool readable = false;
  for (const std::string& bridge : bridges_above(subject.machine)) {
    const std::string config =
        subject.system.read("/sys/bus/pci/devices/" + bridge + "/config").value_or("");
    readable |= config.size() > 0x100;
    const auto control = acs_control(config);
    if (control && (*control & kRedirect) != 0) redirecting.push_back(bridge);
  }
  if (!readable)
    return not_applicable(name, "only root can read the bridges' configuration; run as root");
  if (redirecting.empty()) return ok(name, "no bridge above a GPU or NIC redirects its traffic");
  return warning(
      name,
      fmt::format("{} above GPUs or NICs send traffic between devices up to the processor: {}",
                  count_text(static_cast<std::int64_t>(redirecting.size()), "bridge"),
                  fmt::join(redirecting, ", ")),
      fmt::format(
          "on a machine without virtual machines: disable ACS in the firmware, or at every boot as "
          "root, for each bridge: setpci -s {} ECAP_ACS+0x6.w=0000",
          redirecting.front()));
}

Finding iommu(const Subject& subject) {
  const std::string name = "IOMMU";
  if (!subject.gpus_and_rdma()) return not_applicable(name, "no traffic between GPUs and NICs");
  const std::vector<std::string> command =
      words_of(trimmed(subject.system.read("/proc/cmdline").value_or("")));
  const auto has = [&](std::string_view word) {
    return std::find(command.begin(), command.end(), word) != command.end();
  };
  if (subject.system.list("/sys/class/iommu").empty()) return ok(name, "off");
  if (has("iommu=pt") || has("iommu.passthrough=1"))
    return ok(name, "on, and passes the devices of the host through");
  const std::string group =
      "/sys/bus/pci/devices/" + subject.nvidia_gpus.front() + "/iommu_group/type";
  if (subject.system.line(group) == "identity")
    return ok(name, "on, and passes the GPUs through (identity)");
  return warning(
      name,
      "it translates the addresses of devices: traffic between GPUs and NICs is slow or fails",
      "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, reboot; or switch the IOMMU "
      "(VT-d, AMD-Vi) off in the firmware");
}

/// Compares the requests that may be in flight with the send queues that hold them, and with what
/// fills a link. Groups compare their own requests when they are created.
Finding queue_depth(const Subject& subject) {
  const std::string name = "queue depth";
  const std::int64_t depth = subject.settings.network_depth;
  const std::int64_t posted = subject.settings.verbs_depth;
  const auto full =
      static_cast<std::int64_t>(transport::verbs::required_depth(static_cast<std::size_t>(depth)));
  if (posted < full)
    return warning(name,
                   fmt::format("the transport verbs has send queues of {} requests, {} requests in "
                               "flight to each PE fill {}: calls wait for room",
                               posted, depth, full),
                   fmt::format("SHOAL_VERBS_DEPTH={}", (full + 63) / 64 * 64));
  constexpr double kRowBytes = 7168, kRoundTrip = 10e-6;
  std::int32_t rate = 0;
  for (const auto& nic : subject.machine.nics)
    if (nic.up && nic.kind == topology::Nic::Kind::rdma) rate = std::max(rate, nic.rate);
  if (rate == 0)
    return ok(name, fmt::format("{} requests may be in flight to each PE; there is no RDMA device "
                                "of known rate to keep busy",
                                depth));
  const auto need = static_cast<std::int64_t>(std::ceil(rate * 1e9 / 8 * kRoundTrip / kRowBytes));
  const std::string why = fmt::format(
      "{} requests may be in flight to each PE; {} Gb/s take {} of 7168 bytes that last 10 us",
      depth, rate, need);
  if (depth >= need) return ok(name, why);
  return warning(name, why + ": a PE that sends to one other cannot fill the link",
                 fmt::format("SHOAL_NETWORK_DEPTH={}", (need + 63) / 64 * 64));
}

}  // namespace

std::vector<Check> network_checks() {
  return {modules, rdma_devices, rdma_access, roce, distances, hwloc, acs, iommu, queue_depth};
}

}  // namespace shoal::info
