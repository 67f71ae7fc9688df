// SPDX-License-Identifier: Apache-2.0
#include "verbs/trace.hpp"

#include <unistd.h>

#include <stdexcept>

namespace shoal::emulator {
namespace {

std::string expand(std::string name) {
  if (const std::size_t at = name.find("%p"); at != std::string::npos)
    name.replace(at, 2, std::to_string(getpid()));
  return name;
}

}  // namespace

Trace::Trace(const std::string& name) : file_(expand(name)) {
  if (!file_)
    throw std::runtime_error("SHOAL_EMULATOR_TRACE is \"" + name +
                             "\"; allowed: a file that can be created");
  if (name.ends_with(".json")) perfetto_.emplace(file_);
}

void Trace::write(const TraceEvent& event) {
  if (perfetto_)
    perfetto_->add(event);
  else
    file_ << to_text(event) << '\n';
}

}  // namespace shoal::emulator
