// SPDX-License-Identifier: Apache-2.0
// bootstrap_probe: opens worlds with the settings of its environment and checks that the PEs reach
// each other. Prints "PE 1 of 3 via pmix ok" for each world. For tests under launchers.
//
// bootstrap_probe [--worlds N] [--at-once] [--control] [--absent PE] [--pe-fails PE]
//   --worlds N    N worlds in sequence; with --at-once all are open at the same time
//   --control     no heap: only the control plane (all-gather and barrier)
//   --absent PE   this PE (by the launcher's variables) sleeps until it is killed and never joins
//   --pe-fails PE this PE exits with status 3 after the first world
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <shoal/collective.hpp>
#include <shoal/world.hpp>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/log.hpp"
#include "bootstrap/launcher/launcher.hpp"

namespace {

struct Options {
  int worlds = 1;
  bool at_once = false;
  bool control = false;
  int absent = -1;
  int fails = -1;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--at-once") {
      options.at_once = true;
    } else if (option == "--control") {
      options.control = true;
    } else if (option == "--worlds" && i + 1 < argc) {
      options.worlds = std::stoi(argv[++i]);
    } else if (option == "--absent" && i + 1 < argc) {
      options.absent = std::stoi(argv[++i]);
    } else if (option == "--pe-fails" && i + 1 < argc) {
      options.fails = std::stoi(argv[++i]);
    } else {
      shoal::fail(shoal::Code::invalid_argument, "bootstrap_probe: unknown option {}", option);
    }
  }
  return options;
}

void say(int pe, int n_pes, const shoal::Settings& settings) {
  const std::string line =
      fmt::format("PE {} of {} via {} ok\n", pe, n_pes,
                  shoal::bootstrap::choose_bootstrap(settings).bootstraps.front());
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, line.data(), line.size());
}

void check_control(shoal::Bootstrap& bootstrap) {
  const std::string mine = fmt::format("hello from PE {}", bootstrap.pe());
  const auto all = bootstrap.all_gather(std::as_bytes(std::span(mine)), "probe");
  for (std::size_t pe = 0; pe < all.size(); ++pe) {
    const std::string text(reinterpret_cast<const char*>(all[pe].data()), all[pe].size());
    shoal::require(text == fmt::format("hello from PE {}", pe), shoal::Code::mismatch,
                   "PE {} says \"{}\"", pe, text);
  }
  bootstrap.barrier("probe");
}

void check_world(const shoal::World& world, int round) {
  const int me = world.my_pe(), n = world.n_pes();
  auto box = world.heap().allocate<int>(1);
  world.put_value(box.on((me + 1) % n), 1000 * round + me);
  shoal::barrier(world.team());
  const int expected = 1000 * round + (me + n - 1) % n;
  shoal::require(box[0] == expected, shoal::Code::mismatch,
                 "PE {} got {} from its neighbour, expected {}", me, box[0], expected);
  shoal::barrier(world.team());
}

int run(const Options& options) {
  shoal::Settings settings = shoal::Settings::from_environment();
  settings.symmetric_size = std::size_t{16} << 20;
  shoal::log::configure(settings);
  if (options.absent >= 0 &&
      shoal::bootstrap::detect_launcher(settings.launcher).pe == options.absent)
    pause();
  std::vector<shoal::World> open;
  for (int round = 0; round < options.worlds; ++round) {
    if (options.control) {
      const auto bootstrap = shoal::make_bootstrap(settings);
      check_control(*bootstrap);
      say(bootstrap->pe(), bootstrap->n_pes(), settings);
      bootstrap->close();
      continue;
    }
    shoal::World world = shoal::World::open({settings, nullptr});
    check_world(world, round);
    say(world.my_pe(), world.n_pes(), settings);
    if (options.fails == world.my_pe()) _exit(3);
    if (options.at_once) {
      open.push_back(world);
    } else {
      world.close();
    }
  }
  for (std::size_t i = 0; i < open.size(); ++i) check_world(open[i], 50 + static_cast<int>(i));
  for (shoal::World& world : open) world.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bootstrap_probe: %s\n", error.what());
    return 1;
  }
}
