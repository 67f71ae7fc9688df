// SPDX-License-Identifier: Apache-2.0
// call.hpp: one collective operation on one PE: its arguments, their checks, and the agreement of
// all PEs of the team on them.
//
// An operation checks the arguments of this PE and agrees on them with all PEs of the team, after
// which every source and target is ready. Then it moves the data, and waits once more so that
// sources may be reused. The exchange carries the epoch of the team, so operations cannot mix when
// one PE is an operation ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "shoal/collective.hpp"
#include "team/exchange.hpp"
#include "world/state.hpp"

namespace shoal::collective {

/// The collectives that agree on arguments, by their numbers in records.
enum class Operation : std::uint32_t {
  broadcast = static_cast<std::uint32_t>(detail::record::WorldOperation::broadcast),
  all_gather,
  all_to_all,
  all_to_all_v,
  reduce,
  reduce_scatter
};
static_assert(Operation::reduce_scatter ==
              static_cast<Operation>(detail::record::WorldOperation::reduce_scatter));

const char* name_of(Operation operation) noexcept;

/// The arguments that must be equal on all PEs. Fields that an operation does not use keep their
/// defaults. No padding: the struct is compared and sent as bytes.
struct Arguments {
  Operation operation = Operation::broadcast;
  std::int32_t root = -1;
  std::uint32_t dtype = 0;
  std::uint32_t op = 0;
  std::uint64_t size = 0;           ///< bytes of a block, or elements of a reduction
  std::uint64_t target_offset = 0;  ///< in the symmetric heap
  std::uint64_t source_offset = 0;

  friend bool operator==(const Arguments&, const Arguments&) = default;
};
static_assert(sizeof(Arguments) == 40 && sizeof(Arguments) <= detail::kExchangeBytes);

/// An operation in progress on a team. Publishes the phase of this PE.
class Call {
 public:
  /// Throws as Team::state for an invalid, destroyed or closed team.
  Call(const Team& team, Operation operation);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  detail::TeamState& team() const noexcept { return team_; }
  detail::WorldState& world() const noexcept { return *team_.world; }
  /// Number of PEs, and index of this PE, in the team.
  std::size_t n_pes() const noexcept { return team_.size(); }
  std::size_t me() const noexcept { return team_.me(); }
  const char* name() const noexcept { return name_of(operation_); }

  /// The heap offset of `address`. `blocks` blocks of `bytes` bytes must fit into this PE's heap
  /// from there, and the address must be a multiple of `alignment`. Returns 0 for any address where
  /// there are no bytes. `what` names the argument. Throws Error{invalid_argument}.
  std::size_t checked_offset(const char* what, const void* address, std::size_t bytes,
                             std::size_t blocks = 1, std::size_t alignment = 1) const;
  /// Throws Error{invalid_argument} where the two ranges share bytes, unless they start at the same
  /// byte and `in_place` is allowed.
  void check_overlap(std::size_t target_offset, std::size_t target_bytes, std::size_t source_offset,
                     std::size_t source_bytes, bool in_place) const;

  /// The heap offsets of the target and the source, blocks of `bytes` bytes each, as checked_offset
  /// and check_overlap check them.
  std::pair<std::size_t, std::size_t> checked_offsets(const void* target, std::size_t target_blocks,
                                                      const void* source, std::size_t source_blocks,
                                                      std::size_t bytes, bool in_place) const;

  /// Runs `checks` of the arguments, which precede agree: PEs in it learn what they throw.
  template <typename Checks>
  auto checked(Checks&& checks) const {
    return world().progress().checked(team_.next_call(), checks);
  }

  /// Exchanges the arguments with all PEs. On return all PEs have entered the operation and their
  /// sources are ready. Throws Error{mismatch} on every PE where the arguments differ, stating
  /// which PE passed what.
  void agree(const Arguments& mine);
  /// The most that agree_and_gather takes.
  static constexpr std::size_t kGatheredBytes = detail::kExchangeBytes - sizeof(std::uint64_t);
  /// agree, and an all-gather of `bytes` bytes per PE, which the arguments determine, in the same
  /// hop. nullptr: zeros. Returns the data by PE. No PE reads the data of another one afterwards.
  std::vector<std::byte> agree_and_gather(const Arguments& mine, const void* data,
                                          std::size_t bytes);
  /// All-gather of one T per PE, indexed by PE.
  template <typename T>
  std::vector<T> exchange(const T& mine);
  /// The call counts from now on. `bytes`: what this PE contributes. agree and the other ways to
  /// agree call it where nothing has.
  void count(std::uint64_t bytes);
  void count(const Arguments& mine);
  /// Waits until every PE has reached this point. `phase` (at most 15 characters) names what this
  /// PE has done.
  void wait_for_all(const char* phase);
  /// detail::deliver. Published as "moved".
  void deliver(std::span<const detail::Delivery> deliveries);
  /// Publishes that the operation is complete on this PE.
  void complete() noexcept;

 private:
  void report(const char* phase) noexcept;
  [[noreturn]] void fail_to_agree(const Arguments& mine);

  detail::TeamState& team_;
  Operation operation_;
  std::uint64_t epoch_;
  std::optional<detail::record::CountedCollective> counted_;
};

template <typename T>
std::vector<T> Call::exchange(const T& mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= detail::kExchangeBytes);
  const std::vector<std::byte> blobs = detail::exchange(team_, &mine, sizeof mine, name());
  std::vector<T> all(n_pes());
  std::memcpy(all.data(), blobs.data(), blobs.size());
  return all;
}

}  // namespace shoal::collective
