// SPDX-License-Identifier: Apache-2.0
#include "collective/reduce_kernel.hpp"

#include <cstdint>
#include <iterator>

#include "collective/elementwise.hpp"

namespace shoal::collective {

ElementKernel kernel_of(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::int32:
      return kernel_for<std::int32_t>(op);
    case DataType::int64:
      return kernel_for<std::int64_t>(op);
    case DataType::float32:
      return kernel_for<float>(op);
    case DataType::float64:
      return kernel_for<double>(op);
    case DataType::bfloat16:
      return kernel_for<device::BFloat16>(op);
    case DataType::float16:
      return kernel_for<device::Float16>(op);
    default:
      return nullptr;
  }
}

std::string_view name_of(ReduceOp op) noexcept {
  constexpr std::string_view names[] = {"sum",     "prod",   "min",    "max",
                                        "bit_and", "bit_or", "bit_xor"};
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(names) ? names[index] : "unknown";
}

bool supports(DataType dtype, ReduceOp op) noexcept {
  return kernel_of(dtype, op) != nullptr;
}

void reduce_elements(DataType dtype, ReduceOp op, void* target,
                     std::span<const void* const> sources, std::size_t count) {
  kernel_of(dtype, op)(target, sources, count);
}

}  // namespace shoal::collective
