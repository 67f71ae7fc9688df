// SPDX-License-Identifier: Apache-2.0
// Ordering, barriers and syncs. On streams a sync is a barrier.
#include "nvshmem/define.hpp"
#include "shoal/collective.hpp"

using namespace shoal::nvshmem;

namespace {

int barrier_on(const char* call, nvshmem_team_t team, cudaStream_t stream) noexcept {
  guarded(call, [&](Program& program) {
    const shoal::cuda::StreamOperations on = program.on(stream);
    on.quiet();
    on.barrier(program.teams.at(team));
  });
  return NVSHMEMX_SUCCESS;
}
int barrier(const char* call, nvshmem_team_t team) noexcept {
  guarded(call, [&](Program& program) { shoal::barrier(program.teams.at(team)); });
  return NVSHMEMX_SUCCESS;
}
int sync(const char* call, nvshmem_team_t team) noexcept {
  guarded(call, [&](Program& program) { shoal::sync(program.teams.at(team)); });
  return NVSHMEMX_SUCCESS;
}

}  // namespace

NVSHMEM_DEFINE(void, fence, ()) {
  guarded("nvshmem_fence", [](Program& program) { program.world.fence(); });
}
NVSHMEM_DEFINE(void, quiet, ()) {
  guarded("nvshmem_quiet", [](Program& program) { program.world.quiet(); });
}
NVSHMEMX_DEFINE(void, quiet_on_stream, (cudaStream_t stream)) {
  guarded("nvshmemx_quiet_on_stream", [&](Program& program) { program.on(stream).quiet(); });
}

NVSHMEM_DEFINE(int, barrier, (nvshmem_team_t team)) {
  return barrier("nvshmem_barrier", team);
}
NVSHMEM_DEFINE(void, barrier_all, ()) {
  barrier("nvshmem_barrier_all", NVSHMEM_TEAM_WORLD);
}
NVSHMEM_DEFINE(int, sync, (nvshmem_team_t team)) {
  return sync("nvshmem_sync", team);
}
NVSHMEM_DEFINE(int, team_sync, (nvshmem_team_t team)) {
  return sync("nvshmem_team_sync", team);
}
NVSHMEM_DEFINE(void, sync_all, ()) {
  sync("nvshmem_sync_all", NVSHMEM_TEAM_WORLD);
}
NVSHMEMX_DEFINE(int, barrier_on_stream, (nvshmem_team_t team, cudaStream_t stream)) {
  return barrier_on("nvshmemx_barrier_on_stream", team, stream);
}
NVSHMEMX_DEFINE(void, barrier_all_on_stream, (cudaStream_t stream)) {
  barrier_on("nvshmemx_barrier_all_on_stream", NVSHMEM_TEAM_WORLD, stream);
}
NVSHMEMX_DEFINE(int, sync_on_stream, (nvshmem_team_t team, cudaStream_t stream)) {
  return barrier_on("nvshmemx_sync_on_stream", team, stream);
}
NVSHMEMX_DEFINE(int, team_sync_on_stream, (nvshmem_team_t team, cudaStream_t stream)) {
  return barrier_on("nvshmemx_team_sync_on_stream", team, stream);
}
NVSHMEMX_DEFINE(void, sync_all_on_stream, (cudaStream_t stream)) {
  barrier_on("nvshmemx_sync_all_on_stream", NVSHMEM_TEAM_WORLD, stream);
}
