// SPDX-License-Identifier: Apache-2.0
// caller_array.hpp: an array of a caller, in memory that shows writes outside its elements.
#pragma once

#include <vector>

#include "checks/ep/expert_major.hpp"

namespace shoal::test {

/// Layout of the elements of an array in memory: one after another; with a gap between rows; column
/// by column; with gaps between all elements.
enum class Strides { contiguous, padded, columns, sparse };

/// Uploads a tensor; without elements it has no data.
Tensor uploaded(const TensorMover& tensors, const Tensor& host);

std::vector<std::int64_t> extents_of(const TensorView& tensor);

/// An array of one or two dimensions. Its memory is larger than it, and every byte is 0xff at
/// first. Without elements it has no data.
class CallerArray {
 public:
  CallerArray(const TensorMover& tensors, DataType dtype, const std::vector<std::int64_t>& extents,
              Strides strides = Strides::contiguous);

  const TensorView& view() const { return view_; }
  /// The elements, on the host and contiguous.
  Tensor download() const;
  /// Throws unless the array holds `values`, or is unchanged where it was not `given`, and the
  /// memory outside its elements has not changed.
  template <typename T>
  void expect_values(const std::string& what, const std::vector<T>& values, bool given) const {
    expect_bytes(what, given ? values.data() : nullptr, values.size() * sizeof(T));
  }
  /// The same for the elements of a tensor of the group.
  void expect_elements(const std::string& what, const TensorView& tensor) const;
  void expect_untouched(const std::string& what) const { expect_bytes(what, nullptr, 0); }

 private:
  /// `elements`: row-major; nullptr: not written.
  void expect_bytes(const std::string& what, const void* elements, std::size_t bytes) const;
  std::int64_t offset_of(std::int64_t element) const;

  TensorMover tensors_;
  Tensor memory_;
  TensorView view_;
};

/// Throws unless a contiguous tensor of the group has these elements.
template <typename T>
void expect_tensor(const std::string& what, const TensorMover& tensors, const TensorView& got,
                   const std::vector<T>& wanted) {
  if (got.size() == 0 && wanted.empty()) return;
  const Tensor here = tensors.download(got);
  if (here.bytes() != wanted.size() * sizeof(T))
    throw std::runtime_error(what + " is " + got.describe());
  expect_same(what, here.data, wanted.data(), here.bytes(), sizeof(T));
}

}  // namespace shoal::test
