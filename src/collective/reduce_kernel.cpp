// SPDX-License-Identifier: Apache-2.0
#include "collective/reduce_kernel.hpp"

#include <cstdint>
#include <iterator>

#include "collective/elementwise.hpp"
#include "shoal/numeric.hpp"

namespace shoal::collective {
namespace {

// Formats that C++ has no type for.
struct Bfloat16 {
  using Stored = std::uint16_t;
  using Accumulator = float;
  static float load(Stored value) { return float_from_bfloat16(value); }
  static Stored store(float value) { return bfloat16_from_float(value); }
};
struct Float16 {
  using Stored = std::uint16_t;
  using Accumulator = float;
  static float load(Stored value) { return float_from_float16(value); }
  static Stored store(float value) { return float16_from_float(value); }
};

}  // namespace

ElementKernel kernel_of(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::int32:
      return kernel_for<Plain<std::int32_t>>(op);
    case DataType::int64:
      return kernel_for<Plain<std::int64_t>>(op);
    case DataType::float32:
      return kernel_for<Plain<float>>(op);
    case DataType::float64:
      return kernel_for<Plain<double>>(op);
    case DataType::bfloat16:
      return kernel_for<Bfloat16>(op);
    case DataType::float16:
      return kernel_for<Float16>(op);
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
