// SPDX-License-Identifier: Apache-2.0
// rma_bench.cpp: one-sided operations between PEs 0 and 1, barrier and all-to-all.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "rma_rows.hpp"
#include "shoal/collective.hpp"
#include "shoal_bench.hpp"

namespace shoal::bench {

namespace {

class RmaBench {
 public:
  RmaBench(World& world, std::int64_t iterations)
      : world_(world),
        iterations_(iterations),
        remote_(world.heap().allocate<std::byte>(kLargest)),
        flag_(world.heap().allocate<std::uint64_t>(1)),
        local_(kLargest, std::byte{1}) {}

  std::vector<Measurement> run() {
    for (const std::size_t bytes : kSizes) measure_size(bytes);
    measure_small();
    measure_round_trips();
    measure_collectives();
    return std::move(measurements_);
  }

 private:
  std::int64_t repetitions(std::size_t bytes) const {
    return bench::repetitions(bytes, iterations_);
  }

  /// PE 0 runs `body` `count` times between two barriers.
  template <typename Body>
  void measure(const std::string& name, std::int64_t count, double bytes, Body body) {
    barrier(world_.team());
    Times times;
    if (world_.my_pe() == 0) {
      body();
      const Times start = now();
      for (std::int64_t i = 0; i < count; ++i) body();
      times = (now() - start) / static_cast<double>(count);
    }
    barrier(world_.team());
    measurements_.push_back({name, times, bytes});
  }

  RemoteSpan<std::byte> target(std::size_t bytes) const {
    return remote_.on(1 % world_.n_pes()).subspan(0, bytes);
  }

  void measure_size(std::size_t bytes) {
    const auto size = static_cast<double>(bytes);
    const std::span<std::byte> local(local_.data(), bytes);
    measure(put_name(bytes), repetitions(bytes), size, [&] {
      world_.put(target(bytes), local);
      world_.quiet();
    });
    measure(get_name(bytes), repetitions(bytes), size, [&] { world_.get(local, target(bytes)); });
    measure(window_name(bytes), repetitions(bytes), size * kWindow, [&] {
      for (std::size_t i = 0; i < kWindow; ++i) world_.put_nbi(target(bytes), local);
      world_.quiet();
    });
  }

  void measure_small() {
    const RemoteSpan<std::uint64_t> word = flag_.on(1 % world_.n_pes());
    measure("atomic fetch_add", iterations_, 0, [&] { world_.atomic_fetch_add(word, 1); });
    measure("signal_add", iterations_, 0, [&] { world_.signal_add(word, 1); });
    measure(std::to_string(kWindow) + " signal_add + quiet", iterations_, 0, [&] {
      for (std::size_t i = 0; i < kWindow; ++i) world_.signal_add(word, 1);
      world_.quiet();
    });
    barrier(world_.team());
    world_.put_value(flag_.on(world_.my_pe())[0], 0);
    barrier(world_.team());
  }

  /// A round trip between PEs 0 and 1, with `send(partner, value)` in each direction.
  template <typename Send>
  void measure_round_trip(const std::string& name, std::int64_t count, Send send) {
    const Pe me = world_.my_pe();
    const Pe partner = me ^ 1;
    Times times;
    if (me < 2 && world_.n_pes() > 1) {
      const Times start = now();
      for (std::int64_t i = 1; i <= count; ++i) {
        const auto value = static_cast<std::uint64_t>(i);
        if (me == 0) send(partner, value);
        world_.signal_wait_until(flag_.data(), Compare::greater_equal, value);
        if (me == 1) send(partner, value);
      }
      times = (now() - start) / static_cast<double>(count);
    }
    barrier(world_.team());
    world_.put_value(flag_.on(world_.my_pe())[0], 0);
    barrier(world_.team());
    measurements_.push_back({name, me == 0 ? times : Times(), 0});
  }

  void measure_round_trips() {
    measure_round_trip("signal round trip", iterations_,
                       [&](Pe to, std::uint64_t value) { world_.signal_set(flag_.on(to), value); });
    for (const std::size_t bytes : kRoundTripSizes)
      measure_round_trip(round_trip_name(bytes), repetitions(bytes),
                         [&](Pe to, std::uint64_t value) {
                           world_.put_signal(remote_.on(to).subspan(0, bytes),
                                             std::span<const std::byte>(local_.data(), bytes),
                                             flag_.on(to), SignalOp::set, value);
                         });
  }

  void measure_collectives() {
    measure_together("barrier", iterations_, 0, [&] { barrier(world_.team()); });
    const auto pes = static_cast<std::size_t>(world_.n_pes());
    const auto source = world_.heap().allocate<std::byte>(pes * kLargest / 4);
    const auto result = world_.heap().allocate<std::byte>(pes * kLargest / 4);
    for (const std::size_t block :
         {std::size_t{1} << 10, std::size_t{64} << 10, std::size_t{1} << 20})
      measure_together(
          "all_to_all " + size_name(block), std::min<std::int64_t>(repetitions(block * pes), 100),
          static_cast<double>(block * pes),
          [&] { all_to_all_bytes(world_.team(), result.data(), source.data(), block); });
  }

  template <typename Body>
  void measure_together(const std::string& name, std::int64_t count, double bytes, Body body) {
    body();
    barrier(world_.team());
    const Times start = now();
    for (std::int64_t i = 0; i < count; ++i) body();
    measurements_.push_back({name, (now() - start) / static_cast<double>(count), bytes});
  }

  World& world_;
  const std::int64_t iterations_;
  SymmetricArray<std::byte> remote_;
  SymmetricArray<std::uint64_t> flag_;
  std::vector<std::byte> local_;
  std::vector<Measurement> measurements_;
};

}  // namespace

void run_rma(World& world, std::int64_t iterations, const std::string& json_path) {
  require(iterations >= 1, Code::invalid_argument, "--iterations is {}; allowed: 1 or more",
          iterations);
  Report report = report_of(world, "shoal-bench rma");
  report.basis = "bytes of the transfers of one PE";
  report.setup.emplace_back("transport", world.describe_transport(1 % world.n_pes()));
  publish(report, RmaBench(world, iterations).run(), gather_through(world), json_path);
}

}  // namespace shoal::bench
