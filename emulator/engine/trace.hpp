// SPDX-License-Identifier: Apache-2.0
// trace.hpp: events of a NIC as text, and as JSON that ui.perfetto.dev shows.
//
//   PerfettoTrace trace(file);
//   options.trace = [&](const TraceEvent& event) { trace.add(event); };
#pragma once

#include <ostream>
#include <string>

#include "engine/services.hpp"

namespace shoal::emulator {

/// One line: time in microseconds, NIC, queue pair, event, PSN or other value, packet, bytes; at
/// the end of a queue pair its counters that are not 0.
std::string to_text(const TraceEvent& event);

/// Writes the JSON trace format of Chrome: a process per NIC, a thread per queue pair, an instant
/// event per TraceEvent, with the counters of a queue pair at its end. Complete when destroyed.
class PerfettoTrace {
 public:
  explicit PerfettoTrace(std::ostream& output);
  PerfettoTrace(const PerfettoTrace&) = delete;
  PerfettoTrace& operator=(const PerfettoTrace&) = delete;
  ~PerfettoTrace();

  void add(const TraceEvent& event);

 private:
  std::ostream& output_;
  bool first_ = true;
};

}  // namespace shoal::emulator
