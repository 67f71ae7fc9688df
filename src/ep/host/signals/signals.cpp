// SPDX-License-Identifier: Apache-2.0
#include "ep/host/signals/signals.hpp"

#include <atomic>

#include "base/check.hpp"
#include "base/log.hpp"
#include "ep/host/signals/reach.hpp"
#include "pe/wait_order.hpp"
#include "transport/scoped_timeout.hpp"

namespace shoal::ep::host {
namespace {

using shoal::detail::Clock;
using shoal::detail::WaitOutcome;
namespace record = shoal::detail::record;

std::atomic_ref<std::uint64_t> signal_at(std::byte* block, std::size_t signals,
                                         std::int32_t owner) {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(block + signals + owner * kLine));
}

/// The signal of rank `of` in the block of the first rank, where the ranks meet.
std::atomic_ref<std::uint64_t> signal_at_first(const HostGroup& group, std::size_t signals,
                                               std::int32_t of) {
  return signal_at(group.state.peers[0], signals, of);
}

bool has_failed(const HostGroup& group, std::int32_t rank) {
  return read_signal(group, group.layout.failed, rank) != 0;
}

/// The ranks whose signals an operation awaits one after the other.
enum class Among { all, local };

/// The signal to block on while that of `from` is missing. Where PEs share cores, it may be that of
/// a rank whose turn is later: this rank then gives its core away once instead of once per rank.
std::int32_t rank_to_block_on(HostGroup& group, std::size_t signals, std::int32_t from,
                              std::uint64_t epoch, Among among) {
  if (!group.state.world->waits().crowded()) return from;
  const auto first = static_cast<std::size_t>(from);
  const auto ranks = static_cast<std::size_t>(group.state.shape.ranks);
  const std::uint64_t seed =
      shoal::detail::mixed(epoch) + static_cast<std::uint64_t>(group.state.me) * ranks;
  const auto arrived = [&](std::size_t index) {
    const auto rank = static_cast<std::int32_t>(index);
    if (group.masked[index] || (among == Among::local && !group.state.nodes.here(rank)))
      return true;
    return read_signal(group, signals, rank) >= epoch;
  };
  return static_cast<std::int32_t>(group.wait_order.pick(first, ranks, seed, arrived));
}

/// A wait that failed stays visible in the record as the one that the operation is in.
void note_wait(HostGroup& group, std::int32_t from, Clock::duration waited, WaitOutcome outcome) {
  group.state.statistics.wait_time += waited;
  group.state.recorder.end_wait(from, waited);
  if (outcome != WaitOutcome::ready) group.state.recorder.begin_wait(from);
}

/// Two letters tell the names apart, in every phase of every operation.
record::Phase phase_of(const char* name) {
  switch (name[0]) {
    case 'n':
      return record::Phase::notify;
    case 's':
      return record::Phase::send;
    case 'f':
      return record::Phase::finish;
    case 'r':
      return name[1] == 'a' ? record::Phase::rail : record::Phase::receive;
    default:
      return record::Phase::none;
  }
}

bool is_low_latency(const Step& step) {
  using shoal::detail::Activity;
  return step.activity == Activity::low_latency_dispatch ||
         step.activity == Activity::low_latency_combine;
}

/// True if a rank of another node that is in normal operation `epoch`, which this rank has not
/// called, has not sent what this rank awaits. Between nodes a signal may overtake an earlier one,
/// but the notice says what was sent before.
bool has_not_sent(HostGroup& group, std::size_t signals, std::int32_t from, std::uint64_t epoch,
                  const Step& step) {
  const GroupLayout& layout = group.layout;
  if (signals != layout.slots_sent && signals != layout.combine_ready) return false;
  if (read_signal(group, layout.entered, from) < epoch) return false;
  const auto& notice = *reinterpret_cast<const NormalNotice*>(
      group.state.block + layout.notice(epoch, from, group.state.shape));
  return (signals == layout.slots_sent ? notice.dispatches_sent : notice.combines_sent) <
         step.epoch;
}

/// True if `from`, which does not reach `step`, has begun an operation of the other mode that this
/// rank has not called. A normal operation waits for all ranks, and signals within a node are
/// stores, seen in order. So a rank that is in one without the awaited low-latency step waits for
/// this rank. The reverse is no proof: a low-latency send waits for no rank.
bool in_other_mode(HostGroup& group, std::size_t signals, std::int32_t from, const Step& step) {
  const auto& state = group.state;
  const auto begun = [&](std::size_t of) { return newest_signal(group, of, from); };
  if (is_low_latency(step)) {
    const std::uint64_t entered = begun(group.layout.entered);
    if (entered <= state.epoch) return false;
    if (!state.nodes.here(from) && !has_not_sent(group, signals, from, entered, step)) return false;
    // A rank that has ended does not wait; the caller masks it or reports its failure.
    return !has_failed(group, from) && !state.world->health().has_failed(state.world_pe(from));
  }
  return begun(group.layout.slots_sent) > state.low_latency_dispatch_epoch ||
         begun(group.layout.combine_ready) > state.low_latency_combine_epoch;
}

/// Polls until `reached()` or until `from` fails or, in a low-latency step, is in normal mode
/// (peer_failed). `word`: the word to block on. Returns without reading the clock if it is reached
/// already.
template <typename Reached, typename Word>
WaitOutcome poll_rank(HostGroup& group, std::size_t signals, std::int32_t from, const Step& step,
                      Reached&& reached, Word&& word) {
  const bool low_latency = is_low_latency(step);
  const auto ready = [&] {
    return reached() || has_failed(group, from) ||
           (low_latency && in_other_mode(group, signals, from, step));
  };
  if (reached()) return WaitOutcome::ready;
  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline = start + group.state.timeout;
  const Pe awaited = group.pes[from];
  group.state.recorder.begin_wait(from);
  WaitOutcome outcome = group.state.world->waits().poll(ready, deadline, awaited, word);
  // If failed ranks are masked, the end of another PE does not end this wait.
  while (outcome == WaitOutcome::peer_failed && group.state.options.mask_failed &&
         !group.state.world->health().has_failed(awaited))
    outcome = Clock::now() >= deadline
                  ? WaitOutcome::timeout
                  : group.state.world->waits().poll(ready, deadline, awaited, word);
  note_wait(group, from, Clock::now() - start, outcome);
  if (outcome == WaitOutcome::ready && !reached()) return WaitOutcome::peer_failed;
  return outcome;
}

WaitOutcome poll_signal(HostGroup& group, std::size_t signals, std::int32_t from,
                        std::uint64_t epoch, const Step& step, Among among = Among::all) {
  return poll_rank(
      group, signals, from, step, [&] { return read_signal(group, signals, from) >= epoch; },
      [&]() -> std::uint64_t {
        const std::int32_t block_on = rank_to_block_on(group, signals, from, epoch, among);
        return group.state.host_offset + signals + static_cast<std::size_t>(block_on) * kLine;
      });
}

/// Like poll_signal, where ranks meet at the first one and this is another. It blocks until it is
/// released, but awaits a missing rank by name, for messages and so that its end is noticed.
WaitOutcome poll_at_first(HostGroup& group, std::size_t signals, std::int32_t from,
                          std::uint64_t epoch, const Step& step) {
  const auto came = [&] {
    return read_signal(group, signals, 0) >= epoch ||
           signal_at_first(group, signals, from).load() >= epoch;
  };
  return poll_rank(group, signals, from, step, came,
                   [&]() -> std::uint64_t { return group.state.host_offset + signals; });
}

std::string seen(const HostGroup& group, std::size_t signals, std::int32_t from,
                 std::uint64_t epoch) {
  return fmt::format("expected epoch {}, seen {}", epoch, newest_signal(group, signals, from));
}

/// The rank whose failure ended a wait for `from`: as others report it, else one that has ended,
/// else `from`, which is late.
std::int32_t first_cause(const HostGroup& group, std::int32_t from) {
  const auto ended = [&](std::int32_t rank) {
    return rank != group.state.me &&
           group.state.world->health().has_failed(group.state.world_pe(rank));
  };
  if (has_failed(group, from)) return cause_of(group, from);
  if (ended(from)) return from;
  if (const auto failed = failed_rank(group)) return cause_of(group, *failed);
  for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank)
    if (ended(rank)) return rank;
  return from;
}

