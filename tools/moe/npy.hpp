// SPDX-License-Identifier: Apache-2.0
// npy.hpp: reads and writes NumPy's .npy files, versions 1 and 2: little-endian float16, float32,
// float64, int32 and int64 arrays in C order.
//
// Rows (the first dimension) can be read and written in parts, so a PE holds only its share of a
// file. Every failure throws shoal::Error with the path: Code::system if the file cannot be read or
// written, Code::invalid_argument if it is not such an array.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "shoal/tensor.hpp"

namespace shoal::tools {

class NpyReader {
 public:
  explicit NpyReader(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  DataType dtype() const noexcept { return dtype_; }
  const std::vector<std::int64_t>& shape() const noexcept { return shape_; }
  std::int64_t rows() const noexcept { return shape_.empty() ? 1 : shape_[0]; }
  /// Elements of a row: the product of the other dimensions.
  std::int64_t row_size() const noexcept;
  std::string describe() const;  ///< "tokens.npy: float32 [128, 1024]"

  /// Throws Error{invalid_argument} unless the array has `wanted.size()` dimensions of these
  /// extents; -1 allows any. `names` label them in the message: {"tokens", "hidden"}.
  void require_shape(std::span<const std::int64_t> wanted,
                     std::span<const std::string_view> names) const;

  /// Rows [first, first + count), converted to T: float, double or std::int64_t (from integers
  /// only).
  template <typename T>
  std::vector<T> read_rows(std::int64_t first, std::int64_t count);

 private:
  void parse_header(const std::string& header);

  std::string path_;
  std::ifstream file_;
  DataType dtype_ = DataType::none;
  std::vector<std::int64_t> shape_;
  std::streamoff data_offset_ = 0;
};

/// Writes a file row by row. Call close() after the last row.
class NpyWriter {
 public:
  NpyWriter(const std::string& path, DataType dtype, std::span<const std::int64_t> shape);
  /// Appends elements of the file's dtype. float16 elements are std::uint16_t bit patterns.
  template <typename T>
  void append(std::span<const T> elements) {
    append_bytes(elements.data(), elements.size(), sizeof(T));
  }
  /// Throws Error{invalid_argument} if fewer elements were appended than the shape has;
  /// Error{system} if the disk is full.
  void close();

 private:
  void append_bytes(const void* data, std::size_t count, std::size_t element_size);

  std::string path_;
  std::ofstream file_;
  DataType dtype_;
  std::int64_t missing_;
};

}  // namespace shoal::tools
