// SPDX-License-Identifier: Apache-2.0
// movement.cpp: push against pull. The rows of a dispatch with random top-k go from their sources
// to their final places: pushed by the sources, which load a row once and store it to every rank
// that gets it, or pulled by the ranks, which load it from its source and store it locally. Both
// use the same rows, addresses, kernel and number of SMs, and no protocol.
#include <algorithm>
#include <random>
#include <vector>

#include "base/check.hpp"
#include "gpu/bench.hpp"
#include "gpu/movement.hpp"

namespace shoal::bench::gpu {
namespace {

constexpr std::int64_t kTagBytes = sizeof(std::uint64_t);

/// For each token, the ranks that get it, a bit each.
std::vector<std::uint32_t> ranks_of_tokens(const Shape& shape, std::int32_t pe, std::int32_t pes) {
  const Batch batch = make_routing(shape, shape.tokens, pe, 0);
  std::vector<std::uint32_t> ranks(static_cast<std::size_t>(shape.tokens));
  for (std::int64_t i = 0; i < batch.topk_idx.size(); ++i)
    ranks[static_cast<std::size_t>(i / shape.top_k)] |=
        1U << (batch.topk_idx.as<std::int64_t>()[i] * pes / shape.experts);
  return ranks;
}

/// The lists of one PE and one size of rows.
class Lists {
 public:
  Lists(World& world, const Shape& shape, std::int64_t row_bytes, std::byte* source,
        std::byte* target) {
    const Pe me = world.my_pe(), pes = world.n_pes();
    const auto at = [&](std::byte* local, Pe pe, std::int64_t row) {
      void* const base = world.heap().peer_pointer(local, pe);
      require(base != nullptr, Code::unsupported,
              "the heap of PE {} is out of reach of PE {}'s GPU", pe, me);
      return static_cast<std::byte*>(base) + row * row_bytes;
    };
    std::vector<RowMove> push, pull;
    std::vector<std::byte*> push_to, pull_to;
    std::vector<std::int64_t> rows(static_cast<std::size_t>(pes),
                                   0);  // rows so far at each rank
    for (Pe from = 0; from < pes; ++from) {
      const auto ranks = ranks_of_tokens(shape, from, pes);
      for (std::int64_t token = 0; token < shape.tokens; ++token) {
        if (from == me)
          push.push_back(
              {source + token * row_bytes, static_cast<std::uint32_t>(push_to.size()), 0});
        for (Pe to = 0; to < pes; ++to) {
          if ((ranks[static_cast<std::size_t>(token)] >> to & 1) == 0) continue;
          const std::int64_t row = rows[static_cast<std::size_t>(to)]++;
          if (from == me) {
            push_to.push_back(at(target, to, row));
            ++push.back().count;
          }
          if (to != me) continue;
          pull.push_back({at(source, from, token), static_cast<std::uint32_t>(pull_to.size()), 1});
          pull_to.push_back(target + row * row_bytes);
          tags_.push_back(tag(from, token));
        }
      }
    }
    std::shuffle(pull.begin(), pull.end(),
                 std::mt19937_64(static_cast<std::uint64_t>(
                     me)));  // otherwise all ranks pull from one source first
    keep(push, push_to, push_, row_bytes);
    keep(pull, pull_to, pull_, row_bytes);
  }

  static std::uint64_t tag(Pe pe, std::int64_t token) {
    return static_cast<std::uint64_t>(pe + 1) << 32 | static_cast<std::uint64_t>(token);
  }
  const Movement& push() const { return push_; }
  const Movement& pull() const { return pull_; }
  /// By row received here.
  const std::vector<std::uint64_t>& tags() const { return tags_; }

 private:
  template <typename T>
  Tensor on_gpu(const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    return upload(TensorView(values.data(), DataType::uint8, {std::max<std::int64_t>(bytes, 1)}));
  }
  void keep(const std::vector<RowMove>& moves, const std::vector<std::byte*>& targets,
            Movement& list, std::int64_t row_bytes) {
    memory_.push_back(on_gpu(moves));
    list.moves = memory_.back().as<RowMove>();
    memory_.push_back(on_gpu(targets));
    list.targets = memory_.back().as<std::byte*>();
    list.count = static_cast<std::uint32_t>(moves.size());
    list.row_bytes = static_cast<std::uint32_t>(row_bytes);
  }

