// SPDX-License-Identifier: Apache-2.0
// streams.cpp: operations on streams: the barrier, pipeline steps, puts to all PEs and fetches of
// table entries, each compared with a put of as many bytes.
//
// Every PE sends to the next one, so a link carries as many bytes in each direction.
#include "shoal/detail/stream_steps.hpp"

#include <random>

#include "base/check.hpp"
#include "gpu/bench.hpp"

namespace shoal::bench::gpu {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

class StreamsBench {
 public:
  StreamsBench(World& world, Peers& peers, const Options& options)
      : world_(world),
        peers_(peers),
        shape_(options.shape),
        on_(world, stream_.get()),
        sends_(world, second_.get()),
        next_((peers.me() + 1) % peers.count()),
        last_((peers.me() + peers.count() - 1) % peers.count()),
        source_(world.heap().allocate<std::byte>(kMostBytes)),
        target_(world.heap().allocate<std::byte>(kMostBytes)),
        slots_(world.heap().allocate<std::byte>(2 * kMostBytes)),
        gathered_(
            world.heap().allocate<std::byte>(kMostBytes * static_cast<std::size_t>(peers.count()))),
        flags_(world.heap().allocate<std::uint64_t>(2)),
        all_flags_(world.heap().allocate<std::uint64_t>(static_cast<std::size_t>(peers.count()))),
        results_(peers, options, "streams") {
    const auto words = kMostBytes / 4;
    std::vector<std::int32_t> indices(words / 32);
    std::mt19937 random(static_cast<unsigned>(peers.me()));
    for (auto& index : indices) index = static_cast<std::int32_t>(random() & 0x7fffffff);
    random_ = indices;
  }

  void run() {
    measure("barrier", "plain", 0, [&](std::int64_t) { on_.barrier(world_.team()); });
    results_.add({{"operation", "barrier"}, {"launch", "graph"}, {"bytes", 0}},
                 time_graph(
                     peers_, stream_.get(), shape_,
                     [&](std::int64_t) { on_.barrier(world_.team()); }, [&] { finish(); }),
                 0);
    for (std::size_t bytes = 4096; bytes <= kMostBytes; bytes *= 4) {
      put(bytes);
      pipeline(bytes);
      put_to_all(bytes);
    }
    for (const std::size_t entry : {256, 2048, 14336})
      for (const std::size_t bytes : {std::size_t{1} << 20, kMostBytes}) fetch(entry, bytes);
  }

 private:
  void finish() {
    check(cudaStreamSynchronize(stream_.get()), "waiting for a chain");
    cuda::check_failures(world_);
  }
  void measure(const char* name, const char* how, std::size_t bytes, const Operation& operation) {
    results_.add({{"operation", name}, {"launch", how}, {"bytes", bytes}},
                 time_chain(peers_, stream_.get(), shape_, operation, [&] { finish(); }),
                 static_cast<double>(bytes));
  }

  void put(std::size_t bytes) {
    measure("put", "plain", bytes,
            [&](std::int64_t) { on_.put_bytes(target_.on(next_).address, source_.data(), bytes); });
  }

  /// Sends to the next PE on a second stream and receives from the one before, with two slots.
  void pipeline(std::size_t bytes) {
    measure("send and receive", "plain", bytes, [&](std::int64_t) {
      const std::size_t slot = sent_ % 2 * kMostBytes;
      ++sent_;
      sends_.put_when(sent_ <= 2 ? nullptr : flags_.data() + 1, sent_ <= 2 ? 0 : sent_ - 2,
                      {next_, slots_.on(next_).address.offset + slot}, source_.data(), bytes,
                      flags_.on(next_)[0], sent_);
      on_.take_when(flags_.data(), sent_, target_.data(), slots_.data() + slot, bytes,
                    flags_.on(last_)[1], sent_);
    });
  }

  /// Each PE puts `bytes` to every other PE, and waits for those of all.
  void put_to_all(std::size_t bytes) {
    std::byte* const place = gathered_.data() + static_cast<std::size_t>(peers_.me()) * kMostBytes;
    const detail::StreamBlock blocks[] = {{place, place, bytes}};
    const auto others = static_cast<std::size_t>(peers_.count() - 1);
    measure("put to all", "plain", bytes * others, [&](std::int64_t) {
      on_.put_to_all(world_.team(), blocks, all_flags_.data(), ++round_);
      on_.wait_for_all(world_.team(), all_flags_.data(), round_);
    });
  }

  /// Random entries of the next PE alone, so that all bytes cross a link.
  void fetch(std::size_t entry, std::size_t bytes) {
    const auto per_pe = static_cast<std::int64_t>(kMostBytes / entry);
    const auto count = static_cast<std::int64_t>(bytes / entry);
    std::vector<std::int32_t> indices(random_.begin(), random_.begin() + count);
    for (auto& index : indices) index = static_cast<std::int32_t>(next_ * per_pe + index % per_pe);
    const Tensor on_gpu = upload(TensorView(indices.data(), DataType::int32, {count}));
    detail::EntryFetch fetch;
    fetch.part = source_.data();
    fetch.entry_bytes = entry;
    fetch.entries_per_pe = per_pe;
    fetch.indices = on_gpu.as<std::int32_t>();
    fetch.count = count;
    fetch.target = target_.data();
    results_.add(
        {{"operation", "fetch entries"}, {"launch", "plain"}, {"bytes", bytes}, {"entry", entry}},
        time_chain(
            peers_, stream_.get(), shape_, [&](std::int64_t) { on_.fetch_entries(fetch); },
            [&] { finish(); }),
        static_cast<double>(count) * static_cast<double>(entry));
  }

  World& world_;
  Peers& peers_;
  const Shape shape_;
  const Stream stream_, second_;
  const shoal::detail::StreamSteps on_, sends_;
  const Pe next_, last_;
  const SymmetricArray<std::byte> source_, target_, slots_, gathered_;
  const SymmetricArray<std::uint64_t> flags_, all_flags_;
  std::vector<std::int32_t> random_;
  std::uint64_t sent_ = 0, round_ = 0;
  Results results_;
};

}  // namespace

void run_streams(World& world, Peers& peers, const Options& options) {
  StreamsBench(world, peers, options).run();
}

}  // namespace shoal::bench::gpu
