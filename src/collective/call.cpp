// SPDX-License-Identifier: Apache-2.0
#include "collective/call.hpp"

#include <algorithm>
#include <iterator>
#include <span>

#include "base/check.hpp"
#include "collective/reduce_kernel.hpp"
#include "pe/agreement.hpp"
#include "team/exchange.hpp"

namespace shoal::collective {
namespace {

using detail::record::WorldOperation;

std::string describe(const Arguments& arguments) {
  std::string text = name_of(arguments.operation);
  if (arguments.operation == Operation::all_to_all_v) return text;
  if (arguments.dtype != 0) {
    text += fmt::format("({} of {} {}", name_of(static_cast<ReduceOp>(arguments.op)),
                        arguments.size, shoal::name_of(static_cast<DataType>(arguments.dtype)));
  } else {
    text += fmt::format("({} bytes", arguments.size);
  }
  if (arguments.root >= 0) text += fmt::format(", root {}", arguments.root);
  return text + fmt::format(", target at heap offset {}, source at {})", arguments.target_offset,
                            arguments.source_offset);
}

/// "PE 0, 2, 3: all_gather(...); PE 1: broadcast(...)", with the numbers of the world.
std::string describe_all(std::span<const Arguments> all, std::span<const Pe> pes) {
  std::vector<std::string> texts;
  for (const Arguments& arguments : all) texts.push_back(describe(arguments));
  return detail::group_by_text(texts, pes);
}

/// Bytes that PE `me` of `n` contributes.
std::uint64_t bytes_of(const Arguments& arguments, std::size_t me, std::size_t n) {
  const std::uint64_t size = arguments.dtype == 0
                                 ? arguments.size
                                 : arguments.size * size_of(static_cast<DataType>(arguments.dtype));
  switch (arguments.operation) {
    case Operation::broadcast:
      return static_cast<std::size_t>(arguments.root) == me ? size : 0;
    case Operation::all_to_all:
    case Operation::reduce_scatter:
      return size * n;
    default:
      return size;
  }
}

std::uint64_t digest_of(const Arguments& arguments) {
  std::uint64_t words[sizeof arguments / sizeof(std::uint64_t)];
  static_assert(sizeof words == sizeof arguments);
  std::memcpy(words, &arguments, sizeof words);
  std::uint64_t digest = 0;
  for (const std::uint64_t word : words) {
    digest = (digest ^ word) * 0x9e3779b97f4a7c15;  // odd: loses nothing
    digest ^= digest >> 32;
  }
  return digest;
}

}  // namespace

const char* name_of(Operation operation) noexcept {
  const auto index = static_cast<std::size_t>(operation);
  return index < std::size(detail::record::kWorldOperationNames)
             ? detail::record::kWorldOperationNames[index]
             : "unknown operation";
}

Call::Call(const Team& team, Operation operation)
    : team_(state_of(team)), operation_(operation), epoch_(team_.epoch + 1) {}

std::size_t Call::checked_offset(const char* what, const void* address, std::size_t bytes,
                                 std::size_t blocks, std::size_t alignment) const {
  if (bytes == 0 || blocks == 0) return 0;
  const SymmetricHeap& heap = world().heap();
  require(
      bytes <= heap.size() / blocks && heap.contains(address, bytes * blocks),
      Code::invalid_argument,
      "SHOAL-N441: {}: {} is {} with {} x {} bytes; it must lie in this PE's symmetric heap, {} "
      "bytes at {} (SHOAL_SYMMETRIC_SIZE)",
      name(), what, address, blocks, bytes, heap.size(), static_cast<const void*>(heap.base()));
  require(reinterpret_cast<std::uintptr_t>(address) % alignment == 0, Code::invalid_argument,
          "SHOAL-N444: {}: {} is {}; it must be a multiple of the element size, {} bytes", name(),
          what, address, alignment);
  return heap.offset_of(address);
}

void Call::check_overlap(std::size_t target_offset, std::size_t target_bytes,
                         std::size_t source_offset, std::size_t source_bytes, bool in_place) const {
  if (target_bytes == 0 || source_bytes == 0 || (in_place && target_offset == source_offset))
    return;
  require(target_offset + target_bytes <= source_offset ||
              source_offset + source_bytes <= target_offset,
          Code::invalid_argument,
          "SHOAL-N442: {}: target (heap offset {}, {} bytes) and source (heap offset {}, {} bytes) "
          "overlap; allowed: {}",
          name(), target_offset, target_bytes, source_offset, source_bytes,
          in_place ? "apart, or starting at the same address" : "apart");
}

std::pair<std::size_t, std::size_t> Call::checked_offsets(const void* target,
                                                          std::size_t target_blocks,
                                                          const void* source,
                                                          std::size_t source_blocks,
                                                          std::size_t bytes, bool in_place) const {
  const std::size_t to = checked_offset("target", target, bytes, target_blocks);
  const std::size_t from = checked_offset("source", source, bytes, source_blocks);
  check_overlap(to, bytes * target_blocks, from, bytes * source_blocks, in_place);
  return {to, from};
}

void Call::count(std::uint64_t bytes) {
  if (!counted_)
    counted_.emplace(world().recorder(), static_cast<WorldOperation>(operation_), bytes);
}

void Call::count(const Arguments& mine) {
  count(bytes_of(mine, me(), n_pes()));
}

void Call::agree(const Arguments& mine) {
  agree_and_gather(mine, nullptr, 0);
}

std::vector<std::byte> Call::agree_and_gather(const Arguments& mine, const void* data,
                                              std::size_t bytes) {
  count(mine);
  report(name());
  // The data follow a digest of the arguments. Where digests differ, all PEs see it and exchange
  // the arguments themselves.
  const std::uint64_t digest = digest_of(mine);
  const std::size_t stride = sizeof digest + bytes;
  std::byte blob[detail::kExchangeBytes];
  std::memcpy(blob, &digest, sizeof digest);
  if (data != nullptr) {
    std::memcpy(blob + sizeof digest, data, bytes);
  } else {
    std::memset(blob + sizeof digest, 0, bytes);
  }
  std::vector<std::byte> blobs =
      detail::exchange(team_, blob, stride, name(), detail::kExchangeBytes);
  for (std::size_t pe = 0; pe < n_pes(); ++pe)
    if (std::memcmp(blobs.data() + pe * stride, &digest, sizeof digest) != 0) fail_to_agree(mine);
  for (std::size_t pe = 0; pe < n_pes() && bytes != 0; ++pe)
    std::memmove(blobs.data() + pe * bytes, blobs.data() + pe * stride + sizeof digest, bytes);
  blobs.resize(n_pes() * bytes);
  return blobs;
}

void Call::fail_to_agree(const Arguments& mine) {
  const std::string refusal = world().progress().refusal(team_.pes, team_.call(epoch_));
  fail(Code::mismatch, "SHOAL-N443: {}: the PEs of team {} disagree: {}{}", name(), team_.index,
       describe_all(exchange(mine), team_.pes), refusal);
}

void Call::wait_for_all(const char* phase) {
  report(phase);
  detail::sync(team_, name());
}

void Call::deliver(std::span<const detail::Delivery> deliveries) {
  report("moved");
  detail::deliver(team_, deliveries, name());
}

void Call::complete() noexcept {
  world().progress().set(detail::Activity::idle, epoch_, name());
}

void Call::report(const char* phase) noexcept {
  world().progress().set(detail::Activity::collective, epoch_, phase);
}

}  // namespace shoal::collective
