// SPDX-License-Identifier: Apache-2.0
// process_id.hpp: which PEs are threads of one process.
#pragma once

#include <cstdint>

#include "memory/host/segment.hpp"

namespace shoal::memory {

/// Unique name of a process. A forked child inherits the token but not the pid; pids recur in other
/// PID namespaces.
struct ProcessId {
  Token token{};
  std::int64_t pid = 0;
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};
ProcessId this_process();

/// Identifies the network namespace of this process, which limits the visibility of abstract socket
/// names. 0: unknown.
std::uint64_t network_namespace();

}  // namespace shoal::memory
