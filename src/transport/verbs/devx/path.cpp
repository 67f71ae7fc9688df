// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devx/path.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/system_error.hpp"

namespace shoal::transport::verbs::devx {
namespace {

namespace f = mlx5::qp_context;
using Mac = std::array<std::uint8_t, 6>;

/// "::ffff:10.99.1.2"
std::string text_of(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

/// The MAC address of the next hop on `path`. Returns why there is none, or "".
std::string resolve(const Library& library, const Port& port, ibv_ah_attr& path, Mac& mac) {
  const std::string gid = text_of(path.grh.dgid);
  const Handle<ibv_ah> handle(port.library().create_ah(port.domain(), &path),
                              port.library().destroy_ah);
  if (handle == nullptr)
    return fmt::format("SHOAL-N406: the MAC address of GID {} cannot be resolved: {}", gid,
                       errno_text(errno));
  mlx5dv_ah shown{};
  mlx5dv_obj object{};
  object.ah.in = handle.get();
  object.ah.out = &shown;
  const int code = library.init_obj(&object, MLX5DV_OBJ_AH);
  if (code != 0)
    return fmt::format("SHOAL-N380: {} does not report the MAC address of GID {}: {}", library.file,
                       gid, errno_text(code));
  std::copy(std::begin(shown.av->rmac), std::end(shown.av->rmac), mac.begin());
  return mac == Mac{}
             ? fmt::format("SHOAL-N380: {} reports no MAC address for GID {}", library.file, gid)
             : "";
}

void set_global(std::byte* at, const ibv_global_route& route) {
  mlx5::set(at, f::kSourceGid, route.sgid_index);
  mlx5::set(at, f::kHops, route.hop_limit);
  mlx5::set(at, f::kTrafficClass, route.traffic_class);
  std::memcpy(at + f::kRemoteGid, route.dgid.raw, sizeof route.dgid.raw);
}

}  // namespace

std::string set_path(std::byte* at, const Library& library, const Port& port, ibv_ah_attr& path,
                     std::uint16_t udp_source) {
  mlx5::set(at, f::kPort, path.port_num);
  if (!port.is_ethernet()) {
    mlx5::set(at, f::kRemoteLid, path.dlid);
    mlx5::set(at, f::kServiceLevel, path.sl);
    mlx5::set(at, f::kGlobal, path.is_global);
    if (path.is_global != 0) set_global(at, path.grh);
    return "";
  }
  Mac mac{};
  if (std::string problem = resolve(library, port, path, mac); !problem.empty()) return problem;
  // Every packet of RoCE has the global header: the bit for it is reserved.
  set_global(at, path.grh);
  mlx5::set(at, f::kPriority, path.sl);
  mlx5::set(at, f::kDscp, path.grh.traffic_class >> 2);
  mlx5::set(at, f::kUdpSource, udp_source);
  std::copy(mac.begin(), mac.end(), reinterpret_cast<std::uint8_t*>(at + f::kRemoteMac));
  return "";
}

}  // namespace shoal::transport::verbs::devx
