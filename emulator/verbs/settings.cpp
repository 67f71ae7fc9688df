// SPDX-License-Identifier: Apache-2.0
#include "verbs/settings.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/wire_file.hpp"

namespace shoal::emulator {
namespace {

const char* find(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr || *value == '\0' ? nullptr : value;
}

[[noreturn]] void reject(const std::string& name, std::string_view value,
                         const std::string& allowed) {
  throw std::runtime_error(name + " is \"" + std::string(value) + "\"; allowed: " + allowed);
}

template <typename Number>
void read_number(const std::string& name, std::uint64_t least, std::uint64_t most, Number& to) {
  const char* const text = find(name);
  if (text == nullptr) return;
  const std::string_view value(text);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < least || number > most)
    reject(name, value, std::to_string(least) + " to " + std::to_string(most));
  to = static_cast<Number>(number);
}

void read_probability(const std::string& name, double& to) {
  const char* const text = find(name);
  if (text == nullptr) return;
  // strtod() would expect the decimal separator of the program's locale.
  const std::string_view value(text);
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), to);
  if (error != std::errc{} || end != value.data() + value.size() || !(to >= 0 && to < 1))
    reject(name, value, "0 to less than 1");
}

template <typename Value, std::size_t kCount>
void read_choice(const std::string& name,
                 const std::array<std::pair<std::string_view, Value>, kCount>& choices, Value& to) {
  const char* const text = find(name);
  if (text == nullptr) return;
  std::string allowed;
  for (const auto& [word, value] : choices) {
    if (word == text) {
      to = value;
      return;
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(word);
  }
  reject(name, text, allowed);
}

std::string wire_file() {
  const char* const folder = find("SHOAL_EMULATOR_DIRECTORY");
  std::string file = folder != nullptr               ? folder
                     : access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                                     : "/tmp";
  const char* const job = find("SHOAL_EMULATOR_JOB");
  const std::string_view name = job == nullptr ? "default" : job;
  if (name.find('/') != std::string_view::npos)
    reject("SHOAL_EMULATOR_JOB", name, "a name without /");
  return file + "/shoal-emulator-" + std::to_string(getuid()) + "-" + std::string(name) + ".wire";
}

/// The interfaces of the UDP wire, one for each device; one empty name where none is set.
std::vector<std::string> interfaces() {
  const char* const text = find("SHOAL_EMULATOR_UDP_INTERFACE");
  std::vector<std::string> names(1);
  for (const char* at = text; at != nullptr && *at != '\0'; ++at) {
    if (*at == ',')
      names.emplace_back();
    else
      names.back() += *at;
  }
  return names;
}

void read_interface(DeviceSettings& settings) {
  const std::vector<std::string> names = interfaces();
  const bool has_empty = std::find(names.begin(), names.end(), "") != names.end();
  if (names.size() > kMostDevices || (names.size() > 1 && has_empty))
    reject("SHOAL_EMULATOR_UDP_INTERFACE", find("SHOAL_EMULATOR_UDP_INTERFACE"),
           "1 to " + std::to_string(kMostDevices) + " interfaces, with commas between them");
  settings.devices = static_cast<std::uint32_t>(names.size());
  if (settings.device >= names.size())
    throw std::runtime_error("SHOAL_EMULATOR_UDP_INTERFACE has names of " +
                             std::to_string(names.size()) + " devices");
  settings.udp.interface = names[settings.device];
}

void read_udp(UdpOptions& udp) {
  read_number("SHOAL_EMULATOR_UDP_PORT", 1024, 65472, udp.first_port);
  read_number("SHOAL_EMULATOR_UDP_BUFFER_BYTES", 1 << 16, 1 << 30, udp.buffer_bytes);
}

}  // namespace

std::uint32_t device_count() {
  const char* const wire = find("SHOAL_EMULATOR_WIRE");
  if (wire == nullptr || std::string_view(wire) != "udp") return 1;
  const std::size_t names = interfaces().size();
  return names > kMostDevices ? 1 : static_cast<std::uint32_t>(names);
}

