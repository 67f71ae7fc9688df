// SPDX-License-Identifier: Apache-2.0
// Contexts.
#include "shmem/define.hpp"

using namespace shoal::shmem;

namespace {

constexpr long kOptions = SHMEM_CTX_SERIALIZED | SHMEM_CTX_PRIVATE | SHMEM_CTX_NOSTORE;

void create(Program& program, shmem_team_t team, long options, shmem_ctx_t* ctx) {
  result("ctx", ctx);
  shoal::require(
      (options & ~kOptions) == 0, shoal::Code::invalid_argument,
      "SHOAL-N825: options is {:#x}; allowed: SHMEM_CTX_SERIALIZED ({:#x}), SHMEM_CTX_PRIVATE "
      "({:#x}), SHMEM_CTX_NOSTORE ({:#x}), any of them or 0",
      options, SHMEM_CTX_SERIALIZED, SHMEM_CTX_PRIVATE, SHMEM_CTX_NOSTORE);
  shoal_shmem_team& members = program.team(team);
  const long one_thread = SHMEM_CTX_SERIALIZED | SHMEM_CTX_PRIVATE;
  std::vector<shoal_shmem_ctx::Peer> peers;
  for (shoal::Pe pe = 0; pe < members.team.size(); ++pe) {
    const shoal::Pe in_world = members.team.world_pe(pe);
    peers.push_back({.pe = in_world, .mapped = program.is_mapped(in_world)});
  }
  auto made = std::make_unique<shoal_shmem_ctx>();
  made->team = team;
  made->options = options;
  made->peers = std::move(peers);
  made->records = (options & one_thread) != 0;
  *ctx = program.contexts.add(std::move(made));
  if ((options & SHMEM_CTX_PRIVATE) != 0) return;
  const std::lock_guard lock(members.mutex);
  members.contexts.push_back(*ctx);
}

}  // namespace

SHMEM_DEFINE(int, ctx_create, (long options, shmem_ctx_t* ctx)) {
  return guarded("shmem_ctx_create", [&](Program& program) {
    create(program, SHMEM_TEAM_WORLD, options, ctx);
    return 0;
  });
}

SHMEM_DEFINE(int, team_create_ctx, (shmem_team_t team, long options, shmem_ctx_t* ctx)) {
  return guarded("shmem_team_create_ctx", [&](Program& program) {
    result("ctx", ctx) = SHMEM_CTX_INVALID;
    if (team == SHMEM_TEAM_INVALID) return -1;
    create(program, team, options, ctx);
    return 0;
  });
}

SHMEM_DEFINE(int, ctx_get_team, (shmem_ctx_t ctx, shmem_team_t* team)) {
  return guarded("shmem_ctx_get_team", [&](Program& program) {
    result("team", team) = SHMEM_TEAM_INVALID;
    if (ctx == SHMEM_CTX_INVALID) return -1;
    *team = ctx == SHMEM_CTX_DEFAULT ? SHMEM_TEAM_WORLD : program.context(ctx).team;
    return 0;
  });
}

SHMEM_DEFINE(void, ctx_destroy, (shmem_ctx_t ctx)) {
  guarded("shmem_ctx_destroy", [&](Program& program) {
    if (ctx == SHMEM_CTX_INVALID) return;
    shoal::require(
        ctx != SHMEM_CTX_DEFAULT, shoal::Code::invalid_argument,
        "SHOAL-N826: ctx is SHMEM_CTX_DEFAULT; allowed: contexts that the program created");
    const shoal_shmem_ctx& context = program.context(ctx);
    program.quiet(ctx);
    if ((context.options & SHMEM_CTX_PRIVATE) == 0) {
      shoal_shmem_team& members = program.team(context.team);
      const std::lock_guard lock(members.mutex);
      std::erase(members.contexts, ctx);
    }
    program.contexts.remove(ctx);
  });
}

SHMEM_DEFINE(void, ctx_session_start,
             (shmem_ctx_t ctx, long options, const shmem_ctx_session_config_t* config, long mask)) {
  guarded("shmem_ctx_session_start", [&](Program& program) {
    program.check_context(ctx);
    shoal::require((options & ~SHMEM_CTX_SESSION_BATCH) == 0, shoal::Code::invalid_argument,
                   "SHOAL-N825: options is {:#x}; allowed: SHMEM_CTX_SESSION_BATCH ({:#x}) or 0",
                   options, SHMEM_CTX_SESSION_BATCH);
    shoal::require(
        mask == 0 || (mask == SHMEM_CTX_SESSION_TOTAL_OPS && config != nullptr),
        shoal::Code::invalid_argument,
        "SHOAL-N825: mask is {:#x} with config {}; allowed: 0, or SHMEM_CTX_SESSION_TOTAL_OPS "
        "({:#x}) with a config",
        mask, static_cast<const void*>(config), SHMEM_CTX_SESSION_TOTAL_OPS);
  });
}

SHMEM_DEFINE(void, ctx_session_stop, (shmem_ctx_t ctx)) {
  guarded("shmem_ctx_session_stop", [&](Program& program) { program.check_context(ctx); });
}
