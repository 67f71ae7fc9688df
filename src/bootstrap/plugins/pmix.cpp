// SPDX-License-Identifier: Apache-2.0
// pmix.cpp: PMIx (Open MPI's mpirun, srun --mpi=pmix, PRRTE). Both collective calls request PMIx's
// own timeout. Shoal abandons the call if the server does not support it.
#include <pmix.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "common.hpp"

namespace shoal::plugins {
namespace {

/// PMIx cannot be started again after it was finalized, so it stays initialized until the process
/// ends.
struct Process {
  pmix_proc_t self{};
  std::int32_t n_pes = -1;
  bool ready = false;
  unsigned worlds = 0;  ///< equal on all PEs; part of the keys
};

Process& process() {
  static Process& the = *new Process;  // never destroyed: used until the process ends
  return the;
}

std::string failure(const char* call, pmix_status_t status) {
  const char* const hint =
      status == PMIX_ERR_TIMEOUT
          ? ": some process of the job does not open this world, or PE 0 has failed"
          : "";
  return std::string(call) + ": " + PMIx_Error_string(status) + " (" + std::to_string(status) +
         ")" + hint;
}

int code_of(pmix_status_t status) {
  return status == PMIX_ERR_TIMEOUT ? SHOAL_BOOTSTRAP_TIMEOUT : SHOAL_BOOTSTRAP_FAILED;
}

pmix_proc_t all_processes(const Process& own) {
  pmix_proc_t all = own.self;
  all.rank = PMIX_RANK_WILDCARD;
  return all;
}

pmix_info_t info(const char* key, bool flag) {
  pmix_info_t entry;
  PMIX_INFO_LOAD(&entry, key, &flag, PMIX_BOOL);
  return entry;
}

/// The timeout for PMIx, in seconds. Rounded down: Shoal itself abandons the call shortly after the
/// limit.
pmix_info_t limit(const shoal_bootstrap_context* context) {
  int seconds = std::max(1, static_cast<int>(context->timeout_ms / 1000));
  pmix_info_t entry;
  PMIX_INFO_LOAD(&entry, PMIX_TIMEOUT, &seconds, PMIX_INT);
  return entry;
}

int start(shoal_bootstrap_context* context, Process& own) {
  if (variable(context, "PMIX_NAMESPACE").empty())
    return report(
        context, SHOAL_BOOTSTRAP_ABSENT,
        "no PMIx server has started this process (PMIX_NAMESPACE is not set): start it with Open "
        "MPI's mpirun, srun --mpi=pmix, or prun");
  pmix_status_t status = PMIx_Init(&own.self, nullptr, 0);
  if (status != PMIX_SUCCESS)
    return report(context, status == PMIX_ERR_UNREACH ? SHOAL_BOOTSTRAP_ABSENT : code_of(status),
                  failure("PMIx_Init", status));
  const pmix_proc_t all = all_processes(own);
  pmix_value_t* value = nullptr;
  status = PMIx_Get(&all, PMIX_JOB_SIZE, nullptr, 0, &value);
  if (status != PMIX_SUCCESS || value->type != PMIX_UINT32)
    return report(context, SHOAL_BOOTSTRAP_FAILED, failure("PMIx_Get(PMIX_JOB_SIZE)", status));
  own.n_pes = static_cast<std::int32_t>(value->data.uint32);
  PMIX_VALUE_RELEASE(value);
  own.ready = true;
  at_good_end([] { PMIx_Finalize(nullptr, 0); });
  return SHOAL_BOOTSTRAP_OK;
}

int open(shoal_bootstrap_context* context, void** job, std::int32_t* pe, std::int32_t* n_pes) {
  Process& own = process();
  if (!own.ready)
    if (const int status = start(context, own); status != SHOAL_BOOTSTRAP_OK) return status;
  *job = &own;
  *pe = static_cast<std::int32_t>(own.self.rank);
  *n_pes = own.n_pes;
  return SHOAL_BOOTSTRAP_OK;
}

pmix_status_t publish(const std::string& key, char* text) {
  pmix_value_t value;
  PMIX_VALUE_LOAD(&value, text, PMIX_STRING);
  const pmix_status_t status = PMIx_Put(PMIX_GLOBAL, key.c_str(), &value);
  PMIX_VALUE_DESTRUCT(&value);
  return status == PMIX_SUCCESS ? PMIx_Commit() : status;
}

pmix_status_t look_up(const Process& own, const std::string& key, pmix_info_t deadline,
                      char* text) {
  pmix_proc_t source = own.self;
  source.rank = 0;
  pmix_value_t* value = nullptr;
  const pmix_status_t status = PMIx_Get(&source, key.c_str(), &deadline, 1, &value);
  if (status != PMIX_SUCCESS) return status;
  const bool fits =
      value->type == PMIX_STRING && std::strlen(value->data.string) < SHOAL_BOOTSTRAP_TEXT_SIZE;
  if (fits) store(text, value->data.string);
  PMIX_VALUE_RELEASE(value);
  return fits ? PMIX_SUCCESS : PMIX_ERR_TYPE_MISMATCH;
}

int broadcast(shoal_bootstrap_context* context, void*, char* text) {
  Process& own = process();
  const std::string key = "shoal-" + std::to_string(own.worlds++);
  if (own.self.rank == 0)
    if (const pmix_status_t status = publish(key, text); status != PMIX_SUCCESS)
      return report(context, SHOAL_BOOTSTRAP_FAILED, failure("PMIx_Put and PMIx_Commit", status));
  const pmix_proc_t all = all_processes(own);
  const std::array<pmix_info_t, 2> how = {info(PMIX_COLLECT_DATA, true), limit(context)};
  if (const pmix_status_t status = PMIx_Fence(&all, 1, how.data(), how.size());
      status != PMIX_SUCCESS)
    return report(context, code_of(status), failure("PMIx_Fence", status));
  if (const pmix_status_t status = look_up(own, key, limit(context), text); status != PMIX_SUCCESS)
    return report(context, code_of(status), failure("PMIx_Get", status));
  return SHOAL_BOOTSTRAP_OK;
}

void close(void*) {}

}  // namespace
}  // namespace shoal::plugins

const shoal_bootstrap_plugin shoal_bootstrap_plugin_table = {
    SHOAL_BOOTSTRAP_PLUGIN_VERSION, 0,
    sizeof(shoal_bootstrap_plugin), "pmix",
    "PMIx, library libpmix",        shoal::plugins::open,
    shoal::plugins::broadcast,      shoal::plugins::close};