DeviceSettings read_device_settings(std::uint32_t device) {
  DeviceSettings settings;
  settings.device = device;
  NicLimits& limits = settings.nic.limits;
  settings.wire_file = wire_file();
  read_number("SHOAL_EMULATOR_PROCESSES", 1, WireFile::kMostSlots, settings.slots);
  read_number("SHOAL_EMULATOR_RING_BYTES", 1 << 15, 1 << 26, settings.ring_bytes);
  read_udp(settings.udp);
  settings.udp.slots = std::min(settings.slots, UdpWire::kMostSlots);
  read_choice("SHOAL_EMULATOR_WIRE",
              std::to_array<std::pair<std::string_view, WireKind>>(
                  {{"shared_memory", WireKind::shared_memory}, {"udp", WireKind::udp}}),
              settings.wire);
  if (settings.wire == WireKind::udp) read_interface(settings);
  read_choice(
      "SHOAL_EMULATOR_ORDERING",
      std::to_array<std::pair<std::string_view, Ordering>>({{"strict", Ordering::strict},
                                                            {"adaptive", Ordering::adaptive},
                                                            {"unordered", Ordering::unordered}}),
      settings.ordering);
  read_choice("SHOAL_EMULATOR_ARBITRATION",
              std::to_array<std::pair<std::string_view, Arbitration>>(
                  {{"by_number", Arbitration::by_number},
                   {"random", Arbitration::random},
                   {"oldest_doorbell", Arbitration::oldest_doorbell}}),
              settings.nic.arbitration);
  read_choice("SHOAL_EMULATOR_WORDS",
              std::to_array<std::pair<std::string_view, bool>>({{"whole", true}, {"bytes", false}}),
              settings.nic.whole_words);
  read_choice("SHOAL_EMULATOR_ATOMICS",
              std::to_array<std::pair<std::string_view, bool>>({{"global", true}, {"nic", false}}),
              settings.nic.global_atomics);
  read_number("SHOAL_EMULATOR_QUANTUM", 1, 1 << 20, settings.nic.quantum);
  read_number("SHOAL_EMULATOR_SEED", 0, ~std::uint64_t{0}, settings.nic.seed);
  read_number("SHOAL_EMULATOR_MAX_QP", 1, 1 << 20, limits.queue_pairs);
  read_number("SHOAL_EMULATOR_MAX_CQ", 1, 1 << 20, limits.completion_queues);
  read_number("SHOAL_EMULATOR_MAX_MR", 1, 1 << 23, limits.keys);
  read_number("SHOAL_EMULATOR_MAX_QP_WR", 1, 1 << 15, limits.queue_blocks);
  read_number("SHOAL_EMULATOR_MAX_RD_ATOMIC", 1, 128, limits.reads_and_atomics);
  read_probability("SHOAL_EMULATOR_LOSS", settings.impairments.loss);
  read_probability("SHOAL_EMULATOR_DUPLICATION", settings.impairments.duplication);
  read_probability("SHOAL_EMULATOR_REORDERING", settings.impairments.reordering);
  std::int64_t delay = 0;
  read_number("SHOAL_EMULATOR_DELAY_US", 0, 10'000'000, delay);
  settings.impairments.delay = std::chrono::microseconds(delay);
  std::int64_t resend = 10'000;  // peers that wait for a core are late by milliseconds
  read_number("SHOAL_EMULATOR_FIRST_RESEND_US", 0, 10'000'000, resend);
  settings.nic.first_resend = std::chrono::microseconds(resend);
  std::int64_t relaxed = 0;
  read_number("SHOAL_EMULATOR_RELAXED_DELAY_US", 0, 10'000'000, relaxed);
  settings.nic.relaxed_delay = std::chrono::microseconds(relaxed);
  settings.impairments.seed = settings.nic.seed;
  if (const char* const file = find("SHOAL_EMULATOR_TRACE")) settings.trace_file = file;
  return settings;
}

}  // namespace shoal::emulator