/// "; PE 3 refused its call: ..." where this is why `rank` did not take part in the step.
std::string refusal_by(const HostGroup& group, std::int32_t rank, const Step& step) {
  using shoal::detail::Activity;
  using shoal::detail::CallKind;
  const CallKind kind =
      step.activity == Activity::low_latency_dispatch  ? CallKind::low_latency_dispatch
      : step.activity == Activity::low_latency_combine ? CallKind::low_latency_combine
                                                       : CallKind::normal;
  return group.state.world->progress().refusal(group.pes[rank], group.state.call(kind, step.epoch));
}

/// The message of a wait that failed. `seen`: the state of what was awaited; `culprit`: a rank that
/// gave up and thereby ended the wait.
std::string report(HostGroup& group, std::int32_t from, const std::string& seen, const Step& step,
                   WaitOutcome outcome, std::optional<std::int32_t> culprit = std::nullopt) {
  const Pe world_pe = group.state.team.world_pe(from);
  const std::string where =
      fmt::format("on PE {} of {}: waiting for {} from PE {}, {}, phase {}",
                  group.state.team.world_pe(group.state.me), group.state.world->n_pes(),
                  step.wanted, world_pe, seen, step.phase);
  if (outcome == WaitOutcome::timeout)
    return fmt::format(
        "SHOAL-N551: {} (epoch {}) timed out after {} ms {}{}; {}. Setting: {}.", step.operation,
        step.epoch, group.state.timeout.count(), where, refusal_by(group, from, step),
        group.state.world->progress().describe(world_pe), group.state.timeout_setting());
  if (outcome == WaitOutcome::interrupted)
    return fmt::format("SHOAL-N553: {} (epoch {}) was interrupted {}", step.operation, step.epoch,
                       where);
  if (!culprit && has_failed(group, from)) culprit = from;
  const auto world_failure = group.state.world->health().failure();
  if (!culprit)
    return fmt::format("SHOAL-N552: {} (epoch {}) failed {}{}; {}", step.operation, step.epoch,
                       where, refusal_by(group, from, step),
                       world_failure.value_or("a PE of the world failed"));
  const std::int32_t cause = cause_of(group, *culprit);
  return fmt::format("SHOAL-N552: {} (epoch {}) failed {}{}; {}", step.operation, step.epoch, where,
                     refusal_by(group, cause, step),
                     detail::describe_given_up(group.state, *culprit, cause));
}

