// SPDX-License-Identifier: Apache-2.0
// Barrier, sync and exchange_bytes: collectives that use no heap memory. The checks of collectives
// that take spans.
#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "shoal/collective.hpp"
#include "team/exchange.hpp"
#include "world/state.hpp"

namespace shoal {

using detail::record::CountedCollective;
using detail::record::WorldOperation;

void barrier(const Team& team) {
  detail::TeamState& state = state_of(team);
  const CountedCollective counted(state.world->recorder(), WorldOperation::barrier);
  state.world->fabric().quiet();
  detail::sync(state, "barrier");
}

void sync(const Team& team) {
  detail::TeamState& state = state_of(team);
  const CountedCollective counted(state.world->recorder(), WorldOperation::sync);
  detail::sync(state, "sync");
}

std::vector<std::byte> exchange_bytes(const Team& team, std::span<const std::byte> mine) {
  static_assert(kMaxExchangeBytes == detail::kExchangeBytes);
  detail::TeamState& state = state_of(team);
  state.world->progress().checked(state.next_call(), [&] {
    require(mine.size() <= kMaxExchangeBytes, Code::invalid_argument,
            "SHOAL-N456: exchange_bytes of {} bytes; allowed: up to {}", mine.size(),
            kMaxExchangeBytes);
  });
  const CountedCollective counted(state.world->recorder(), WorldOperation::exchange, mine.size());
  return detail::exchange(state, mine.data(), mine.size(), "exchange_bytes");
}

namespace detail {

std::size_t block_length(const char* call, std::size_t target, std::size_t source,
                         std::size_t target_blocks, std::size_t source_blocks) {
  const std::size_t length = source / source_blocks;
  require(source % source_blocks == 0 && target % target_blocks == 0 &&
              target / target_blocks == length,
          Code::invalid_argument,
          "SHOAL-N454: {}: target has {} elements and source {}; allowed: {} and {} times the same "
          "number",
          call, target, source, target_blocks, source_blocks);
  return length;
}

std::size_t block_length(const Team& team, const char* call, std::size_t target, std::size_t source,
                         std::size_t target_blocks, std::size_t source_blocks) {
  const TeamState& state = state_of(team);
  return state.world->progress().checked(state.next_call(), [&] {
    return block_length(call, target, source, target_blocks, source_blocks);
  });
}

void all_to_all_v_elements(const Team& team, std::size_t size, void* target,
                           std::size_t target_count, std::span<const std::size_t> receive_counts,
                           std::span<const std::size_t> receive_offsets, const void* source,
                           std::size_t source_count, std::span<const std::size_t> send_counts,
                           std::span<const std::size_t> send_offsets) {
  const TeamState& state = state_of(team);
  const std::size_t n = state.size();
  std::vector<std::size_t> bytes[4];
  state.world->progress().checked(state.next_call(), [&] {
    const auto check = [&](const char* what, std::size_t count, std::span<const std::size_t> counts,
                           std::span<const std::size_t> offsets) {
      require(
          counts.size() >= n && offsets.size() >= n, Code::invalid_argument,
          "SHOAL-N440: all_to_all_v: {} has {} counts and {} offsets; allowed: one for each of {} "
          "PEs",
          what, counts.size(), offsets.size(), n);
      for (std::size_t pe = 0; pe < n; ++pe)
        require(
            counts[pe] == 0 || (offsets[pe] <= count && counts[pe] <= count - offsets[pe]),
            Code::invalid_argument,
            "SHOAL-N453: all_to_all_v: {} elements from element {}, for PE {} of the team, leave "
            "the {} of {} elements",
            counts[pe], offsets[pe], pe, what, count);
    };
    check("target", target_count, receive_counts, receive_offsets);
    check("source", source_count, send_counts, send_offsets);
  });
  const std::span<const std::size_t> elements[] = {receive_counts, receive_offsets, send_counts,
                                                   send_offsets};
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t pe = 0; pe < n; ++pe) {
      // An offset without elements is not used.
      const bool used = elements[i / 2 * 2][pe] != 0;
      bytes[i].push_back(used ? elements[i][pe] * size : 0);
    }
  all_to_all_v_bytes(team, target, bytes[0], bytes[1], source, bytes[2], bytes[3]);
}

}  // namespace detail

}  // namespace shoal
