// SPDX-License-Identifier: Apache-2.0
// signals.hpp: the words by which members of a group tell each other how far they are.
//
// A signal holds the epoch of the last operation for which its writer did something; it only grows,
// so nothing is ever cleared and a late one is never taken for a new one (DESIGN.md, idea 2).
// Storing releases, loading acquires: what was written before the store is visible after the load.
#pragma once

#include <cstdint>
#include <functional>

#include "ep/host/group.hpp"

namespace shoal::ep::host {

/// What a wait is part of, for the report of its failure.
struct Step {
  const char* operation;  ///< "dispatch"
  shoal::detail::Activity activity;
  std::uint64_t epoch;
  const char* phase;   ///< "notify"
  const char* wanted;  ///< "rows", "counts": what the member waited for should send
};

/// Sets the signal at `signals` (an offset of GroupLayout) that this member owns in member `to`'s
/// block.
void raise_signal(const HostGroup& group, std::size_t signals, std::int32_t to,
                  std::uint64_t epoch);
/// As raise_signal for all members.
void raise_all(const HostGroup& group, std::size_t signals, std::uint64_t epoch);
/// For the members of this node.
void raise_local(const HostGroup& group, std::size_t signals, std::uint64_t epoch);
/// For all members, of which those that cannot be reached are masked, where the group does that.
void raise_or_mask(HostGroup& group, std::size_t signals, std::uint64_t epoch);

/// The signal that member `from` owns in this member's block.
std::uint64_t read_signal(const HostGroup& group, std::size_t signals, std::int32_t from);

/// Makes the group unusable for `reason` and signals this to the other ranks, whose waits for this
/// one end. `cause`: the rank that failed first, as far as is known.
void give_up(HostGroup& group, const std::string& reason, std::int32_t cause);
/// As give_up, for an error that ended an operation of this rank.
void give_up(HostGroup& group, const std::exception& error);

/// Runs the part of an operation that other members count on. When it ends by anything but an error
/// that all members come to alike, the group is given up, so that nobody waits for this member in
/// vain.
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

/// The first other member that has marked its group as failed; nullopt when none has.
std::optional<std::int32_t> failed_rank(const HostGroup& group);

/// The rank that made `failed`, which has given up the group, do so.
std::int32_t cause_of(const HostGroup& group, std::int32_t failed);

/// Waits until the signal of `from` has reached `epoch`. After a failure the group is unusable, the
/// other members are told, and Error{timeout} or Error{peer_failed} is thrown.
void wait_signal(HostGroup& group, std::size_t signals, std::int32_t from, std::uint64_t epoch,
                 const Step& step);
void wait_all(HostGroup& group, std::size_t signals, std::uint64_t epoch, const Step& step);
void wait_local(HostGroup& group, std::size_t signals, std::uint64_t epoch, const Step& step);
/// The same for anything that `ready` finds out, or brings about, by polling; `from` is the member
/// that it depends on.
void wait_for(HostGroup& group, const std::function<bool()>& ready, std::int32_t from,
              const Step& step);

/// As wait_signal, for low-latency operations: where the group masks failed members, one that does
/// not come is masked and false is returned. Masked members are not waited for.
bool wait_or_mask(HostGroup& group, std::size_t signals, std::int32_t from, std::uint64_t epoch,
                  const Step& step);

/// To be called when a notice of `from` shows that it has masked this member: masks it in turn, or,
/// where the group does not mask, throws Error{peer_failed}.
void left_out(HostGroup& group, std::int32_t from, const Step& step);

}  // namespace shoal::ep::host
