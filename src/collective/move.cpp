// SPDX-License-Identifier: Apache-2.0
// The collectives that move whole blocks. A PE pulls the blocks of PEs whose heaps loads reach,
// starting with its right-hand neighbour, so that the PEs do not all read from the same one. In a
// team between hosts the PEs deliver their blocks: a get would take a round trip more.
#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "collective/call.hpp"
#include "collective/copy.hpp"
#include "collective/host_forms.hpp"
#include "collective/puller.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "team/exchange.hpp"

namespace shoal {

using collective::Arguments;
using collective::Call;
using collective::Operation;
using collective::Puller;
using detail::WorldState;

namespace {

/// True if `bytes` bytes per PE travel with the arguments, which saves the second round of waiting.
/// Heaps in GPU memory are not read by the host.
bool travels_along(const Call& call, std::size_t bytes) {
  return bytes != 0 && bytes <= Call::kGatheredBytes && call.world().memory().cuda() == nullptr;
}

/// Agrees on the arguments. Runs the collective by a kernel where heaps are in GPU memory and all
/// PEs can: true.
bool agree_or_run(Call& call, const Team& team, const Arguments& arguments,
                  const collective::StartKernel& start) {
  if (call.world().memory().cuda() == nullptr) {
    call.agree(arguments);
    return false;
  }
  if (!collective::agree_on_gpu(call, arguments)) return false;
  collective::run_on_gpu(call, team, start);
  call.complete();
  return true;
}

void copy(void* target, const void* source, std::size_t bytes) {
  if (target != source) collective::copy_block(target, source, bytes);
}

/// Pulls the bytes at `offset` of every heap to a block for each PE.
void pull_from_all(Call& call, std::byte* target, std::size_t offset, std::size_t bytes) {
  Puller puller(call.team());
  for (std::size_t i = 1; i <= call.n_pes(); ++i) {
    const std::size_t pe = (call.me() + i) % call.n_pes();
    puller.pull(target + pe * bytes, pe, offset, bytes);
  }
  puller.finish();
  call.wait_for_all("moved");
  call.complete();
}

}  // namespace

void broadcast_bytes(const Team& team, void* target, const void* source, std::size_t bytes,
                     Pe root) {
  Call call(team, Operation::broadcast);
  const auto [target_offset, source_offset] = call.checked([&] {
    require(root >= 0 && static_cast<std::size_t>(root) < call.n_pes(), Code::invalid_argument,
            "SHOAL-N445: broadcast: root is {}; allowed: 0 to {}, the PEs of the team", root,
            call.n_pes() - 1);
    return call.checked_offsets(target, 1, source, 1, bytes, true);
  });

  const Arguments arguments{.operation = Operation::broadcast,
                            .root = root,
                            .size = bytes,
                            .target_offset = target_offset,
                            .source_offset = source_offset};
  if (travels_along(call, bytes)) {
    const bool is_root = static_cast<std::size_t>(root) == call.me();
    const auto all = call.agree_and_gather(arguments, is_root ? source : nullptr, bytes);
    std::memcpy(target, all.data() + static_cast<std::size_t>(root) * bytes, bytes);
    return call.complete();
  }
  const bool done = agree_or_run(call, team, arguments, [&](const auto& launch) {
    return collective::kernel_table().broadcast(launch, target, source, bytes, root);
  });
  if (done) return;
  if (collective::delivers(call.team())) {
    std::vector<detail::Delivery> deliveries;
    if (static_cast<std::size_t>(root) == call.me()) {
      deliveries.assign(call.n_pes(), {target_offset, source, bytes});
      copy(target, source, bytes);
    }
    call.deliver(deliveries);
    return call.complete();
  }
  Puller puller(call.team());
  puller.pull(target, static_cast<std::size_t>(root), source_offset, bytes);
  puller.finish();
  call.wait_for_all("moved");
  call.complete();
}

void all_gather_bytes(const Team& team, void* target, const void* source, std::size_t bytes) {
  Call call(team, Operation::all_gather);
  const std::size_t n = call.n_pes();
  const auto [target_offset, source_offset] =
      call.checked([&] { return call.checked_offsets(target, n, source, 1, bytes, false); });

  const Arguments arguments{.operation = Operation::all_gather,
                            .size = bytes,
                            .target_offset = target_offset,
                            .source_offset = source_offset};
  if (travels_along(call, bytes)) {
    const auto all = call.agree_and_gather(arguments, source, bytes);
    std::memcpy(target, all.data(), all.size());
    return call.complete();
  }
  auto* const to = static_cast<std::byte*>(target);
  const bool done = agree_or_run(call, team, arguments, [&](const auto& launch) {
    return collective::kernel_table().spread(launch, target, source, bytes, true);
  });
  if (done) return;
  if (collective::delivers(call.team())) {
    const std::vector<detail::Delivery> deliveries(
        n, {target_offset + call.me() * bytes, source, bytes});
    copy(to + call.me() * bytes, source, bytes);
    call.deliver(deliveries);
    return call.complete();
  }
  pull_from_all(call, to, source_offset, bytes);
}

void all_to_all_bytes(const Team& team, void* target, const void* source, std::size_t bytes) {
  Call call(team, Operation::all_to_all);
  const std::size_t n = call.n_pes();
  const auto [target_offset, source_offset] =
      call.checked([&] { return call.checked_offsets(target, n, source, n, bytes, false); });

  const Arguments arguments{.operation = Operation::all_to_all,
                            .size = bytes,
                            .target_offset = target_offset,
                            .source_offset = source_offset};
  auto* const to = static_cast<std::byte*>(target);
  const auto* const from = static_cast<const std::byte*>(source);
  if (travels_along(call, bytes * n)) {
    const auto all = call.agree_and_gather(arguments, source, bytes * n);
    for (std::size_t pe = 0; pe < n; ++pe)
      std::memcpy(to + pe * bytes, all.data() + (pe * n + call.me()) * bytes, bytes);
    return call.complete();
  }
  const bool done = agree_or_run(call, team, arguments, [&](const auto& launch) {
    return collective::kernel_table().spread(launch, target, source, bytes, false);
  });
  if (done) return;
  if (collective::delivers(call.team())) {
    std::vector<detail::Delivery> deliveries(n);
    for (std::size_t pe = 0; pe < n; ++pe)
      deliveries[pe] = {target_offset + call.me() * bytes, from + pe * bytes, bytes};
    copy(to + call.me() * bytes, from + call.me() * bytes, bytes);
    call.deliver(deliveries);
    return call.complete();
  }
  pull_from_all(call, to, source_offset + call.me() * bytes, bytes);
}

}  // namespace shoal
