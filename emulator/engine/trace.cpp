// SPDX-License-Identifier: Apache-2.0
#include "engine/trace.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <utility>

namespace shoal::emulator {
namespace {

const char* name_of(TraceEvent::Kind kind) {
  constexpr std::array kNames = {"doorbell",   "sent",      "resent",       "received",
                                 "executed",   "duplicate", "out_of_order", "dropped",
                                 "completion", "timeout",   "state",        "destroyed"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* name_of(PacketKind kind) {
  constexpr std::array kNames = {"send",        "write",         "read_request",   "atomic_request",
                                 "acknowledge", "read_response", "atomic_response"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool names_packet(TraceEvent::Kind kind) {
  return kind != TraceEvent::Kind::doorbell && kind != TraceEvent::Kind::completion &&
         kind != TraceEvent::Kind::timeout && kind != TraceEvent::Kind::state &&
         kind != TraceEvent::Kind::destroyed;
}

/// Microseconds with three decimals. A "%f" of printf would write the decimal separator of the
/// program's locale, which JSON does not allow.
std::string microseconds(Time time) {
  return fmt::format("{:.3f}", static_cast<double>(time.count()) / 1000);
}

/// The counters that are not 0, each as `before`, its name, `between` and its value.
std::string list(const Counters* counters, const char* before, const char* between) {
  std::string text;
  if (counters == nullptr) return text;
  const std::pair<const char*, std::uint64_t> all[] = {
      {"doorbells", counters->doorbells},
      {"requests", counters->requests},
      {"completions", counters->completions},
      {"errors", counters->errors},
      {"packets_sent", counters->packets_sent},
      {"packets_received", counters->packets_received},
      {"bytes_sent", counters->bytes_sent},
      {"bytes_received", counters->bytes_received},
      {"resent", counters->resent},
      {"duplicates", counters->duplicates},
      {"out_of_order", counters->out_of_order},
      {"timeouts", counters->timeouts},
      {"naks", counters->naks},
      {"receiver_not_ready", counters->receiver_not_ready}};
  for (const auto& [name, value] : all)
    if (value != 0) text.append(before).append(name).append(between).append(std::to_string(value));
  return text;
}

}  // namespace

std::string to_text(const TraceEvent& event) {
  char line[160];
  std::snprintf(line, sizeof line, "%12s nic %u qp %u %s %u %s %u",
                microseconds(event.time).c_str(), unsigned{event.nic}, event.qp_number,
                name_of(event.kind), event.value,
                names_packet(event.kind) ? name_of(event.packet) : "-", event.bytes);
  return line + list(event.counters, " ", "=");
}

PerfettoTrace::PerfettoTrace(std::ostream& output) : output_(output) {
  output_ << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
}

PerfettoTrace::~PerfettoTrace() {
  output_ << "\n]}\n";
}

void PerfettoTrace::add(const TraceEvent& event) {
  char line[256];
  const char* const packet = names_packet(event.kind) ? name_of(event.packet) : "";
  std::snprintf(line, sizeof line,
                "%s\n{\"name\":\"%s%s%s\",\"ph\":\"i\",\"s\":\"t\",\"ts\":%s,\"pid\":%u,\"tid\":%u,"
                "\"args\":{\"value\":%u,\"bytes\":%u",
                first_ ? "" : ",", name_of(event.kind), *packet != '\0' ? " " : "", packet,
                microseconds(event.time).c_str(), unsigned{event.nic}, event.qp_number, event.value,
                event.bytes);
  output_ << line << list(event.counters, ",\"", "\":") << "}}";
  first_ = false;
}

}  // namespace shoal::emulator
