// SPDX-License-Identifier: Apache-2.0
// The copies and signals of the proxy (transport/cuda_p2p/pipeline.hpp) on streams that a seed
// executes in any order that events and streams allow.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "checks/world/operations.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/proxy/world_proxy.hpp"
#include "support/world/neighbours.hpp"
#include "support/world/world_local.hpp"
#include "transport/cuda_p2p/pipeline.hpp"

namespace shoal::test {
namespace {

using memory::cuda::Driver;
using transport::CopyPipeline;
using transport::PolledOperations;

/// Streams whose work waits until step() executes it.
struct Streams {
  struct Work {
    std::function<void()> execute;
    CUevent waits_for = nullptr;
    std::uint64_t record = 0;  ///< of the event that is waited for
  };
  struct Event {
    std::uint64_t records = 0, executed = 0;
  };
  std::map<CUstream, std::deque<Work>> queues;
  std::map<CUevent, Event> events;
  std::mt19937 random{1};
  int memory_operations = 0;
  bool refuses_memory_operations = false;
  CUresult query_result = CUDA_SUCCESS;

  void add(CUstream stream, std::function<void()> execute) {
    queues[stream].push_back({std::move(execute)});
  }
  bool is_ready(const Work& work) {
    return work.waits_for == nullptr || events[work.waits_for].executed >= work.record;
  }
  /// Executes the oldest work of a stream. False: there is none.
  bool step() {
    std::vector<std::deque<Work>*> ready;
    for (auto& [stream, queue] : queues)
      if (!queue.empty() && is_ready(queue.front())) ready.push_back(&queue);
    if (ready.empty()) return false;
    std::deque<Work>& queue = *ready[random() % ready.size()];
    if (queue.front().execute) queue.front().execute();
    queue.pop_front();
    return true;
  }
};

Streams* streams = nullptr;

CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  streams->add(stream, [=] {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  });
  return CUDA_SUCCESS;
}
decltype(Driver::event_create) make_event = nullptr;  // the fake driver's
CUresult create_event(CUevent* event, unsigned flags) {
  const CUresult result = make_event(event, flags);
  if (result == CUDA_SUCCESS) streams->events[*event] = {};
  return result;
}
CUresult record(CUevent event, CUstream stream) {
  const std::uint64_t number = ++streams->events[event].records;
  streams->add(stream, [=] { streams->events[event].executed = number; });
  return CUDA_SUCCESS;
}
CUresult wait_event(CUstream stream, CUevent event, unsigned) {
  streams->queues[stream].push_back({{}, event, streams->events[event].records});
  return CUDA_SUCCESS;
}
CUresult query(CUevent event) {
  if (streams->query_result != CUDA_SUCCESS) return streams->query_result;
  const Streams::Event& of = streams->events[event];
  return of.executed >= of.records ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult query_stream(CUstream stream) {
  streams->step();
  return streams->queues[stream].empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult memory_operations(CUstream stream, unsigned count, CUstreamBatchMemOpParams* all,
                           unsigned) {
  if (streams->refuses_memory_operations) return CUDA_ERROR_NOT_SUPPORTED;
  ++streams->memory_operations;
  for (unsigned i = 0; i < count; ++i) {
    const auto write = all[i].writeValue;
    streams->add(stream, [=] {
      void* const word = reinterpret_cast<void*>(write.address);
      if (write.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
        *static_cast<std::uint64_t*>(word) = write.value64;
      else
        *static_cast<std::uint32_t*>(word) = write.value;
    });
  }
  return CUDA_SUCCESS;
}

const char* load() {
  return nullptr;
}
const char* atomic(CUstream stream, void* word, AtomicOp, std::uint64_t operand, std::uint64_t,
                   std::size_t, std::uint64_t* before) {
  streams->add(stream, [=] {
    *before = *static_cast<std::uint64_t*>(word);
    *static_cast<std::uint64_t*>(word) += operand;
  });
  return nullptr;
}
const char* signal(CUstream stream, std::uint64_t* word, SignalOp op, std::uint64_t value) {
  streams->add(stream, [=] { *word = op == SignalOp::set ? value : *word + value; });
  return nullptr;
}
const char* store(CUstream stream, void* word, std::uint64_t value, std::size_t width) {
  streams->add(stream, [=] { std::memcpy(word, &value, width); });
  return nullptr;
}
constexpr transport::WordKernels kKernels = {load, atomic, signal, store};

/// Heaps that all lie in host memory.
class Heap final : public memory::DeviceHeap {
 public:
  Heap(std::shared_ptr<memory::Device> device, Pe pes, std::size_t words)
      : DeviceHeap(std::move(device), words * 8, 8),
        memory_(static_cast<std::size_t>(pes), std::vector<std::uint64_t>(words)) {}
  std::vector<std::byte> add(std::size_t) override { return {}; }
  void connect(std::span<const std::vector<std::byte>>, const memory::FdExchange&) override {}
  void commit() noexcept override {}
  void roll_back() noexcept override {}
  std::byte* base(Pe pe) const noexcept override { return reinterpret_cast<std::byte*>(words(pe)); }
  std::uint64_t* words(Pe pe) const noexcept {
    return memory_[static_cast<std::size_t>(pe)].data();
  }
  const std::string& obstacle(Pe) const noexcept override { return none_; }
  bool atomics(Pe) const noexcept override { return true; }

 private:
  mutable std::vector<std::vector<std::uint64_t>> memory_;
  const std::string none_;
};

constexpr Pe kPes = 2;
constexpr std::size_t kCells = 4000, kFlag = kCells, kWords = kCells + 8;

class CudaPipeline : public testing::TestWithParam<bool> {
 protected:
  CudaPipeline() : fake_({.gpus = 1, .stream_memory_ops = GetParam()}) {
    table_ = memory::cuda::driver();
    table_.copy = copy;
    make_event = table_.event_create;
    table_.event_create = create_event;
    table_.event_record = record;
    table_.event_query = query;
    table_.stream_wait_event = wait_event;
    table_.stream_query = query_stream;
    table_.stream_memory_ops = memory_operations;
    memory::cuda::replace_driver(&table_);
    transport::replace_word_kernels(&kKernels);
    streams = &streams_;
    heap_ = std::make_shared<Heap>(memory::open_device({}), kPes, kWords);
    for (std::size_t i = 0; i < kCells; ++i) source_.push_back(i + 1);
  }
  ~CudaPipeline() override {
    heap_.reset();
    memory::cuda::destroy_free_streams(table_);
    EXPECT_EQ(FakeCuda::leaks(), "");
  }
  void finish() {
    while (streams_.step()) {
    }
  }
  std::uint64_t word(Pe pe, std::size_t i) const { return heap_->words(pe)[i]; }

  FakeCuda fake_;
  Driver table_;
  Streams streams_;
  std::shared_ptr<Heap> heap_;
  std::vector<std::uint64_t> source_;
};
INSTANTIATE_TEST_SUITE_P(Words, CudaPipeline, testing::Bool(),
                         [](const auto& made) { return made.param ? "ByStream" : "ByKernels"; });

// The flag of a PE counts the puts that were started before: wherever it stands, they are there.
TEST_P(CudaPipeline, ASignalFollowsAllEarlierPuts) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    streams_.random.seed(seed);
    std::mt19937 random(seed);
    heap_ = std::make_shared<Heap>(memory::open_device({}), kPes, kWords);
    CopyPipeline pipeline(heap_, kPes);
    std::array<std::size_t, 2> puts{}, begun{};
    std::array<PolledOperations::Point, 2> points;
    std::array<std::size_t, 2> covered{};
    const auto check_flags = [&] {
      for (Pe pe = 0; pe < 2; ++pe) {
        const std::uint64_t flag = word(pe, kFlag);
        auto& checked = begun[static_cast<std::size_t>(pe)];
        ASSERT_GE(flag, checked);
        for (; checked < flag; ++checked) ASSERT_EQ(word(pe, checked), checked + 1) << "PE " << pe;
      }
    };
    while (puts[0] < 600 || puts[1] < 600) {
      const Pe pe = static_cast<Pe>(random() % 2);
      const auto i = static_cast<std::size_t>(pe);
      switch (random() % 6) {
        case 0:
        case 1:
          if (puts[i] == kCells || !pipeline.has_room(pe)) break;
          // Half of them are single words, which are no copies.
          if (random() % 2 == 0) {
            pipeline.put_nbi(pe, puts[i] * 8, &source_[puts[i]], 8);
            ++puts[i];
          } else if (puts[i] + 2 <= kCells) {
            pipeline.put_nbi(pe, puts[i] * 8, &source_[puts[i]], 16);
            puts[i] += 2;
          }
          break;
        case 2:
          pipeline.signal(pe, kFlag * 8, SignalOp::set, puts[i]);
          break;
        case 3: {
          PolledOperations::Point& point = points[i];
          if (!point.set) covered[i] = puts[i];
          if (!pipeline.reached(pe, point)) break;
          for (std::size_t cell = 0; cell < covered[i]; ++cell)
            ASSERT_EQ(word(pe, cell), cell + 1) << "PE " << pe;
          point = {};
          break;
        }
        default:
          streams_.step();
          check_flags();
      }
      if (HasFatalFailure()) return;
    }
    for (Pe pe = 0; pe < 2; ++pe)
      pipeline.signal(pe, kFlag * 8, SignalOp::set, puts[static_cast<std::size_t>(pe)]);
    pipeline.quiet();
    check_flags();
    EXPECT_EQ(begun, puts);
  }
}

// A driver may wait for kernels when it makes a stream or first uses one, and these kernels for the
// proxy.
TEST_P(CudaPipeline, UsesItsStreamsAndEventsWhenItIsMade) {
  CopyPipeline pipeline(heap_, kPes);
  const std::size_t made = streams_.queues.size(), events = streams_.events.size();
  EXPECT_EQ(made, 4u) << "with the stream of the GPU";
  EXPECT_EQ(streams_.memory_operations, GetParam() ? 1 : 0);
  for (const auto& [stream, queue] : streams_.queues) EXPECT_TRUE(queue.empty());
  for (std::size_t i = 0; i < 6; ++i) pipeline.put_nbi(1, i * 16, &source_[0], 16);
  pipeline.signal(1, kFlag * 8, SignalOp::set, 1);
  PolledOperations::Point point;
  EXPECT_FALSE(pipeline.reached(1, point));
  EXPECT_EQ(streams_.queues.size(), made);
  EXPECT_EQ(streams_.events.size(), events);
  finish();
  EXPECT_TRUE(pipeline.reached(1, point));
}

// Signals that were collected while one call was under way need one call of the driver.
TEST_P(CudaPipeline, SignalsShareACall) {
  CopyPipeline pipeline(heap_, kPes);
  streams_.memory_operations = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    pipeline.put_nbi(1, i * 16, &source_[0], 16);
    pipeline.signal(1, (kFlag + i % 4) * 8, SignalOp::set, i);
  }
  EXPECT_EQ(streams_.memory_operations, 0);
  PolledOperations::Point point;
  EXPECT_FALSE(pipeline.reached(1, point));
  EXPECT_EQ(streams_.memory_operations, GetParam() ? 1 : 0);
  finish();
  EXPECT_TRUE(pipeline.reached(1, point));
  EXPECT_EQ(word(1, kFlag + 3), 31u);
}

TEST_P(CudaPipeline, AdditionsAndAtomicsAreExact) {
  CopyPipeline pipeline(heap_, kPes);
  pipeline.put_nbi(1, 0, source_.data(), 64);
  pipeline.signal(1, kFlag * 8, SignalOp::set, 5);
  pipeline.signal(1, kFlag * 8, SignalOp::add, 2);
  pipeline.signal(1, kFlag * 8, SignalOp::add, 3);
  std::uint64_t before = 0;
  pipeline.atomic_nbi(1, AtomicOp::add, kFlag * 8, 1, 0, 8, &before);
  EXPECT_EQ(before, 10u);
  EXPECT_EQ(word(1, kFlag), 11u);
  EXPECT_EQ(word(1, 7), 8u);
}

TEST_P(CudaPipeline, HasRoomForSoMuch) {
  CopyPipeline pipeline(heap_, kPes);
  int puts = 0;
  for (; pipeline.has_room(1); ++puts) pipeline.put_nbi(1, 0, source_.data(), 16);
  EXPECT_EQ(puts, 512);
  PolledOperations::Point point;
  EXPECT_FALSE(pipeline.reached(1, point));
  EXPECT_FALSE(pipeline.has_room(1));
  finish();
  EXPECT_TRUE(pipeline.reached(1, point));
  EXPECT_TRUE(pipeline.has_room(1));
}

// Drivers may announce what they refuse for some memory.
TEST_P(CudaPipeline, KernelsWriteWhatTheDriverRefuses) {
  streams_.refuses_memory_operations = true;
  CopyPipeline pipeline(heap_, kPes);
  const std::uint32_t half = 7;
  pipeline.put_nbi(1, 4, &half, 4);
  pipeline.signal(1, kFlag * 8, SignalOp::set, 9);
  pipeline.quiet();
  EXPECT_EQ(word(1, kFlag), 9u);
  EXPECT_EQ(word(1, 0), std::uint64_t{7} << 32);
  EXPECT_EQ(streams_.memory_operations, 0);
}

TEST_P(CudaPipeline, AFailedCopyIsReportedWithItsPe) {
  CopyPipeline pipeline(heap_, kPes);
  pipeline.put_nbi(1, 0, source_.data(), 16);
  streams_.query_result = CUDA_ERROR_LAUNCH_FAILED;
  PolledOperations::Point point;
  expect_error(Code::system, "an earlier copy or signal with PE 1 failed",
               [&] { (void)pipeline.reached(1, point); });
  streams_.query_result = CUDA_SUCCESS;
}

// The proxy of a world posts through it: values, data before signals, additions and results.
TEST(CudaPipelineInWorlds, ServesTheProxy) {
  for (const bool by_stream : {false, true}) {
    const FakeCuda fake({.gpus = 2, .stream_memory_ops = by_stream});
    Settings settings = world_settings();
    settings.heap = "cuda";
    settings.symmetric_size = std::size_t{8} << 20;
    settings.node_size = 1;
    settings.transport_between = "cuda_p2p";
    run_threads(2, settings, [](World& world) {
      constexpr std::size_t kData = 3000;
      auto data = world.heap().allocate<std::uint64_t>(kData);
      auto words = world.heap().allocate<std::uint64_t>(2);
      const Pe to = right(world);
      std::vector<std::uint64_t> source(kData);
      WorldProxy proxy(world, 16);
      barrier(world.team());
      for (std::uint64_t round = 1; round <= 30; ++round) {
        for (std::size_t i = 0; i < kData; ++i) source[i] = round * kData + i;
        ASSERT_EQ(
            proxy.run(proxy.put_signal(&data[0], source.data(), kData * 8, &words[0], round, to)),
            Outcome::ok);
        world.wait_until(&words[0], Compare::equal, round);
        for (std::size_t i = 0; i < kData; ++i) ASSERT_EQ(data[i], round * kData + i);
        Ticket ticket = 0;
        std::uint64_t before = 0;
        ASSERT_EQ(proxy.post(proxy.add(&words[1], 2, to, device::proxy::kResult), ticket),
                  Outcome::ok);
        ASSERT_EQ(Producer::wait_value(proxy.ring(), ticket, before), Outcome::ok);
        ASSERT_EQ(before, 2 * (round - 1));
        barrier(world.team());
      }
    });
  }
}

}  // namespace
}  // namespace shoal::test

#endif
