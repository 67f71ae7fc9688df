// SPDX-License-Identifier: Apache-2.0
#include "fabric/connectivity.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/check.hpp"

namespace shoal::detail {
namespace {

using transport::Capabilities;
namespace capability = transport::capability;

/// Faults of PEs in the text about a network that is dropped.
constexpr std::size_t kMostFaults = 3;

bool same_node(const Connectivity& map, Pe a, Pe b) {
  return map.node_of.empty() ||
         map.node_of[static_cast<std::size_t>(a)] == map.node_of[static_cast<std::size_t>(b)];
}

std::optional<std::size_t> index_of(const Connectivity& map, std::string_view name) {
  const auto at = std::find(map.names.begin(), map.names.end(), name);
  if (at == map.names.end()) return std::nullopt;
  return static_cast<std::size_t>(at - map.names.begin());
}

bool does_everything(Capabilities both) {
  return (both & capability::all_operations) == capability::all_operations;
}

/// Choices for many pairs from one map: each PE looks at every pair of PEs, so names are looked up
/// once.
class Chooser {
 public:
  explicit Chooser(const Connectivity& map)
      : map_(map),
        all_(indices(map.names)),
        inside_(map.inside.empty() ? all_ : indices(map.inside)),
        between_(map.between.empty() ? all_ : indices(map.between)) {}

  /// The first transport in the order of the pair that has all capabilities in both directions.
  std::optional<std::size_t> choose(Pe a, Pe b) const { return first(a, b, does_everything); }
  /// The first that has any.
  std::optional<std::size_t> choose_any(Pe a, Pe b) const {
    return first(a, b, [](Capabilities both) { return both != 0; });
  }
  std::optional<std::size_t> choose_or_any(Pe a, Pe b) const {
    const auto chosen = choose(a, b);
    return chosen ? chosen : choose_any(a, b);
  }
  bool load_store(Pe a, Pe b) const {
    const auto t = choose_or_any(a, b);
    return t && (both(a, b, *t) & capability::load_store) != 0;
  }

 private:
  /// Indices of the names that are in the map and not dropped.
  std::vector<std::size_t> indices(const std::vector<std::string>& names) const {
    std::vector<std::size_t> result;
    for (const std::string& name : names) {
      const auto t = index_of(map_, name);
      if (t && (map_.dropped.empty() || map_.dropped[*t].empty())) result.push_back(*t);
    }
    return result;
  }
  Capabilities both(Pe a, Pe b, std::size_t t) const { return map_.at(a, b, t) & map_.at(b, a, t); }
  template <typename Good>
  std::optional<std::size_t> first(Pe a, Pe b, Good&& good) const {
    for (const std::size_t t : a == b ? all_ : same_node(map_, a, b) ? inside_ : between_)
      if (good(both(a, b, t))) return t;
    return std::nullopt;
  }

