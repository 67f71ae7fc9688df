// SPDX-License-Identifier: Apache-2.0
#include "nvshmem/device_state.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "memory/cuda/driver.hpp"
#include "memory/device.hpp"
#include "nvshmem/program.hpp"
#include "nvshmem_host.h"
#include "pe/memory.hpp"
#include "shoal/cuda.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::nvshmem {

using memory::cuda::address;

DeviceTeams::DeviceTeams(const World& world, std::size_t slots) : world_(world), slots_(slots) {
  const memory::Device& device = *state_of(world_).memory().cuda();
  const memory::cuda::Driver& driver = memory::cuda::driver();
  const auto n = static_cast<std::size_t>(world_.n_pes());
  const std::size_t bytes = slots * (sizeof(DeviceTeam) + n * sizeof(Pe));
  device.activate();
  CUdeviceptr allocated = 0;
  memory::cuda::check(driver, driver.mem_alloc(&allocated, bytes),
                      [&] { return fmt::format("{} bytes of GPU memory for teams", bytes); });
  memory_ = reinterpret_cast<std::byte*>(allocated);
  device.zero(memory_, bytes);
  device.synchronize("the table of teams");
}

DeviceTeams::~DeviceTeams() {
  const memory::Device* const device =
      world_.is_open() ? state_of(world_).memory().cuda() : nullptr;
  if (device == nullptr) return;
  device->activate();
  memory::cuda::driver().mem_free(address(memory_));
}

void DeviceTeams::copy(std::byte* target, const void* source, std::size_t bytes) const {
  const memory::Device& device = *state_of(world_).memory().cuda();
  const memory::cuda::Driver& driver = memory::cuda::driver();
  device.activate();
  memory::cuda::check(driver, driver.copy(address(target), address(source), bytes, device.stream),
                      "a copy of the device state");
  device.synchronize("a copy of the device state");
}

void DeviceTeams::set(std::int32_t id, const Team& team) {
  if (!team.valid()) return;
  std::vector<Pe> pes;
  for (Pe pe = 0; pe < team.size(); ++pe) pes.push_back(team.world_pe(pe));
  const auto slot = static_cast<std::size_t>(id);
  const auto n = static_cast<std::size_t>(world_.n_pes());
  std::byte* const list = memory_ + slots_ * sizeof(DeviceTeam) + slot * n * sizeof(Pe);
  copy(list, pes.data(), pes.size() * sizeof(Pe));
  DeviceTeam entry{};
  entry.team = cuda::device_team(team);
  entry.world_pes = reinterpret_cast<const Pe*>(list);
  entry.my_pe = team.my_pe();
  entry.n_pes = team.size();
  copy(memory_ + slot * sizeof entry, &entry, sizeof entry);
}

void DeviceTeams::clear(std::int32_t id) {
  const DeviceTeam none{};
  copy(memory_ + static_cast<std::size_t>(id) * sizeof none, &none, sizeof none);
}

DeviceState DeviceTeams::state() const {
  DeviceState state{};
  state.world = cuda::device_world(world_);
  state.teams = reinterpret_cast<const DeviceTeam*>(memory_);
  state.n_teams = static_cast<std::int32_t>(slots_);
  return state;
}

void DeviceTeams::write(void* address, const DeviceState& state) const {
  copy(static_cast<std::byte*>(address), &state, sizeof state);
}

Units& Units::of_process() {
  static Units& units = *new Units;  // NOLINT(cppcoreguidelines-owning-memory)
  return units;
}

void Units::write(const Program& program, Find find, const DeviceState& state) {
  program.core.memory().cuda()->activate();
  // A unit without code for this GPU has no state there.
  if (void* const found = find()) program.device_teams->write(found, state);
}

void Units::add(Find find) {
  const std::lock_guard lock(mutex_);
  finds_.push_back(find);
  if (program_ != nullptr) write(*program_, find, program_->device_teams->state());
}

void Units::remove(Find find) {
  const std::lock_guard lock(mutex_);
  std::erase(finds_, find);
}

void Units::start(const Program& program) {
  const std::lock_guard lock(mutex_);
  if (program.device_teams == nullptr) return;
  program_ = &program;
  for (Find find : finds_) write(program, find, program.device_teams->state());
}

void Units::stop() {
  const std::lock_guard lock(mutex_);
  if (program_ == nullptr) return;
  for (Find find : finds_) write(*program_, find, DeviceState{});
  program_ = nullptr;
}

namespace {

constexpr const char* kState = "shoal_nvshmem_state_d";

int fill_found(const Program& program, CUresult result, CUdeviceptr at, std::size_t bytes) {
  if (result != CUDA_SUCCESS || bytes != sizeof(DeviceState)) return NVSHMEMX_ERROR_INVALID_VALUE;
  program.device_teams->write(reinterpret_cast<void*>(at), program.device_teams->state());
  return NVSHMEMX_SUCCESS;
}

}  // namespace

int fill_module(const Program& program, CUmod_st* module) {
  if (program.device_teams == nullptr) return NVSHMEMX_ERROR_NOT_SUPPORTED;
  program.core.memory().cuda()->activate();
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  const CUresult result = memory::cuda::driver().module_global(&at, &bytes, module, kState);
  return fill_found(program, result, at, bytes);
}

int fill_library(const Program& program, CUlib_st* library) {
  if (program.device_teams == nullptr || memory::cuda::driver().library_global == nullptr)
    return NVSHMEMX_ERROR_NOT_SUPPORTED;
  program.core.memory().cuda()->activate();
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  const CUresult result = memory::cuda::driver().library_global(&at, &bytes, library, kState);
  return fill_found(program, result, at, bytes);
}

}  // namespace shoal::nvshmem

extern "C" void shoal_nvshmem_add_unit(void* (*find)()) {
  shoal::nvshmem::starting("the device state of a translation unit",
                           [&] { shoal::nvshmem::Units::of_process().add(find); });
}

extern "C" void shoal_nvshmem_remove_unit(void* (*find)()) {
  shoal::nvshmem::Units::of_process().remove(find);
}
