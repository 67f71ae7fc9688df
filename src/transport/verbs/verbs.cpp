// SPDX-License-Identifier: Apache-2.0
// The module table of the transport over RDMA verbs.
#include "base/check.hpp"
#include "transport/message/network_transport.hpp"
#include "transport/module.hpp"
#include "transport/verbs/network.hpp"
#include "transport/verbs/report.hpp"

namespace shoal::transport {
namespace {

/// The active ports that a world could use.
Probe probe(const Settings& settings) {
  Probe result;
  try {
    const auto library = verbs::load_library(settings.verbs_library);
    const auto offers = verbs::list_ports(*library);
    const auto choice = verbs::choose_ports(offers, {}, false);
    result.missing = choice.reason;
    result.library = library->file;
    for (const verbs::PortOffer& offer : offers)
      result.library += fmt::format(", {}{}", offer.label(), offer.active ? "" : " (not active)");
  } catch (const Error& error) {
    result.missing = error.reason();
  }
  return result;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const Module shoal_transport_module;
const Module shoal_transport_module = {
    kModuleVersion, "verbs",
    "libibverbs",   message::make_network_transport<verbs::Network>,
    probe,          verbs::report_nics};
}

}  // namespace shoal::transport
