// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/fake_gpu.hpp"
//
#include "ep/cuda/device/network.cuh"
#include "fake_gpu/requests.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace shoal::test::fake_gpu {

RequestedNetwork network;

bool post(const device::World& world, Pe pe, const void* target, const void* source,
          std::size_t bytes, const std::uint64_t* flag, std::uint64_t value, bool) {
  const auto offset = [&](const void* at) {
    return static_cast<std::size_t>(static_cast<const std::byte*>(at) - world.heap);
  };
  if (bytes != 0) {
    network.requests.push_back(
        {world.my_pe, pe, offset(target), bytes, static_cast<const std::byte*>(source), 0});
    ++network.puts;
    network.put_bytes += bytes;
  }
  if (flag == nullptr) return true;
  network.requests.push_back({world.my_pe, pe, offset(flag), 0, nullptr, value});
  ++network.signals;
  return true;
}

void RequestedNetwork::deliver(std::uint32_t seed) {
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
