// SPDX-License-Identifier: Apache-2.0
#include "verbs/trace.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace shoal::emulator {
namespace {

constexpr std::array kKinds = {"doorbell",     "sent",    "resent",     "received", "duplicate",
                               "out_of_order", "dropped", "completion", "timeout",  "state"};
constexpr std::array kPackets = {"send",        "write",         "read_request",   "atomic_request",
                                 "acknowledge", "read_response", "atomic_response"};
constexpr std::array kStates = {"reset", "init", "ready_to_receive", "ready_to_send", "error"};

std::string expand(std::string name) {
  if (const std::size_t at = name.find("%p"); at != std::string::npos)
    name.replace(at, 2, std::to_string(getpid()));
  return name;
}

bool has_packet(TraceEvent::Kind kind) {
  return kind >= TraceEvent::Kind::sent && kind <= TraceEvent::Kind::dropped;
}

const char* kind_of(const TraceEvent& event) {
  return kKinds[static_cast<std::size_t>(event.kind)];
}
const char* packet_of(const TraceEvent& event) {
  return kPackets[static_cast<std::size_t>(event.packet)];
}

}  // namespace

Trace::Trace(const std::string& name) {
  const std::string path = expand(name);
  json_ = path.ends_with(".json");
  file_ = std::fopen(path.c_str(), "we");
  if (file_ == nullptr)
    throw std::runtime_error("cannot create the trace " + path + ": " + std::strerror(errno));
  if (json_) (void)std::fputs("{\"traceEvents\":[", file_);
}

Trace::~Trace() {
  if (json_) (void)std::fputs("\n]}\n", file_);
  (void)std::fclose(file_);
}

void Trace::write(const TraceEvent& event) {
  json_ ? write_json(event) : write_text(event);
}

void Trace::write_text(const TraceEvent& event) {
  const auto ns = static_cast<long long>(event.time.count());
  (void)std::fprintf(file_, "%lld.%03lld us %u:%06x %s", ns / 1000, ns % 1000, event.nic,
                     event.qp_number, kind_of(event));
  if (has_packet(event.kind))
    (void)std::fprintf(file_, " %s psn %u bytes %u\n", packet_of(event), event.value, event.bytes);
  else if (event.kind == TraceEvent::Kind::state)
    (void)std::fprintf(file_, " %s\n", kStates[event.value % kStates.size()]);
  else
    (void)std::fprintf(file_, " %u\n", event.value);
}

void Trace::write_json(const TraceEvent& event) {
  (void)std::fprintf(
      file_,
      "%s\n{\"name\":\"%s%s%s\",\"ph\":\"i\",\"s\":\"t\",\"ts\":%.3f,\"pid\":%u,\"tid\":%u,"
      "\"args\":{\"value\":%u,\"bytes\":%u}}",
      first_ ? "" : ",", kind_of(event), has_packet(event.kind) ? " " : "",
      has_packet(event.kind) ? packet_of(event) : "",
      static_cast<double>(event.time.count()) / 1000, event.nic, event.qp_number, event.value,
      event.bytes);
  first_ = false;
}

}  // namespace shoal::emulator
