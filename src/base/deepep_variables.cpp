// SPDX-License-Identifier: Apache-2.0
#include "base/deepep_variables.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shoal::deep_ep {
namespace {

struct Variable {
  std::string_view name;  ///< with a '*' at its end: all names that begin so
  VariableUse use;
  std::string_view note;
};

constexpr VariableUse kUsed = VariableUse::used, kIgnored = VariableUse::ignored;
constexpr std::string_view kAtRunTime = "Shoal compiles nothing at run time";
constexpr std::string_view kOfTheBuild =
    "an option of DeepEP's build; Shoal selects kernels by GPU";
constexpr std::string_view kNoGin = "Shoal does not use NCCL for its own traffic";

/// docs/guide/from-deepep.md has the same list.
constexpr Variable kVariables[] = {
    // The package deep_ep reads these.
    {"EP_NUM_TOPK_IDX_BITS", kUsed, ""},
    {"TOPK_IDX_BITS", kUsed, ""},
    {"EP_NIC_NAME", kUsed, ""},
    {"EP_USE_NVIDIA_TOOLS", kUsed, ""},
    {"EP_DISABLE_BARRIER_PROFILING", kUsed, ""},
    {"EP_REUSE_NCCL_COMM", kUsed, ""},
    {"EP_NCCL_ROOT_DIR", kUsed, ""},
    {"EP_NVSHMEM_ROOT_DIR", kUsed, ""},
    {"EP_LOW_LATENCY_TOPK", kUsed, ""},
    {"EP_COPY_RECEIVED", kUsed, ""},
    {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", kUsed, ""},
    // They ask for what Shoal does in any case.
    {"EP_SUPPRESS_NCCL_CHECK", kUsed, ""},
    {"EP_DISABLE_GIN", kUsed, ""},
    // These variables have no effect.
    {"EP_AVOID_RECORD_STREAM", kIgnored, "tensors are recorded on the streams that use them"},
    {"EP_BUFFER_DEBUG", kIgnored, "SHOAL_LOG=debug logs what Shoal does"},
    {"EP_GIN_GDAKI_DEBUG", kIgnored, kNoGin},
    {"EP_OVERRIDE_RDMA_SL", kIgnored, "SHOAL_VERBS_SERVICE_LEVEL sets the service level"},
    {"EP_NUM_MAX_LOCAL_RANKS", kIgnored, "Shoal finds the ranks of a node itself"},
    {"EP_USE_COUNTED_DISPATCH", kIgnored, "Shoal has one protocol for dispatch"},
    {"DEEPEP_DISABLE_LL_DISPATCH_OPT", kIgnored, "Shoal has one protocol for dispatch"},
    {"DEEP_EP_BACKEND", kIgnored, "SHOAL_HEAP selects host or GPU"},
    {"EP_JIT_*", kIgnored, kAtRunTime},
    {"NUM_MAX_RDMA_PEERS", kIgnored, "Shoal's groups have no such limit on their nodes"},
    {"DISABLE_SM90_FEATURES", kIgnored, kOfTheBuild},
    {"DISABLE_AGGRESSIVE_PTX_INSTRS", kIgnored, kOfTheBuild},
};

constexpr std::string_view kPrefixes[] = {"EP_", "DEEP_EP_", "DEEPEP_"};

bool matches(const Variable& variable, std::string_view name) {
  if (!variable.name.ends_with('*')) return variable.name == name;
  return name.starts_with(variable.name.substr(0, variable.name.size() - 1));
}

const Variable* find(std::string_view name) {
  const auto* const found = std::ranges::find_if(
      kVariables, [&](const Variable& variable) { return matches(variable, name); });
  return found == std::end(kVariables) ? nullptr : found;
}

}  // namespace

bool is_variable(std::string_view name) {
  return find(name) != nullptr ||
         std::ranges::any_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); });
}

EnvironmentVariable inspect(const std::string& name) {
  const Variable* const found = find(name);
  if (found == nullptr) return {name, VariableUse::unknown, "", "not a variable of DeepEP"};
  return {name, found->use, "", std::string(found->note)};
}

std::vector<std::string> known_names() {
  std::vector<std::string> names;
  for (const Variable& variable : kVariables)
    if (!variable.name.ends_with('*')) names.emplace_back(variable.name);
  return names;
}

}  // namespace shoal::deep_ep
