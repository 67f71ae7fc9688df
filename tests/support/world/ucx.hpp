// SPDX-License-Identifier: Apache-2.0
// ucx.hpp: settings of worlds whose PEs reach each other through UCX, also inside a host.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/plugin.hpp"
#include "checks/world/operations.hpp"
#include "transport/module.hpp"

namespace shoal::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
// When it is loaded, UCX patches mmap and related functions; the sanitizers' own threads crash in
// the patched ones.
[[maybe_unused]] inline const bool ucx_does_not_patch_mmap = setenv("UCX_MEM_EVENTS", "n", 0) == 0;
#endif

/// Skips its tests, with the reason, if the module cannot be loaded.
class WithUcx : public testing::Test {
 protected:
  void SetUp() override {
    const Plugin plugin = load_plugin(Settings(), "transport_ucx", transport::kModuleSymbol);
    if (plugin.symbol == nullptr) GTEST_SKIP() << "no ucx here: " << plugin.reason;
  }
};

/// Loopback only; UCX itself needs "self".
inline Settings ucx_settings() {
  Settings settings = world_settings();
  settings.transport_inside = "ucx";
  settings.transport_between = "ucx";
  settings.ucx_tls = "tcp,self";
  settings.max_teams = 40;
  return settings;
}

}  // namespace shoal::test
