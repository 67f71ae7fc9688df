// SPDX-License-Identifier: Apache-2.0
// process_record.hpp: the memory of this process's record, divided into blocks.
#pragma once

#include <cstddef>
#include <memory>

#include "record/layout.hpp"

namespace shoal::detail::record {

class ProcessRecord;

class Block;
/// A block of `bytes` bytes; without memory when the process cannot have it, which is logged.
Block allocate(std::size_t bytes) noexcept;

/// A block of the record, zero at first; returned when it goes.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(section_, other.section_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Block();

  /// nullptr: none.
  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }
  /// Shows the block to readers, once it is filled in.
  void publish(Kind kind) noexcept;

 private:
  friend Block allocate(std::size_t bytes) noexcept;
  std::shared_ptr<ProcessRecord> owner_;
  Section* section_ = nullptr;
  std::byte* data_ = nullptr;
};

/// The mapped record of this process; nullptr before the first block.
const ProcessBlock* own_record() noexcept;

}  // namespace shoal::detail::record
