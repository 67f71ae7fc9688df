// SPDX-License-Identifier: Apache-2.0
// teams.cuh: PEs, teams and addresses inside kernels. Teams that do not exist have PE -1.
#pragma once

#include <shoal/nvshmem/device/state.cuh>

SHOAL_NVSHMEM_DEFINE(int, nvshmem_my_pe, (void), { return shoal::nvshmem::world().my_pe; })
SHOAL_NVSHMEM_DEFINE(int, nvshmem_n_pes, (void), { return shoal::nvshmem::world().n_pes; })

SHOAL_NVSHMEM_DEFINE(int, nvshmem_team_my_pe, (nvshmem_team_t team), {
  const shoal::nvshmem::DeviceTeam* const found = shoal::nvshmem::find_team(team);
  return found == nullptr ? -1 : found->my_pe;
})
SHOAL_NVSHMEM_DEFINE(int, nvshmem_team_n_pes, (nvshmem_team_t team), {
  const shoal::nvshmem::DeviceTeam* const found = shoal::nvshmem::find_team(team);
  return found == nullptr ? -1 : found->n_pes;
})
SHOAL_NVSHMEM_DEFINE(int, nvshmem_team_translate_pe,
                     (nvshmem_team_t team, int pe, nvshmem_team_t other), {
                       const auto* const from = shoal::nvshmem::find_team(team);
                       const auto* const to = shoal::nvshmem::find_team(other);
                       if (from == nullptr || to == nullptr || pe < 0 || pe >= from->n_pes)
                         return -1;
                       const int world_pe = from->world_pes[pe];
                       for (int i = 0; i < to->n_pes; ++i)
                         if (to->world_pes[i] == world_pe) return i;
                       return -1;
                     })

SHOAL_NVSHMEM_DEFINE(void*, nvshmem_ptr, (const void* dest, int pe), {
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(dest));
  return shoal::device::detail::reach(shoal::nvshmem::world(), bytes, 1, pe);
})
SHOAL_NVSHMEM_DEFINE(void*, nvshmemx_mc_ptr, (nvshmem_team_t, const void*), { return nullptr; })

SHOAL_NVSHMEM_DEFINE(void, nvshmem_info_get_version, (int* major, int* minor), {
  *major = NVSHMEM_MAJOR_VERSION;
  *minor = NVSHMEM_MINOR_VERSION;
})
SHOAL_NVSHMEM_DEFINE(void, nvshmem_info_get_name, (char* name), {
  const char text[] = NVSHMEM_VENDOR_STRING;
  for (unsigned i = 0; i < sizeof text; ++i) name[i] = text[i];
})
SHOAL_NVSHMEM_DEFINE(void, nvshmemx_vendor_get_version_info, (int* major, int* minor, int* patch), {
  *major = NVSHMEM_VENDOR_MAJOR_VERSION;
  *minor = NVSHMEM_VENDOR_MINOR_VERSION;
  *patch = NVSHMEM_VENDOR_PATCH_VERSION;
})
