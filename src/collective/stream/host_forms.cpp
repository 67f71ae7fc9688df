// SPDX-License-Identifier: Apache-2.0
#include "collective/host_forms.hpp"

#include <atomic>
#include <cstdint>

#include "base/check.hpp"
#include "device/device_side.hpp"
#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "shoal/cuda.hpp"

namespace shoal::collective {
namespace {

constexpr KernelTable kKernels = {kernels::load_once, kernels::broadcast, kernels::spread,
                                  kernels::reduce};
std::atomic<const KernelTable*> replacement{nullptr};

/// True if this PE can run collectives of the team on its GPU.
bool has_kernels(const Call& call) {
  const detail::WorldState& world = call.world();
  if (world.device_side() == nullptr || world.memory().cuda() == nullptr) return false;
  if (call.n_pes() > static_cast<std::size_t>(device::Team::kMaxCollectivePes) ||
      world.n_pes() > device::Team::kMaxPes)
    return false;
  for (const Pe pe : call.team().pes)
    if (world.fabric().peer_base(pe) == nullptr) return false;
  return kernel_table().load(*world.memory().cuda()) == nullptr;
}

}  // namespace

bool agree_on_gpu(Call& call, const Arguments& arguments) {
  const std::uint64_t mine = has_kernels(call) ? 1 : 0;
  const std::vector<std::byte> all = call.agree_and_gather(arguments, &mine, sizeof mine);
  if (arguments.size == 0) return false;
  for (std::size_t pe = 0; pe < call.n_pes(); ++pe) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, all.data() + pe * sizeof theirs, sizeof theirs);
    if (theirs == 0) return false;
  }
  return true;
}

void run_on_gpu(const Call& call, const Team& team, const StartKernel& start) {
  const detail::DeviceSide& side = *call.world().device_side();
  const memory::Device& gpu = *call.world().memory().cuda();
  gpu.activate();
  const device::Team view = detail::describe_team(side, call.team());
  const kernels::Launch launch{gpu.stream, side.world(), view, side.launch().pes_on_device};
  const char* const failure = start(launch);
  require(failure == nullptr, Code::system, "SHOAL-N450: {} did not start on GPU {}: {}",
          call.name(), gpu.device, failure == nullptr ? "" : failure);
  try {
    gpu.synchronize(call.name());
  } catch (const Error&) {
    cuda::check_failures(team.world());  // knows more than the end of the wait
    throw;
  }
  cuda::check_failures(team.world());
}

const KernelTable& kernel_table() {
  const KernelTable* const table = replacement.load();
  return table != nullptr ? *table : kKernels;
}

void replace_kernel_table(const KernelTable* table) {
  replacement = table;
}

}  // namespace shoal::collective
