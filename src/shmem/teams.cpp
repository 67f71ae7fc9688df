// SPDX-License-Identifier: Apache-2.0
// Teams.
#include <optional>

#include "shmem/define.hpp"

using namespace shoal::shmem;

namespace {

constexpr int kFailed = -1;

/// The configuration of a new team. `mask` says which members of `config` count.
shmem_team_config_t checked_config(const char* argument, const shmem_team_config_t* config,
                                   long mask) {
  if (mask == 0) return {};
  shoal::require(mask == SHMEM_TEAM_NUM_CONTEXTS, shoal::Code::invalid_argument,
                 "SHOAL-N825: {} has the mask {:#x}; allowed: 0 or SHMEM_TEAM_NUM_CONTEXTS ({:#x})",
                 argument, mask, SHMEM_TEAM_NUM_CONTEXTS);
  shoal::require(
      config != nullptr, shoal::Code::invalid_argument,
      "SHOAL-N825: {} is NULL with the mask {:#x}; allowed: a configuration, or the mask 0",
      argument, mask);
  shoal::require(config->num_contexts >= 0, shoal::Code::invalid_argument,
                 "SHOAL-N824: {}->num_contexts is {}; allowed: at least 0", argument,
                 config->num_contexts);
  return *config;
}

shmem_team_t handle(Program& program, shoal::Team team, const shmem_team_config_t& config) {
  if (!team.valid()) return SHMEM_TEAM_INVALID;
  auto made = std::make_unique<shoal_shmem_team>();
  made->team = std::move(team);
  made->config = config;
  return program.teams.add(std::move(made));
}

/// Runs `split`, which all PEs of the parent call. Returns whether it made its teams: arguments
/// that name no team and a lack of free ones are results of the standard.
template <typename Split>
bool splits(Split&& split) {
  try {
    split();
    return true;
  } catch (const shoal::Error& error) {
    if (error.code() != shoal::Code::invalid_argument && error.code() != shoal::Code::exhausted)
      throw;
    return false;
  }
}

}  // namespace

SHMEM_DEFINE(int, team_my_pe, (shmem_team_t team)) {
  return guarded("shmem_team_my_pe", [&](Program& program) {
    return team == SHMEM_TEAM_INVALID ? -1 : program.team(team).team.my_pe();
  });
}

SHMEM_DEFINE(int, team_n_pes, (shmem_team_t team)) {
  return guarded("shmem_team_n_pes", [&](Program& program) {
    return team == SHMEM_TEAM_INVALID ? -1 : program.team(team).team.size();
  });
}

SHMEM_DEFINE(int, team_get_config, (shmem_team_t team, long mask, shmem_team_config_t* config)) {
  return guarded("shmem_team_get_config", [&](Program& program) {
    if (team == SHMEM_TEAM_INVALID) return kFailed;
    const shmem_team_config_t& found = program.team(team).config;
    if (mask == 0) return 0;
    if (mask != SHMEM_TEAM_NUM_CONTEXTS || config == nullptr) return kFailed;
    config->num_contexts = found.num_contexts;
    return 0;
  });
}

SHMEM_DEFINE(int, team_translate_pe, (shmem_team_t team, int pe, shmem_team_t other)) {
  return guarded("shmem_team_translate_pe", [&](Program& program) {
    if (team == SHMEM_TEAM_INVALID || other == SHMEM_TEAM_INVALID) return -1;
    const shoal::Team& from = program.team(team).team;
    const shoal::Team& to = program.team(other).team;
    if (pe < 0 || pe >= from.size()) return -1;
    return from.translate(pe, to).value_or(-1);
  });
}

SHMEM_DEFINE(int, team_split_strided,
             (shmem_team_t parent, int start, int stride, int size,
              const shmem_team_config_t* config, long mask, shmem_team_t* team)) {
  return guarded("shmem_team_split_strided", [&](Program& program) {
    result("team", team) = SHMEM_TEAM_INVALID;
    if (parent == SHMEM_TEAM_INVALID) return kFailed;
    const shmem_team_config_t wanted = checked_config("config", config, mask);
    const shoal::Team& whole = program.team(parent).team;
    // A team of one PE may have any stride.
    const int step = size == 1 && stride == 0 ? 1 : stride;
    const bool made =
        splits([&] { *team = handle(program, whole.split_strided(start, step, size), wanted); });
    return made ? 0 : kFailed;
  });
}

SHMEM_DEFINE(int, team_split_2d,
             (shmem_team_t parent, int xrange, const shmem_team_config_t* xconfig, long xmask,
              shmem_team_t* xteam, const shmem_team_config_t* yconfig, long ymask,
              shmem_team_t* yteam)) {
  return guarded("shmem_team_split_2d", [&](Program& program) {
    result("xteam", xteam) = SHMEM_TEAM_INVALID;
    result("yteam", yteam) = SHMEM_TEAM_INVALID;
    if (parent == SHMEM_TEAM_INVALID) return kFailed;
    const shmem_team_config_t x = checked_config("xaxis_config", xconfig, xmask);
    const shmem_team_config_t y = checked_config("yaxis_config", yconfig, ymask);
    const shoal::Team& whole = program.team(parent).team;
    const bool made = splits([&] {
      auto [row, column] = whole.split_2d(xrange);
      *xteam = handle(program, std::move(row), x);
      *yteam = handle(program, std::move(column), y);
    });
    return made ? 0 : kFailed;
  });
}

SHMEM_DEFINE(void, team_destroy, (shmem_team_t team)) {
  guarded("shmem_team_destroy", [&](Program& program) {
    if (team == SHMEM_TEAM_INVALID) return;
    shoal::require(team != SHMEM_TEAM_WORLD && team != SHMEM_TEAM_SHARED,
                   shoal::Code::invalid_argument,
                   "SHOAL-N840: team is predefined; allowed: teams that a split made");
    shoal_shmem_team& found = program.team(team);
    program.world.quiet();
    for (auto* const ctx : found.contexts) program.contexts.remove(ctx);
    found.team.free();
    program.teams.remove(team);
  });
}
