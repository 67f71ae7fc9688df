// SPDX-License-Identifier: Apache-2.0
// blob.hpp: packs values and texts into bytes for an all-gather, and unpacks them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace shoal::detail {

class BlobWriter {
 public:
  template <typename T>
  void value(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof value);
  }
  void bytes(std::span<const std::byte> bytes) {
    value<std::uint64_t>(bytes.size());
    append(bytes.data(), bytes.size());
  }
  void text(std::string_view text) { bytes(std::as_bytes(std::span(text.data(), text.size()))); }
  std::vector<std::byte> take() { return std::move(data_); }

 private:
  void append(const void* source, std::size_t size) {
    const auto* const first = static_cast<const std::byte*>(source);
    data_.insert(data_.end(), first, first + size);
  }
  std::vector<std::byte> data_;
};

/// Reads in the order of writing. Throws Error{mismatch} at the end of the blob, which another
/// build then wrote.
class BlobReader {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a reader is a view of its blob
  BlobReader(const std::vector<std::byte>& blob) : rest_(blob) {}

  template <typename T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::vector<std::byte> bytes() {
    const auto size = value<std::uint64_t>();
    const auto span = take(size);
    return {span.begin(), span.end()};
  }
  std::string text() {
    const auto content = bytes();
    return {reinterpret_cast<const char*>(content.data()), content.size()};
  }
  bool at_end() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> take(std::size_t size) {
    require(size <= rest_.size(), Code::mismatch,
            "SHOAL-N101: a PE of another version of Shoal: its message is {} bytes too short",
            size - rest_.size());
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  std::span<const std::byte> rest_;
};

}  // namespace shoal::detail
