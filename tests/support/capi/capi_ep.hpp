// SPDX-License-Identifier: Apache-2.0
// capi_ep.hpp: a case of checks/ep/case.hpp through the C API: the inputs of one rank, its group,
// and the first calls on it.
#pragma once

#include <functional>

#include "checks/ep/normal.hpp"
#include "support/capi/capi.hpp"

namespace shoal::test {

inline EpCase small_case() {
  return {.ranks = 3, .experts = 9, .top_k = 4, .hidden = 128, .max_tokens = 24, .seed = 5};
}

inline shoal_ep_group_options c_options(const EpCase& c) {
  shoal_ep_group_options options = SHOAL_EP_GROUP_OPTIONS_INIT;
  options.max_tokens = c.max_tokens;
  options.low_latency_max_tokens = c.max_tokens;
  options.hidden = c.hidden;
  options.top_k = c.top_k;
  options.experts = c.experts;
  options.first_expert = c.first_expert.data();
  options.first_experts = static_cast<int64_t>(c.first_expert.size());
  options.none_expert = c.none_expert;
  return options;
}

/// The inputs and the group of one rank.
struct GroupRank {
  GroupRank(const EpCase& from, shoal_world* world_of_pe, const shoal_ep_group_options& options)
      : c(from), world(world_of_pe), me(pe_of(world)), in(c, me) {
    ok(shoal_world_team(world, SHOAL_TEAM_WORLD, &team));
    ok(shoal_ep_group_create(team, &options, &group));
  }
  ~GroupRank() {
    shoal_ep_group_destroy(group);
    shoal_team_destroy(team);
  }
  GroupRank(const GroupRank&) = delete;
  GroupRank& operator=(const GroupRank&) = delete;
  static int32_t pe_of(shoal_world* world) {
    int32_t pe = -1;
    ok(shoal_world_pe(world, &pe));
    return pe;
  }

  const EpCase c;
  shoal_world* const world;
  const int32_t me;
  const Inputs in;
  const shoal_tensor x = c_tensor(in.x), topk_idx = c_tensor(in.topk_idx),
                     weights = c_tensor(in.weights);
  shoal_team* team = nullptr;
  shoal_ep_group* group = nullptr;
};

inline void run_case(const EpCase& c, const shoal_ep_group_options& options,
                     const std::function<void(GroupRank&)>& body) {
  run_pes(c.ranks, [&](shoal_world* world) {
    GroupRank pe(c, world, options);
    body(pe);
  });
}
inline void run_case(const EpCase& c, const std::function<void(GroupRank&)>& body) {
  run_case(c, c_options(c), body);
}

inline shoal_ep_routing route(const GroupRank& pe) {
  shoal_ep_routing routing = SHOAL_EP_ROUTING_INIT;
  ok(shoal_ep_route(pe.group, &pe.topk_idx, nullptr, &routing));
  return routing;
}

inline shoal_ep_dispatched dispatch(GroupRank& pe, const shoal_ep_dispatch_options* options) {
  shoal_ep_routing routing = route(pe);
  shoal_ep_dispatched got = SHOAL_EP_DISPATCHED_INIT;
  ok(shoal_ep_dispatch(pe.group, &pe.x, &routing, options, &got));
  ok(shoal_ep_routing_release(&routing));
  return got;
}

}  // namespace shoal::test
