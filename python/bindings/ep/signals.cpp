// SPDX-License-Identifier: Apache-2.0
#include "signals.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "../check.hpp"
#include "../interrupt.hpp"

#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/low_latency/send/wait_signals.hpp"
#endif

namespace shoal::python {
namespace {

constexpr const char* kCall = "low_latency_combine";
constexpr std::chrono::microseconds kPoll{20};

/// Signals [experts][blocks], each of which reaches `value`.
struct Signals {
  TensorView signals, counts;  ///< counts: rows of each expert; undefined: all blocks count
  std::int64_t experts, blocks, block_rows, value;
  bool by_expert() const { return !counts.defined(); }
};

/// The first signal below its value among the blocks that have rows.
std::optional<std::int64_t> first_missing(const Signals& all) {
  for (std::int64_t i = 0; i < all.experts * all.blocks; ++i) {
    const std::int64_t first_row = i % all.blocks * all.block_rows;
    const bool needed =
        all.by_expert() || first_row < all.counts.as<std::int32_t>()[i / all.blocks];
    const std::atomic_ref signal(all.signals.as<std::int32_t>()[i]);
    if (needed && signal.load(std::memory_order_acquire) < all.value) return i;
  }
  return {};
}

void poll(const Signals& all, double timeout) {
  std::optional<std::int64_t> missing;
  bool interrupted = false;
  {
    const nb::gil_scoped_release released;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout);
    while ((missing = first_missing(all)) && std::chrono::steady_clock::now() < deadline &&
           !(interrupted = check_signals()))
      std::this_thread::sleep_for(kPoll);
  }
  if (interrupted && raise_interrupt()) throw nb::python_error();
  if (!missing) return;
  const std::int64_t expert = *missing / all.blocks, block = *missing % all.blocks;
  const std::string name = all.by_expert()
                               ? fmt::format("local expert {}", expert)
                               : fmt::format("block {} of local expert {}", block, expert);
  PyErr_SetString(
      PyExc_TimeoutError,
      fmt::format("deep_ep: {}: the signal of {} is {} after {:g} s, expected {}. "
                  "Setting: SHOAL_TIMEOUT_MS.",
                  kCall, name, all.signals.as<std::int32_t>()[*missing], timeout, all.value)
          .c_str());
  throw nb::python_error();
}

void wait_on_stream([[maybe_unused]] const Signals& all, [[maybe_unused]] Stream stream,
                    [[maybe_unused]] double timeout) {
#ifdef SHOAL_WITH_CUDA
  const cudaError_t status = ep::cuda::launch_wait_signals(
      {all.signals.as<const std::int32_t>(), all.counts.as<const std::int32_t>(),
       static_cast<std::int32_t>(all.experts), static_cast<std::int32_t>(all.blocks),
       static_cast<std::int32_t>(all.block_rows), static_cast<std::int32_t>(all.value),
       static_cast<std::uint64_t>(timeout * 1e9)},
      static_cast<cudaStream_t>(stream));
  require(status == cudaSuccess, Code::system, "{}: the wait for signals: {}", kCall,
          cudaGetErrorString(status));
#endif
}

}  // namespace

void Overlap::wait(const CallTensors& tensors, std::int64_t experts, std::int64_t rows,
                   Stream stream, const nb::object& used_here, double timeout) const {
  native_assert(comp_signal.is_none() != src_signals.is_none(),
                "{}: overlap=True needs either comp_signal or src_signals", kCall);
  Signals all{{}, {}, experts, 1, value_of(block_m), 0};
  nb::object signals = nb::borrow(comp_signal);
  Argument taken, counted;
  if (comp_signal.is_none()) {
    signals = nb::borrow(src_signals);
    if (text_of_object(nb::getattr(signals, "dtype", nb::none())) == "torch.uint32")
      signals = signals.attr("view")(tensors.dtype(DataType::int32));
    taken = tensors.take(kCall, "src_signals", signals, DataType::int32, {experts});
    all.value = value_of(src_value);
  } else {
    all.value = value_of(threshold);
    native_assert(all.block_rows > 0 && all.value > 0,
                  "{}: block_m is {} and threshold {}; both must be positive", kCall,
                  all.block_rows, all.value);
    all.blocks = (rows + all.block_rows - 1) / all.block_rows;
    taken = tensors.take(kCall, "comp_signal", signals, DataType::int32, {CallTensors::kAny});
    native_assert(taken.view.size() >= experts * all.blocks,
                  "{}: comp_signal has {} elements; allowed: at least {}, {} blocks of {} rows for "
                  "each of {} local experts",
                  kCall, taken.view.size(), experts * all.blocks, all.blocks, all.block_rows,
                  experts);
    counted =
        tensors.take(kCall, "packed_recv_count", packed_recv_count, DataType::int32, {experts});
    all.counts = counted.view;
  }
  all.signals = taken.view;
  if (stream == nullptr) return poll(all, timeout);
  used_here(signals);
  wait_on_stream(all, stream, timeout);
}

}  // namespace shoal::python
