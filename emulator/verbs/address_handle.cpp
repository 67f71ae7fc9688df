// SPDX-License-Identifier: Apache-2.0
#include "verbs/address_handle.hpp"

#include <cerrno>
#include <cstring>
#include <memory>

#include "engine/big_endian.hpp"

namespace shoal::emulator {
namespace {

constexpr std::uint32_t kGlobal = 1U << 30;  ///< of the word with GID index and flow label

/// Error number of attributes that this device refuses; else fills the vector.
int fill(const Attachment& attachment, const ibv_ah_attr& from, mlx5_wqe_av& to) {
  const bool global = from.is_global != 0;
  if (from.port_num != 1 || (global && from.grh.sgid_index >= Attachment::kGids)) return EINVAL;
  to.stat_rate_sl = static_cast<std::uint8_t>(from.static_rate << 4 | from.sl);
  to.rlid = swap_bytes(from.dlid);
  if (global) {
    // On an Ethernet every packet has the global header, and the bit is reserved.
    const std::uint32_t bit = attachment.is_ethernet() ? 0 : kGlobal;
    to.tclass = from.grh.traffic_class;
    to.hop_limit = from.grh.hop_limit;
    to.grh_gid_fl = swap_bytes(bit | std::uint32_t{from.grh.sgid_index} << 20 |
                               (from.grh.flow_label & 0xfffff));
    std::memcpy(to.rgid, from.grh.dgid.raw, sizeof to.rgid);
  }
  if (!attachment.is_ethernet()) return 0;
  Gid gid;
  Mac mac;
  std::memcpy(gid.data(), from.grh.dgid.raw, gid.size());
  const int error = global ? attachment.resolve(gid, mac) : EINVAL;
  if (error == 0) std::memcpy(to.rmac, mac.data(), mac.size());
  return error;
}

}  // namespace
}  // namespace shoal::emulator

using namespace shoal::emulator;

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr* attributes) {
  Context& context = *of(domain).context;
  auto handle = std::make_unique<Ah>();
  const int error = fill(context.runtime->attachment(), *attributes, handle->vector);
  if (error != 0) return fail_with(error);
  handle->base = {.context = context.base(), .pd = domain, .handle = 0};
  handle->domain = &of(domain);
  ++of(domain).users;
  return &handle.release()->base;
}

int ibv_destroy_ah(ibv_ah* handle) {
  --of(handle).domain->users;
  delete &of(handle);
  return 0;
}

int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attributes, std::uint8_t* mac,
                                std::uint16_t* vlan) {
  mlx5_wqe_av vector{};
  const Attachment& attachment = of(context).runtime->attachment();
  const int error = attachment.is_ethernet() ? fill(attachment, *attributes, vector) : EOPNOTSUPP;
  if (error != 0) return error;
  constexpr std::uint16_t kNone = 0xffff;
  std::memcpy(mac, vector.rmac, sizeof vector.rmac);
  if (vlan != nullptr) *vlan = kNone;
  return 0;
}

}  // extern "C"
