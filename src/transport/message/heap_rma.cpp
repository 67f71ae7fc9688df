// SPDX-License-Identifier: Apache-2.0
#include "transport/message/heap_rma.hpp"

#include <mutex>

namespace shoal::transport::message {
std::vector<std::byte> HeapRma::add(std::size_t offset, std::size_t bytes) {
  const std::lock_guard guard(engine_.lock());
  return memory_.add(offset, bytes);
}

void HeapRma::connect(std::span<const std::vector<std::byte>> blobs) {
  const std::lock_guard guard(engine_.lock());
  for (std::size_t pe = 0; pe < blobs.size(); ++pe)
    if (static_cast<Pe>(pe) != my_pe_) memory_.connect(static_cast<Pe>(pe), blobs[pe]);
}

void HeapRma::roll_back(std::size_t offset) noexcept {
  const std::lock_guard guard(engine_.lock());
  memory_.roll_back(offset);
}

bool HeapRma::reaches(Pe pe, std::size_t offset, const void* local, std::size_t bytes) {
  const std::lock_guard guard(engine_.lock());
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece =
        memory_.piece(pe, offset + done, bytes_of(local) + done, bytes - done);
    if (piece == 0) return false;
    done += piece;
  }
  return true;
}

std::string HeapRma::describe(Pe pe) {
  const std::lock_guard guard(engine_.lock());
  return memory_.describe(pe);
}

void HeapRma::start(const Operation& operation, Pe pe, Direction direction, std::size_t offset,
                    std::byte* local, std::size_t bytes, Batch* batch) {
  while (bytes != 0) {
    std::size_t piece = 0;
    {
      const std::lock_guard guard(engine_.lock());
      piece = memory_.piece(pe, offset, local, bytes);
    }
    engine_.transfer(operation, pe, direction, offset, local, piece, batch, Ask::now, Region::heap);
    offset += piece;
    local += piece;
    bytes -= piece;
  }
}

void HeapRma::run(const Operation& operation, Pe pe, Direction direction, std::size_t offset,
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

void HeapRma::put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  run({"put", bytes}, pe, Direction::write, offset, bytes_of(source), bytes);
}

void HeapRma::get(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  run({"get", bytes}, pe, Direction::read, offset, bytes_of(target), bytes);
}

void HeapRma::put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  start({"put_nbi", bytes}, pe, Direction::write, offset, bytes_of(source), bytes, nullptr);
}

void HeapRma::get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  start({"get_nbi", bytes}, pe, Direction::read, offset, bytes_of(target), bytes, nullptr);
}

}  // namespace shoal::transport::message
