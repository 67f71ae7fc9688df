// SPDX-License-Identifier: Apache-2.0
// pmi2.cpp: PMI-2 through libpmi2 (srun --mpi=pmi2, Hydra), which is loaded on first use.
//
// The library's calls have no deadlines. Without SHOAL_BOOTSTRAP_SAME_THREAD, Shoal abandons them
// when they are late.
#include <dlfcn.h>

#include <cstdint>

#include "common.hpp"

namespace shoal::plugins {
namespace {

/// The functions of PMI-2, as declared by its specification.
struct Library {
  int (*init)(int* spawned, int* size, int* rank, int* app) = nullptr;
  int (*finalize)() = nullptr;
  int (*job_id)(char* id, int size) = nullptr;
  int (*put)(const char* key, const char* value) = nullptr;
  int (*fence)() = nullptr;
  int (*get)(const char* job, int source, const char* key, char* value, int size,
             int* length) = nullptr;
};

constexpr int kAnySource = -1;

/// A process can use PMI once: the first world initializes it, and it is finalized when the process
/// ends.
struct Process {
  Library library;
  bool ready = false;
  int pe = -1, n_pes = -1;
  std::string job;
  unsigned worlds = 0;  ///< equal on all PEs; part of the keys
};

Process& process() {
  static Process& the = *new Process;  // never destroyed: used until the process ends
  return the;
}

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool load(Library& to, std::string& reason) {
  void* const library = dlopen("libpmi2.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library != nullptr && find(library, "PMI2_Init", to.init) &&
      find(library, "PMI2_Finalize", to.finalize) && find(library, "PMI2_Job_GetId", to.job_id) &&
      find(library, "PMI2_KVS_Put", to.put) && find(library, "PMI2_KVS_Fence", to.fence) &&
      find(library, "PMI2_KVS_Get", to.get))
    return true;
  const char* const why = dlerror();
  reason = why != nullptr ? why : "libpmi2.so.0 lacks a function of PMI-2";
  return false;
}

std::string failure(const char* call, int status) {
  return std::string(call) + " returned " + std::to_string(status);
}

int start(shoal_bootstrap_context* context, Process& own) {
  if (variable(context, "PMI_FD").empty())
    return report(
        context, SHOAL_BOOTSTRAP_ABSENT,
        "no launcher speaks PMI-2 to this process (PMI_FD is not set): start it with srun "
        "--mpi=pmi2 or Hydra's mpiexec");
  std::string reason;
  if (!load(own.library, reason)) return report(context, SHOAL_BOOTSTRAP_ABSENT, reason);
  int spawned = 0, app = 0;
  if (const int status = own.library.init(&spawned, &own.n_pes, &own.pe, &app); status != 0)
    return report(context, SHOAL_BOOTSTRAP_FAILED, failure("PMI2_Init", status));
  char job[256] = "";
  if (const int status = own.library.job_id(job, sizeof job); status != 0)
    return report(context, SHOAL_BOOTSTRAP_FAILED, failure("PMI2_Job_GetId", status));
  own.job = job;
  own.ready = true;
  at_good_end([] {
    if (const auto finalize = process().library.finalize; finalize != nullptr) finalize();
  });
  return SHOAL_BOOTSTRAP_OK;
}

int open(shoal_bootstrap_context* context, void** job, std::int32_t* pe, std::int32_t* n_pes) {
  Process& own = process();
  if (!own.ready)
    if (const int status = start(context, own); status != SHOAL_BOOTSTRAP_OK) return status;
  *job = &own;
  *pe = own.pe;
  *n_pes = own.n_pes;
  return SHOAL_BOOTSTRAP_OK;
}

int broadcast(shoal_bootstrap_context* context, void*, char* text) {
  Process& own = process();
  const std::string key = "shoal-" + std::to_string(own.worlds++);
  if (own.pe == 0)
    if (const int status = own.library.put(key.c_str(), text); status != 0)
      return report(context, SHOAL_BOOTSTRAP_FAILED, failure("PMI2_KVS_Put", status));
  if (const int status = own.library.fence(); status != 0)
    return report(context, SHOAL_BOOTSTRAP_FAILED, failure("PMI2_KVS_Fence", status));
  int length = 0;
  if (const int status = own.library.get(own.job.c_str(), kAnySource, key.c_str(), text,
                                         SHOAL_BOOTSTRAP_TEXT_SIZE, &length);
      status != 0 || length < 0)
    return report(context, SHOAL_BOOTSTRAP_FAILED, failure("PMI2_KVS_Get", status));
  return SHOAL_BOOTSTRAP_OK;
}

void close(void*) {}

}  // namespace
}  // namespace shoal::plugins

const shoal_bootstrap_plugin shoal_bootstrap_plugin_table = {
    SHOAL_BOOTSTRAP_PLUGIN_VERSION, 0,
    sizeof(shoal_bootstrap_plugin), "pmi2",
    "PMI-2 through libpmi2.so.0",   shoal::plugins::open,
    shoal::plugins::broadcast,      shoal::plugins::close};
