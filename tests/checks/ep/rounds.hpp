// SPDX-License-Identifier: Apache-2.0
// rounds.hpp: repeats one operation. References are computed once, so many rounds are cheap and
// comparing a result is one memcmp.
#pragma once

#include "checks/ep/normal.hpp"

namespace shoal::test {

/// Rounds of dispatch, experts and combine in normal mode.
class NormalRound {
 public:
  NormalRound(const EpCase& c, std::int32_t rank);
  /// Throws on the first difference from the reference.
  void run(ep::Group& group) const;

 private:
  EpCase case_;
  Inputs in_;
  ExpectedDispatch received_;
  std::vector<std::uint16_t> x_, y_, combined_;
};

/// Rounds of low-latency dispatch of bfloat16 rows, experts and combine.
class LowLatencyRound {
 public:
  /// early_weights: dispatch gets the weights too. unsummed: the combines return rows.
  LowLatencyRound(const EpCase& c, std::int32_t rank, ep::Reduction reduction,
                  std::vector<int> masked = {}, bool early_weights = false, bool unsummed = false);
  void run(ep::Group& group, bool zero_copy) const;

  // The parts of a round.
  ep::PendingDispatch send(ep::Group& group) const;
  void check(
      const ep::LowLatencyReceived& got) const;  ///< throws if the rows differ from the reference
  ep::PendingCombine combine(ep::Group& group, const ep::LowLatencyReceived& got,
                             bool zero_copy) const;
  void check(const Tensor& out) const;  ///< throws if `out` differs from the reference

 private:
  EpCase case_;
  std::int32_t rank_;
  ep::Reduction reduction_;
  bool early_weights_, unsummed_;
  Inputs in_;
  ExpectedLowLatency received_;
  std::vector<std::vector<std::uint16_t>> x_;  ///< [local experts] of [rows, hidden]
  std::vector<std::uint16_t> combined_;
  Tensor y_;  ///< memory for the expert output
};

}  // namespace shoal::test
