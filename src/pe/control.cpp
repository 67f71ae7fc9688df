// SPDX-License-Identifier: Apache-2.0
#include "pe/control.hpp"

#include "base/align.hpp"
#include "base/wait_point.hpp"
#include "memory/host/segment.hpp"

namespace shoal::detail {

ControlLayout::ControlLayout(Pe n_pes, std::int64_t max_teams)
    : n_pes_(static_cast<std::size_t>(n_pes)) {
  static_assert(sizeof(ProgressEntry) <= kLine && sizeof(WaitPoint) <= kLine &&
                sizeof(RefusalEntry) % kLine == 0 && sizeof(StatusEntry) % kLine == 0 &&
                sizeof(CauseEntry) % kLine == 0 && sizeof(ExchangeEntry) % kLine == 0);
  const auto teams = static_cast<std::size_t>(max_teams);
  std::size_t next = 3 * kLine;  // progress, alerts, wait point
  const auto place = [&](std::size_t count, std::size_t stride) {
    const std::size_t start = next;
    next = align_up(next + count * stride, kLine);
    return start;
  };
  refusals_ = place(kRefusals, sizeof(RefusalEntry));
  status_ = place(n_pes_, sizeof(StatusEntry));
  causes_ = place(n_pes_, 2 * sizeof(CauseEntry));
  join_stride_ = align_up(sizeof(JoinEntry) + (teams + 63) / 64 * sizeof(std::uint64_t), kLine);
  join_ = place(n_pes_, join_stride_);
  acknowledged_ = place(n_pes_, kLine);
  const std::size_t flags = n_pes_ <= kDirectPes ? 0 : 2 * n_pes_ * kLine;
  team_stride_ = flags + 2 * n_pes_ * sizeof(ExchangeEntry);
  teams_ = place(teams, team_stride_);
  entries_ = teams_ + flags;
  bytes_ = align_up(next, memory::Segment::kAlignment);
}

}  // namespace shoal::detail
