// SPDX-License-Identifier: Apache-2.0
// ofi.hpp: settings of worlds whose PEs reach each other through libfabric, also inside a host.
#pragma once

#include "checks/world/operations.hpp"

#ifdef SHOAL_WITH_OFI
#define SHOAL_SKIP_WITHOUT_OFI()
#else
#define SHOAL_SKIP_WITHOUT_OFI() GTEST_SKIP() << "this build has no libfabric"
#endif

namespace shoal::test {

/// All operations on other PEs use the provider tcp;ofi_rxm on the loopback interface.
inline Settings ofi_settings() {
  Settings settings = world_settings();
  settings.transport_inside = "ofi";
  settings.transport_between = "ofi";
  settings.ofi_provider = "tcp;ofi_rxm";
  return settings;
}

}  // namespace shoal::test
