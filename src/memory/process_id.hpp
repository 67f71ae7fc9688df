// SPDX-License-Identifier: Apache-2.0
// process_id.hpp: which PEs are threads of one process.
#pragma once

#include <cstdint>

#include "memory/host/segment.hpp"

namespace shoal::memory {

/// Names a process among all: a forked child inherits the token but not the pid, and pids recur in
/// other PID namespaces.
struct ProcessId {
  Token token{};
  std::int64_t pid = 0;
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};
ProcessId this_process();

/// Names the network namespace of this process: abstract socket names are visible inside it only.
/// 0: unknown.
std::uint64_t network_namespace();

}  // namespace shoal::memory
