// SPDX-License-Identifier: Apache-2.0
// shoal-bench: measures this build on this machine. Start it with shoal-run:
//
//   shoal-run -n 8 shoal-bench ep
#include "shoal_bench.hpp"

#include <fmt/format.h>

#include <exception>
#include <vector>

#include "base/files.hpp"
#include "options.hpp"
#include "shoal/collective.hpp"

namespace shoal::bench {

Gather gather_through(World& world) {
  return [&world](const std::vector<double>& mine) {
    const auto source = world.heap().allocate<double>(mine.size());
    const auto target =
        world.heap().allocate<double>(mine.size() * static_cast<std::size_t>(world.n_pes()));
    world.put(source.on(world.my_pe()),
              std::span<const double>(mine));  // the heap may lie on a GPU
    all_gather_bytes(world.team(), target.data(), source.data(), mine.size() * sizeof(double));
    std::vector<double> all(target.size());
    world.get(std::span(all), target.on(world.my_pe()));
    return all;
  };
}

Report report_of(World& world, const std::string& program) {
  return {.program = program, .pe = world.my_pe(), .pes = world.n_pes()};
}

namespace {

struct Arguments {
  Shape shape;
  std::int64_t rma_iterations = 1000;
  std::string json_path, part;
};

void declare(CLI::App& app, Arguments& arguments) {
  app.require_subcommand(1);
  const auto command = [&](const char* name, const char* description) {
    CLI::App* const sub = app.add_subcommand(name, description);
    sub->add_option("--json", arguments.json_path, "also write the results to this file");
    sub->callback([&arguments, name] { arguments.part = name; });
    return sub;
  };
  add_shape_options(
      *command("ep", "dispatch and combine of both modes, and memcpy of the same bytes"),
      arguments.shape);
  command("rma", "put, get, atomics, signals, barrier and all-to-all")
      ->add_option("--iterations", arguments.rma_iterations, "repetitions of each small operation")
      ->capture_default_str();
}

void run(const Arguments& arguments) {
  World world = World::open({.settings = Settings::from_environment()});
  if (arguments.part == "ep")
    run_ep(world, arguments.shape, arguments.json_path);
  else
    run_rma(world, arguments.rma_iterations, arguments.json_path);
  world.close();
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  const shoal::FileSizeSignalBlocked guard;  // a file beyond `ulimit -f` is an error with a message
  CLI::App app(
      "Measures Shoal on this machine. Run it under shoal-run: shoal-run -n 8 shoal-bench ep",
      "shoal-bench");
  shoal::bench::Arguments arguments;
  shoal::bench::declare(app, arguments);
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::bench::run(arguments);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal-bench: {}\n", error.what());
    return 1;
  }
}
