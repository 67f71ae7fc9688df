// SPDX-License-Identifier: Apache-2.0
// provider.hpp: asks libfabric for endpoints and chooses among them.
#pragma once

#include <rdma/fabric.h>

#include <memory>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace shoal::transport::ofi {

struct FreeInfo {
  void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

/// The API version that this transport uses; newer libraries support it.
inline constexpr std::uint32_t kApiVersion = FI_VERSION(1, 14);

struct Provider {
  std::string name;         ///< "tcp;ofi_rxm"
  std::vector<Info> rails;  ///< endpoints to open, by the NIC plan; at least one
};

/// The provider and the endpoints for this PE. Throws Error{unsupported} with the requested
/// provider, the available ones and the setting.
Provider choose_provider(const Context& context);

/// "No data available" for -61.
std::string error_text(long code);

}  // namespace shoal::transport::ofi
