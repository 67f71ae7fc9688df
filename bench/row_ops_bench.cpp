// SPDX-License-Identifier: Apache-2.0
// row_ops_bench.cpp: row operations on memory far larger than the caches, against memcpy. Rows of
// 14,336 bytes (hidden 7168, bfloat16) in random order, as routing produces; one thread and two.
#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>
#include <random>

#include "ep/host/rows/row_ops.hpp"
#include "shoal/tensor.hpp"

namespace shoal::bench {
namespace {

using ep::host::Store;

constexpr std::size_t kChannels = 7168, kRowBytes = 2 * kChannels, kRows = 16384;
/// Destinations of a token, about as top-8 of 256 on 8 ranks gives.
constexpr std::size_t kFan = 5;

/// Source and target rows, shared by all threads. Each thread uses its own part.
struct Memory {
  Tensor source = filled(0x3f), target = filled(0);
  std::vector<std::uint32_t> order = std::vector<std::uint32_t>(kRows);

  Memory() {
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
  }
  static Tensor filled(int value) {
    Tensor tensor = Tensor::empty(DataType::uint8, {static_cast<std::int64_t>(kRows * kRowBytes)});
    std::memset(tensor.data, value, tensor.bytes());
    return tensor;
  }
  const std::byte* source_row(std::size_t i) const {
    return source.as<std::byte>() + order[i % kRows] * kRowBytes;
  }
  std::byte* target_row(std::size_t i) const {
    return target.as<std::byte>() + i % kRows * kRowBytes;
  }
};

const Memory& memory() {
  static const Memory instance;
  return instance;
}

/// The first row of this thread's part.
std::size_t first_row(const benchmark::State& state) {
  return kRows / static_cast<std::size_t>(state.threads()) *
         static_cast<std::size_t>(state.thread_index());
}

void count_bytes(benchmark::State& state, std::size_t rows) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * rows * kRowBytes));
}

void plain_memcpy(benchmark::State& state) {
  const Memory& rows = memory();
  std::size_t i = first_row(state);
  for (auto _ : state) {
    std::memcpy(rows.target_row(i), rows.source_row(i), kRowBytes);
    ++i;
  }
  count_bytes(state, 1);
}

void copy_row(benchmark::State& state) {
  const Memory& rows = memory();
  std::size_t i = first_row(state);
  for (auto _ : state) {
    ep::host::copy_row(rows.target_row(i), rows.source_row(i), kRowBytes,
                       static_cast<Store>(state.range(0)));
    ++i;
  }
  ep::host::flush_streamed_rows();
  count_bytes(state, 1);
}

void scatter_row(benchmark::State& state) {
  const Memory& rows = memory();
  std::size_t i = first_row(state);
  for (auto _ : state) {
    void* targets[kFan];
    for (std::size_t t = 0; t < kFan; ++t) targets[t] = rows.target_row(i + t * (kRows / kFan));
    ep::host::scatter_row(targets, rows.source_row(i), kRowBytes,
                          static_cast<Store>(state.range(0)));
    ++i;
  }
  ep::host::flush_streamed_rows();
  count_bytes(state, kFan);
}

/// Bytes per second count the bytes read.
void sum_rows(benchmark::State& state) {
  const Memory& rows = memory();
  std::size_t i = first_row(state);
  for (auto _ : state) {
    const void* sources[kFan];
    for (std::size_t s = 0; s < kFan; ++s) sources[s] = rows.source_row(i * kFan + s);
    ep::host::sum_rows(DataType::bfloat16, rows.target_row(i), sources, nullptr, nullptr, kChannels,
                       static_cast<Store>(state.range(0)));
    ++i;
  }
  ep::host::flush_streamed_rows();
  count_bytes(state, kFan);
}

/// One row repeatedly, in the caches: measures the arithmetic alone.
void quantize_row(benchmark::State& state) {
  const Memory& rows = memory();
  float scales[kChannels / 128];
  auto* const target = reinterpret_cast<std::uint8_t*>(rows.target_row(first_row(state)));
  const auto* const source =
      reinterpret_cast<const std::uint16_t*>(rows.source_row(first_row(state)));
  for (auto _ : state) {
    ep::host::quantize_row(target, scales, source, kChannels, ep::host::ScaleForm::plain);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 1);
}

BENCHMARK(plain_memcpy)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(copy_row)->ArgName("streamed")->Arg(0)->Arg(1)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(scatter_row)->ArgName("streamed")->Arg(0)->Arg(1)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(sum_rows)->ArgName("streamed")->Arg(0)->Arg(1)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(quantize_row)->Threads(1)->UseRealTime();

}  // namespace
}  // namespace shoal::bench

BENCHMARK_MAIN();