/// Gives the group up and throws, after a wait for `from` that ended as `message` says.
[[noreturn]] void fail_wait(HostGroup& group, std::int32_t from, WaitOutcome outcome,
                            const std::string& message) {
  const bool here = outcome == WaitOutcome::interrupted;
  give_up(group, message, here ? group.state.me : first_cause(group, from));
  throw Error(here                              ? Code::system
              : outcome == WaitOutcome::timeout ? Code::timeout
                                                : Code::peer_failed,
              group.state.failure);
}

[[noreturn]] void refuse_other_mode(HostGroup& group, std::int32_t from, const Step& step) {
  const char* const modes[] = {"normal", "low-latency"};
  const bool low_latency = is_low_latency(step);
  give_up(group,
          fmt::format("SHOAL-N562: {} (epoch {}) on PE {} of {}: PE {} is in an operation of {} "
                      "mode, which this PE has not called{}",
                      step.operation, step.epoch, group.state.world_pe(group.state.me),
                      group.state.world->n_pes(), group.state.world_pe(from),
                      modes[low_latency ? 0 : 1], refusal_by(group, from, step)),
          from);
  throw Error(Code::mismatch, group.state.failure);
}

/// True if `from`, which is late, waits directly or indirectly for a rank that has ended or is
/// masked. Without this check, ranks that live would mask each other: a rank that waits for a dead
/// one is late for all others.
bool kept_by_another(const HostGroup& group, std::int32_t from) {
  const Pe first = group.state.team.world_pe(from);
  const auto masked = [&](Pe pe) {
    for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank)
      if (group.masked[rank] && group.state.team.world_pe(rank) == pe) return true;
    return false;
  };
  Pe pe = first;
  for (Pe links = 0; links < group.state.world->n_pes(); ++links) {
    const shoal::detail::Awaited next = group.state.world->progress().awaited_by(pe);
    if (!next.answers) return pe != first;
    if (next.pe < 0 || next.pe == first || next.pe == group.state.team.world_pe(group.state.me))
      return false;
    pe = next.pe;
    if (masked(pe) || group.state.world->health().has_failed(pe)) return true;
  }
  return false;
}

}  // namespace

void enter_phase(const HostGroup& group, shoal::detail::Activity activity, std::uint64_t epoch,
                 const char* phase) {
  group.state.world->progress().set(activity, epoch, phase);
  group.state.recorder.phase(phase_of(phase), epoch);
}

