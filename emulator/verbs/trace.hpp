// SPDX-License-Identifier: Apache-2.0
// trace.hpp: writes the events of a NIC to a file.
#pragma once

#include <fstream>
#include <optional>
#include <string>

#include "engine/trace.hpp"
#include "verbs/settings.hpp"

namespace shoal::emulator {

/// Text, or the format of Perfetto for a file name that ends in .json (engine/trace.hpp).
class Trace {
 public:
  /// `%p` in the name stands for the process number, `%d` for the device's; it is needed where a
  /// process has several devices. Throws std::runtime_error where the file cannot be created.
  explicit Trace(const DeviceSettings& settings);

  void write(const TraceEvent& event);

 private:
  std::ofstream file_;
  std::optional<PerfettoTrace> perfetto_;  ///< completes the file before it is closed
};

}  // namespace shoal::emulator
