// SPDX-License-Identifier: Apache-2.0
#include "base/nvshmem_variables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>

namespace shoal::nvshmem {
namespace {

// Without the prefix NVSHMEM_. Those that Shoal has as aliases of settings are not repeated here.
constexpr std::string_view kWithoutEquivalent[] = {
    // host library
    "ASSERT_ATOMICS_SYNC",
    "BARRIER_DISSEM_KVAL",
    "BARRIER_TG_DISSEM_KVAL",
    "BCAST_ALGO",
    "BCAST_TREE_KVAL",
    "BOOTSTRAP_MPI_PLUGIN",
    "BOOTSTRAP_PMI",
    "BOOTSTRAP_PMI2_PLUGIN",
    "BOOTSTRAP_PMIX_PLUGIN",
    "BOOTSTRAP_PMI_PLUGIN",
    "BOOTSTRAP_SHMEM_PLUGIN",
    "BOOTSTRAP_TWO_STAGE",
    "BOOTSTRAP_UID_PLUGIN",
    "BYPASS_ACCESSIBILITY_CHECK",
    "BYPASS_FLUSH",
    "CUDA_LIMIT_STACK_SIZE",
    "CUDA_PATH",
    "CUMEM_GRANULARITY",
    "DEBUG_ATTACH_DELAY",
    "DEBUG_SUBSYS",
    "DISABLE_CE_COLLECTIVES",
    "DISABLE_CUDA_VMM",
    "DISABLE_LOCAL_ONLY_PROXY",
    "DISABLE_MNNVL",
    "DISABLE_NCCL",
    "DISABLE_NVLS",
    "DISABLE_NVLS_SHARING",
    "DISABLE_P2P",
    "DISABLE_SELF_WRITE_CE_COLL",
    "ENABLE_ALIGNED_MALLOC",
    "ENABLE_ERROR_CHECKS",
    "ENABLE_RAIL_OPT",
    "FCOLLECT_ALGO",
    "FCOLLECT_LL128_THRESHOLD",
    "FCOLLECT_LL_THRESHOLD",
    "FCOLLECT_NTHREADS",
    "FCOLLECT_NVLS_THRESHOLD",
    "G_BUF_SIZE",
    "G_COALESCING_BUF_SIZE",
    "HEAP_KIND",
    "IB_ENABLE_IBGDA",
    "IGNORE_CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "INFO",
    "INFO_HIDDEN",
    "MAX_CTAS",
    "MAX_MEMORY_PER_GPU",
    "MAX_PEER_STREAMS",
    "NVTX",
    "PROXY_REQUEST_BATCH_MAX",
    "REDMAXLOC_ALGO",
    "REDUCESCATTER_ALGO",
    "REDUCESCATTER_NTHREADS",
    "REDUCESCATTER_NVLS_THRESHOLD",
    "REDUCE_ALGO",
    "REDUCE_NTHREADS",
    "REDUCE_NVLS_THRESHOLD",
    "REDUCE_RECEXCH_KVAL",
    "REDUCE_SCRATCH_SIZE",
    "USE_DLMALLOC",
    "VERSION",
    // transports
    "DISABLE_DATA_DIRECT",
    "DISABLE_GDRCOPY",
    "DISABLE_IB_NATIVE_ATOMICS",
    "HCA_PREFIX",
    "IBGDA_DCI_MAP_BY",
    "IBGDA_ENABLE_MULTI_PORT",
    "IBGDA_FORCE_NIC_BUF_MEMTYPE",
    "IBGDA_NIC_HANDLER",
    "IBGDA_NUM_DCI",
    "IBGDA_NUM_DCT",
    "IBGDA_NUM_FETCH_SLOTS_PER_DCI",
    "IBGDA_NUM_FETCH_SLOTS_PER_RC",
    "IBGDA_NUM_RC_PER_PE",
    "IBGDA_NUM_REQUESTS_IN_BATCH",
    "IBGDA_NUM_SHARED_DCI",
    "IBGDA_RC_MAP_BY",
    "IB_ADDR_FAMILY",
    "IB_ADDR_RANGE",
    "IB_DISABLE_DMABUF",
    "IB_ENABLE_RELAXED_ORDERING",
    "IB_ROCE_VERSION_NUM",
    "QP_DEPTH",
    "SRQ_DEPTH",
    // build and installation
    "DIR",
    "HOME",
    "PREFIX",
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// NVSHMEM: a set boolean is false if its first character is one of 0NnFf.
std::string boolean(const std::string& text) {
  const bool no =
      !text.empty() && std::string_view("0NnFf").find(text[0]) != std::string_view::npos;
  return no ? "0" : "1";
}

/// The nearest value in the setting's range: NVSHMEM's limits differ from Shoal's.
Translation clamped(const SettingInfo& info, std::int64_t value) {
  const std::int64_t nearest = std::clamp(value, info.minimum, info.maximum);
  Translation result{std::to_string(nearest), ""};
  if (nearest < value)
    result.warning = fmt::format("{} is more than Shoal's limit; {} is used", value, nearest);
  return result;
}

Translation integer(const SettingInfo& info, const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 0);  // base 0, as NVSHMEM
  if (end == text.c_str() || *end != '\0' || errno != 0) return {text, ""};
  return clamped(info, value);
}

Translation size(const SettingInfo& info, const std::string& text) {
  const auto value = parse_bytes(text);
  return value ? clamped(info, static_cast<std::int64_t>(*value)) : Translation{text, ""};
}

/// Pairs of NVSHMEM's and Shoal's notation.
using Words = std::initializer_list<std::pair<std::string_view, std::string_view>>;

std::optional<std::string> word(const std::string& text, Words words) {
  for (const auto& [theirs, ours] : words)
    if (lower(text) == theirs) return std::string(ours);
  return std::nullopt;
}

Translation remote_transport(const std::string& text) {
  // No network between nodes: what remains are PEs that share memory or reach each other's GPU.
  if (auto ours = word(text, {{"none", "shm,cuda_p2p,staged"},
                              {"libfabric", "ofi"},
                              {"ucx", "ucx"},
                              {"ibrc", "verbs,ofi,ucx"},
                              {"ibdevx", "verbs,ofi,ucx"}}))
    return {ours, ""};
  if (lower(text) == "ibgda")
    return {std::nullopt, "Shoal has no transport ibgda; the transport is chosen automatically"};
  return {text, ""};
}

/// Two of NVSHMEM's transports are the transport verbs, with different interfaces.
Translation verbs_interface(const std::string& text, const Lookup& lookup) {
  if (lookup("SHOAL_TRANSPORT_BETWEEN")) return {std::nullopt, ""};  // takes its place
  return {word(text, {{"ibrc", "verbs"}, {"ibdevx", "devx"}}), ""};
}

Translation bootstrap(const std::string& text, const Lookup& lookup) {
  if (lower(text) != "pmi") return {text, ""};
  if (const auto kind = lookup("NVSHMEM_BOOTSTRAP_PMI"))
    if (auto ours =
            word(*kind, {{"pmi", "pmi"}, {"pmi-2", "pmi2"}, {"pmi2", "pmi2"}, {"pmix", "pmix"}}))
      return {ours, ""};
  // PMI is NVSHMEM's default; outside a launcher it makes a world of one PE.
  if (lookup("PMI_RANK") || lookup("PMI_FD")) return {"pmi", ""};
  return {std::nullopt, ""};
}

Translation debug(const std::string& text) {
  if (auto ours = word(text, {{"version", "info"},
                              {"abort", "error"},
                              {"off", "off"},
                              {"error", "error"},
                              {"warn", "warn"},
                              {"info", "info"},
                              {"debug", "debug"},
                              {"trace", "trace"}}))
    return {ours, ""};
  return {"info", ""};  // as NVSHMEM does with words that it does not know
}

Translation handle_type(const std::string& text) {
  if (auto ours = word(text, {{"file_descriptor", "fd"}, {"fabric", "fabric"}})) return {ours, ""};
  return {std::nullopt, "Shoal chooses the kind of handle automatically"};
}

Translation provider(const std::string& text) {
  if (auto ours = word(text, {{"verbs", "verbs;ofi_rxm"}, {"tcp", "tcp;ofi_rxm"}}))
    return {ours, ""};
  return {text, ""};
}

}  // namespace

Translation translate(const SettingInfo& info, const std::string& text, const Lookup& lookup) {
  if (info.alias == "NVSHMEM_ENABLE_NIC_PE_MAPPING") return {boolean(text), ""};
  if (text.empty()) return {std::nullopt, ""};
  if (info.name == "SHOAL_VERBS_INTERFACE") return verbs_interface(text, lookup);
  if (info.alias == "NVSHMEM_REMOTE_TRANSPORT") return remote_transport(text);
  if (info.alias == "NVSHMEM_BOOTSTRAP") return bootstrap(text, lookup);
  if (info.alias == "NVSHMEM_DEBUG") return debug(text);
  if (info.alias == "NVSHMEM_CUMEM_HANDLE_TYPE") return handle_type(text);
  if (info.alias == "NVSHMEM_LIBFABRIC_PROVIDER") return provider(text);
  if (type_of(info) == "bytes") return size(info, text);
  if (type_of(info) == "integer") return integer(info, text);
  return {text, ""};
}

bool is_known(std::string_view name) {
  constexpr std::string_view kPrefix = "NVSHMEM_";
  if (!name.starts_with(kPrefix)) return false;
  for (const SettingInfo& info : settings_table())
    if (info.alias == name) return true;
  name.remove_prefix(kPrefix.size());
  return std::find(std::begin(kWithoutEquivalent), std::end(kWithoutEquivalent), name) !=
         std::end(kWithoutEquivalent);
}

}  // namespace shoal::nvshmem
