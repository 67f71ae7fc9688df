// SPDX-License-Identifier: Apache-2.0
// The all-to-all with a size per pair. The PEs first exchange the whole matrix of sizes, so that
// all of them see a disagreement of any pair and none is left waiting.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/check.hpp"
#include "collective/call.hpp"
#include "collective/puller.hpp"
#include "shoal/collective.hpp"
#include "team/exchange.hpp"

namespace shoal {

using collective::Call;
using collective::Operation;
using collective::Puller;

namespace {

/// The arguments of one PE for another PE.
struct Pair {
  std::uint64_t send_bytes = 0;
  std::uint64_t send_offset = 0;  ///< in the heap of the sender
  std::uint64_t receive_bytes = 0;
};
/// The pairs that one exchange carries.
struct PairGroup {
  static constexpr std::size_t kPairs = detail::kExchangeBytes / sizeof(Pair);
  Pair pairs[kPairs];
};

/// Element (i, j) holds the arguments of PE i for PE j.
class PairMatrix {
 public:
  explicit PairMatrix(std::size_t n_pes) : n_pes_(n_pes), pairs_(n_pes * n_pes) {}
  Pair& operator()(std::size_t i, std::size_t j) { return pairs_[i * n_pes_ + j]; }
  const Pair& operator()(std::size_t i, std::size_t j) const { return pairs_[i * n_pes_ + j]; }

 private:
  std::size_t n_pes_;
  std::vector<Pair> pairs_;
};

void check_lengths(const Call& call,
                   std::initializer_list<std::pair<const char*, std::size_t>> spans) {
  for (const auto& [what, size] : spans)
    require(size == call.n_pes(), Code::invalid_argument,
            "SHOAL-N440: all_to_all_v: {} has {} elements; allowed: {}, one per PE", what, size,
            call.n_pes());
}

/// The heap offset of each block; 0 for empty ones.
std::vector<std::size_t> checked_offsets(const Call& call, const char* what, const void* base,
                                         std::span<const std::size_t> bytes,
                                         std::span<const std::size_t> offsets) {
  std::vector<std::size_t> out(bytes.size(), 0);
  const std::size_t heap_size = call.world().heap().size();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    require(
        base != nullptr && offsets[i] <= heap_size, Code::invalid_argument,
        "SHOAL-N441: all_to_all_v: {} is {} with offset {} for PE {} of the team; it must lie in "
        "this PE's symmetric heap of {} bytes (SHOAL_SYMMETRIC_SIZE)",
        what, base, offsets[i], i, heap_size);
    out[i] = call.checked_offset(what, static_cast<const std::byte*>(base) + offsets[i], bytes[i]);
  }
  return out;
}

/// A received block must not overlap a sent block, nor a block from another PE.
void check_disjoint(std::span<const std::size_t> receive_offsets,
                    std::span<const std::size_t> receive_bytes,
                    std::span<const std::size_t> send_offsets,
                    std::span<const std::size_t> send_bytes) {
  struct Block {
    std::size_t begin, end;
    bool received;
  };
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < receive_bytes.size(); ++i) {
    if (receive_bytes[i] != 0)
      blocks.push_back({receive_offsets[i], receive_offsets[i] + receive_bytes[i], true});
    if (send_bytes[i] != 0)
      blocks.push_back({send_offsets[i], send_offsets[i] + send_bytes[i], false});
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& a, const Block& b) { return a.begin < b.begin; });
  std::size_t sent_end = 0, received_end = 0;
  for (const Block& block : blocks) {
    require(block.begin >= (block.received ? std::max(sent_end, received_end) : received_end),
            Code::invalid_argument,
            "SHOAL-N442: all_to_all_v: {} block at heap offset {} ({} bytes) overlaps another one; "
            "allowed: receive blocks apart from all others",
            block.received ? "the receive" : "the send", block.begin, block.end - block.begin);
    std::size_t& end = block.received ? received_end : sent_end;
    end = std::max(end, block.end);
  }
}

PairMatrix exchange_pairs(Call& call, const std::vector<Pair>& mine) {
  const std::size_t n = call.n_pes();
  PairMatrix matrix(n);
  for (std::size_t first = 0; first < n; first += PairGroup::kPairs) {
    const std::size_t count = std::min(PairGroup::kPairs, n - first);
    PairGroup group{};
    std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(first), count, group.pairs);
    const std::vector<PairGroup> all = call.exchange(group);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < count; ++j) matrix(i, first + j) = all[i].pairs[j];
  }
  return matrix;
}

void check_pairs(const Call& call, const PairMatrix& matrix) {
  constexpr int kListed = 8;  // pairs
  std::string disagreements;
  int found = 0;
  for (std::size_t i = 0; i < call.n_pes(); ++i) {
    for (std::size_t j = 0; j < call.n_pes(); ++j) {
      if (matrix(i, j).send_bytes == matrix(j, i).receive_bytes || ++found > kListed) continue;
      disagreements +=
          fmt::format("; PE {} sends {} bytes to PE {}, which expects {}", call.team().pes[i],
                      matrix(i, j).send_bytes, call.team().pes[j], matrix(j, i).receive_bytes);
    }
  }
  require(found == 0, Code::mismatch, "SHOAL-N443: all_to_all_v: {} pairs of team {} disagree{}{}",
          found, call.team().index, disagreements, found > kListed ? "; and others" : "");
}

}  // namespace

void all_to_all_v_bytes(const Team& team, void* target, std::span<const std::size_t> receive_bytes,
                        std::span<const std::size_t> receive_offsets, const void* source,
                        std::span<const std::size_t> send_bytes,
                        std::span<const std::size_t> send_offsets) {
  Call call(team, Operation::all_to_all_v);
  std::vector<std::size_t> to, from;
  call.checked([&] {
    check_lengths(call, {{"receive_bytes", receive_bytes.size()},
                         {"receive_offsets", receive_offsets.size()},
                         {"send_bytes", send_bytes.size()},
                         {"send_offsets", send_offsets.size()}});
    to = checked_offsets(call, "target", target, receive_bytes, receive_offsets);
    from = checked_offsets(call, "source", source, send_bytes, send_offsets);
    check_disjoint(to, receive_bytes, from, send_bytes);
  });

  call.count(std::accumulate(send_bytes.begin(), send_bytes.end(), std::uint64_t{0}));
  call.agree({.operation = Operation::all_to_all_v});
  const std::size_t n = call.n_pes();
  std::vector<Pair> mine(n);
  for (std::size_t i = 0; i < n; ++i) mine[i] = {send_bytes[i], from[i], receive_bytes[i]};
  const PairMatrix matrix = exchange_pairs(call, mine);
  check_pairs(call, matrix);

  Puller puller(call.team());
  std::byte* base = call.world().heap().base();
  for (std::size_t i = 1; i <= n; ++i) {
    const std::size_t pe = (call.me() + i) % n;
    puller.pull(base + to[pe], pe, matrix(pe, call.me()).send_offset, receive_bytes[pe]);
  }
  puller.finish();
  call.wait_for_all("moved");
  call.complete();
}

}  // namespace shoal
