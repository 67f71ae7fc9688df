// SPDX-License-Identifier: Apache-2.0
#include "collective/nccl/library.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <type_traits>

#include "base/plugin.hpp"

namespace shoal::collective::nccl {
namespace {

struct Loaded {
  Library library;
  std::string why;
};

Loaded load_file(const std::string& file) {
  Loaded loaded;
  const auto find = [&](auto& function, const char* name) {
    if (!loaded.why.empty()) return;
    const Plugin found = load_plugin_file(file, name);
    loaded.why = found.reason;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found.symbol);
  };
  Library& library = loaded.library;
  find(library.get_version, "ncclGetVersion");
  find(library.get_unique_id, "ncclGetUniqueId");
  find(library.error_text, "ncclGetErrorString");
  find(library.make, "ncclCommInitRank");
  find(library.destroy, "ncclCommDestroy");
  find(library.broadcast, "ncclBroadcast");
  find(library.all_gather, "ncclAllGather");
  find(library.all_reduce, "ncclAllReduce");
  find(library.reduce_scatter, "ncclReduceScatter");
  find(library.send, "ncclSend");
  find(library.receive, "ncclRecv");
  find(library.group_start, "ncclGroupStart");
  find(library.group_end, "ncclGroupEnd");
  if (!loaded.why.empty()) return loaded;
  int version = 0;
  if (library.get_version(&version) != 0 || version < kOldestVersion)
    loaded.why = fmt::format("{} is NCCL {}.{}; needed: 2.19 or later", file, version / 10000,
                             version / 100 % 100);
  return loaded;
}

}  // namespace

const Library* load(const std::string& file, std::string& why) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, Loaded>;
  const std::lock_guard lock(mutex);
  auto found = known->find(file);
  if (found == known->end()) found = known->emplace(file, load_file(file)).first;
  why = found->second.why;
  return why.empty() ? &found->second.library : nullptr;
}

}  // namespace shoal::collective::nccl
