// SPDX-License-Identifier: Apache-2.0
// The module table of the transport over UCX.
#include <cstdio>

#include "transport/message/network_transport.hpp"
#include "transport/module.hpp"
#include "transport/ucx/network.hpp"

namespace shoal::transport {
namespace {

/// "UCX 1.13.1"
const char* library_name() noexcept {
  static char text[64];
  std::snprintf(text, sizeof text, "UCX %s", ucp_get_version_string());
  return text;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const Module shoal_transport_module;
const Module shoal_transport_module = {kModuleVersion, "ucx", library_name(),
                                       message::make_network_transport<ucx::Network>};
}

}  // namespace shoal::transport
