// SPDX-License-Identifier: Apache-2.0
// Reductions. One PE reduces an element for all, or each PE reduces it for itself; always from PE 0
// upwards, so that all PEs get the same bits.
#include <vector>

#include "base/check.hpp"
#include "collective/call.hpp"
#include "collective/puller.hpp"
#include "collective/reduce.hpp"
#include "collective/reduce_kernel.hpp"
#include "collective/reduce_plan.hpp"
#include "shoal/collective.hpp"

namespace shoal {

using collective::Arguments;
using collective::Call;
using collective::Operation;
using collective::Puller;
using collective::Range;
using collective::Reducer;

namespace {

// Bytes per get from a PE whose heap loads do not reach: enough to hide the latency of a get.
constexpr std::size_t kStagedBytes = 64 << 10;

/// A reduction whose arguments have been checked.
struct Reduction {
  Reducer reducer;
  std::size_t element = 0;  ///< bytes
  std::size_t target_offset = 0;
  std::size_t source_offset = 0;
  bool in_place = false;
};

Reduction check(const Call& call, const Reducer& reducer, const void* target,
                std::size_t target_count, const void* source, std::size_t source_count) {
  Reduction out{.reducer = reducer, .element = reducer.element};
  out.target_offset =
      call.checked_offset("target", target, out.element, target_count, reducer.alignment);
  out.source_offset =
      call.checked_offset("source", source, out.element, source_count, reducer.alignment);
  call.check_overlap(out.target_offset, out.element * target_count, out.source_offset,
                     out.element * source_count, true);
  out.in_place = target_count != 0 && target == source;
  return out;
}

/// The reducer of types that tensors have.
Reducer find_reducer(const Call& call, DataType dtype, ReduceOp op) {
  require(collective::supports(dtype, op), Code::invalid_argument,
          "{}: operation {} on {}; allowed: sum, prod, min, max of int32, int64, float32, float64, "
          "bfloat16, float16; bit_and, bit_or, bit_xor of int32, int64",
          call.name(), collective::name_of(op), name_of(dtype));
  return {collective::kernel_of(dtype, op), size_of(dtype), size_of(dtype),
          static_cast<std::uint32_t>(dtype), static_cast<std::uint32_t>(op)};
}

Arguments arguments_of(Operation operation, const Reduction& reduction, std::size_t count) {
  const bool typed = reduction.reducer.dtype != 0;
  return {.operation = operation,
          .dtype = reduction.reducer.dtype,
          .op = reduction.reducer.op,
          .size = typed ? count : count * reduction.element,
          .target_offset = reduction.target_offset,
          .source_offset = reduction.source_offset};
}

/// Reduces the elements `range` of the sources of all PEs to `target`, which may be this PE's
/// source.
void reduce_range(const Call& call, Puller& puller, const Reduction& reduction, Range range,
                  std::byte* target) {
  std::size_t unreached = 0;
  for (std::size_t pe = 0; pe < call.n_pes(); ++pe) unreached += puller.reaches(pe) ? 0 : 1;
  const std::size_t step =
      unreached == 0 ? range.count : std::min(range.count, kStagedBytes / reduction.element);
  const std::size_t step_bytes = step * reduction.element;
  std::byte* const staging = puller.scratch(unreached * step_bytes);
  std::vector<const void*> sources(call.n_pes());

  for (std::size_t done = 0; done < range.count; done += step) {
    const std::size_t count = std::min(step, range.count - done);
    const std::size_t offset = reduction.source_offset + (range.begin + done) * reduction.element;
    std::byte* scratch = staging;
    for (std::size_t pe = 0; pe < call.n_pes(); ++pe) {
      sources[pe] = puller.view(pe, offset, count * reduction.element, scratch);
      if (!puller.reaches(pe)) scratch += step_bytes;
    }
    puller.finish();
    reduction.reducer.kernel(target + done * reduction.element, sources, count);
  }
}

/// Reduces `range` for this PE alone and waits until all PEs have read the sources. In place, the
/// result is held back until then; also where the target is in GPU memory, which the host writes in
/// one piece.
void reduce_undivided(Call& call, const Reduction& reduction, Range range, void* target) {
  Puller puller(call.team());
  const bool holds = reduction.in_place || call.world().cuda() != nullptr;
  std::vector<std::byte> held(holds ? range.count * reduction.element : 0);
  reduce_range(call, puller, reduction, range,
               holds ? held.data() : static_cast<std::byte*>(target));
  call.wait_for_all("reduced");
  if (!held.empty())
    call.world().put({call.world().my_pe(), reduction.target_offset}, held.data(), held.size());
}

/// Each PE reduces its block, in place if asked, since no other PE reads that block. Then it
/// collects the blocks of the other PEs.
void reduce_divided(Call& call, const Reduction& reduction, std::size_t count, std::byte* target) {
  Puller puller(call.team());
  const auto block_of = [&](std::size_t pe) {
    return collective::reduction_block(count, reduction.element, call.n_pes(), pe);
  };
  const Range mine = block_of(call.me());
  reduce_range(call, puller, reduction, mine, target + mine.begin * reduction.element);
  call.wait_for_all("reduced");
  for (std::size_t i = 1; i < call.n_pes(); ++i) {
    const std::size_t pe = (call.me() + i) % call.n_pes();
    const Range block = block_of(pe);
    const std::size_t begin = block.begin * reduction.element;
    puller.pull(target + begin, pe, reduction.target_offset + begin,
                block.count * reduction.element);
  }
  puller.finish();
  call.wait_for_all("collected");
}

void run(Call& call, const Reducer& reducer, void* target, const void* source, std::size_t count) {
  const Reduction reduction = check(call, reducer, target, count, source, count);
  const Arguments arguments = arguments_of(Operation::reduce, reduction, count);
  const std::size_t bytes = count * reduction.element;
  if (count != 0 && bytes <= Call::kGatheredBytes && call.world().cuda() == nullptr) {
    // The elements travel with the arguments: one round of waiting.
    const auto all = call.agree_and_gather(arguments, source, bytes);
    std::vector<const void*> sources(call.n_pes());
    for (std::size_t pe = 0; pe < sources.size(); ++pe) sources[pe] = all.data() + pe * bytes;
    reducer.kernel(target, sources, count);
    return call.complete();
  }
  call.agree(arguments);
  if (call.world().cuda() == nullptr &&
      collective::divides_reduction(count, reduction.element, call.n_pes())) {
    reduce_divided(call, reduction, count, static_cast<std::byte*>(target));
  } else {
    reduce_undivided(call, reduction, {0, count}, target);
  }
  call.complete();
}

}  // namespace

void reduce(const Team& team, DataType dtype, ReduceOp op, void* target, const void* source,
            std::size_t count) {
  Call call(team, Operation::reduce);
  run(call, find_reducer(call, dtype, op), target, source, count);
}

void collective::reduce_with(const Team& team, const Reducer& reducer, void* target,
                             const void* source, std::size_t count) {
  Call call(team, Operation::reduce);
  run(call, reducer, target, source, count);
}

void reduce_scatter(const Team& team, DataType dtype, ReduceOp op, void* target, const void* source,
                    std::size_t count) {
  Call call(team, Operation::reduce_scatter);
  const std::size_t n = call.n_pes();
  require(
      count <= call.world().heap().size() / n, Code::invalid_argument,
      "reduce_scatter: count is {}; allowed: counts that fit {} times into the symmetric heap of {} "
      "bytes (SHOAL_SYMMETRIC_SIZE)",
      count, n, call.world().heap().size());
  const Reduction reduction =
      check(call, find_reducer(call, dtype, op), target, count, source, count * n);
  call.agree(arguments_of(Operation::reduce_scatter, reduction, count));
  reduce_undivided(call, reduction, {call.me() * count, count}, target);
  call.complete();
}

}  // namespace shoal
