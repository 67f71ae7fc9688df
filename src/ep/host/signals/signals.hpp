// SPDX-License-Identifier: Apache-2.0
// signals.hpp: the words that ranks of a group wait for.
//
// A signal holds the epoch of the last operation in which its writer reached a step. It only grows,
// so nothing is cleared, and a late signal is never mistaken for a current one. Storing releases,
// loading acquires: what was written before the store is visible after the load.
#pragma once

#include <cstdint>
#include <functional>

#include "ep/host/group/group.hpp"

namespace shoal::ep::host {

/// The step that a wait belongs to, for the report of its failure.
struct Step {
  const char* operation;  ///< "dispatch"
  shoal::detail::Activity activity;
  std::uint64_t epoch;
  const char* phase;   ///< "notify"
  const char* wanted;  ///< "rows", "counts": what the awaited rank should send
};

/// Publishes the phase that this rank enters, to other PEs and in the group's record.
void enter_phase(const HostGroup& group, shoal::detail::Activity activity, std::uint64_t epoch,
                 const char* phase);
inline void enter_phase(const HostGroup& group, const Step& step) {
  enter_phase(group, step.activity, step.epoch, step.phase);
}

/// Records the rows that the current dispatch has sent; `per_rank`: [ranks] those for each.
void count_rows(const HostGroup& group, std::uint64_t rows, std::size_t row_bytes,
                const std::int32_t* per_rank);

/// Sets the signal at `signals` (an offset of GroupLayout) that this rank owns in the block of
/// `to`.
void raise_signal(const HostGroup& group, std::size_t signals, std::int32_t to,
                  std::uint64_t epoch);
/// Wakes the ranks that wait for these signals of this rank, after store_signal for all of them. A
/// rank that wakes may take this one's core, so the stores come first.
void wake_all(const HostGroup& group, std::size_t signals);
/// Tells the ranks of this node, which wait_local, that this one has reached the step.
void raise_local(const HostGroup& group, std::size_t signals, std::uint64_t epoch);
/// Like raise_signal, for all ranks. Masks unreachable ranks if the group masks failed ranks.
void raise_or_mask(HostGroup& group, std::size_t signals, std::uint64_t epoch);

/// The signal that `from` owns in this rank's block.
std::uint64_t read_signal(const HostGroup& group, std::size_t signals, std::int32_t from);
/// The same in the block of the first rank where ranks meet there, and so only that one's here.
std::uint64_t newest_signal(const HostGroup& group, std::size_t signals, std::int32_t from);

/// Makes the group unusable for `reason` and signals this to the other ranks, whose waits for this
/// one end. `cause`: the rank that failed first, as far as is known.
void give_up(HostGroup& group, const std::string& reason, std::int32_t cause);
/// Like give_up, for an error that ended an operation of this rank.
void give_up(HostGroup& group, const std::exception& error);

/// Runs the part of an operation that other ranks depend on. Gives the group up when it throws,
/// unless all ranks throw the same error (mismatch, exhausted): otherwise they would wait for this
/// rank until their deadline.
template <typename Body>
auto committed(HostGroup& group, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    const bool alike = error.code() == Code::mismatch || error.code() == Code::exhausted;
    if (!alike && group.state.failure.empty()) give_up(group, error);
    throw;
  } catch (const std::exception& error) {
    if (group.state.failure.empty()) give_up(group, error);
    throw;
  }
}

/// The first other rank that has given up the group.
std::optional<std::int32_t> failed_rank(const HostGroup& group);

/// The rank that made `failed`, which has given up the group, do so.
std::int32_t cause_of(const HostGroup& group, std::int32_t failed);

/// Waits until the signals of all ranks, or of those of this node, have reached `epoch`. On
/// failure, gives the group up and throws Error{timeout} or Error{peer_failed}.
void wait_all(HostGroup& group, std::size_t signals, std::uint64_t epoch, const Step& step);
void wait_local(HostGroup& group, std::size_t signals, std::uint64_t epoch, const Step& step);
/// Waits until `ready` returns true; it is polled and may make progress. `from` is the rank that it
/// depends on.
void wait_for(HostGroup& group, const std::function<bool()>& ready, std::int32_t from,
              const Step& step);

/// Like wait_all, for the signal of `from` in a low-latency operation, which awaits those of later
/// ranks next. If the group masks failed ranks, masks one that does not come and returns false.
/// Does not wait for masked ranks.
bool wait_or_mask(HostGroup& group, std::size_t signals, std::int32_t from, std::uint64_t epoch,
                  const Step& step);

/// Waits until all ranks have acknowledged, by `signals`, that they have read the half of a double
/// buffer that the operation with the epoch of `step` writes: its use before last.
void wait_for_readers_of_half(HostGroup& group, std::size_t signals, const Step& step);

/// Called when a notice of `from` shows that it has masked this rank. Masks it in turn; throws
/// Error{peer_failed} if the group does not mask failed ranks.
void masked_by(HostGroup& group, std::int32_t from, const Step& step);

}  // namespace shoal::ep::host