  std::vector<Tensor> memory_;
  Movement push_{}, pull_{};
  std::vector<std::uint64_t> tags_;
};

class MovementBench {
 public:
  MovementBench(World& world, Peers& peers, const Options& options, Results& results)
      : world_(world), peers_(peers), options_(options), shape_(options.shape), results_(results) {}

  void run(const char* format, std::int64_t row_bytes) {
    const auto source =
        world_.heap().allocate<std::byte>(static_cast<std::size_t>(shape_.tokens * row_bytes));
    const auto target = world_.heap().allocate<std::byte>(
        static_cast<std::size_t>(peers_.count() * shape_.tokens * row_bytes));
    fill(source.data(), row_bytes);
    const Lists lists(world_, shape_, row_bytes, source.data(), target.data());
    for (const std::int32_t sms : options_.sms)
      for (const bool pull : {false, true}) {
        check(cudaMemset(target.data(), 0xff,
                         static_cast<std::size_t>(peers_.count() * shape_.tokens * row_bytes)),
              "clearing the targets");
        peers_.barrier();
        const Timing timing = time_chain(
            peers_, stream_.get(), shape_,
            [&](std::int64_t) {
              move_rows(stream_.get(), pull ? lists.pull() : lists.push(), sms);
            },
            [&] { check(cudaStreamSynchronize(stream_.get()), "movement"); });
        peers_.barrier();
        verify(lists, target.data(), row_bytes);
        results_.add({{"operation", pull ? "pull" : "push"}, {"format", format}, {"sms", sms}},
                     timing,
                     static_cast<double>(lists.tags().size()) * static_cast<double>(row_bytes));
      }
  }

 private:
  void fill(std::byte* rows, std::int64_t row_bytes) {
    std::mt19937_64 random(7);
    std::vector<std::uint64_t> words(static_cast<std::size_t>(shape_.tokens * row_bytes) /
                                     sizeof(std::uint64_t));
    for (std::uint64_t& word : words) word = random();
    const auto in_row = static_cast<std::size_t>(row_bytes) / sizeof(std::uint64_t);
    for (std::int64_t token = 0; token < shape_.tokens; ++token)
      for (const std::size_t at : {std::size_t{0}, in_row - 1})
        words[static_cast<std::size_t>(token) * in_row + at] = Lists::tag(peers_.me(), token);
    check(cudaMemcpy(rows, words.data(), words.size() * sizeof words[0], cudaMemcpyHostToDevice),
          "filling rows");
    peers_.barrier();
  }

  /// The first and the last word of every row.
  void verify(const Lists& lists, const std::byte* target, std::int64_t row_bytes) const {
    std::vector<std::uint64_t> seen(lists.tags().size());
    for (const std::int64_t offset : {std::int64_t{0}, row_bytes - kTagBytes}) {
      check(
          cudaMemcpy2D(seen.data(), kTagBytes, target + offset, static_cast<std::size_t>(row_bytes),
                       kTagBytes, seen.size(), cudaMemcpyDeviceToHost),
          "looking at rows");
      for (std::size_t row = 0; row < seen.size(); ++row)
        require(seen[row] == lists.tags()[row], Code::mismatch,
                "row {} is that of {:#x}, expected {:#x}", row, seen[row], lists.tags()[row]);
    }
    peers_.barrier();
  }

  World& world_;
  Peers& peers_;
  const Options& options_;
  const Shape shape_;
  Results& results_;
  const Stream stream_;
};

}  // namespace

void run_movement(World& world, Peers& peers, const Options& options) {
  require(peers.count() <= 32, Code::invalid_argument, "movement is for up to 32 PEs, got {}",
          peers.count());
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "finding this PE's GPU");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "asking for its generation");
  require(major >= 9, Code::unsupported,
          "movement needs bulk copies, of GPUs from compute capability 9.0 on");
  Results results(peers, options, "movement");
  MovementBench bench(world, peers, options, results);
  bench.run("bf16", options.shape.hidden * 2);
  bench.run("fp8", options.shape.hidden + (options.shape.hidden + 127) / 128 * 4);
}

}  // namespace shoal::bench::gpu
