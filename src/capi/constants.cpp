// SPDX-License-Identifier: Apache-2.0
// constants.cpp: compile-time checks that the constants of the C header, which are part of the ABI,
// equal the C++ enumerations.
#include "shoal/collective.hpp"
#include "shoal/ep/gate.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/error.hpp"
#include "shoal/operation.hpp"
#include "shoal/shoal.h"
#include "shoal/tensor.hpp"

namespace shoal::capi {
namespace {

template <typename Enum>
constexpr bool same(int number, Enum value) {
  return number == static_cast<int>(value);
}

static_assert(same(SHOAL_INVALID_ARGUMENT, Code::invalid_argument) &&
              same(SHOAL_EXHAUSTED, Code::exhausted) && same(SHOAL_TIMEOUT, Code::timeout) &&
              same(SHOAL_PEER_FAILED, Code::peer_failed) && same(SHOAL_MISMATCH, Code::mismatch) &&
              same(SHOAL_UNSUPPORTED, Code::unsupported) && same(SHOAL_SYSTEM, Code::system) &&
              same(SHOAL_CLOSED, Code::closed));
static_assert(same(SHOAL_SIGNAL_SET, SignalOp::set) && same(SHOAL_SIGNAL_ADD, SignalOp::add));
static_assert(same(SHOAL_ATOMIC_FETCH, AtomicOp::fetch) && same(SHOAL_ATOMIC_SET, AtomicOp::set) &&
              same(SHOAL_ATOMIC_ADD, AtomicOp::add) && same(SHOAL_ATOMIC_AND, AtomicOp::bit_and) &&
              same(SHOAL_ATOMIC_OR, AtomicOp::bit_or) &&
              same(SHOAL_ATOMIC_XOR, AtomicOp::bit_xor) &&
              same(SHOAL_ATOMIC_SWAP, AtomicOp::swap) &&
              same(SHOAL_ATOMIC_COMPARE_SWAP, AtomicOp::compare_swap));
static_assert(same(SHOAL_SUM, ReduceOp::sum) && same(SHOAL_PROD, ReduceOp::prod) &&
              same(SHOAL_MIN, ReduceOp::min) && same(SHOAL_MAX, ReduceOp::max) &&
              same(SHOAL_BIT_AND, ReduceOp::bit_and) && same(SHOAL_BIT_OR, ReduceOp::bit_or) &&
              same(SHOAL_BIT_XOR, ReduceOp::bit_xor));
static_assert(same(SHOAL_GATE_SIGMOID, ep::GateScore::sigmoid) &&
              same(SHOAL_GATE_SOFTMAX, ep::GateScore::softmax));
static_assert(same(SHOAL_EQUAL, Compare::equal) && same(SHOAL_NOT_EQUAL, Compare::not_equal) &&
              same(SHOAL_GREATER, Compare::greater) &&
              same(SHOAL_GREATER_EQUAL, Compare::greater_equal) &&
              same(SHOAL_LESS, Compare::less) && same(SHOAL_LESS_EQUAL, Compare::less_equal));
static_assert(same(SHOAL_NONE, DataType::none) && same(SHOAL_FLOAT32, DataType::float32) &&
              same(SHOAL_FLOAT16, DataType::float16) && same(SHOAL_BFLOAT16, DataType::bfloat16) &&
              same(SHOAL_FLOAT8_E4M3, DataType::float8_e4m3) && same(SHOAL_INT8, DataType::int8) &&
              same(SHOAL_UINT8, DataType::uint8) && same(SHOAL_INT32, DataType::int32) &&
              same(SHOAL_INT64, DataType::int64) && same(SHOAL_FLOAT64, DataType::float64));
static_assert(same(SHOAL_HOST, DeviceKind::host) && same(SHOAL_CUDA, DeviceKind::cuda));
static_assert(same(SHOAL_QUANTIZE_NONE, ep::Quantize::none) && same(SHOAL_FP8, ep::Quantize::fp8) &&
              same(SHOAL_FP8_POWER_OF_TWO, ep::Quantize::fp8_power_of_two) &&
              same(SHOAL_FP8_UE8M0, ep::Quantize::fp8_ue8m0) &&
              same(SHOAL_MXFP8, ep::Quantize::mxfp8) && same(SHOAL_NVFP4, ep::Quantize::nvfp4));
static_assert(same(SHOAL_SCALES_AUTOMATIC, ep::ScaleLayout::automatic) &&
              same(SHOAL_SCALES_ROWS, ep::ScaleLayout::rows) &&
              same(SHOAL_SCALES_COLUMNS, ep::ScaleLayout::columns) &&
              same(SHOAL_SCALES_TILES, ep::ScaleLayout::tiles));
static_assert(same(SHOAL_REDUCTION_AUTOMATIC, ep::Reduction::automatic) &&
              same(SHOAL_PER_RANK, ep::Reduction::per_rank) &&
              same(SHOAL_EXACT, ep::Reduction::exact));

}  // namespace
}  // namespace shoal::capi
