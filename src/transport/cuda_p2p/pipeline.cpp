// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_p2p/pipeline.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "memory/cuda/stream_pool.hpp"

namespace shoal::transport {
namespace {

/// Copies and words in flight at most. The driver's queues are longer, so no call blocks.
constexpr std::uint64_t kMostInFlight = 512;
/// The driver accepts 256 operations in one call.
constexpr std::size_t kMostWords = 128;

}  // namespace

CopyPipeline::CopyPipeline(std::shared_ptr<memory::DeviceHeap> heap, Pe pes)
    : HeapCopies(std::move(heap)) {
  int by_stream = 0;
  memory::cuda::check(
      driver_,
      driver_.device_attribute(&by_stream, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                               device_.device),
      "SHOAL-N301: cannot ask for the memory operations of streams");
  words_by_stream_ = by_stream != 0 && driver_.stream_memory_ops != nullptr;
  for (Line& line : lines_) {
    line.stream = memory::cuda::take_stream(device_, memory::cuda::StreamPriority::highest);
    line.event = make_event();
    use(line);
  }
  // Later, the driver would wait for a lock that a copy of the program holds: one to or from
  // pageable memory, on any stream, behind a kernel that waits for the proxy.
  marks_.resize(static_cast<std::size_t>(pes));
  for (Mark& mark : marks_) mark.event = make_event();
}

/// Makes the driver take what it needs for a stream at its first operations. Later, it might wait
/// for kernels that run.
void CopyPipeline::use(Line& line) {
  copy(line.stream.get(), words_ + 1, words_, sizeof *words_, "first copy", -1);
  memory::cuda::check(driver_, driver_.event_record(line.event, line.stream.get()),
                      "SHOAL-N301: cannot record an event");
  collected_.push_back({reinterpret_cast<std::byte*>(words_), 0, sizeof *words_});
  if (&line == lines_.data()) write_by_stream();
  collected_.clear();
  device_.synchronize(line.stream.get(), "first copy of the proxy");
}

CopyPipeline::~CopyPipeline() {
  if (driver_.set_current(device_.context) != CUDA_SUCCESS) return;
  for (Line& line : lines_) {
    try {
      device_.synchronize(line.stream.get(), "copies of the proxy");
    } catch (const Error&) {  // reported where it matters, by the world
    }
    if (line.event != nullptr) driver_.event_destroy(line.event);
  }
  for (const Mark& mark : marks_)
    if (mark.event != nullptr) driver_.event_destroy(mark.event);
}

CUevent CopyPipeline::make_event() const {
  CUevent event = nullptr;
  memory::cuda::check(driver_, driver_.event_create(&event, CU_EVENT_DISABLE_TIMING), [&] {
    return fmt::format("SHOAL-N301: cannot create an event on GPU {}", device_.device);
  });
  return event;
}

void CopyPipeline::put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  if (is_host_word(offset, source, bytes)) {
    std::uint64_t value = 0;
    std::memcpy(&value, source, bytes);
    return collect({at(pe, offset), value, bytes});
  }
  // A put that is alone needs no event before its signal.
  Line& line = started_ == completed_ ? lines_[0] : lines_[1 + next_++ % (kStreams - 1)];
  copy(line.stream.get(), at(pe, offset), source, bytes, "put", pe);
  line.ahead = true;
  ++started_;
}

void CopyPipeline::signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  if (op == SignalOp::set) return collect({at(pe, offset), value, sizeof value});
  write_words();
  join();
  auto* const word = reinterpret_cast<std::uint64_t*>(at(pe, offset));
  started(kernels_.signal(first(), word, op, value), "signal");
  ++started_;
}

void CopyPipeline::collect(const Word& word) {
  if (collected_.size() == kMostWords) write_words();
  collected_.push_back(word);
  ++started_;
}

/// Orders what follows on the first stream behind all copies.
void CopyPipeline::join() {
  for (Line& line : lines_) {
    if (!line.ahead) continue;
    line.ahead = false;
    if (&line == lines_.data()) continue;
    memory::cuda::check(driver_, driver_.event_record(line.event, line.stream.get()),
                        "SHOAL-N301: cannot record an event");
    memory::cuda::check(driver_, driver_.stream_wait_event(first(), line.event, 0),
                        "SHOAL-N301: cannot wait for an event");
  }
}

void CopyPipeline::write_words() {
  if (collected_.empty()) return;
  join();
  if (!write_by_stream())
    for (const Word& word : collected_) {
      const char* const failure =
          word.width == sizeof word.value
              ? kernels_.signal(first(), reinterpret_cast<std::uint64_t*>(word.at), SignalOp::set,
                                word.value)
              : kernels_.store(first(), word.at, word.value, word.width);
      started(failure, "signal");
    }
  collected_.clear();
}

/// False: the words are to be written in another way. Each operation is ordered behind the stores
/// before it.
bool CopyPipeline::write_by_stream() {
  if (!words_by_stream_) return false;
  std::array<CUstreamBatchMemOpParams, kMostWords> operations;
  for (std::size_t i = 0; i < collected_.size(); ++i) {
    CUstreamBatchMemOpParams& one = operations[i];
    std::memset(&one, 0, sizeof one);
    const bool wide = collected_[i].width == sizeof collected_[i].value;
    one.writeValue.operation =
        wide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
    one.writeValue.address = memory::cuda::address(collected_[i].at);
    if (wide)
      one.writeValue.value64 = collected_[i].value;
    else
      one.writeValue.value = static_cast<std::uint32_t>(collected_[i].value);
  }
  words_by_stream_ = driver_.stream_memory_ops(first(), static_cast<unsigned>(collected_.size()),
                                               operations.data(), 0) == CUDA_SUCCESS;
  return words_by_stream_;
}

bool CopyPipeline::has_room(Pe) {
  return started_ - completed_ < kMostInFlight;
}

bool CopyPipeline::reached(Pe pe, Point& point) {
  write_words();
  Mark& mark = marks_[static_cast<std::size_t>(pe)];
  if (!point.set) {
    join();
    memory::cuda::check(driver_, driver_.event_record(mark.event, first()),
                        "SHOAL-N301: cannot record an event");
    mark.started = started_;
    point.set = true;
  }
  const CUresult result = driver_.event_query(mark.event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  memory::cuda::check(driver_, result, [&] {
    return fmt::format("SHOAL-N301: an earlier copy or signal with PE {} failed", pe);
  });
  completed_ = std::max(completed_, mark.started);
  return true;
}

void CopyPipeline::quiet() {
  write_words();
  join();
  device_.synchronize(first(), "quiet");
  completed_ = started_;
}

void CopyPipeline::get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  copy(first(), target, at(pe, offset), bytes, "get", pe);
  quiet();
}

void CopyPipeline::atomic_nbi(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                              std::uint64_t compare, std::size_t width, std::uint64_t* before) {
  write_words();
  started(kernels_.atomic(first(), at(pe, offset), op, operand, compare, width, words_), "atomic");
  quiet();
  *before = *words_;
}

}  // namespace shoal::transport
