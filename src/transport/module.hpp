// SPDX-License-Identifier: Apache-2.0
// module.hpp: the table that the shared library of a network transport
// (libshoal_transport_<name>.so) exports. A module is loaded when some pair of PEs needs its
// network.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.hpp"

namespace shoal::transport {

/// Version of the module interface. Raise it with every change of Transport, Context or Settings: a
/// module works only with the build that it belongs to.
inline constexpr std::uint64_t kModuleVersion = 13;
inline constexpr const char* kModuleSymbol = "shoal_transport_module";

/// Result of the test whether a network can work on this machine.
struct Probe {
  std::string library;  ///< for messages: "libibverbs.so.1, mlx5_0:1, mlx5_1:1 (not active)"
  std::string missing;  ///< why it cannot; empty if it can
};

/// A queue pair of an open world.
struct QueuePairReport {
  Pe peer = 0;
  std::uint32_t number = 0;
  std::string state;  ///< "RTS"
  std::size_t in_flight = 0, depth = 0;
};

/// A port of a NIC, with its queue pairs of the open worlds of this process.
struct NicReport {
  std::string port;                                          ///< "mlx5_0:1"
  std::vector<std::pair<std::string, std::string>> facts;    ///< {"link", "InfiniBand"}
  std::vector<std::pair<std::string, std::int64_t>> limits;  ///< {"queue pairs", 131072}
  std::vector<QueuePairReport> queue_pairs;
};

/// Why verbs finds no active RDMA port on this machine; empty where it finds one. Loads its module
/// and library.
std::string rdma_obstacle(const Settings& settings);

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
  /// nullptr: it knows nothing of NICs. Throws Error{unsupported} where they cannot be listed.
  std::vector<NicReport> (*nics)(const Settings& settings) = nullptr;
};

/// Loads the module of a network. Throws Error{unsupported} where it, or the library that it needs,
/// is missing, or where it belongs to another build.
const Module& load_module(std::string_view network, const Settings& settings);

}  // namespace shoal::transport
