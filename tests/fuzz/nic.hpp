// SPDX-License-Identifier: Apache-2.0
// nic.hpp: a queue pair of an emulated NIC whose memory is guarded, for the fuzz programs.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "engine/big_endian.hpp"
#include "engine/nic.hpp"
#include "fuzz.hpp"
#include "wire/virtual_network.hpp"

namespace shoal::fuzz {

using namespace shoal::emulator;

constexpr std::size_t kBlocks = 16, kMemory = 4096, kGuard = 256;
constexpr std::byte kUntouched{0x5a};

/// A queue pair with registered memory between guards. Its keys and addresses are the same in every
/// run, so that the fuzzer can learn them: addresses start at 0x10000.
struct End {
  End(VirtualNetwork& network, std::uint32_t index) : nic(network.nic(index)) {
    memory.fill(kUntouched);
    nic.keys().create(
        {.address = 0x10000, .length = kMemory, .memory = memory.data() + kGuard, .access = 0xf});
    queue =
        nic.create_completion_queue({.entries = entries.data(), .size = 64, .ignore_overrun = true})
            .object;
    pair = nic.create_queue_pair({.send_completions = queue,
                                  .receive_completions = queue,
                                  .ring = {ring.data(), kBlocks},
                                  .doorbell_record = record.data()})
               .object;
  }
  void connect(std::uint16_t lid, Ordering ordering, std::uint32_t mtu = 4096) {
    const Connection connection{.remote_lid = lid,
                                .remote_qp = 1,
                                .mtu = mtu,
                                .ack_timeout = 1,
                                .retry_count = 1,
                                .access = 0xf,
                                .ordering = ordering};
    for (const QpState state : {QpState::init, QpState::ready_to_receive, QpState::ready_to_send})
      check(pair->modify(state, connection) == Status::ok, "the transition is allowed");
  }
  void check_guards() const {
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    check(std::all_of(memory.begin(), memory.begin() + kGuard, untouched), "the guard before");
    check(std::all_of(memory.end() - kGuard, memory.end(), untouched), "the guard behind");
  }

  Nic& nic;
  std::array<std::byte, kMemory + 2 * kGuard> memory;
  std::array<std::byte, kBlocks * kBlockBytes> ring{};
  std::array<std::byte, 64 * kCqeBytes> entries{};
  alignas(8) std::array<std::byte, 8> record{};
  std::shared_ptr<CompletionQueue> queue;
  std::shared_ptr<QueuePair> pair;
};

}  // namespace shoal::fuzz
