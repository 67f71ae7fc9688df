// SPDX-License-Identifier: Apache-2.0
#include "gpu/environment.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace shoal::emulator::gpu {
namespace {

const char* find(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

[[noreturn]] void reject(const char* name, const char* value, const std::string& allowed) {
  throw std::invalid_argument(fmt::format("{} is \"{}\"; allowed: {}", name, value, allowed));
}

double number(const char* name, double least, double most, double otherwise, bool whole = true) {
  const char* const text = find(name);
  if (text == nullptr) return otherwise;
  const std::string_view word(text);
  double value = 0;
  // strtod() would expect the decimal separator of the program's locale.
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() ||
      !(value >= least && value <= most) || (whole && value != std::floor(value)))
    reject(name, text, fmt::format("{} to {}", least, most));
  return value;
}

Nanoseconds microseconds(const char* name) {
  constexpr double kMost = 1'000'000;
  return Nanoseconds(std::llround(1000 * number(name, 0, kMost, 0, false)));
}

constexpr std::array<std::string_view, 3> kOrderings = {"strict", "adaptive", "unordered"};

}  // namespace

Environment read_environment() {
  constexpr double kMostRate = 10'000, kMostSeed = 4294967295.0;
  Environment read;
  read.nic.bytes_per_ns =
      number("SHOAL_EMULATOR_RATE_GB_S", 0, kMostRate, read.nic.bytes_per_ns, false);
  read.nic.blocks = static_cast<int>(number("SHOAL_EMULATOR_SMS", 1, 4, read.nic.blocks));
  read.nic.delay = microseconds("SHOAL_EMULATOR_DELAY_US");
  read.nic.reorder = microseconds("SHOAL_EMULATOR_REORDER_US");
  read.nic.seed = static_cast<std::uint64_t>(number("SHOAL_EMULATOR_SEED", 0, kMostSeed, 1));
  if (const char* const text = find("SHOAL_EMULATOR_ORDERING")) {
    std::size_t i = 0;
    while (i < kOrderings.size() && kOrderings[i] != text) ++i;
    if (i == kOrderings.size())
      reject("SHOAL_EMULATOR_ORDERING", text, "strict, adaptive, unordered");
    read.ordering = static_cast<Ordering>(i);
  }
  return read;
}

std::string describe(const Environment& environment) {
  const NicOptions& nic = environment.nic;
  return fmt::format("{}, {}, delay {:g} us, {} SM{}",
                     nic.bytes_per_ns > 0 ? fmt::format("{:g} GB/s", nic.bytes_per_ns)
                                          : std::string("no throttle"),
                     kOrderings[static_cast<std::size_t>(environment.ordering)],
                     static_cast<double>(nic.delay.count()) / 1000, nic.blocks,
                     nic.blocks == 1 ? "" : "s");
}

}  // namespace shoal::emulator::gpu
