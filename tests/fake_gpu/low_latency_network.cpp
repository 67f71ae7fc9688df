// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/network.cuh"

#include <algorithm>
#include <cstring>
#include <random>

namespace shoal::test::fake_gpu {

Network network;

void Network::deliver(std::uint32_t seed) {
  constexpr std::size_t kPiece = 64;
  std::mt19937 random{seed};
  struct Piece {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  for (std::size_t from = 0; from < heaps.size(); ++from)
    for (std::size_t to = 0; to < heaps.size(); ++to) {
      std::vector<Piece> pieces;
      const auto arrive = [&] {
        std::ranges::shuffle(pieces, random);
        for (const Piece& piece : pieces) std::memcpy(piece.to, piece.from, piece.bytes);
        pieces.clear();
      };
      for (const NetworkRequest& request : requests) {
        if (request.from != static_cast<Pe>(from) || request.to != static_cast<Pe>(to)) continue;
        std::byte* const target = heaps[to] + request.offset;
        for (std::size_t at = 0; at < request.bytes; at += kPiece)
          pieces.push_back(
              {target + at, request.source + at, std::min(kPiece, request.bytes - at)});
        if (request.bytes != 0) continue;
        arrive();
        std::memcpy(target, &request.value, sizeof request.value);
      }
      arrive();
    }
  requests.clear();
}

}  // namespace shoal::test::fake_gpu
