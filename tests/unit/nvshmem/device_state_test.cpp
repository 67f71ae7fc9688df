// SPDX-License-Identifier: Apache-2.0
// The device state of translation units and of images that the driver API loaded, on a driver
// without a GPU.
#include <gtest/gtest.h>

#ifdef SHOAL_TEST_NVSHMEM

#include <nvshmem.h>
#include <nvshmemx.h>

#include "shoal/nvshmem/device/state_type.hpp"
#include "support/cuda/fake_cuda.hpp"

extern "C" {
void shoal_nvshmem_add_unit(void* (*find)());
void shoal_nvshmem_remove_unit(void* (*find)());
}

namespace shoal::test {
namespace {

using nvshmem::DeviceState;

// The constants of three units. One has no code for this GPU.
DeviceState early, late;
void* find_early() {
  return &early;
}
void* find_late() {
  return &late;
}
void* find_nothing() {
  return nullptr;
}

void expect_world(const DeviceState& state, const void* block) {
  EXPECT_EQ(state.world.my_pe, 0);
  EXPECT_EQ(state.world.n_pes, 1);
  EXPECT_LE(static_cast<const void*>(state.world.heap), block);
  EXPECT_LT(block, static_cast<const void*>(state.world.heap + state.world.heap_bytes));
  EXPECT_GT(state.n_teams, static_cast<int>(NVSHMEMX_TEAM_GPU_LEADERS));
}

TEST(DeviceState, OfUnitsIsFilledAtTheStartOrWhenTheyAreLoaded) {
  const FakeCuda fake({.gpus = 1});
  shoal_nvshmem_add_unit(&find_early);
  shoal_nvshmem_add_unit(&find_nothing);
  EXPECT_EQ(early.world.n_pes, 0);
  nvshmem_init();
  void* const block = nvshmem_malloc(64);
  expect_world(early, block);
  EXPECT_EQ(late.world.n_pes, 0);
  shoal_nvshmem_add_unit(&find_late);
  expect_world(late, block);

  // Teams are in GPU memory, which here is the host's.
  const nvshmem::DeviceTeam* const teams = early.teams;
  for (int id = NVSHMEM_TEAM_WORLD; id <= NVSHMEMX_TEAM_GPU_LEADERS; ++id) {
    EXPECT_EQ(teams[id].n_pes, 1) << id;
    EXPECT_EQ(teams[id].my_pe, 0) << id;
    EXPECT_EQ(teams[id].world_pes[0], 0) << id;
  }
  nvshmem_team_t team = NVSHMEM_TEAM_INVALID;
  ASSERT_EQ(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 1, 1, nullptr, 0, &team), 0);
  EXPECT_EQ(teams[team].n_pes, 1);
  nvshmem_team_destroy(team);
  EXPECT_EQ(teams[team].n_pes, 0);

  // An unloaded unit is left alone; the others are emptied.
  shoal_nvshmem_remove_unit(&find_late);
  nvshmem_free(block);
  nvshmem_finalize();
  EXPECT_EQ(early.world.n_pes, 0);
  EXPECT_EQ(late.world.n_pes, 1);
  shoal_nvshmem_remove_unit(&find_early);
  shoal_nvshmem_remove_unit(&find_nothing);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(DeviceState, OfImagesIsFoundByItsName) {
  const FakeCuda fake({.gpus = 1});
  nvshmem_init();
  void* const block = nvshmem_malloc(64);
  DeviceState state{};
  FakeImage image{"shoal_nvshmem_state_d", &state, sizeof state};
  EXPECT_EQ(nvshmemx_cumodule_init(reinterpret_cast<CUmod_st*>(&image)), NVSHMEMX_SUCCESS);
  expect_world(state, block);
  state = {};
  EXPECT_EQ(nvshmemx_culibrary_init(reinterpret_cast<CUlib_st*>(&image)), NVSHMEMX_SUCCESS);
  expect_world(state, block);

  // Another name, or a state of another version: nothing is written.
  state = {};
  for (const auto& other : {FakeImage{"another", &state, sizeof state},
                            FakeImage{"shoal_nvshmem_state_d", &state, sizeof state - 8}}) {
    FakeImage wrong = other;
    EXPECT_EQ(nvshmemx_cumodule_init(reinterpret_cast<CUmod_st*>(&wrong)),
              NVSHMEMX_ERROR_INVALID_VALUE);
    EXPECT_EQ(nvshmemx_culibrary_init(reinterpret_cast<CUlib_st*>(&wrong)),
              NVSHMEMX_ERROR_INVALID_VALUE);
    EXPECT_EQ(state.world.n_pes, 0);
  }
  nvshmem_free(block);
  nvshmem_finalize();
}

}  // namespace
}  // namespace shoal::test

#endif
