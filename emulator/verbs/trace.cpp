// SPDX-License-Identifier: Apache-2.0
#include "verbs/trace.hpp"

#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "base/files.hpp"

namespace shoal::emulator {
namespace {

std::string expand(std::string name, std::string_view mark, std::uint32_t number) {
  if (const std::size_t at = name.find(mark); at != std::string::npos)
    name.replace(at, mark.size(), std::to_string(number));
  return name;
}

std::string file_name(const DeviceSettings& settings) {
  const std::string& name = settings.trace_file;
  if (settings.devices > 1 && name.find("%d") == std::string::npos)
    throw std::runtime_error("SHOAL_EMULATOR_TRACE is \"" + name +
                             "\"; allowed with several devices: a name with %d");
  return expand(expand(name, "%p", static_cast<std::uint32_t>(getpid())), "%d", settings.device);
}

}  // namespace

Trace::Trace(const DeviceSettings& settings) {
  const std::string& name = settings.trace_file;
  const std::string expanded = file_name(settings);
  const OwnFile own = open_own_file(expanded, O_WRONLY);
  if (own.fd >= 0) {
    close(own.fd);
    file_.open(expanded);
  }
  if (!file_.is_open())
    throw std::runtime_error("SHOAL_EMULATOR_TRACE is \"" + name +
                             "\"; allowed: a file that can be created, or one of this user" +
                             (own.reason.empty() ? "" : ": " + own.reason));
  if (name.ends_with(".json")) perfetto_.emplace(file_);
}

void Trace::write(const TraceEvent& event) {
  if (perfetto_)
    perfetto_->add(event);
  else
    file_ << to_text(event) << '\n';
}

}  // namespace shoal::emulator
