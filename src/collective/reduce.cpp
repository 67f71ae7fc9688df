// SPDX-License-Identifier: Apache-2.0
// Reductions. One PE reduces an element for all, or each PE reduces it for itself; always from PE 0
// upwards, so that all PEs get the same bits.
#include <vector>

#include "base/check.hpp"
#include "collective/call.hpp"
#include "collective/host_forms.hpp"
#include "collective/puller.hpp"
#include "collective/reduce.hpp"
#include "collective/reduce_kernel.hpp"
#include "collective/reduce_plan.hpp"
#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "team/exchange.hpp"

namespace shoal {

using collective::Arguments;
using collective::Call;
using collective::Operation;
using collective::Puller;
using collective::Range;
using collective::Reducer;
using collective::Scratch;
using detail::WorldState;

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

std::optional<cuda::ElementType> on_gpu(DataType dtype) {
  switch (dtype) {
    case DataType::int32:
      return cuda::ElementType::int32;
    case DataType::int64:
      return cuda::ElementType::int64;
    case DataType::float16:
      return cuda::ElementType::float16;
    case DataType::bfloat16:
      return cuda::ElementType::bfloat16;
    case DataType::float32:
      return cuda::ElementType::float32;
    case DataType::float64:
      return cuda::ElementType::float64;
    default:
      return std::nullopt;
  }
}

/// The reducer of types that tensors have.
Reducer find_reducer(const Call& call, DataType dtype, ReduceOp op) {
  call.checked([&] {
    require(collective::supports(dtype, op), Code::invalid_argument,
            "SHOAL-N448: {}: operation {} on {}; allowed: sum, prod, min, max of int32, int64, "
            "float32, float64, bfloat16, float16; bit_and, bit_or, bit_xor of int32, int64",
            call.name(), collective::name_of(op), name_of(dtype));
  });
  return {collective::kernel_of(dtype, op),
          size_of(dtype),
          size_of(dtype),
          static_cast<std::uint32_t>(dtype),
          static_cast<std::uint32_t>(op),
          on_gpu(dtype)};
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
  const bool holds = reduction.in_place || call.world().memory().cuda() != nullptr;
  std::vector<std::byte> held(holds ? range.count * reduction.element : 0);
  reduce_range(call, puller, reduction, range,
               holds ? held.data() : static_cast<std::byte*>(target));
  call.wait_for_all("reduced");
  if (!held.empty())
    call.world().fabric().put({call.world().my_pe(), reduction.target_offset}, held.data(),
                              held.size());
}

/// The block of a PE in a divided reduction, in bytes from the first element.
struct Block {
  std::size_t begin, bytes;
};
Block block_of(const Call& call, const Reduction& reduction, std::size_t count, std::size_t pe) {
  const Range range = collective::reduction_block(count, reduction.element, call.n_pes(), pe);
  return {range.begin * reduction.element, range.count * reduction.element};
}

/// Delivers this PE's block, which is reduced, to the targets of all PEs.
void deliver_block(Call& call, const Reduction& reduction, const Block& block,
                   const std::byte* target) {
  call.deliver(std::vector<detail::Delivery>(
      call.n_pes(), {reduction.target_offset + block.begin, target + block.begin, block.bytes}));
}

/// Each PE reduces its block, in place if asked, since no other PE reads that block. Then it
/// collects the blocks of the other PEs, or delivers its own: each PE writes to the one block that
/// it has read.
void reduce_divided(Call& call, const Reduction& reduction, std::size_t count, std::byte* target) {
  Puller puller(call.team());
  const Range mine = collective::reduction_block(count, reduction.element, call.n_pes(), call.me());
  reduce_range(call, puller, reduction, mine, target + mine.begin * reduction.element);
  if (collective::delivers(call.team()))
    return deliver_block(call, reduction, block_of(call, reduction, count, call.me()), target);
  call.wait_for_all("reduced");
  for (std::size_t i = 1; i < call.n_pes(); ++i) {
    const std::size_t pe = (call.me() + i) % call.n_pes();
    const Block block = block_of(call, reduction, count, pe);
    puller.pull(target + block.begin, pe, reduction.target_offset + block.begin, block.bytes);
  }
  puller.finish();
  call.wait_for_all("collected");
}

/// Reduces what the PEs deliver to each other's scratch memory, which has the room: all elements,
/// or the block of each PE, whose result it then delivers.
void reduce_piece(Call& call, const Reduction& reduction, const Scratch& scratch, std::byte* target,
                  const std::byte* source, std::size_t count) {
  const bool divides = collective::divides_delivered_reduction(count, reduction.element,
                                                               call.n_pes(), scratch.bytes);
  const std::size_t bytes = count * reduction.element;
  const auto part_of = [&](std::size_t pe) {
    return divides ? block_of(call, reduction, count, pe) : Block{0, bytes};
  };
  // A PE that delivers again to the same half has seen all PEs deliver since: by another call in
  // the other half, or by the second round of a divided one, which follows its reduction.
  const std::size_t half = scratch.offset + call.team().epoch % 2 * call.n_pes() * scratch.bytes;
  std::vector<detail::Delivery> deliveries(call.n_pes());
  for (std::size_t pe = 0; pe < call.n_pes(); ++pe) {
    const Block part = part_of(pe);
    deliveries[pe] = {half + call.me() * scratch.bytes, source + part.begin, part.bytes};
  }
  call.deliver(deliveries);
  const Block mine = part_of(call.me());
  std::vector<const void*> sources(call.n_pes());
  for (std::size_t pe = 0; pe < call.n_pes(); ++pe)
    sources[pe] = call.world().heap().base() + half + pe * scratch.bytes;
  sources[call.me()] = source + mine.begin;
  reduction.reducer.kernel(target + mine.begin, sources, mine.bytes / reduction.element);
  if (divides) deliver_block(call, reduction, mine, target);
}

/// The same in pieces that fit into the scratch memory. Returns false where that is too small.
bool reduce_delivered(Call& call, const Reduction& reduction, const Scratch& scratch,
                      std::byte* target, const std::byte* source, std::size_t count) {
  const std::size_t most =
      collective::delivered_piece(count, reduction.element, call.n_pes(), scratch.bytes);
  if (most == 0 && count != 0) return false;
  Reduction piece = reduction;
  std::size_t done = 0;
  do {
    const std::size_t length = std::min(most, count - done);
    const std::size_t at = done * reduction.element;
    piece.target_offset = reduction.target_offset + at;
    reduce_piece(call, piece, scratch, target + at, source + at, length);
    done += length;
  } while (done < count);
  return true;
}

/// Like agree, for heaps in GPU memory. Reduces by a kernel and returns true if one can do it.
bool agree_or_run(Call& call, const Team& team, const Reduction& reduction,
                  const Arguments& arguments, const collective::kernels::ReduceArguments& on) {
  if (call.world().memory().cuda() == nullptr) {
    call.agree(arguments);
    return false;
  }
  if (!collective::agree_on_gpu(call, arguments) || !reduction.reducer.on_gpu) return false;
  collective::run_on_gpu(call, team, [&](const collective::kernels::Launch& launch) {
    return collective::kernel_table().reduce(launch, *reduction.reducer.on_gpu,
                                             static_cast<ReduceOp>(reduction.reducer.op), on);
  });
  return true;
}

void run(Call& call, const Team& team, const Reducer& reducer, void* target, const void* source,
         std::size_t count, const Scratch& scratch) {
  const Reduction reduction =
      call.checked([&] { return check(call, reducer, target, count, source, count); });
  const Arguments arguments = arguments_of(Operation::reduce, reduction, count);
  const std::size_t bytes = count * reduction.element;
  if (count != 0 && bytes <= Call::kGatheredBytes && call.world().memory().cuda() == nullptr) {
    // The elements travel with the arguments: one round of waiting.
    const auto all = call.agree_and_gather(arguments, source, bytes);
    std::vector<const void*> sources(call.n_pes());
    for (std::size_t pe = 0; pe < sources.size(); ++pe) sources[pe] = all.data() + pe * bytes;
    reducer.kernel(target, sources, count);
    return call.complete();
  }
  call.count(arguments);
  auto* const to = static_cast<std::byte*>(target);
  if (scratch.bytes != 0 && collective::delivers(call.team()) &&
      reduce_delivered(call, reduction, scratch, to, static_cast<const std::byte*>(source), count))
    return call.complete();
  if (agree_or_run(call, team, reduction, arguments, {target, source, count, false}))
    return call.complete();
  if (call.world().memory().cuda() == nullptr &&
      collective::divides_reduction(count, reduction.element, call.n_pes())) {
    reduce_divided(call, reduction, count, to);
  } else {
    reduce_undivided(call, reduction, {0, count}, target);
  }
  call.complete();
}

void scatter(Call& call, const Team& team, const Reducer& reducer, void* target, const void* source,
             std::size_t count) {
  const std::size_t n = call.n_pes();
  const Reduction reduction = call.checked([&] {
    require(count <= call.world().heap().size() / n, Code::invalid_argument,
            "SHOAL-N449: reduce_scatter: count is {}; allowed: counts that fit {} times into the "
            "symmetric heap of {} bytes (SHOAL_SYMMETRIC_SIZE)",
            count, n, call.world().heap().size());
    return check(call, reducer, target, count, source, count * n);
  });
  const Arguments arguments = arguments_of(Operation::reduce_scatter, reduction, count);
  // In place, a kernel would write to what other PEs still read.
  if (reduction.in_place) {
    call.agree(arguments);
  } else if (agree_or_run(call, team, reduction, arguments, {target, source, count, true})) {
    return call.complete();
  }
  reduce_undivided(call, reduction, {call.me() * count, count}, target);
  call.complete();
}

}  // namespace

void reduce(const Team& team, DataType dtype, ReduceOp op, void* target, const void* source,
            std::size_t count) {
  Call call(team, Operation::reduce);
  run(call, team, find_reducer(call, dtype, op), target, source, count, {});
}

void collective::reduce_with(const Team& team, const Reducer& reducer, void* target,
                             const void* source, std::size_t count, const Scratch& scratch) {
  Call call(team, Operation::reduce);
  run(call, team, reducer, target, source, count, scratch);
}

void reduce_scatter(const Team& team, DataType dtype, ReduceOp op, void* target, const void* source,
                    std::size_t count) {
  Call call(team, Operation::reduce_scatter);
  scatter(call, team, find_reducer(call, dtype, op), target, source, count);
}

void collective::reduce_scatter_with(const Team& team, const Reducer& reducer, void* target,
                                     const void* source, std::size_t count) {
  Call call(team, Operation::reduce_scatter);
  scatter(call, team, reducer, target, source, count);
}

}  // namespace shoal