void count_rows(const HostGroup& group, std::uint64_t rows, std::size_t row_bytes,
                const std::int32_t* per_rank) {
  record::GroupRecorder& recorder = group.state.recorder;
  recorder.moved(rows, rows * row_bytes);
  if (!recorder.counts_peers()) return;
  for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank)
    recorder.sent_to(rank, static_cast<std::uint64_t>(per_rank[rank]), per_rank[rank] * row_bytes);
}

void raise_signal(const HostGroup& group, std::size_t signals, std::int32_t to,
                  std::uint64_t epoch) {
  signal(group, to, signals + group.state.me * kLine, epoch);
}

void wake_all(const HostGroup& group, std::size_t signals) {
  for (std::int32_t i = 1; i < group.state.shape.ranks; ++i)
    wake_for(group, (group.state.me + i) % group.state.shape.ranks,
             signals + group.state.me * kLine);
}

namespace {

/// Tells all ranks that all of them have arrived, by the signal of the first one.
void release_all(const HostGroup& group, std::size_t signals, std::uint64_t epoch) {
  for (std::int32_t to = 1; to < group.state.shape.ranks; ++to)
    store_signal(group, to, signals, epoch);
  for (std::int32_t to = 1; to < group.state.shape.ranks; ++to)
    if (to != group.state.me) wake_for(group, to, signals);
}

/// Sequentially consistent: of two ranks that come at once, at least one sees the other.
void raise_at_first(const HostGroup& group, std::size_t signals, std::uint64_t epoch) {
  signal_at_first(group, signals, group.state.me).exchange(epoch);
  std::int32_t came = 0;
  while (came < group.state.shape.ranks && signal_at_first(group, signals, came).load() >= epoch)
    ++came;
  if (came == group.state.shape.ranks) release_all(group, signals, epoch);
  if (group.state.me != 0) wake_for(group, 0, signals + group.state.me * kLine);
}

}  // namespace

void raise_local(const HostGroup& group, std::size_t signals, std::uint64_t epoch) {
  if (group.meets_at_first) return raise_at_first(group, signals, epoch);
  for (std::int32_t i = 1; i <= group.state.nodes.size; ++i)
    store_signal(group,
                 group.state.nodes.rank_at(group.state.nodes.mine,
                                           (group.state.nodes.rail + i) % group.state.nodes.size),
                 signals + group.state.me * kLine, epoch);
  wake_all(group, signals);
}

void raise_or_mask(HostGroup& group, std::size_t signals, std::uint64_t epoch) {
  if (group.meets_at_first) return raise_at_first(group, signals, epoch);
  for (std::int32_t i = 0; i < group.state.shape.ranks; ++i) {
    const std::int32_t to = (group.state.me + 1 + i) % group.state.shape.ranks;
    write_or_mask(group, to,
                  [&] { store_signal(group, to, signals + group.state.me * kLine, epoch); });
  }
  wake_all(group, signals);
}

std::uint64_t read_signal(const HostGroup& group, std::size_t signals, std::int32_t from) {
  return signal_at(group.state.block, signals, from).load(std::memory_order_acquire);
}

std::uint64_t newest_signal(const HostGroup& group, std::size_t signals, std::int32_t from) {
  return group.meets_at_first ? signal_at_first(group, signals, from).load()
                              : read_signal(group, signals, from);
}

void give_up(HostGroup& group, const std::string& reason, std::int32_t cause) {
  group.state.failure = reason;
  // An unreachable rank may be the reason.
  const transport::ScopedTimeout bound(transport::kFailureReportTimeout);
  for (std::int32_t to = 0; to < group.state.shape.ranks; ++to) {
    try {
      raise_signal(group, group.layout.failed, to, detail::failed_word(cause, false));
      group.state.world->waits().wake(group.state.world_pe(to));
    } catch (const std::exception& error) {
      log::debug("the failure could not be signalled to PE {}: {}", group.state.world_pe(to),
                 error.what());
    }
  }
}

void give_up(HostGroup& group, const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  const bool of_peer = own != nullptr && own->code() == Code::peer_failed;
  give_up(group, error.what(), of_peer ? first_cause(group, group.state.me) : group.state.me);
}

std::int32_t cause_of(const HostGroup& group, std::int32_t failed) {
  return detail::first_cause(failed, group.state.shape.ranks, [&](std::int32_t rank) {
    return read_signal(group, group.layout.failed, rank);
  });
}

std::optional<std::int32_t> failed_rank(const HostGroup& group) {
  for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank)
    if (rank != group.state.me && has_failed(group, rank)) return rank;
  return std::nullopt;
}

