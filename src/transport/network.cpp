// SPDX-License-Identifier: Apache-2.0
// Network transports are modules, so that neither building nor loading Shoal needs their libraries
// (libfabric, UCX, libibverbs).
#include <fcntl.h>

#include <array>
#include <cerrno>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/plugin.hpp"
#include "base/system_error.hpp"
#include "memory/host/segment.hpp"
#include "transport/module.hpp"

namespace shoal::transport {
namespace {

std::string plugin_of(std::string_view network) {
  return fmt::format("transport_{}", network);
}

/// Throws Error{unsupported} where few files can be opened. UCX ends the process where it cannot
/// open one, before the error that names the limit.
void check_files() {
  std::array<memory::FileDescriptor, 32> opened;
  for (memory::FileDescriptor& file : opened) {
    file = memory::FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
    require(bool(file), Code::unsupported, "SHOAL-N320: fewer than {} files can be opened: {}",
            opened.size(), errno_text(errno));
  }
}

}  // namespace

std::span<const std::string_view> network_names() {
  static constexpr std::array<std::string_view, 3> names = {"ofi", "ucx", "verbs"};
  return names;
}

const Module& load_module(std::string_view network, const Settings& settings) {
  const Plugin plugin = load_plugin(settings, plugin_of(network), kModuleSymbol);
  require(plugin.symbol != nullptr, Code::unsupported, "{}", plugin.reason);
  const auto& module = *static_cast<const Module*>(plugin.symbol);
  require(module.version == kModuleVersion, Code::unsupported,
          "SHOAL-N321: {} belongs to another build of Shoal (table version {}, expected {})",
          plugin.file, module.version, kModuleVersion);
  log::debug("transport {}: module {} ({})", network, plugin.file, module.library);
  return module;
}

std::string rdma_obstacle(const Settings& settings) {
  try {
    return load_module("verbs", settings).probe(settings).missing;
  } catch (const Error& error) {
    return std::string(error.reason());
  }
}

std::uint32_t installed_networks(const Settings& settings) {
  std::uint32_t installed = 0;
  for (std::size_t i = 0; i < network_names().size(); ++i)
    if (!find_plugin(settings, plugin_of(network_names()[i])).empty()) installed |= 1U << i;
  return installed;
}

std::unique_ptr<Transport> make_network(std::string_view name, const Context& context) {
  check_files();
  return load_module(name, *context.settings).make(context);
}

}  // namespace shoal::transport
