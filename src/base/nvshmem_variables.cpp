// SPDX-License-Identifier: Apache-2.0
#include "base/nvshmem_variables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/ascii.hpp"

namespace shoal::nvshmem {
namespace {

// All names are without the prefix NVSHMEM_. The aliases of settings are in the table of settings.
constexpr std::string_view kWithoutEquivalent[] = {
    // host library
    "ASSERT_ATOMICS_SYNC",
    "BARRIER_DISSEM_KVAL",
    "BARRIER_TG_DISSEM_KVAL",
    "BCAST_ALGO",
    "BCAST_TREE_KVAL",
    "BOOTSTRAP_MPI_PLUGIN",
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
    "DISABLE_LOCAL_ONLY_PROXY",
    "DISABLE_SELF_WRITE_CE_COLL",
    "ENABLE_ALIGNED_MALLOC",
    "ENABLE_RAIL_OPT",
    "FCOLLECT_ALGO",
    "FCOLLECT_LL128_THRESHOLD",
    "FCOLLECT_LL_THRESHOLD",
    "FCOLLECT_NTHREADS",
    "FCOLLECT_NVLS_THRESHOLD",
    "G_BUF_SIZE",
    "G_COALESCING_BUF_SIZE",
    "IGNORE_CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "MAX_CTAS",
    "MAX_MEMORY_PER_GPU",
    "MAX_PEER_STREAMS",
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
    "IBGDA_NUM_REQUESTS_IN_BATCH",
    "IBGDA_NUM_SHARED_DCI",
    "IBGDA_RC_MAP_BY",
    "IB_ADDR_FAMILY",
    "IB_ADDR_RANGE",
    "IB_ENABLE_RELAXED_ORDERING",
    "IB_ROCE_VERSION_NUM",
    "SRQ_DEPTH",
    // build and installation
    "DIR",
    "HOME",
    "PREFIX",
};

/// Booleans that ask for what Shoal does in any case, with what it does.
constexpr std::pair<std::string_view, std::string_view> kAlways[] = {
    {"DISABLE_NVLS", "Shoal does not use NVLink multicast"},
    {"DISABLE_NVLS_SHARING", "Shoal does not use NVLink multicast"},
    {"ENABLE_ERROR_CHECKS", "Shoal checks the arguments of every call"},
};

// Programs of nvshmem.h read these themselves.
constexpr std::string_view kOfPrograms[] = {"INFO", "INFO_HIDDEN", "VERSION"};

constexpr std::string_view kPrefix = "NVSHMEM_";

/// The value of the setting where NVSHMEM's boolean is true, else its default.
Translation where_true(const std::string& text, std::string_view value) {
  if (!is_true(text)) return {std::nullopt, ""};
  return {std::string(value), ""};
}
bool is_set_true(const Lookup& lookup, const char* variable) {
  const auto text = lookup(variable);
  return text && is_true(*text);
}
/// True if kernels shall drive NICs.
bool wants_ibgda(const Lookup& lookup) {
  const auto transport = lookup("NVSHMEM_REMOTE_TRANSPORT");
  return is_set_true(lookup, "NVSHMEM_IB_ENABLE_IBGDA") ||
         (transport && ascii_lower(*transport) == "ibgda");
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
    if (ascii_lower(text) == theirs) return std::string(ours);
  return std::nullopt;
}

Translation remote_transport(const std::string& text, const Lookup& lookup) {
  // No network of the host: what remains are PEs that share memory or reach each other's GPU, and
  // the NICs that kernels drive.
  if (ascii_lower(text) == "none")
    return {wants_ibgda(lookup) ? "verbs,network" : "shm,cuda_p2p,staged", ""};
  if (auto ours = word(text, {{"libfabric", "ofi"},
                              {"ucx", "ucx"},
                              {"ibrc", "verbs,network"},
                              {"ibdevx", "verbs,network"},
                              {"ibgda", "verbs,network"}}))
    return {ours, ""};
  return {text, ""};
}

/// Two of NVSHMEM's transports are the transport verbs, with different interfaces. Kernels drive
/// queues of devx only.
Translation verbs_interface(const std::string& text, std::string_view alias, const Lookup& lookup) {
  if (wants_ibgda(lookup) && !lookup("SHOAL_GDA")) return {"devx", ""};
  if (alias != "NVSHMEM_REMOTE_TRANSPORT") return {std::nullopt, ""};
  if (lookup("SHOAL_TRANSPORT_BETWEEN")) return {std::nullopt, ""};  // takes its place
  return {word(text, {{"ibrc", "verbs"}, {"ibdevx", "devx"}}), ""};
}

/// The kinds of PMI. PMI is NVSHMEM's default: without NVSHMEM_BOOTSTRAP it counts where the
/// launcher offers that kind, and outside a launcher it makes a world of one PE.
Translation bootstrap_pmi(const std::string& kind, const Lookup& lookup) {
  const auto mode = lookup("NVSHMEM_BOOTSTRAP");
  const bool named = mode && !mode->empty();
  if (named && ascii_lower(*mode) != "pmi")
    return {std::nullopt, fmt::format("NVSHMEM_BOOTSTRAP is \"{}\", not PMI", *mode)};
  const auto ours =
      word(kind, {{"pmi", "pmi"}, {"pmi-2", "pmi2"}, {"pmi2", "pmi2"}, {"pmix", "pmix"}});
  if (!ours) return {std::nullopt, "NVSHMEM has the kinds PMI, PMI-2 and PMIX"};
  const bool offered =
      ours == "pmix" ? lookup("PMIX_RANK").has_value() : lookup("PMI_RANK") || lookup("PMI_FD");
  // shoal-run starts PEs inside jobs of other launchers, too.
  if (!named && (!offered || lookup("SHOAL_N_PES"))) return {std::nullopt, ""};
  return {ours, ""};
}

Translation bootstrap(const std::string& text, const Lookup& lookup) {
  if (ascii_lower(text) != "pmi") return {text, ""};
  if (const auto kind = lookup("NVSHMEM_BOOTSTRAP_PMI"))
    if (auto ours = bootstrap_pmi(*kind, lookup); ours.value) return ours;
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

/// Without virtual-memory management the kind of handle does not matter.
Translation handle_type(const std::string& text, std::string_view alias, const Lookup& lookup) {
  if (alias == "NVSHMEM_DISABLE_CUDA_VMM") return where_true(text, "ipc");
  if (is_set_true(lookup, "NVSHMEM_DISABLE_CUDA_VMM"))
    return {std::nullopt, "NVSHMEM_DISABLE_CUDA_VMM is set as well"};
  if (alias == "NVSHMEM_DISABLE_MNNVL") return where_true(text, "fd");
  if (auto ours = word(text, {{"file_descriptor", "fd"}, {"fabric", "fabric"}})) return {ours, ""};
  return {std::nullopt, "Shoal chooses the kind of handle automatically"};
}

/// NVSHMEM has queue pairs of kinds that Shoal does not have.
Translation queue_pairs(const SettingInfo& info, const std::string& text) {
  Translation result = integer(info, text);
  if (result.value == "0") result.warning = "Shoal has no DC queue pairs; it takes its default";
  return result;
}

Translation provider(const std::string& text) {
  if (auto ours = word(text, {{"verbs", "verbs;ofi_rxm"}, {"tcp", "tcp;ofi_rxm"}}))
    return {ours, ""};
  return {text, ""};
}

}  // namespace

std::vector<std::string_view> aliases_of(const SettingInfo& info) {
  std::vector<std::string_view> names;
  for (std::string_view list = info.alias; !list.empty();) {
    names.push_back(list.substr(0, list.find(' ')));
    list.remove_prefix(std::min(names.back().size() + 1, list.size()));
  }
  return names;
}

bool is_alias(const SettingInfo& info, std::string_view variable) {
  return std::ranges::count(aliases_of(info), variable) != 0;
}

bool is_true(std::string_view text) {
  return text.empty() || std::string_view("0NnFf").find(text[0]) == std::string_view::npos;
}

Translation translate(const SettingInfo& info, std::string_view alias, const std::string& text,
                      const Lookup& lookup) {
  if (alias == "NVSHMEM_ENABLE_NIC_PE_MAPPING") return {is_true(text) ? "1" : "0", ""};
  if (alias == "NVSHMEM_DISABLE_P2P") return where_true(text, "network,shm,staged");
  if (alias == "NVSHMEM_DISABLE_NCCL") return where_true(text, "off");
  if (alias == "NVSHMEM_IB_DISABLE_DMABUF") return where_true(text, "peermem");
  if (info.name == "SHOAL_GDA")
    return {wants_ibgda(lookup) ? std::optional<std::string>("automatic") : std::nullopt, ""};
  if (info.name == "SHOAL_CUDA_HANDLE" && alias.starts_with("NVSHMEM_DISABLE_"))
    return handle_type(text, alias, lookup);
  if (info.name == "SHOAL_VERBS_INTERFACE") return verbs_interface(text, alias, lookup);
  if (text.empty()) return {std::nullopt, ""};
  if (alias == "NVSHMEM_REMOTE_TRANSPORT") return remote_transport(text, lookup);
  if (alias == "NVSHMEM_BOOTSTRAP") return bootstrap(text, lookup);
  if (alias == "NVSHMEM_BOOTSTRAP_PMI") return bootstrap_pmi(text, lookup);
  if (alias == "NVSHMEM_DEBUG") return debug(text);
  if (alias == "NVSHMEM_CUMEM_HANDLE_TYPE") return handle_type(text, alias, lookup);
  if (alias == "NVSHMEM_LIBFABRIC_PROVIDER") return provider(text);
  if (alias == "NVSHMEM_IBGDA_NUM_RC_PER_PE") return queue_pairs(info, text);
  if (alias == "NVSHMEM_HEAP_KIND") return {word(text, {{"sysmem", "host"}}), ""};
  if (alias == "NVSHMEM_NVTX") return {ascii_lower(text) == "off" ? "off" : "on", ""};
  if (type_of(info) == "bytes") return size(info, text);
  if (type_of(info) == "integer") return integer(info, text);
  return {text, ""};
}

EnvironmentVariable inspect_without_setting(const std::string& name, const std::string& text) {
  const std::string_view tail = std::string_view(name).substr(kPrefix.size());
  EnvironmentVariable found{name, VariableUse::used, "", ""};
  if (std::ranges::find(kOfPrograms, tail) != std::end(kOfPrograms)) return found;
  found.use = VariableUse::ignored;
  for (const auto& [always, what] : kAlways)
    if (tail == always) {
      if (is_true(text)) found.use = VariableUse::used;
      if (!is_true(text)) found.note = fmt::format("\"{}\": {}", text, what);
      return found;
    }
  found.note = "Shoal has no equivalent";
  if (std::ranges::find(kWithoutEquivalent, tail) != std::end(kWithoutEquivalent)) return found;
  return {name, VariableUse::unknown, "", "not a variable of NVSHMEM"};
}

bool is_on(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr && is_true(text);
}

std::string describe(const Settings& settings) {
  std::string text =
      "NVSHMEM_VERSION  prints the version at the start\n"
      "NVSHMEM_INFO     prints this list at the start\n";
  for (const SettingInfo& info : settings_table())
    for (const std::string_view alias : aliases_of(info))
      text += fmt::format("{:<35} {}={}\n", alias, info.name, format_value(info, settings));
  return text;
}

std::vector<std::string> known_names() {
  std::vector<std::string> names;
  for (const SettingInfo& info : settings_table())
    for (const std::string_view alias : aliases_of(info)) names.emplace_back(alias);
  const auto add = [&](std::string_view tail) {
    names.push_back(fmt::format("{}{}", kPrefix, tail));
  };
  for (const std::string_view tail : kWithoutEquivalent) add(tail);
  for (const std::string_view tail : kOfPrograms) add(tail);
  for (const auto& [tail, what] : kAlways) add(tail);
  return names;
}

}  // namespace shoal::nvshmem
