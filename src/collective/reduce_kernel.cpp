// SPDX-License-Identifier: Apache-2.0
#include "collective/reduce_kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "shoal/numeric.hpp"

namespace shoal::collective {
namespace {

// The accumulators of a chunk are on the stack (8 KiB at most) and stay in the first-level cache
// while all sources are added.
constexpr std::size_t kChunk = 1024;

// Each element type: its form in memory, the type that accumulates it, and the conversions.
// Integers are accumulated as unsigned values, whose overflow is defined.
template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};
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

template <typename T>
T wrapping(T a, T b, auto operation) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(operation(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
  } else {
    return operation(a, b);
  }
}

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Prod {
  template <typename T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
// `b != b` holds for a NaN, which then stays the result, since all comparisons with it are false.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return ((b < a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression)
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return ((b > a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression)
  }
};
struct BitAnd {
  template <typename T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct BitOr {
  template <typename T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct BitXor {
  template <typename T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};

template <typename Element, typename Operation>
void reduce_typed(void* target, std::span<const void* const> sources, std::size_t count) {
  using Stored = typename Element::Stored;
  alignas(64) typename Element::Accumulator accumulators[kChunk];
  for (std::size_t begin = 0; begin < count; begin += kChunk) {
    const std::size_t length = std::min(kChunk, count - begin);
    const Stored* first = static_cast<const Stored*>(sources[0]) + begin;
    for (std::size_t i = 0; i < length; ++i) accumulators[i] = Element::load(first[i]);
    for (const void* source : sources.subspan(1)) {
      const Stored* values = static_cast<const Stored*>(source) + begin;
      for (std::size_t i = 0; i < length; ++i)
        accumulators[i] = Operation{}(accumulators[i], Element::load(values[i]));
    }
    Stored* results = static_cast<Stored*>(target) + begin;
    for (std::size_t i = 0; i < length; ++i) results[i] = Element::store(accumulators[i]);
  }
}

using Kernel = void (*)(void*, std::span<const void* const>, std::size_t);

template <typename Element>
Kernel kernel_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_typed<Element, Sum>;
    case ReduceOp::prod:
      return reduce_typed<Element, Prod>;
    case ReduceOp::min:
      return reduce_typed<Element, Min>;
    case ReduceOp::max:
      return reduce_typed<Element, Max>;
    default:
      break;
  }
  if constexpr (std::is_integral_v<typename Element::Accumulator>) {
    switch (op) {
      case ReduceOp::bit_and:
        return reduce_typed<Element, BitAnd>;
      case ReduceOp::bit_or:
        return reduce_typed<Element, BitOr>;
      case ReduceOp::bit_xor:
        return reduce_typed<Element, BitXor>;
      default:
        break;
    }
  }
  return nullptr;
}

Kernel find_kernel(DataType dtype, ReduceOp op) {
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

}  // namespace

std::string_view name_of(ReduceOp op) noexcept {
  constexpr std::string_view names[] = {"sum",     "prod",   "min",    "max",
                                        "bit_and", "bit_or", "bit_xor"};
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(names) ? names[index] : "unknown";
}

bool supports(DataType dtype, ReduceOp op) noexcept {
  return find_kernel(dtype, op) != nullptr;
}

void reduce_elements(DataType dtype, ReduceOp op, void* target,
                     std::span<const void* const> sources, std::size_t count) {
  find_kernel(dtype, op)(target, sources, count);
}

}  // namespace shoal::collective
