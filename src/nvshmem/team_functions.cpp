// SPDX-License-Identifier: Apache-2.0
// Teams.
#include <cstring>
#include <utility>

#include "nvshmem/define.hpp"

using namespace shoal::nvshmem;

namespace {

/// The number of contexts that the configuration of a new team asks for. NULL and a mask of 0: 0.
int contexts_of(const char* argument, const nvshmem_team_config_t* config, long mask) {
  if (config == nullptr || (mask & NVSHMEM_TEAM_NUM_CONTEXTS) == 0) return 0;
  shoal::require(config->num_contexts >= 0, shoal::Code::invalid_argument,
                 "SHOAL-N863: {}->num_contexts is {}; allowed: at least 0", argument,
                 config->num_contexts);
  return config->num_contexts;
}

/// Runs `split`, which all PEs of the parent call. Arguments that name no team and a lack of free
/// ones are results.
template <typename Split>
int splits(Split&& split) {
  try {
    split();
    return NVSHMEMX_SUCCESS;
  } catch (const shoal::Error& error) {
    if (error.code() == shoal::Code::invalid_argument) return NVSHMEMX_ERROR_INVALID_VALUE;
    if (error.code() == shoal::Code::exhausted) return NVSHMEMX_ERROR_OUT_OF_MEMORY;
    throw;
  }
}

}  // namespace

NVSHMEM_DEFINE(int, team_my_pe, (nvshmem_team_t team)) {
  return guarded("nvshmem_team_my_pe", [&](Program& program) {
    return program.teams.has(team) ? program.teams.at(team).my_pe() : -1;
  });
}
NVSHMEM_DEFINE(int, team_n_pes, (nvshmem_team_t team)) {
  return guarded("nvshmem_team_n_pes", [&](Program& program) {
    return program.teams.has(team) ? program.teams.at(team).size() : -1;
  });
}
NVSHMEM_DEFINE(int, team_get_config, (nvshmem_team_t team, nvshmem_team_config_t* config)) {
  return guarded("nvshmem_team_get_config", [&](Program& program) {
    if (!program.teams.has(team) || config == nullptr)
      return static_cast<int>(NVSHMEMX_ERROR_INVALID_VALUE);
    config->num_contexts = program.teams.contexts(team);
    return static_cast<int>(NVSHMEMX_SUCCESS);
  });
}
NVSHMEM_DEFINE(int, team_translate_pe, (nvshmem_team_t team, int pe, nvshmem_team_t other)) {
  return guarded("nvshmem_team_translate_pe", [&](Program& program) {
    if (!program.teams.has(team) || !program.teams.has(other)) return -1;
    const shoal::Team from = program.teams.at(team);
    if (pe < 0 || pe >= from.size()) return -1;
    return from.translate(pe, program.teams.at(other)).value_or(-1);
  });
}
NVSHMEM_DEFINE(int, team_split_strided,
               (nvshmem_team_t parent, int start, int stride, int size,
                const nvshmem_team_config_t* config, long mask, nvshmem_team_t* team)) {
  return guarded("nvshmem_team_split_strided", [&](Program& program) {
    *team = NVSHMEM_TEAM_INVALID;
    if (!program.teams.has(parent)) return static_cast<int>(NVSHMEMX_ERROR_INVALID_VALUE);
    const int contexts = contexts_of("config", config, mask);
    // A team of one PE may have any stride.
    const int step = size == 1 && stride == 0 ? 1 : stride;
    return splits([&] {
      *team =
          program.teams.add(program.teams.at(parent).split_strided(start, step, size), contexts);
    });
  });
}
NVSHMEM_DEFINE(int, team_split_2d,
               (nvshmem_team_t parent, int xrange, const nvshmem_team_config_t* xconfig, long xmask,
                nvshmem_team_t* xteam, const nvshmem_team_config_t* yconfig, long ymask,
                nvshmem_team_t* yteam)) {
  return guarded("nvshmem_team_split_2d", [&](Program& program) {
    *xteam = *yteam = NVSHMEM_TEAM_INVALID;
    if (!program.teams.has(parent)) return static_cast<int>(NVSHMEMX_ERROR_INVALID_VALUE);
    const int x = contexts_of("xconfig", xconfig, xmask);
    const int y = contexts_of("yconfig", yconfig, ymask);
    return splits([&] {
      auto [row, column] = program.teams.at(parent).split_2d(xrange);
      *xteam = program.teams.add(std::move(row), x);
      *yteam = program.teams.add(std::move(column), y);
    });
  });
}
NVSHMEM_DEFINE(void, team_destroy, (nvshmem_team_t team)) {
  guarded("nvshmem_team_destroy", [&](Program& program) {
    if (team == NVSHMEM_TEAM_INVALID) return;
    program.world.quiet();
    program.teams.destroy(team);
  });
}

NVSHMEMX_DEFINE(int, team_get_uniqueid, (nvshmem_team_uniqueid_t * id)) {
  return guarded("nvshmemx_team_get_uniqueid", [&](Program& program) {
    *id = program.world.make_team_id();
    return static_cast<int>(NVSHMEMX_SUCCESS);
  });
}
NVSHMEMX_DEFINE(int, team_init,
                (nvshmem_team_t * team, nvshmem_team_config_t* config, long mask, int size,
                 int index)) {
  return guarded("nvshmemx_team_init", [&](Program& program) {
    *team = NVSHMEM_TEAM_INVALID;
    shoal::require(config != nullptr, shoal::Code::invalid_argument,
                   "SHOAL-N864: config is NULL; allowed: one with the uniqueid of the team");
    const int contexts = contexts_of("config", config, mask);
    return splits([&] {
      *team = program.teams.add(program.world.make_team(config->uniqueid, size, index), contexts);
    });
  });
}
