// SPDX-License-Identifier: Apache-2.0
// The module table of the transport over libfabric.
#include <rdma/fabric.h>

#include <cstdio>

#include "transport/message/network_transport.hpp"
#include "transport/module.hpp"
#include "transport/ofi/network.hpp"

namespace shoal::transport {
namespace {

/// "libfabric 1.17"
const char* library_name() noexcept {
  static char name[32];
  std::snprintf(name, sizeof name, "libfabric %u.%u", FI_MAJOR(fi_version()),
                FI_MINOR(fi_version()));
  return name;
}

}  // namespace
}  // namespace shoal::transport

extern "C" __attribute__((visibility("default")))
const shoal::transport::Module shoal_transport_module = {
    shoal::transport::kModuleVersion, "ofi", shoal::transport::library_name(),
    shoal::transport::message::make_network_transport<shoal::transport::ofi::Network>};
