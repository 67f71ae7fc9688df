#include "world/connectivity.hpp"

#include <optional>

#include "base/check.hpp"

namespace shoal::detail {
namespace {

using transport::Capabilities;
namespace capability = transport::capability;

std::optional<std::size_t> choose(const Connectivity& map, Pe a, Pe b) {
  for (std::size_t t = 0; t < map.names.size(); ++t) {
    const Capabilities both = map.at(a, b, t) & map.at(b, a, t);
    if ((both & capability::all_operations) == capability::all_operations) return t;
  }
  return std::nullopt;
}

std::optional<std::size_t> choose_any(const Connectivity& map, Pe a, Pe b) {
  for (std::size_t t = 0; t < map.names.size(); ++t)
    if ((map.at(a, b, t) & map.at(b, a, t)) != 0) return t;
  return std::nullopt;
}

bool load_store(const Connectivity& map, Pe a, Pe b) {
  auto t = choose(map, a, b);
  if (!t) t = choose_any(map, a, b);
  return t && (map.at(a, b, *t) & map.at(b, a, *t) & capability::load_store) != 0;
}

}  // namespace

std::string why_not(const Connectivity& map, Pe my_pe, Pe a, Pe b) {
  std::string text;
  for (std::size_t t = 0; t < map.names.size(); ++t) {
    const std::string capabilities = transport::describe(map.at(a, b, t) & map.at(b, a, t));
    const std::string& reason = map.reasons[static_cast<std::size_t>(b)][t];
    text += fmt::format("{}{} offers {}{}", t == 0 ? "" : "; ", map.names[t], capabilities,
                        a == my_pe && !reason.empty() ? " (" + reason + ")" : "");
  }
  return text;
}

std::vector<Capabilities> connectivity_row(std::span<const std::unique_ptr<transport::Transport>> transports,
                                           Pe n_pes) {
  std::vector<Capabilities> row;
  for (Pe pe = 0; pe < n_pes; ++pe)
    for (const auto& transport : transports) row.push_back(transport->reach(pe).capabilities);
  return row;
}

void choose_transports(Connectivity& connectivity, Pe my_pe) {
  const auto n_pes = static_cast<Pe>(connectivity.n_pes);
  // This PE's own pairs first: their message has the reasons.
  for (Pe pe = 0; pe < n_pes; ++pe) {
    const auto chosen = choose(connectivity, my_pe, pe);
    require(chosen.has_value(), Code::unsupported, "no transport connects PE {} and PE {}: {}", my_pe, pe,
            why_not(connectivity, my_pe, my_pe, pe));
    connectivity.transport_of.push_back(*chosen);
    connectivity.capabilities.push_back(connectivity.at(my_pe, pe, *chosen) & connectivity.at(pe, my_pe, *chosen));
  }
  for (Pe a = 0; a < n_pes; ++a)
    for (Pe b = a + 1; b < n_pes; ++b)
      require(choose(connectivity, a, b).has_value(), Code::unsupported, "no transport connects PE {} and PE {}: {}", a,
              b, why_not(connectivity, my_pe, a, b));
}

void choose_heap_transports(Connectivity& connectivity, Pe my_pe) {
  for (Pe pe = 0; pe < static_cast<Pe>(connectivity.n_pes); ++pe) {
    auto chosen = choose(connectivity, my_pe, pe);
    if (!chosen) chosen = choose_any(connectivity, my_pe, pe);
    connectivity.transport_of.push_back(chosen.value_or(kNoTransport));
    connectivity.capabilities.push_back(
        chosen ? connectivity.at(my_pe, pe, *chosen) & connectivity.at(pe, my_pe, *chosen) : 0);
  }
}

std::vector<Pe> load_store_peers(const Connectivity& connectivity, Pe my_pe) {
  const auto n_pes = static_cast<Pe>(connectivity.n_pes);
  std::vector<Pe> peers;
  for (Pe pe = 0; pe < n_pes; ++pe)
    if (load_store(connectivity, my_pe, pe)) peers.push_back(pe);
  for (const Pe peer : peers)
    for (Pe pe = 0; pe < n_pes; ++pe)
      if (load_store(connectivity, peer, pe) != load_store(connectivity, my_pe, pe)) return {my_pe};
  return peers;
}

}  // namespace shoal::detail
