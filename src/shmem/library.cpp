// SPDX-License-Identifier: Apache-2.0
// Setup, exit and queries.
#include <cstring>

#include "shmem/define.hpp"

using namespace shoal::shmem;

namespace {

/// Like guarded, for routines that need no program yet.
template <typename Body>
void starting(const char* call, Body&& body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    end_program(call, error);
  }
}

/// The address of symmetric `dest` on world PE `pe`; nullptr where loads and stores do not reach.
void* address_on(const Program& program, const void* dest, int pe) {
  if (!program.is_symmetric(dest)) return nullptr;
  if (pe == program.me) return const_cast<void*>(dest);
  return program.world.heap().peer_pointer(program.in_heap("dest", dest, 1), pe);
}

}  // namespace

SHMEM_DEFINE(void, init, ()) {
  starting("shmem_init", [] { initialize(); });
}

SHMEM_DEFINE(int, init_thread, (int requested, int* provided)) {
  starting("shmem_init_thread", [&] {
    shoal::require(
        requested >= SHMEM_THREAD_SINGLE && requested <= SHMEM_THREAD_MULTIPLE,
        shoal::Code::invalid_argument,
        "SHOAL-N831: requested is {}; allowed: SHMEM_THREAD_SINGLE ({}) to SHMEM_THREAD_MULTIPLE "
        "({})",
        requested, SHMEM_THREAD_SINGLE, SHMEM_THREAD_MULTIPLE);
    initialize();
    if (provided != nullptr) *provided = SHMEM_THREAD_MULTIPLE;
  });
  return 0;
}

SHMEM_DEFINE(void, query_thread, (int* provided)) {
  guarded("shmem_query_thread",
          [&](Program&) { result("provided", provided) = SHMEM_THREAD_MULTIPLE; });
}

SHMEM_DEFINE(void, query_initialized, (int* initialized)) {
  starting("shmem_query_initialized",
           [&] { result("initialized", initialized) = is_initialized() ? 1 : 0; });
}

SHMEM_DEFINE(void, finalize, ()) {
  starting("shmem_finalize", [] { finalize(); });
}

SHMEM_DEFINE(void, global_exit, (int status)) {
  if (!is_initialized()) leave_process(status);
  program().exit_watch.exit_all(status);
}

SHMEM_DEFINE(int, my_pe, ()) {
  return guarded("shmem_my_pe", [](Program& program) { return program.me; });
}

SHMEM_DEFINE(int, n_pes, ()) {
  return guarded("shmem_n_pes", [](Program& program) { return program.n_pes; });
}

SHMEM_DEFINE(int, pe_accessible, (int pe)) {
  return guarded("shmem_pe_accessible",
                 [&](Program& program) { return pe >= 0 && pe < program.n_pes ? 1 : 0; });
}

SHMEM_DEFINE(int, addr_accessible, (const void* address, int pe)) {
  return guarded("shmem_addr_accessible", [&](Program& program) {
    return pe >= 0 && pe < program.n_pes && program.is_symmetric(address) ? 1 : 0;
  });
}

SHMEM_DEFINE(void*, ptr, (const void* dest, int pe)) {
  return guarded("shmem_ptr", [&](Program& program) {
    program.check_pe(pe);
    return address_on(program, dest, pe);
  });
}

SHMEM_DEFINE(void*, team_ptr, (shmem_team_t team, const void* dest, int pe)) {
  return guarded("shmem_team_ptr", [&](Program& program) {
    return address_on(program, dest, program.team(team).team.world_pe(pe));
  });
}

SHMEM_DEFINE(void, info_get_version, (int* major, int* minor)) {
  starting("shmem_info_get_version", [&] {
    result("major", major) = SHMEM_MAJOR_VERSION;
    result("minor", minor) = SHMEM_MINOR_VERSION;
  });
}

SHMEM_DEFINE(void, info_get_name, (char* name)) {
  starting("shmem_info_get_name",
           [&] { std::strncpy(&result("name", name), SHMEM_VENDOR_STRING, SHMEM_MAX_NAME_LEN); });
}

SHMEM_DEFINE(void, pcontrol, (int, ...)) {}
