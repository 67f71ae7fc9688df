// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/caller_array.hpp"

#include <cstring>

#include "support/made_up.hpp"

namespace shoal::test {
namespace {

constexpr std::int64_t kGap = 3;    ///< elements between rows of Strides::padded
constexpr std::int64_t kGuard = 8;  ///< elements behind the last one

}  // namespace

Tensor uploaded(const TensorMover& tensors, const Tensor& host) {
  if (host.size() > 0) return tensors.upload(host);
  // An array of one element tells where the tensors of the group lie.
  Tensor empty = host;
  empty.device = tensors.upload(Tensor::empty(host.dtype, {1})).device;
  empty.data = nullptr;
  return empty;
}

std::vector<std::int64_t> extents_of(const TensorView& tensor) {
  return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

CallerArray::CallerArray(const TensorMover& tensors, DataType dtype,
                         const std::vector<std::int64_t>& extents, Strides strides)
    : tensors_(tensors) {
  const std::int64_t rows = extents[0], columns = extents.size() > 1 ? extents[1] : 1;
  view_.dtype = dtype;
  view_.rank = static_cast<int>(extents.size());
  std::copy(extents.begin(), extents.end(), view_.shape.begin());
  std::int64_t by_row = columns, by_column = 1;
  if (strides == Strides::padded) by_row = columns + kGap;
  if (strides == Strides::columns) {
    by_row = 1;
    by_column = rows + kGap;
  }
  if (strides == Strides::sparse) {
    by_row = 2 * columns + 1;
    by_column = 2;
  }
  view_.strides = {by_row, by_column};
  const std::int64_t reach = rows * by_row + columns * by_column + kGuard;
  Tensor memory = Tensor::empty(dtype, {reach});
  std::memset(memory.data, 0xff, memory.bytes());
  memory_ = tensors.upload(memory);
  view_.device = memory_.device;
  view_.data = view_.size() > 0 ? memory_.data : nullptr;
}

std::int64_t CallerArray::offset_of(std::int64_t element) const {
  if (view_.rank == 1) return element * view_.strides[0];
  return element / view_.shape[1] * view_.strides[0] + element % view_.shape[1] * view_.strides[1];
}

Tensor CallerArray::download() const {
  Tensor elements = view_.rank == 1 ? Tensor::empty(view_.dtype, {view_.shape[0]})
                                    : Tensor::empty(view_.dtype, {view_.shape[0], view_.shape[1]});
  const Tensor memory = tensors_.download(memory_);
  const std::size_t size = size_of(view_.dtype);
  for (std::int64_t i = 0; i < view_.size(); ++i)
    std::memcpy(elements.as<std::byte>() + i * size, memory.as<std::byte>() + offset_of(i) * size,
                size);
  return elements;
}

void CallerArray::expect_bytes(const std::string& what, const void* elements,
                               std::size_t bytes) const {
  const std::size_t size = size_of(view_.dtype);
  expect(elements == nullptr || bytes == view_.bytes(),
         what + ": the array is " + view_.describe());
  std::vector<std::byte> wanted(memory_.bytes(), std::byte{0xff});
  for (std::int64_t i = 0; elements != nullptr && i < view_.size(); ++i)
    std::memcpy(wanted.data() + offset_of(i) * size,
                static_cast<const std::byte*>(elements) + i * size, size);
  const Tensor got = tensors_.download(memory_);
  expect_same(what + " (elements and the memory outside them)", got.data, wanted.data(),
              wanted.size(), size);
}

void CallerArray::expect_elements(const std::string& what, const TensorView& tensor) const {
  const std::size_t size = size_of(tensor.dtype);
  std::vector<std::byte> elements(tensor.bytes());
  if (!elements.empty()) {
    const Tensor here = tensors_.download(tensor);  // it can keep the strides of `tensor`
    const std::int64_t columns = here.rank == 1 ? 1 : here.shape[1];
    for (std::int64_t row = 0; row < here.shape[0]; ++row)
      std::memcpy(elements.data() + row * columns * size,
                  here.as<std::byte>() + row * here.strides[0] * size, columns * size);
  }
  expect_bytes(what, elements.data(), elements.size());
}

}  // namespace shoal::test
