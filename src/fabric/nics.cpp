// SPDX-License-Identifier: Apache-2.0
// Which NICs the networks of this PE use.
#include "base/blob.hpp"
#include "base/log.hpp"
#include "fabric/fabric.hpp"
#include "topology/nic_plan.hpp"

namespace shoal::detail {
namespace {

/// PCI address of this PE's GPU as the machine lists it; empty without a GPU, or where the machine
/// lists none (a container may hide the PCI bus).
std::string gpu_address(const topology::Machine& machine, const Placement& placement,
                        const memory::Device* device) {
  if (device == nullptr) return "";
  std::string gpu = memory::describe_gpus().gpus.at(static_cast<std::size_t>(device->device)).pci;
  if (gpu.empty() || !machine.gpus.empty()) return gpu;
  log::info("PE {}: this machine shows no GPU on its PCI bus; NICs are chosen without GPU {}",
            placement.my_pe, gpu);
  return "";
}

}  // namespace

void Fabric::choose_nics(const Settings& settings, BlobWriter& mine) {
  if (nics_) return;  // the second network uses the same NICs
  const topology::Machine machine = topology::read_machine();
  const auto seats =
      topology::host_seats(machine, settings.local_size > 0 ? static_cast<Pe>(settings.local_size)
                                                            : placement_.pes_on_host());
  const std::int32_t seat =
      topology::seat_of(machine, static_cast<std::int32_t>(seats.size()),
                        gpu_address(machine, placement_, memory_.device().get()),
                        settings.local_index >= 0 ? static_cast<Pe>(settings.local_index)
                                                  : placement_.index_on_host[placement_.me()]);
  const topology::NicPlan plan =
      topology::plan_nics(machine, seats, topology::nic_binding(settings));
  const std::vector<topology::NicUse>& uses = plan.of_seat[static_cast<std::size_t>(seat)];
  nics_.emplace();
  for (const topology::NicUse& use : uses)
    nics_->push_back(machine.nics[static_cast<std::size_t>(use.nic)].label());
  mine.text(topology::read_host_identity(settings.host_id).name);
  for (const std::vector<std::string>& list : {*nics_, topology::networks_of(machine, uses)}) {
    mine.value<std::uint64_t>(list.size());
    for (const std::string& text : list) mine.text(text);
  }
}

void Fabric::check_nics(const Blobs& all) {
  std::vector<topology::RailEnd> ends;
  for (const auto& blob : all) {
    if (blob.empty()) return;  // checked in the round of the first network
    BlobReader reader(blob);
    topology::RailEnd& end = ends.emplace_back();
    end.host = placement_.host_of[ends.size() - 1];
    end.host_name = reader.text();
    for (auto* const list : {&end.nics, &end.networks})
      for (auto left = reader.value<std::uint64_t>(); left > 0; --left)
        list->push_back(reader.text());
  }
  topology::check_rails(topology::rails(placement_), ends);
}

}  // namespace shoal::detail
