// SPDX-License-Identifier: Apache-2.0
// trace.hpp: writes the events of a NIC to a file.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "engine/services.hpp"

namespace shoal::emulator {

/// Text, an event a line: "time NIC:QP kind values". For a file name that ends in .json: the trace
/// event format, which ui.perfetto.dev and chrome://tracing show, with a track for each queue pair.
class Trace {
 public:
  /// `%p` in the name stands for the process number. Throws std::runtime_error where the file
  /// cannot be created.
  explicit Trace(const std::string& name);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void write(const TraceEvent& event);

 private:
  void write_text(const TraceEvent& event);
  void write_json(const TraceEvent& event);

  std::FILE* file_ = nullptr;
  bool json_ = false, first_ = true;
};

}  // namespace shoal::emulator
