// SPDX-License-Identifier: Apache-2.0
// fault_text.hpp: the error of a fault after which a group cannot continue, from a kernel's report
// and what the host knows.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "ep/cuda/device/faults.cuh"
#include "shoal/error.hpp"

namespace shoal::ep::cuda {

struct FaultContext {
  Pe me = 0, n_pes = 0;
  Pe pe = 0;  ///< of FaultReport::rank
  std::chrono::milliseconds timeout{};
  const char* timeout_setting = "";
  std::optional<Error> network;  ///< what the network of this PE reports
  /// Fault::timeout: the progress of `pe`; Fault::peer_failed: why it has given the group up;
  /// Fault::other_mode: the call that it refused, if any.
  std::string peer;
};

/// "dispatch", of a phase of any mode.
const char* operation_of(Phase phase);

bool is_low_latency(Phase phase);

/// The error for `fault`. It is fatal, and the report's or what the host has made of that.
Error fatal_error(const FaultReport& report, Fault fault, const FaultContext& context);

}  // namespace shoal::ep::cuda