namespace {

/// Waits until the signal of `from` has reached `epoch`. On failure, gives the group up and throws
/// Error{timeout} or Error{peer_failed}.
void wait_signal(HostGroup& group, std::size_t signals, std::int32_t from, std::uint64_t epoch,
                 const Step& step, Among among = Among::all) {
  // The first rank has all signals in its own block.
  const WaitOutcome outcome = group.meets_at_first && group.state.me != 0
                                  ? poll_at_first(group, signals, from, epoch, step)
                                  : poll_signal(group, signals, from, epoch, step, among);
  if (outcome == WaitOutcome::ready) return;
  if (in_other_mode(group, signals, from, step)) refuse_other_mode(group, from, step);
  fail_wait(group, from, outcome,
            report(group, from, seen(group, signals, from, epoch), step, outcome));
}

}  // namespace

void wait_for(HostGroup& group, const std::function<bool()>& ready, std::int32_t from,
              const Step& step) {
  const auto ended = [&] { return failed_rank(group).has_value(); };
  const Clock::time_point start = Clock::now();
  group.state.recorder.begin_wait(from);
  const WaitOutcome outcome =
      group.state.world->waits().poll([&] { return ready() || ended(); },
                                      start + group.state.timeout, group.state.team.world_pe(from));
  note_wait(group, from, Clock::now() - start, outcome);
  const auto failed = failed_rank(group);
  if (outcome == WaitOutcome::ready && !failed) return;
  const WaitOutcome end = failed ? WaitOutcome::peer_failed : outcome;
  fail_wait(group, from, end,
            report(group, from, fmt::format("in epoch {}", step.epoch), step, end, failed));
}

void wait_all(HostGroup& group, std::size_t signals, std::uint64_t epoch, const Step& step) {
  enter_phase(group, step);
  for (std::int32_t from = 0; from < group.state.shape.ranks; ++from)
    wait_signal(group, signals, from, epoch, step);
}

void wait_local(HostGroup& group, std::size_t signals, std::uint64_t epoch, const Step& step) {
  enter_phase(group, step);
  for (std::int32_t from = 0; from < group.state.shape.ranks; ++from)
    if (group.state.nodes.here(from)) wait_signal(group, signals, from, epoch, step, Among::local);
}

bool wait_or_mask(HostGroup& group, std::size_t signals, std::int32_t from, std::uint64_t epoch,
                  const Step& step) {
  if (group.masked[from]) {
    (void)read_signal(
        group, signals,
        from);  // acquires: what the rank finished before it was masked precedes what follows
    return false;
  }
  if (!group.state.options.mask_failed) {
    wait_signal(group, signals, from, epoch, step);
    return true;
  }
  WaitOutcome outcome = poll_signal(group, signals, from, epoch, step);
  for (std::int32_t more = 1; more < group.state.shape.ranks && outcome == WaitOutcome::timeout;
       ++more) {
    if (!kept_by_another(group, from)) break;
    outcome = poll_signal(group, signals, from, epoch, step);
  }
  if (outcome == WaitOutcome::ready) return true;
  if (in_other_mode(group, signals, from, step)) refuse_other_mode(group, from, step);
  if (outcome == WaitOutcome::interrupted)  // says nothing about the other rank
    fail_wait(group, from, outcome,
              report(group, from, seen(group, signals, from, epoch), step, outcome));
  group.masked[from] = 1;
  log::warn("SHOAL-N561: {} PE {} is masked from now on",
            report(group, from, seen(group, signals, from, epoch), step, outcome),
            group.state.team.world_pe(from));
  return false;
}

void wait_for_readers_of_half(HostGroup& group, std::size_t signals, const Step& step) {
  if (step.epoch <= 2) return;
  for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank)
    wait_or_mask(group, signals, rank, step.epoch - 2, step);
}

void masked_by(HostGroup& group, std::int32_t from, const Step& step) {
  const Pe pe = group.state.team.world_pe(from);
  require(group.state.options.mask_failed, Code::peer_failed,
          "SHOAL-N595: {} (epoch {}): PE {} signalled without the notice of this epoch",
          step.operation, step.epoch, pe);
  group.masked[from] = 1;
  log::warn("SHOAL-N561: {} (epoch {}): PE {} has masked this PE, which masks it in turn",
            step.operation, step.epoch, pe);
}

}  // namespace shoal::ep::host
