// SPDX-License-Identifier: Apache-2.0
// module.hpp: the table that the shared library of a network transport
// (libshoal_transport_<name>.so) exports. A module is loaded when some pair of PEs needs its
// network.
#pragma once

#include <cstdint>

#include "transport/transport.hpp"

namespace shoal::transport {

/// To be raised with every change of Transport, Context or Settings: a module works only with the
/// build that it belongs to.
inline constexpr std::uint64_t kModuleVersion = 7;
inline constexpr const char* kModuleSymbol = "shoal_transport_module";

/// Whether a network can work on this machine.
struct Probe {
  std::string library;  ///< for messages: "libibverbs.so.1, mlx5_0:1, mlx5_1:1 (not active)"
  std::string missing;  ///< why it cannot; empty if it can
};

/// The table that a module exports as `extern "C" const shoal::transport::Module
/// shoal_transport_module`.
struct Module {
  std::uint64_t version;
  const char* name;     ///< "ofi"
  const char* library;  ///< for messages: "libfabric 1.17.0"
  /// Constructs one PE's side. May throw; the message becomes the reason in reach().
  Factory make;
  /// nullptr: works wherever the module can be loaded.
  Probe (*probe)(const Settings& settings) = nullptr;
};

}  // namespace shoal::transport
