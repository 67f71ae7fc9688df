// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/peers.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.hpp"

namespace shoal::memory::cuda {
namespace {

/// The reason why the heap of a PE in another process cannot be passed here.
std::string handle_obstacle(const DeviceHeapContext& context, std::size_t pe) {
  const auto me = static_cast<std::size_t>(context.my_pe);
  if (context.handle == HandleKind::fabric) return "";
  if (context.host_of[pe] != context.host_of[me])
    return fmt::format(
        "SHOAL-N716: on another host, which handles of kind {} do not reach; Setting: "
        "SHOAL_CUDA_HANDLE",
        name_of(context.handle));
  if (context.handle == HandleKind::fd &&
      context.devices[pe].network_namespace != context.devices[me].network_namespace)
    return "on this host, but in another network namespace, which file descriptors cannot cross";
  return "";
}

void survey_gpus(const Driver& driver, const DeviceHeapContext& context, std::size_t pe,
                 Peer& peer) {
  const DeviceDescription& mine = context.devices[static_cast<std::size_t>(context.my_pe)];
  if (context.devices[pe].uuid == mine.uuid) return;
  const auto theirs = visible_device(driver, context.devices[pe].uuid);
  if (!theirs) return;
  CUdevice here{}, there{};
  int reaches = 0;
  if (driver.device_get(&here, mine.ordinal) != CUDA_SUCCESS ||
      driver.device_get(&there, *theirs) != CUDA_SUCCESS ||
      driver.can_access_peer(&reaches, here, there) != CUDA_SUCCESS || reaches == 0) {
    peer.obstacle = fmt::format("GPU {} has no peer access to GPU {} (cuDeviceCanAccessPeer)",
                                mine.ordinal, *theirs);
    return;
  }
  int atomics = 0;
  peer.atomics = driver.p2p_attribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                      here, there) == CUDA_SUCCESS &&
                 atomics != 0;
}

}  // namespace

std::optional<int> visible_device(const Driver& driver, const std::array<std::byte, 16>& uuid) {
  int count = 0;
  if (driver.device_count(&count) != CUDA_SUCCESS) return std::nullopt;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device{};
    CUuuid one{};
    if (driver.device_get(&device, ordinal) == CUDA_SUCCESS &&
        driver.device_uuid(&one, device) == CUDA_SUCCESS &&
        std::memcmp(one.bytes, uuid.data(), uuid.size()) == 0)
      return ordinal;
  }
  return std::nullopt;
}

std::vector<Peer> survey_peers(const Driver& driver, const DeviceHeapContext& context) {
  std::vector<Peer> peers(context.devices.size());
  const DeviceDescription& mine = context.devices[static_cast<std::size_t>(context.my_pe)];
  for (std::size_t pe = 0; pe < peers.size(); ++pe) {
    Peer& peer = peers[pe];
    peer.same_process = context.devices[pe].process == mine.process;
    if (!peer.same_process) {
      peer.obstacle = handle_obstacle(context, pe);
      // Includes unreachable peers: passing descriptors needs both sides, and both must decide
      // the same.
      peer.exchanges_fds = context.handle == HandleKind::fd && peer.obstacle.empty();
    }
    if (peer.obstacle.empty()) survey_gpus(driver, context, pe, peer);
  }
  return peers;
}

std::string enable_peer_access(const Driver& driver, const Device& device, int other) {
  if (other == device.device) return "";
  CUdevice there{};
  check(driver, driver.device_get(&there, other),
        fmt::format("SHOAL-N700: cannot get the handle of GPU {}", other));
  device.activate();
  const CUresult result = driver.enable_peer_access(primary_context(driver, there), 0);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return "";
  return fmt::format("GPU {} has no peer access to GPU {}: {}", device.device, other,
                     describe(driver, result));
}

CUcontext primary_context(const Driver& driver, CUdevice device) {
  static std::mutex mutex;
  static std::map<std::pair<const Driver*, CUdevice>, CUcontext> contexts;
  const std::lock_guard lock(mutex);
  CUcontext& context = contexts[{&driver, device}];
  if (context == nullptr)
    check(driver, driver.retain_context(&context, device),
          fmt::format("SHOAL-N700: cannot create the primary context of GPU {}", device));
  return context;
}

}  // namespace shoal::memory::cuda
