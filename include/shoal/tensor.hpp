// SPDX-License-Identifier: Apache-2.0
// shoal/tensor.hpp: how arrays are handed in and out: a pointer with dtype, shape and strides,
// owned or not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace shoal {

enum class DataType : std::uint8_t {
  none = 0,
  float32,
  float16,
  bfloat16,
  float8_e4m3,  ///< OCP 8-bit floating point, e4m3 with finite range 448 ("e4m3fn")
  int8,
  uint8,
  int32,
  int64,
  float64,
};

std::size_t size_of(DataType dtype) noexcept;  ///< bytes of one element; 0 for none
std::string_view name_of(DataType dtype) noexcept;

enum class DeviceKind : std::uint8_t { host = 0, cuda };

struct Device {
  DeviceKind kind = DeviceKind::host;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// A view of up to four dimensions. Strides count elements, not bytes. Does not own; inputs of
/// calls are only read.
struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DataType dtype = DataType::none;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};
  Device device{};

  TensorView() = default;
  /// A contiguous, row-major view.
  TensorView(const void* data, DataType dtype, std::initializer_list<std::int64_t> shape);

  bool defined() const noexcept { return dtype != DataType::none; }
  std::int64_t size() const noexcept;  ///< number of elements
  std::size_t bytes() const noexcept;  ///< size() times the element size
  bool contiguous() const noexcept;    ///< row-major without gaps
  std::string describe() const;        ///< "bfloat16 [128, 7168]", for messages

  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(data);
  }
};

/// A view with an owner: the memory stays valid while any copy of the Tensor lives.
struct Tensor : TensorView {
  std::shared_ptr<void> owner;

  Tensor() = default;
  Tensor(const TensorView& view, std::shared_ptr<void> owned)
      : TensorView(view), owner(std::move(owned)) {}
  /// Host memory, 64-byte aligned, contents undefined.
  static Tensor empty(DataType dtype, std::initializer_list<std::int64_t> shape);
};

}  // namespace shoal
