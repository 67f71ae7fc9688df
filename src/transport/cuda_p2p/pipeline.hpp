// SPDX-License-Identifier: Apache-2.0
// pipeline.hpp: puts and signals of the proxy to heaps that this PE's GPU reaches, many in flight.
//
// Puts are copies on a few streams, whose engines overlap them. Signals and puts of single words
// are collected, and written by the first stream behind all copies that were started before: one
// call of the driver for all of them. reached() starts what is collected, and looks at an event
// behind it.
//
//   pipeline.put_nbi(pe, offset, source, bytes);        // starts a copy
//   pipeline.signal(pe, word, SignalOp::set, 1);        // collected
//   while (!pipeline.reached(pe, point)) ...            // starts the signal; no call waits
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/cuda_p2p/heap_copies.hpp"
#include "transport/polled.hpp"

namespace shoal::transport {

/// For one thread, which has made the GPU's context current. Atomics, gets and quiet wait for
/// everything that was started before.
class CopyPipeline final : public PolledOperations, private HeapCopies {
 public:
  /// Throws Error{system} where the GPU gives no stream, event or pinned word.
  CopyPipeline(std::shared_ptr<memory::DeviceHeap> heap, Pe pes);
  /// Waits until the copies are complete, at most SHOAL_TIMEOUT_MS.
  ~CopyPipeline();

  bool has_room(Pe pe) override;
  void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override;
  void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) override;
  void atomic_nbi(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                  std::uint64_t compare, std::size_t width, std::uint64_t* before) override;
  void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) override;
  bool reached(Pe pe, Point& point) override;
  /// Waits until all operations are complete.
  void quiet();

 private:
  static constexpr std::size_t kStreams = 3;

  struct Line {
    std::shared_ptr<CUstream_st> stream;
    CUevent event = nullptr;
    bool ahead = false;  ///< has copies that the first stream does not wait for yet
  };
  struct Word {
    std::byte* at;
    std::uint64_t value;
    std::size_t width;
  };

  CUstream first() const { return lines_[0].stream.get(); }
  CUevent make_event() const;
  void use(Line& line);
  void collect(const Word& word);
  void join();
  void write_words();
  bool write_by_stream();

  std::array<Line, kStreams> lines_;
  std::size_t next_ = 0;         ///< of the other streams
  std::vector<Word> collected_;  ///< to be written
  bool words_by_stream_;         ///< by the driver's memory operations, else by kernels
  std::uint64_t started_ = 0;    ///< copies and words
  std::uint64_t completed_ = 0;  ///< of them, as far as an event has told
  struct Mark {
    CUevent event = nullptr;
    std::uint64_t started = 0;  ///< when the event was recorded
  };
  std::vector<Mark> marks_;  ///< by PE
};

}  // namespace shoal::transport
