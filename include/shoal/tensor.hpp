// SPDX-License-Identifier: Apache-2.0
// shoal/tensor.hpp: arrays as arguments and results: a pointer with dtype, shape, strides and
// device.
//
//   std::vector<std::uint16_t> rows(128 * 7168);
//   shoal::TensorView view(rows.data(), shoal::DataType::bfloat16, {128, 7168});  // on the host
//   view.device = {shoal::DeviceKind::cuda, 0};                                   // on GPU 0
//
// shoal/numeric.hpp converts the floating-point formats that C++ has no type for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <shoal/config.hpp>

namespace shoal {

/// Element types. A tensor of type none is undefined: an absent argument or result.
enum class DataType : std::uint8_t {
  none = 0,
  float32,
  float16,
  bfloat16,
  float8_e4m3,  ///< OCP e4m3, largest value 448 ("e4m3fn")
  int8,
  uint8,
  int32,
  int64,
  float64,
};

/// Bytes of one element; 0 for none.
std::size_t size_of(DataType dtype) noexcept;
/// The name as written here, such as "bfloat16".
std::string_view name_of(DataType dtype) noexcept;

enum class DeviceKind : std::uint8_t { host = 0, cuda };

/// Where an array lies.
struct Device {
  DeviceKind kind = DeviceKind::host;
  int index = 0;  ///< of the GPU, as CUDA numbers the devices of this process; 0 on the host
  friend bool operator==(const Device&, const Device&) = default;
};

/// A view of up to four dimensions. Strides count elements, not bytes. A view does not own its
/// memory. A call only reads the views that it takes, except those documented as outputs.
struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DataType dtype = DataType::none;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};
  Device device{};

  TensorView() = default;
  /// A contiguous, row-major view on the host. Throws Error{invalid_argument} for more than
  /// kMaxRank dimensions, for a negative one, and for more than 2^63 - 1 bytes.
  TensorView(const void* data, DataType dtype, std::initializer_list<std::int64_t> shape);

  bool defined() const noexcept { return dtype != DataType::none; }
  std::int64_t size() const noexcept;  ///< number of elements
  std::size_t bytes() const noexcept;  ///< size() times the element size
  bool contiguous() const noexcept;    ///< row-major without gaps
  std::string describe() const;        ///< for messages: "bfloat16 [128, 7168]"

  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(data);
  }
};

/// A view with a shared owner: the memory stays valid while any copy of the Tensor lives.
struct Tensor : TensorView {
  std::shared_ptr<void> owner;

  Tensor() = default;
  Tensor(const TensorView& view, std::shared_ptr<void> owned)
      : TensorView(view), owner(std::move(owned)) {}
  /// Undefined host memory, 64-byte aligned. Throws as TensorView's constructor, Error{exhausted}.
  static Tensor empty(DataType dtype, std::initializer_list<std::int64_t> shape);
};

}  // namespace shoal
