// SPDX-License-Identifier: Apache-2.0
#include "transport/ofi/provider.hpp"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <net/if.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.hpp"
#include "memory/device_heap.hpp"
#include "transport/ofi/choice.hpp"

namespace shoal::transport::ofi {
namespace {

/// Candidates of `automatic`, the preferred one first. Per message, tcp;ofi_rxm makes three system
/// calls more than net: it wakes itself through a pipe.
constexpr const char* kNet = "net";
constexpr const char* kProviders[] = {"efa", "cxi", "verbs;ofi_rxm", kNet, "tcp;ofi_rxm"};

/// Requirements of this transport. `order`: the message order that fi_getinfo must promise. `gpus`:
/// the provider accesses GPU memory.
Info make_hints(const std::string& provider, std::uint64_t order, bool gpus) {
  Info hints(fi_allocinfo());
  require(hints != nullptr, Code::system, "SHOAL-N336: transport ofi: no memory for fi_allocinfo");
  hints->caps = FI_MSG | FI_RMA | (gpus ? FI_HMEM : 0);
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = order;
  hints->rx_attr->msg_order = order;
  // The modes that rail.cpp supports.
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY |
                                FI_MR_ENDPOINT | (gpus ? FI_MR_HMEM : 0);
  hints->domain_attr->threading = FI_THREAD_DOMAIN;  // all calls are made under the engine's lock
  if (!provider.empty()) {
    hints->fabric_attr->prov_name = strdup(provider.c_str());
    require(hints->fabric_attr->prov_name != nullptr, Code::system,
            "SHOAL-N336: transport ofi: no memory for a name");
  }
  return hints;
}

struct Offer {
  Info list;
  int status = 0;
};

Offer ask(const std::string& provider, bool gpus) {
  // The stronger order first: it lets a signal follow data at once.
  Offer offer;
  for (const std::uint64_t order :
       {std::uint64_t{FI_ORDER_SAS | FI_ORDER_SAW}, std::uint64_t{FI_ORDER_SAS}}) {
    fi_info* list = nullptr;
    offer.status = fi_getinfo(kApiVersion, nullptr, nullptr, 0,
                              make_hints(provider, order, gpus).get(), &list);
    offer.list.reset(list);
    if (offer.status == 0) return offer;
  }
  return offer;
}

Candidate describe(const fi_info& info) {
  Candidate candidate;
  candidate.domain = info.domain_attr->name != nullptr ? info.domain_attr->name : "";
  if (info.nic != nullptr && info.nic->device_attr != nullptr &&
      info.nic->device_attr->name != nullptr)
    candidate.device = info.nic->device_attr->name;
  if (info.src_addr == nullptr) return candidate;
  if (info.addr_format == FI_SOCKADDR_IN && info.src_addrlen >= sizeof(sockaddr_in)) {
    candidate.ip = true;
    const auto& address = *static_cast<const sockaddr_in*>(info.src_addr);
    candidate.loopback = (ntohl(address.sin_addr.s_addr) >> 24) == 127;
  } else if (info.addr_format == FI_SOCKADDR_IN6 && info.src_addrlen >= sizeof(sockaddr_in6)) {
    candidate.ip = candidate.v6 = true;
    const auto& address = *static_cast<const sockaddr_in6*>(info.src_addr);
    candidate.loopback = IN6_IS_ADDR_LOOPBACK(&address.sin6_addr);
    candidate.link_local = IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr);
  }
  return candidate;
}

/// Names of all suitable providers, for error messages.
std::string offered() {
  const Offer all = ask("", false);
  std::vector<std::string> names;
  for (const fi_info* info = all.list.get(); info != nullptr; info = info->next) {
    std::string name = info->fabric_attr->prov_name;
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(std::move(name));
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

/// True if the user named no NIC and needs none.
bool loopback_suffices(const Context& context) {
  return context.settings->nic_list.empty() && context.settings->nic_mapping.empty() &&
         context.loopback_reaches_wanted();
}

/// Finds the provider's endpoints for this PE. Returns the reason where there are none, else "".
std::string try_provider(const std::string& name, const Context& context, Provider& provider) {
  const bool gpus = context.device_heap != nullptr && !context.device_heap->on_host() &&
                    context.settings->ofi_gpu_memory != "off";
  Offer offer = ask(name, gpus);
  if (gpus && offer.status != 0) offer = ask(name, false);
  if (offer.status != 0)
    return fmt::format("{} offers no reliable endpoint with RMA and ordered messages ({})", name,
                       error_text(offer.status));
  std::vector<Candidate> candidates;
  std::vector<const fi_info*> infos;
  for (const fi_info* info = offer.list.get(); info != nullptr; info = info->next) {
    // libfabric offers "tcp;ofi_rxm" for "tcp", maybe among others: use only the provider of the
    // first offer.
    if (std::strcmp(info->fabric_attr->prov_name, offer.list->fabric_attr->prov_name) != 0)
      continue;
    candidates.push_back(describe(*info));
    infos.push_back(info);
  }
  const Choice choice = choose_rails(candidates, context.nics, loopback_suffices(context));
  if (choice.rails.empty()) return fmt::format("{}: {}", name, choice.reason);
  provider.name = offer.list->fabric_attr->prov_name;
  for (const std::size_t i : choice.rails) {
    provider.rails.emplace_back(fi_dupinfo(infos[i]));
    require(provider.rails.back() != nullptr, Code::system,
            "SHOAL-N336: transport ofi: no memory for fi_dupinfo");
  }
  return {};
}

}  // namespace

std::string error_text(long code) {
  const int error = static_cast<int>(code < 0 ? -code : code);
  return error < FI_ERRNO_OFFSET ? errno_text(error) : fi_strerror(error);
}

Provider choose_provider(const Context& context) {
  const std::string& wanted = context.settings->ofi_provider;
  Provider provider;
  std::vector<std::string> reasons;
  if (wanted != "automatic" && !wanted.empty()) {
    reasons.push_back(try_provider(wanted, context, provider));
    if (reasons.back().empty()) return provider;
    fail(Code::unsupported,
         "SHOAL-N334: libfabric's provider {}; suitable providers: {}. Setting: SHOAL_OFI_PROVIDER",
         reasons.back(), offered());
  }
  for (const char* name : kProviders) {
    // Tested from 1.17 on.
    if (name == kNet && FI_VERSION_LT(fi_version(), FI_VERSION(1, 17))) continue;
    reasons.push_back(try_provider(name, context, provider));
    if (reasons.back().empty()) return provider;
  }
  fail(Code::unsupported,
       "SHOAL-N334: no provider of libfabric is suitable: {}. Setting: SHOAL_OFI_PROVIDER",
       fmt::join(reasons, "; "));
}

}  // namespace shoal::transport::ofi