  const Connectivity& map_;
  const std::vector<std::size_t> all_, inside_, between_;
};

bool prefers(const Connectivity& map, const Chooser& chooser, Pe a, Pe b, std::string_view name) {
  if (a == b) return false;
  const auto chosen = chooser.choose(a, b);
  for (const std::string& candidate : order_of(map, a, b)) {
    if (chosen && candidate == map.names[*chosen]) return false;
    if (candidate == name) return true;
  }
  return false;
}

bool has(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// The names of a list such as "shm,libfabric" or "verbs,network".
std::vector<std::string> parse_order(std::string_view setting, std::string_view text, bool rdma) {
  std::vector<std::string> names;
  const auto is_named = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (text == "automatic") text = "shm,network,cuda_p2p,staged";
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::string name(text.substr(at, end - at));
    at = end + 1;
    if (name == "libfabric") name = "ofi";
    const bool several = name == "network";
    require(
        several || has(kHostTransports, name) || has(kHeapTransports, name), Code::invalid_argument,
        "SHOAL-N165: {} is \"{}\": \"{}\" is no transport; allowed: automatic, or a comma list of "
        "{}, {}, network",
        setting, text, name, fmt::join(kHostTransports, ", "), fmt::join(kHeapTransports, ", "));
    require(!is_named(name), Code::invalid_argument,
            "SHOAL-N165: {} is \"{}\", which names {} twice", setting, text, name);
    if (!several) names.push_back(std::move(name));
    for (const std::string_view network : automatic_networks(rdma))
      if (several && !is_named(network)) names.emplace_back(network);
  }
  return names;
}

/// Names of `kind` in the setting; without any, all of that kind in the automatic order.
std::vector<std::string> preferences(std::string_view setting, std::string_view text,
                                     std::span<const std::string_view> kind, bool rdma) {
  for (const std::string_view list : {text, std::string_view("automatic")}) {
    std::vector<std::string> names = parse_order(setting, list, rdma);
    std::erase_if(names, [&](const std::string& name) { return !has(kind, name); });
    if (!names.empty()) return names;
  }
  return {};
}

}  // namespace

std::optional<std::size_t> chosen_for(const Connectivity& connectivity, Pe a, Pe b) {
  return Chooser(connectivity).choose(a, b);
}

std::optional<std::size_t> chosen_for_heap(const Connectivity& connectivity, Pe a, Pe b) {
  return Chooser(connectivity).choose_or_any(a, b);
}

const std::vector<std::string>& order_of(const Connectivity& connectivity, Pe a, Pe b) {
  const auto& wanted = same_node(connectivity, a, b) ? connectivity.inside : connectivity.between;
  return wanted.empty() || a == b ? connectivity.names : wanted;
}

std::array<std::string_view, 3> automatic_networks(bool rdma) {
  if (rdma) return {"verbs", "ucx", "ofi"};
  return {"ofi", "ucx", "verbs"};
}

void read_preferences(Connectivity& connectivity, const Settings& settings,
                      std::span<const std::string_view> kind, bool rdma) {
  connectivity.inside =
      preferences("SHOAL_TRANSPORT_INSIDE", settings.transport_inside, kind, rdma);
  connectivity.between =
      preferences("SHOAL_TRANSPORT_BETWEEN", settings.transport_between, kind, rdma);
}

bool wants(const Connectivity& connectivity, Pe a, Pe b, std::string_view name) {
  return prefers(connectivity, Chooser(connectivity), a, b, name);
}

std::string_view next_network(const Connectivity& connectivity,
                              std::span<const std::string_view> networks) {
  // In the order of preference of the pairs; pairs between nodes first, since networks are for
  // them.
  std::vector<std::string> order = connectivity.between;
  order.insert(order.end(), connectivity.inside.begin(), connectivity.inside.end());
  const auto n_pes = static_cast<Pe>(connectivity.n_pes);
  const Chooser chooser(connectivity);
  for (const std::string& name : order) {
    const auto network = std::find(networks.begin(), networks.end(), name);
    if (network == networks.end() || index_of(connectivity, name)) continue;
    for (Pe a = 0; a < n_pes; ++a)
      for (Pe b = a + 1; b < n_pes; ++b)
        if (prefers(connectivity, chooser, a, b, name)) return *network;
  }
  return {};
}

void drop_where_broken(Connectivity& connectivity, std::string_view name,
                       std::span<const std::string> faults) {
  const std::size_t t = index_of(connectivity, name).value();
  connectivity.dropped.resize(connectivity.names.size());
  Connectivity without = connectivity;
  without.dropped[t] = "not looked at";
  const Chooser chooser(without);
  const auto n_pes = static_cast<Pe>(connectivity.n_pes);
  for (Pe a = 0; a < n_pes; ++a)
    for (Pe b = a + 1; b < n_pes; ++b) {
      if (!prefers(without, chooser, a, b, name)) continue;
      const Capabilities both = connectivity.at(a, b, t) & connectivity.at(b, a, t);
      if (does_everything(both)) continue;
      connectivity.dropped[t] =
          fmt::format("dropped for all, since between PE {} and PE {} it offers {}", a, b,
                      transport::describe(both));
      // One fault makes other PEs fail too, so the first need not be the cause.
      std::size_t listed = 0;
      for (const std::string& fault : faults)
        if (!fault.empty() && listed++ < kMostFaults) connectivity.dropped[t] += "; " + fault;
      return;
    }
}

std::string other_transports(const Connectivity& map, std::span<const std::string_view> networks,
                             Pe a, Pe b) {
  const auto chosen = chosen_for(map, a, b);
  const std::uint32_t both = map.installed.empty() ? 0
                                                   : map.installed[static_cast<std::size_t>(a)] &
                                                         map.installed[static_cast<std::size_t>(b)];
  std::vector<std::string> others;
  for (std::size_t t = 0; t < map.names.size(); ++t)
    if (t != chosen && (map.dropped.size() <= t || map.dropped[t].empty()) &&
        does_everything(map.at(a, b, t) & map.at(b, a, t)))
      others.push_back(map.names[t]);
  for (std::size_t i = 0; i < networks.size(); ++i)
    if ((both >> i & 1) != 0 && !index_of(map, networks[i]))
      others.push_back(fmt::format("{} (not tried)", networks[i]));
  if (others.empty())
    return fmt::format("; the two PEs have no other transport. Setting: {}", setting_of(map, a, b));
  return fmt::format("; both PEs also have {}. Setting: {}", fmt::join(others, ", "),
                     setting_of(map, a, b));
}

std::string_view setting_of(const Connectivity& map, Pe a, Pe b) {
  return same_node(map, a, b) ? "SHOAL_TRANSPORT_INSIDE" : "SHOAL_TRANSPORT_BETWEEN";
}

std::string why_not(const Connectivity& map, Pe my_pe, Pe a, Pe b) {
  std::string text;
  for (std::size_t t = 0; t < map.names.size(); ++t) {
    const std::string capabilities = transport::describe(map.at(a, b, t) & map.at(b, a, t));
    const std::string& reason = map.reasons[static_cast<std::size_t>(b)][t];
    text += fmt::format("{}{} offers {}{}", t == 0 ? "" : "; ", map.names[t], capabilities,
                        a == my_pe && !reason.empty() ? " (" + reason + ")" : "");
    if (!map.dropped.empty() && !map.dropped[t].empty()) text += ", " + map.dropped[t];
  }
  return text;
}

void choose_transports(Connectivity& connectivity, Pe my_pe) {
  connectivity.transport_of.clear();
  connectivity.capabilities.clear();
  const auto n_pes = static_cast<Pe>(connectivity.n_pes);
  const Chooser chooser(connectivity);
  // The pairs of this PE first: their message has the reasons.
  for (Pe pe = 0; pe < n_pes; ++pe) {
    const auto chosen = chooser.choose(my_pe, pe);
    require(chosen.has_value(), Code::unsupported,
            "SHOAL-N166: no transport connects PE {} and PE {}: {}", my_pe, pe,
            [&] { return why_not(connectivity, my_pe, my_pe, pe); });
    connectivity.transport_of.push_back(*chosen);
    connectivity.capabilities.push_back(connectivity.at(my_pe, pe, *chosen) &
                                        connectivity.at(pe, my_pe, *chosen));
  }
  for (Pe a = 0; a < n_pes; ++a)
    for (Pe b = a + 1; b < n_pes; ++b)
      require(chooser.choose(a, b).has_value(), Code::unsupported,
              "SHOAL-N166: no transport connects PE {} and PE {}: {}", a, b,
              [&] { return why_not(connectivity, my_pe, a, b); });
}

void choose_heap_transports(Connectivity& connectivity, Pe my_pe) {
  const Chooser chooser(connectivity);
  for (Pe pe = 0; pe < static_cast<Pe>(connectivity.n_pes); ++pe) {
    const auto chosen = chooser.choose_or_any(my_pe, pe);
    connectivity.transport_of.push_back(chosen.value_or(kNoTransport));
    connectivity.capabilities.push_back(
        chosen ? connectivity.at(my_pe, pe, *chosen) & connectivity.at(pe, my_pe, *chosen) : 0);
  }
}

std::vector<Pe> load_store_peers(const Connectivity& connectivity, Pe my_pe) {
  const auto n_pes = static_cast<Pe>(connectivity.n_pes);
  const Chooser chooser(connectivity);
  std::vector<Pe> peers;
  std::vector<bool> reached;
  for (Pe pe = 0; pe < n_pes; ++pe) {
    reached.push_back(chooser.load_store(my_pe, pe));
    if (reached.back()) peers.push_back(pe);
  }
  for (const Pe peer : peers)
    for (Pe pe = 0; pe < n_pes; ++pe)
      if (chooser.load_store(peer, pe) != reached[static_cast<std::size_t>(pe)]) return {my_pe};
  return peers;
}

std::vector<std::int32_t> load_store_domains(const Connectivity& connectivity) {
  std::vector<std::int32_t> domains(connectivity.n_pes, -1);
  std::int32_t count = 0;
  for (std::size_t pe = 0; pe < connectivity.n_pes; ++pe) {
    if (domains[pe] >= 0) continue;
    for (const Pe peer : load_store_peers(connectivity, static_cast<Pe>(pe)))
      domains[static_cast<std::size_t>(peer)] = count;
    ++count;
  }
  return domains;
}

}  // namespace shoal::detail
