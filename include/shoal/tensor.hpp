// SPDX-License-Identifier: Apache-2.0
// shoal/tensor.hpp: arrays as arguments and results: a pointer with dtype, shape, strides and
// device.
//
//   std::vector<std::uint16_t> rows(128 * 7168);
//   shoal::TensorView view(rows.data(), shoal::DataType::bfloat16, {128, 7168});  // on the host
//   view.device = {shoal::DeviceKind::cuda, 0};                                   // on GPU 0
//
// Calls take a ConstTensorView for memory that they read and a TensorView for memory that they
// write. A shape that is known at run time is a span: a vector or an array of std::int64_t.
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
#include <type_traits>
#include <utility>

#include <shoal/config.hpp>

namespace shoal {

/// Element types. A tensor of type none is undefined: as an argument it means "not given".
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
[[nodiscard]] std::size_t size_of(DataType dtype) noexcept;
/// The name as written here, such as "bfloat16".
[[nodiscard]] std::string_view name_of(DataType dtype) noexcept;

enum class DeviceKind : std::uint8_t { host = 0, cuda };

/// Where an array lies.
struct Device {
  DeviceKind kind = DeviceKind::host;
  int index = 0;  ///< of the GPU, as CUDA numbers the devices of this process; 0 on the host
  friend bool operator==(const Device&, const Device&) = default;
};

/// Element type, shape, strides and place of an array of up to four dimensions: what TensorView and
/// ConstTensorView share. Strides count elements, not bytes.
struct TensorLayout {
  static constexpr int kMaxRank = 4;

  DataType dtype = DataType::none;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};
  Device device{};

  TensorLayout() = default;
  /// Contiguous, row-major, on the host. Throws Error{invalid_argument} for more than kMaxRank
  /// dimensions, for a negative one, and for more than 2^63 - 1 bytes.
  TensorLayout(DataType dtype, std::span<const std::int64_t> shape);
  TensorLayout(DataType dtype, std::initializer_list<std::int64_t> shape);

  [[nodiscard]] bool defined() const noexcept { return dtype != DataType::none; }
  [[nodiscard]] std::int64_t size() const noexcept;  ///< number of elements
  [[nodiscard]] std::size_t bytes() const noexcept;  ///< size() times the element size
  [[nodiscard]] bool contiguous() const noexcept;    ///< row-major without gaps
  /// A text for messages: "bfloat16 [128, 7168]", or "undefined".
  [[nodiscard]] std::string describe() const;
};

/// A view of memory that a call may write: the type of outputs. It does not own the memory.
struct TensorView : TensorLayout {
  void* data = nullptr;

  TensorView() = default;
  /// A contiguous, row-major view on the host. Throws as TensorLayout's constructor.
  TensorView(void* memory, DataType type, std::span<const std::int64_t> extents)
      : TensorLayout(type, extents), data(memory) {}
  TensorView(void* memory, DataType type, std::initializer_list<std::int64_t> extents)
      : TensorLayout(type, extents), data(memory) {}
  template <typename T>
    requires std::is_const_v<T>
  [[deprecated("use ConstTensorView")]] TensorView(T* memory, DataType type,
                                                   std::initializer_list<std::int64_t> extents)
      : TensorLayout(type, extents), data(const_cast<std::remove_const_t<T>*>(memory)) {}
  /// An array at `memory` that is laid out like another one.
  TensorView(void* memory, const TensorLayout& layout) : TensorLayout(layout), data(memory) {}

  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return static_cast<T*>(data);
  }
};

/// A view of memory that a call only reads: the type of inputs. Every TensorView and Tensor
/// converts to it. It does not keep the memory of a Tensor alive.
struct ConstTensorView : TensorLayout {
  const void* data = nullptr;

  ConstTensorView() = default;
  /// A contiguous, row-major view on the host. Throws as TensorLayout's constructor.
  ConstTensorView(const void* memory, DataType type, std::span<const std::int64_t> extents)
      : TensorLayout(type, extents), data(memory) {}
  ConstTensorView(const void* memory, DataType type, std::initializer_list<std::int64_t> extents)
      : TensorLayout(type, extents), data(memory) {}
  /// A view of the same memory for reading.
  ConstTensorView(const TensorView& view) : TensorLayout(view), data(view.data) {}

  template <typename T>
  [[nodiscard]] const T* as() const noexcept {
    return static_cast<const T*>(data);
  }
};

/// A view with a shared owner: the memory stays valid while any copy of the Tensor lives.
struct Tensor : TensorView {
  std::shared_ptr<void> owner;

  Tensor() = default;
  Tensor(const TensorView& view, std::shared_ptr<void> owned)
      : TensorView(view), owner(std::move(owned)) {}
  /// A tensor in new host memory, 64-byte aligned, whose values are not initialized. Throws as
  /// TensorLayout's constructor, and Error{exhausted} when there is no memory.
  [[nodiscard]] static Tensor empty(DataType dtype, std::span<const std::int64_t> shape);
  [[nodiscard]] static Tensor empty(DataType dtype, std::initializer_list<std::int64_t> shape);
};

}  // namespace shoal
