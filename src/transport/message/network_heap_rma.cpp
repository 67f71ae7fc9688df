// SPDX-License-Identifier: Apache-2.0
#include "transport/message/network_heap_rma.hpp"

#include <mutex>

namespace shoal::transport::message {

std::vector<std::byte> NetworkHeapRma::add(std::size_t offset, std::size_t bytes) {
  const std::lock_guard guard(engine_.lock());
  return registration_.add(offset, bytes);
}

void NetworkHeapRma::connect(std::span<const std::vector<std::byte>> blobs) {
  const std::lock_guard guard(engine_.lock());
  for (std::size_t pe = 0; pe < blobs.size(); ++pe)
    if (static_cast<Pe>(pe) != my_pe_) registration_.connect(static_cast<Pe>(pe), blobs[pe]);
}

void NetworkHeapRma::roll_back(std::size_t offset) noexcept {
  const std::lock_guard guard(engine_.lock());
  registration_.roll_back(offset);
}

bool NetworkHeapRma::reaches(Pe pe, std::size_t offset, const void* local, std::size_t bytes) {
  const std::lock_guard guard(engine_.lock());
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece =
        registration_.piece(pe, offset + done, bytes_of(local) + done, bytes - done);
    if (piece == 0) return false;
    done += piece;
  }
  return true;
}

std::string NetworkHeapRma::describe(Pe pe) {
  const std::lock_guard guard(engine_.lock());
  return registration_.describe(pe);
}

void NetworkHeapRma::start(const Operation& operation, Pe pe, Direction direction,
                           std::size_t offset, std::byte* local, std::size_t bytes, Batch* batch) {
  while (bytes != 0) {
    std::size_t piece = 0;
    {
      const std::lock_guard guard(engine_.lock());
      piece = registration_.piece(pe, offset, local, bytes);
    }
    engine_.transfer(operation, pe,
                     {.direction = direction,
                      .region = Region::heap,
                      .offset = offset,
                      .local = local,
                      .bytes = piece,
                      .batch = batch},
                     Ask::now);
    offset += piece;
    local += piece;
    bytes -= piece;
  }
}

void NetworkHeapRma::run(const Operation& operation, Pe pe, Direction direction, std::size_t offset,
                         std::byte* local, std::size_t bytes) {
  Batch batch;
  try {
    start(operation, pe, direction, offset, local, bytes, &batch);
    engine_.finish(operation, pe, batch);
  } catch (...) {
    engine_.abandon(batch);
    throw;
  }
}

void NetworkHeapRma::put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  run({"put", bytes}, pe, Direction::write, offset, bytes_of(source), bytes);
}

void NetworkHeapRma::get(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  run({"get", bytes}, pe, Direction::read, offset, bytes_of(target), bytes);
}

void NetworkHeapRma::put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  start({"put_nbi", bytes}, pe, Direction::write, offset, bytes_of(source), bytes, nullptr);
}

void NetworkHeapRma::get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  start({"get_nbi", bytes}, pe, Direction::read, offset, bytes_of(target), bytes, nullptr);
}

}  // namespace shoal::transport::message
