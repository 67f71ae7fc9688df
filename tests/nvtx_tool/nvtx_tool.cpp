// SPDX-License-Identifier: Apache-2.0
// nvtx_tool.cpp: a profiler that writes the NVTX ranges of a process to the file that
// SHOAL_TEST_NVTX_FILE names, a line for each begin and end. NVTX loads it where
// NVTX_INJECTION64_PATH names it.
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::FILE* file = nullptr;
std::deque<std::string>& names() {
  static auto* const kept = new std::deque<std::string>;
  return *kept;
}

template <typename Handle>
Handle keep(const char* name) {
  const std::lock_guard lock(mutex);
  names().emplace_back(name);
  return reinterpret_cast<Handle>(&names().back());
}
template <typename Handle>
const char* name_of(Handle handle) {
  return reinterpret_cast<const std::string*>(handle)->c_str();
}

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  return keep<nvtxDomainHandle_t>(name);
}
nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t, const char* name) {
  return keep<nvtxStringHandle_t>(name);
}
int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  const std::lock_guard lock(mutex);
  std::fprintf(file, "begin %s %s %d\n", name_of(domain), name_of(event->message.registered),
               gettid());
  std::fflush(file);
  return 0;
}
int NVTX_API pop(nvtxDomainHandle_t domain) {
  const std::lock_guard lock(mutex);
  std::fprintf(file, "end %s - %d\n", name_of(domain), gettid());
  std::fflush(file);
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const char* const path = std::getenv("SHOAL_TEST_NVTX_FILE");
  file = path == nullptr ? nullptr : std::fopen(path, "ae");
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (file == nullptr || callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0)
    return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *table[NVTX_CBID_CORE2_DomainRegisterStringA] =
      reinterpret_cast<NvtxFunctionPointer>(register_string);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
