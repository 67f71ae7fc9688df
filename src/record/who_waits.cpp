// SPDX-License-Identifier: Apache-2.0
// who_waits.cpp: the rank at the end of each chain of waits, out of the records of all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "shoal/observe.hpp"

namespace shoal::observe {
namespace {

/// The ranks of one group that have records.
struct Group {
  std::vector<Pe> pes;
  std::map<std::int32_t, std::pair<const PeRecord*, const GroupRecord*>> ranks;
};

/// The operation that a rank is in or that ended its group; else the last one.
const OperationRecord* current(const GroupRecord& group) {
  const OperationRecord* last = nullptr;
  for (const OperationRecord& op : group.operations)
    if (last == nullptr || op.state == "started" || op.state == "failed" ||
        (last->state != "started" && last->state != "failed"))
      last = &op;
  return last;
}

std::string seconds(std::int64_t ns) {
  return fmt::format("{:.3f} s", static_cast<double>(std::max<std::int64_t>(ns, 0)) / 1e9);
}

std::string place(const OperationRecord& op) {
  return fmt::format("{} {}, phase {}", op.operation, op.epoch,
                     op.phases.empty() ? "none" : op.phases.back().name);
}

/// "ranks 0, 1 and 3"
std::string list(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

/// True if a kernel waits, which the call of the operation has queued.
bool kernel_waits(const OperationRecord& op) {
  return op.waiting && !op.phases.empty() && op.phases.front().name == "queued";
}

/// The phases in which kernels wait, in the order in which a rank comes to them.
std::size_t order_of(std::string_view phase) {
  constexpr std::string_view kOrder[] = {"notify", "send", "rail", "receive", "finish"};
  return static_cast<std::size_t>(std::ranges::find(kOrder, phase) - std::begin(kOrder));
}

/// True if the kernels of `group` have reached the phase in which a kernel of another rank waits
/// for them. The calls say nothing about that: they run ahead of the kernels.
bool kernels_have_arrived(const GroupRecord& group, const OperationRecord& waiting) {
  for (const LaunchRecord& launch : group.launches)
    if (launch.operation == waiting.operation && launch.epoch >= waiting.epoch) return true;
  const std::string& phase = waiting.phases.back().name;
  for (const OperationRecord& op : group.operations) {
    if (op.operation != waiting.operation || !kernel_waits(op) || op.epoch < waiting.epoch)
      continue;
    const std::size_t reached = order_of(op.phases.back().name);
    if (op.epoch > waiting.epoch || reached > order_of(phase) ||
        (reached == order_of(phase) && phase != "rail"))
      return true;
  }
  return false;
}

class Diagnosis {
 public:
  explicit Diagnosis(const Group& group) : group_(group) {
    for (const auto& [rank, records] : group.ranks) {
      const OperationRecord* const op = current(*records.second);
      const bool waits = op != nullptr && op->waiting && op->awaited >= 0 &&
                         static_cast<std::size_t>(op->awaited) < group.pes.size();
      if (waits && !has_arrived(op->awaited, *op)) waits_for_[rank] = op->awaited;
    }
  }

  std::string text() const {
    std::map<std::int32_t, std::vector<std::int32_t>> waiting;  // by the end of their chain
    std::vector<std::int32_t> circle;
    for (const auto& [rank, awaited] : waits_for_) {
      const auto end = end_of_chain(rank);
      if (end)
        waiting[*end].push_back(rank);
      else
        circle.push_back(rank);
    }
    if (waiting.empty() && circle.empty()) return "  no rank waits for another\n";
    std::string text;
    for (const auto& [rank, by] : waiting)
      text += fmt::format("  rank {} (PE {}) is behind: {} wait{} for it\n    {}\n", rank,
                          group_.pes[rank], list(by), by.size() == 1 ? "s" : "", what_does(rank));
    if (!circle.empty()) text += fmt::format("  {} wait for each other\n", list(circle));
    for (const auto& [rank, awaited] : waits_for_) text += wait_of(rank, awaited);
    return text;
  }

 private:
  /// True if `rank` has reached the phase in which another waits for it: that one has not noticed
  /// yet, or is stopped. A rank signals before it enters the phase, except "rail", in which both
  /// exchange chunks.
  bool has_arrived(std::int32_t rank, const OperationRecord& waiting) const {
    const auto found = group_.ranks.find(rank);
    if (found == group_.ranks.end() || waiting.phases.empty()) return false;
    if (kernel_waits(waiting)) return kernels_have_arrived(*found->second.second, waiting);
    const std::size_t needed = waiting.phases.size() + (waiting.phases.back().name == "rail");
    for (const OperationRecord& op : found->second.second->operations) {
      if (op.operation != waiting.operation || op.epoch < waiting.epoch) continue;
      if (op.epoch > waiting.epoch || op.phases.size() >= needed || op.state == "sent" ||
          op.state == "completed")
        return true;
    }
    return false;
  }

  /// nullopt: a circle.
  std::optional<std::int32_t> end_of_chain(std::int32_t rank) const {
    std::set<std::int32_t> seen;
    for (auto next = waits_for_.find(rank); next != waits_for_.end();
         next = waits_for_.find(rank)) {
      if (!seen.insert(rank).second) return std::nullopt;
      rank = next->second;
    }
    return rank;
  }

  std::string what_does(std::int32_t rank) const {
    const auto found = group_.ranks.find(rank);
    if (found == group_.ranks.end())
      return "it has no record here: its process has ended, runs on another host, or wrote no file";
    const auto& [pe, group] = found->second;
    const OperationRecord* const op = current(*group);
    if (op == nullptr) return "it has begun no operation of this group";
    const std::string awaited =
        op->waiting
            ? fmt::format(
                  "; rank {} has arrived, but this rank has not observed it (is the process stopped?)",
                  op->awaited)
            : "";
    if (op->state == "started")
      return fmt::format("it is in {}, for {}{}", place(*op), seconds(pe->read_ns - op->start_ns),
                         awaited);
    if (op->state == "failed") return fmt::format("it failed in {}{}", place(*op), awaited);
    const std::string other = pe->active ? fmt::format(", and is in {}", pe->activity)
                                         : ", and is outside of the library";
    const char* const done = op->state == "sent"     ? "sent"
                             : op->state == "queued" ? "queued"
                                                     : "completed";
    return fmt::format("it {} {} {}, {} ago{}", done, op->operation, op->epoch,
                       seconds(pe->read_ns - op->end_ns), other);
  }

  std::string wait_of(std::int32_t rank, std::int32_t awaited) const {
    const auto& [pe, group] = group_.ranks.at(rank);
    const OperationRecord& op = *current(*group);
    const std::int64_t since = op.phases.empty() ? op.start_ns : op.phases.back().start_ns;
    return fmt::format("    rank {} (PE {}, pid {} on {}): {}, waits for rank {} since {}{}\n",
                       rank, pe->pe, pe->pid, pe->host, place(op), awaited,
                       seconds((op.end_ns > 0 ? op.end_ns : pe->read_ns) - since),
                       op.state == "failed" ? ", and gave up" : "");
  }

  const Group& group_;
  std::map<std::int32_t, std::int32_t> waits_for_;
};

}  // namespace

std::string who_waits(const std::vector<PeRecord>& records) {
  // Groups of disjoint teams may have equal numbers: the first PE tells them apart.
  std::map<std::tuple<std::uint64_t, std::uint64_t, Pe>, Group> groups;
  for (const PeRecord& pe : records)
    for (const GroupRecord& record : pe.groups) {
      if (record.pes.empty()) continue;
      Group& group = groups[{pe.world, record.number, record.pes[0]}];
      group.pes = record.pes;
      group.ranks[record.rank] = {&pe, &record};
    }
  std::string text;
  for (const auto& [key, group] : groups)
    text += fmt::format("world {:016x}, group {} of {} ranks\n{}", std::get<0>(key),
                        std::get<1>(key), group.pes.size(), Diagnosis(group).text());
  for (const PeRecord& pe : records)
    if (pe.active && pe.awaited >= 0)
      text += fmt::format("world {:016x}: PE {} waits for PE {} in {}\n", pe.world, pe.pe,
                          pe.awaited, pe.activity);
  return text.empty() ? "no groups\n" : text;
}

}  // namespace shoal::observe
