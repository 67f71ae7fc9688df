// SPDX-License-Identifier: Apache-2.0
// choice.hpp: which of libfabric's endpoints become the rails of a PE. Pure functions.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::transport::ofi {

/// One endpoint that fi_getinfo offers, in the provider's order.
struct Candidate {
  std::string domain{};  ///< "eth0", "mlx5_0", "rdmap0s6-rdm"
  std::string device{};  ///< of the NIC, "mlx5_0"; may be empty
  bool ip = false;       ///< its address is an IP address
  bool v6 = false;
  bool link_local = false;
  bool loopback = false;
};

struct Choice {
  std::vector<std::size_t> rails;  ///< indices of candidates
  std::string reason;              ///< where there are none
};

/// "mlx5_0" for "mlx5_0:1".
inline std::string_view device_of(std::string_view label) {
  return label.substr(0, label.rfind(':'));
}

/// True if the endpoint is on the NIC of this name. Domains have the name of the device or the
/// interface, some with a suffix.
inline bool is_on(const Candidate& candidate, std::string_view label) {
  const std::string_view name = device_of(label);
  return candidate.device == name || candidate.domain == name ||
         candidate.domain.starts_with(std::string(name) + "-");
}

namespace detail {
/// IPv4 before IPv6. Link-local addresses come last: they need a scope that other hosts do not
/// share.
inline int rank(const Candidate& candidate) {
  return (candidate.v6 ? 1 : 0) + (candidate.link_local ? 2 : 0);
}
}  // namespace detail

/// One rail for each of `nics`, in their order. Without NICs: the first candidate that is not
/// loopback, else loopback. `loopback`: prefer loopback, because all peers are on this host.
inline Choice choose_rails(const std::vector<Candidate>& candidates,
                           const std::vector<std::string>& nics, bool loopback) {
  const auto best = [&](auto&& fits) {
    std::size_t found = candidates.size();
    for (std::size_t i = 0; i < candidates.size(); ++i)
      if (fits(candidates[i]) && (found == candidates.size() ||
                                  detail::rank(candidates[i]) < detail::rank(candidates[found])))
        found = i;
    return found;
  };
  const auto none = candidates.size();
  const std::size_t local = best([](const Candidate& c) { return c.ip && c.loopback; });
  if (loopback && local != none) return {{local}, ""};
  if (nics.empty()) {
    const std::size_t other = best([](const Candidate& c) { return !c.loopback; });
    if (other != none) return {{other}, ""};
    if (local != none) return {{local}, ""};
    return {{}, "it offers no endpoint"};
  }
  Choice choice;
  for (const std::string& nic : nics) {
    const std::size_t found = best([&](const Candidate& c) { return is_on(c, nic); });
    if (found != none &&
        std::find(choice.rails.begin(), choice.rails.end(), found) == choice.rails.end())
      choice.rails.push_back(found);
  }
  if (!choice.rails.empty()) return choice;
  // A provider without NICs of its own, such as shm, is suitable for any NIC.
  if (std::none_of(candidates.begin(), candidates.end(),
                   [](const Candidate& c) { return c.ip || !c.device.empty(); }) &&
      !candidates.empty())
    return {{0}, ""};
  std::vector<std::string> domains;
  for (const Candidate& candidate : candidates)
    if (std::find(domains.begin(), domains.end(), candidate.domain) == domains.end())
      domains.push_back(candidate.domain);
  choice.reason = fmt::format("it has none of this PE's NICs ({}), but {}", fmt::join(nics, ", "),
                              fmt::join(domains, ", "));
  return choice;
}

}  // namespace shoal::transport::ofi
