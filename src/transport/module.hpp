// SPDX-License-Identifier: Apache-2.0
// module.hpp: what a network transport's shared library (libshoal_transport_<name>.so) shows to the
// core. Modules are loaded when some pair of PEs needs the network, never before (requirement D4).
#pragma once

#include <cstdint>

#include "transport/transport.hpp"

namespace shoal::transport {

/// Changes with every change of Transport, Context or Settings: modules are built with the core,
/// not apart from it.
inline constexpr std::uint64_t kModuleVersion = 5;
inline constexpr const char* kModuleSymbol = "shoal_transport_module";

/// The table that a module exports as `extern "C" const shoal::transport::Module
/// shoal_transport_module`.
struct Module {
  std::uint64_t version;
  const char* name;     ///< "ofi"
  const char* library;  ///< what it stands on, for people: "libfabric 1.17.0"
  /// Makes one PE's side. Where the library finds nothing to work with it makes a transport whose
  /// reach() says so.
  Factory make;
};

}  // namespace shoal::transport
