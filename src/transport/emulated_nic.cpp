// SPDX-License-Identifier: Apache-2.0
#include "transport/emulated_nic.hpp"

#include "base/check.hpp"
#include "base/plugin.hpp"

namespace shoal::transport {

std::unique_ptr<DeviceQueues> make_emulated_nic(const EmulatedNicContext& context) {
  const Plugin plugin = load_plugin(context.settings, "gpu_nic", kEmulatedNicSymbol);
  require(plugin.symbol != nullptr, Code::unsupported,
          "SHOAL_GDA is emulated, but {}; allowed: off, automatic, on", plugin.reason);
  const auto& module = *static_cast<const EmulatedNicModule*>(plugin.symbol);
  require(module.version == kEmulatedNicVersion, Code::unsupported,
          "SHOAL_GDA is emulated, but {} belongs to another build of Shoal (table version {}, "
          "expected {})",
          plugin.file, module.version, kEmulatedNicVersion);
  return module.make(context);
}

}  // namespace shoal::transport
