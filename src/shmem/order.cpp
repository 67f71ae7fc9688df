// SPDX-License-Identifier: Apache-2.0
// Ordering (Program::fence and quiet).
#include "shmem/define.hpp"

using namespace shoal::shmem;

namespace {

void fence(const char* call, shmem_ctx_t ctx) noexcept {
  guarded(call, [&](Program& program) {
    if (ctx == SHMEM_CTX_INVALID) return;
    program.fence(ctx);
  });
}

void quiet(const char* call, shmem_ctx_t ctx) noexcept {
  guarded(call, [&](Program& program) {
    if (ctx == SHMEM_CTX_INVALID) return;
    program.quiet(ctx);
  });
}

void quiet_pes(const char* call, shmem_ctx_t ctx, const int* pes, std::size_t count) noexcept {
  guarded(call, [&](Program& program) {
    if (ctx == SHMEM_CTX_INVALID) return;
    program.check_context(ctx);
    for (std::size_t i = 0; i < count; ++i) program.world_pe(ctx, pes[i]);
    if (count != 0) program.quiet(ctx);
  });
}

}  // namespace

SHMEM_DEFINE(void, fence, ()) {
  fence("shmem_fence", SHMEM_CTX_DEFAULT);
}
SHMEM_DEFINE(void, ctx_fence, (shmem_ctx_t ctx)) {
  fence("shmem_ctx_fence", ctx);
}
SHMEM_DEFINE(void, quiet, ()) {
  quiet("shmem_quiet", SHMEM_CTX_DEFAULT);
}
SHMEM_DEFINE(void, ctx_quiet, (shmem_ctx_t ctx)) {
  quiet("shmem_ctx_quiet", ctx);
}
SHMEM_DEFINE(void, pe_quiet, (const int* target_pes, size_t npes)) {
  quiet_pes("shmem_pe_quiet", SHMEM_CTX_DEFAULT, target_pes, npes);
}
SHMEM_DEFINE(void, ctx_pe_quiet, (shmem_ctx_t ctx, const int* target_pes, size_t npes)) {
  quiet_pes("shmem_ctx_pe_quiet", ctx, target_pes, npes);
}
