// SPDX-License-Identifier: Apache-2.0
// network_heap_rma.hpp: the HeapRma of a message core: RMA requests on the heaps that its network
// has registered.
#pragma once

#include "transport/heap_rma.hpp"
#include "transport/message/engine.hpp"

namespace shoal::transport::message {

/// RMA reads the source of a write through the pointer that reads write to.
inline std::byte* bytes_of(const void* memory) {
  return static_cast<std::byte*>(const_cast<void*>(memory));
}

class NetworkHeapRma final : public HeapRma {
 public:
  NetworkHeapRma(Engine& engine, HeapRegistration& registration, Pe my_pe)
      : engine_(engine), registration_(registration), my_pe_(my_pe) {}

  std::vector<std::byte> add(std::size_t offset, std::size_t bytes) override;
  void connect(std::span<const std::vector<std::byte>> blobs) override;
  void roll_back(std::size_t offset) noexcept override;
  bool reaches(Pe pe, std::size_t offset, const void* local, std::size_t bytes) override;
  std::string describe(Pe pe) override;

  void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override;
  void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) override;
  void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override;
  void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) override;

 private:
  void start(const Operation& operation, Pe pe, Direction direction, std::size_t offset,
             std::byte* local, std::size_t bytes, Batch* batch);
  void run(const Operation& operation, Pe pe, Direction direction, std::size_t offset,
           std::byte* local, std::size_t bytes);

  Engine& engine_;
  HeapRegistration& registration_;  ///< with the engine's lock held
  const Pe my_pe_;
};

}  // namespace shoal::transport::message
