// SPDX-License-Identifier: Apache-2.0
#include "topology/nic_binding.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>

#include "base/check.hpp"

namespace shoal::topology {
namespace {

constexpr std::int32_t kMostOfAKind = 4096;  // ports of a device, PEs of a host

/// One "name[:port[:count]]".
struct Entry {
  std::string text;
  std::string name;
  std::optional<std::int32_t> port;
  std::int32_t count = 1;
};

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<std::int32_t> positive(std::string_view text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc{} && end == text.data() + text.size() && value > 0 &&
                    value <= kMostOfAKind;
  return good ? std::optional(value) : std::nullopt;
}

/// The setting in use, for messages.
struct Source {
  std::string_view setting, text, form;
  std::size_t most_fields;
};

Source list_source(const NicBinding& binding) {
  return {
      "SHOAL_NIC_LIST", binding.list,
      "a comma list of name or name:port, a leading ^ to exclude the whole list, such as \"mlx5_0:1,mlx5_2\" or "
      "\"^mlx5_4\"",
      2};
}

Source mapping_source(const NicBinding& binding) {
  return {"SHOAL_NIC_MAPPING", binding.mapping,
          "a comma list of name, name:port or name:port:count, such as \"mlx5_0:1:4,mlx5_1:1:4\"",
          3};
}

std::vector<Entry> parse(const Source& source, std::string_view text) {
  std::vector<Entry> entries;
  for (const std::string_view item : split(text, ',')) {
    const std::vector<std::string_view> fields = split(item, ':');
    Entry entry{std::string(item), std::string(fields[0]), std::nullopt, 1};
    bool good = !entry.name.empty() && entry.name.find('^') == std::string::npos &&
                fields.size() <= source.most_fields;
    if (good && fields.size() > 1) good = (entry.port = positive(fields[1])).has_value();
    if (good && fields.size() > 2) {
      const auto count = positive(fields[2]);
      good = count.has_value();
      entry.count = count.value_or(1);
    }
    require(good, Code::invalid_argument,
            "SHOAL-N227: {} is \"{}\": \"{}\" is malformed; allowed: {}", source.setting,
            source.text, item, source.form);
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// "; did you mean mlx5_0? This host has: mlx5_0:1, mlx5_1:1".
std::string suggestion(const Machine& machine, std::string_view name) {
  std::vector<std::string> labels;
  const Nic* nearest = nullptr;
  for (const Nic& nic : machine.nics) {
    labels.push_back(nic.label() + (nic.up ? "" : " (down)"));
    if (nearest == nullptr || edit_distance(name, nic.name) < edit_distance(name, nearest->name))
      nearest = &nic;
  }
  if (nearest == nullptr) return "; this host has no NICs";
  const bool alike = !name.empty() && edit_distance(name, nearest->name) <=
                                          std::max<std::size_t>(2, name.size() / 3);
  return fmt::format("{} This host has: {}",
                     alike ? fmt::format("; did you mean {}?", nearest->name) : ".",
                     fmt::join(labels, ", "));
}

/// The ports that an entry names, whether up or not.
std::vector<std::int32_t> named(const Machine& machine, const Source& source, const Entry& entry) {
  std::vector<std::int32_t> found;
  bool known = false;
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    if (machine.nics[i].name != entry.name) continue;
    known = true;
    if (!entry.port || *entry.port == machine.nics[i].port)
      found.push_back(static_cast<std::int32_t>(i));
  }
  require(known, Code::invalid_argument, "SHOAL-N227: {} is \"{}\": no NIC is called \"{}\"{}",
          source.setting, source.text, entry.name, suggestion(machine, entry.name));
  require(!found.empty(), Code::invalid_argument,
          "SHOAL-N227: {} is \"{}\": \"{}\" names a port that {} does not have{}", source.setting,
          source.text, entry.text, entry.name, suggestion(machine, entry.name));
  return found;
}

/// Like `named`, restricted to ports that are up; at least one.
std::vector<std::int32_t> named_and_up(const Machine& machine, const Source& source,
                                       const Entry& entry) {
  std::vector<std::int32_t> found = named(machine, source, entry);
  std::erase_if(found,
                [&](std::int32_t nic) { return !machine.nics[static_cast<std::size_t>(nic)].up; });
  require(!found.empty(), Code::invalid_argument,
          "SHOAL-N228: {} is \"{}\": \"{}\" is down; connect it or take it out of the setting{}",
          source.setting, source.text, entry.text, suggestion(machine, ""));
  return found;
}

void leave_out_if(const Machine& machine, UsableNics& result, std::string_view why,
                  auto&& condition) {
  for (std::size_t i = 0; i < machine.nics.size(); ++i)
    if (result.excluded[i].empty() && condition(machine.nics[i])) result.excluded[i] = why;
}

}  // namespace

NicBinding nic_binding(const Settings& settings) {
  return {settings.nic_list, settings.nic_round_robin != 0, settings.nic_mapping};
}

UsableNics usable_nics(const Machine& machine, const NicBinding& binding) {
  const Source source = list_source(binding);
  UsableNics result;
  result.excluded.resize(machine.nics.size());
  const std::string_view text = trim(binding.list);
  if (!text.empty() && !text.starts_with('^')) {
    std::ranges::fill(result.excluded, "not in SHOAL_NIC_LIST");
    for (const Entry& entry : parse(source, text)) {
      for (const std::int32_t nic : named_and_up(machine, source, entry)) {
        std::string& reason = result.excluded[static_cast<std::size_t>(nic)];
        require(
            !reason.empty(), Code::invalid_argument,
            "SHOAL-N229: {} is \"{}\": {} is listed twice; to give a port more PEs than others use "
            "SHOAL_NIC_MAPPING, such as \"{}:2\"",
            source.setting, source.text, machine.nics[static_cast<std::size_t>(nic)].label(),
            machine.nics[static_cast<std::size_t>(nic)].label());
        reason.clear();
        result.nics.push_back(nic);
      }
    }
    return result;
  }

  if (!text.empty())
    for (const Entry& entry : parse(source, text.substr(1)))
      for (const std::int32_t nic : named(machine, source, entry))
        result.excluded[static_cast<std::size_t>(nic)] = "excluded by SHOAL_NIC_LIST";
  leave_out_if(machine, result, "down", [](const Nic& nic) { return !nic.up; });
  auto best = Nic::Kind::software;
  std::int32_t fastest = 0;
  for (std::size_t i = 0; i < machine.nics.size(); ++i)
    if (result.excluded[i].empty()) best = std::min(best, machine.nics[i].kind);
  leave_out_if(
      machine, result,
      best == Nic::Kind::rdma ? "there are RDMA devices" : "there are interfaces of PCI devices",
      [&](const Nic& nic) { return nic.kind != best; });
  for (std::size_t i = 0; i < machine.nics.size(); ++i)
    if (result.excluded[i].empty()) fastest = std::max(fastest, machine.nics[i].rate);
  leave_out_if(machine, result,
               "SHOAL-N230: less than half as fast as others; to use it name it in SHOAL_NIC_LIST",
               [&](const Nic& nic) { return nic.rate > 0 && nic.rate * 2 < fastest; });
  std::map<std::int32_t, int> ports;  // of each plane
  for (std::size_t i = 0; i < machine.nics.size(); ++i)
    if (result.excluded[i].empty()) ++ports[machine.nics[i].plane];
  int most = 0;
  for (const auto& [plane, count] : ports) most = std::max(most, count);
  leave_out_if(
      machine, result,
      "SHOAL-N230: its plane has far fewer ports than another; to use it name it in SHOAL_NIC_LIST",
      [&](const Nic& nic) { return ports[nic.plane] * 4 < most * 3; });
  for (std::size_t i = 0; i < machine.nics.size(); ++i)
    if (result.excluded[i].empty()) result.nics.push_back(static_cast<std::int32_t>(i));
  require(!result.nics.empty() || text.empty(), Code::invalid_argument,
          "SHOAL-N231: {} is \"{}\": nothing is left{}", source.setting, source.text,
          suggestion(machine, ""));
  return result;
}

std::vector<std::int32_t> mapped_nics(const Machine& machine, const NicBinding& binding,
                                      std::int32_t seats) {
  const Source source = mapping_source(binding);
  require(
      trim(binding.list).empty(), Code::invalid_argument,
      "SHOAL-N232: SHOAL_NIC_MAPPING says which PE uses which port, so SHOAL_NIC_LIST must not be "
      "set with it; it is \"{}\"",
      binding.list);
  std::vector<std::int32_t> result;
  std::vector<std::string> ports;
  for (const Entry& entry : parse(source, trim(binding.mapping))) {
    const std::vector<std::int32_t> found = named_and_up(machine, source, entry);
    result.insert(result.end(), static_cast<std::size_t>(entry.count), found.front());
    ports.push_back(machine.nics[static_cast<std::size_t>(found.front())].label());
  }
  if (static_cast<std::int32_t>(result.size()) == seats) return result;
  // The remedy: the same ports, divided evenly.
  std::vector<std::string> even;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const std::size_t count =
        (static_cast<std::size_t>(seats) + ports.size() - 1 - i) / ports.size();
    if (count > 0) even.push_back(fmt::format("{}:{}", ports[i], count));
  }
  fail(Code::invalid_argument,
       "SHOAL-N233: {} is \"{}\": it has places for {} PEs, and this host has {}; such as \"{}\"",
       source.setting, source.text, result.size(), seats, fmt::join(even, ","));
}

}  // namespace shoal::topology
