// SPDX-License-Identifier: Apache-2.0
// shoal-info: shows the build, the machine, the transports between PEs, the phases of a start, and
// faults of the system.
//
// docs/guide/shoal-info.md has examples and the keys of --json.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/files.hpp"
#include "base/messages/table.hpp"
#include "command_line/command_line.hpp"
#include "info/build.hpp"
#include "info/build_facts.hpp"
#include "info/doctor.hpp"
#include "info/gpus.hpp"
#include "info/live.hpp"
#include "info/settings.hpp"
#include "info/topology.hpp"
#include "info/world.hpp"
#include "shoal/error.hpp"
#include "shoal/memory_map.hpp"

namespace {

using namespace shoal::info;

struct Options {
  bool all = false, build = false, settings = false, page = false, gpus = false, topology = false;
  bool connectivity = false, nics = false, timeline = false, doctor = false, json = false;
  bool live = false;
  std::string machine, root, svg, html, flight, ep, message;
  bool memory = false;
  std::string place;
  double interval = 1;
  std::int32_t repeat = 1;
  std::int32_t pes = 0;
};

/// Collects sections: prints text at once, JSON as one document at the end.
class Output {
 public:
  explicit Output(bool json) : json_(json) {}

  /// The section is text() or json(). An exception becomes its content.
  template <typename Text, typename Json>
  void add(const char* key, Text&& text, Json&& json) {
    try {
      if (json_)
        document_[key] = json();
      else
        fmt::print("{}\n", text());
    } catch (const shoal::Error& error) {
      fail(key, error.what());
    }
  }
  /// The section is to_text or to_json of collect().
  template <typename Collect>
  void add(const char* key, Collect&& collect) {
    add(key, [&] { return to_text(collect()); }, [&] { return to_json(collect()); });
  }
  void fail(const char* key, const std::string& message) {
    failed_ = true;
    fmt::print(stderr, "{}\n", message);
    if (json_) document_[key] = {{"error", message}};
  }
  void fault() { failed_ = true; }

  /// Prints the JSON document if there is one. Returns the program's exit status.
  int finish() {
    if (json_) fmt::print("{}\n", document_.dump(2));
    return failed_ ? EXIT_FAILURE : EXIT_SUCCESS;
  }

 private:
  bool json_, failed_ = false;
  nlohmann::json document_ = {{"shoal", kVersion}};
};

/// True if standard output is a terminal with colours. NO_COLOR is a convention of many programs.
bool wants_colour() {
  const char* const none = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (none == nullptr || *none == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

/// Replaces a regular file as a whole, because a browser may be reading it.
void write_file(const std::string& file, const std::string& text, std::string_view option) {
  if (file.empty()) return;
  const bool replaces = !std::filesystem::exists(file) || std::filesystem::is_regular_file(file);
  const std::string written = replaces ? file + ".part" : file;
  // In a folder where all users may create files, another one may have put a link at this name.
  if (const int part = replaces ? shoal::create_file(written.c_str(), 0666) : -1; part >= 0)
    close(part);
  std::ofstream stream(written);
  stream << text;
  stream.close();
  if (!stream || (replaces && std::rename(written.c_str(), file.c_str()) != 0))
    throw shoal::Error(shoal::Code::invalid_argument,
                       fmt::format("cannot write {}: choose another file for {}", file, option));
}
void write_svg(const std::string& file, const std::string& svg) {
  write_file(file, svg, "--svg");
}

void add_world(const Options& options, const WorldView& view, Output& output) {
  if (options.connectivity)
    output.add(
        "connectivity", [&] { return connectivity_text(view); },
        [&] { return connectivity_json(view); });
  if (options.nics)
    output.add("nics", [&] { return nics_text(view); }, [&] { return nics_json(view); });
  if (options.timeline) {
    const auto draw = [&] {
      if (!options.topology) write_svg(options.svg, timeline_svg(view));
    };
    output.add(
        "init_timeline",
        [&] {
          draw();
          return timeline_text(view);
        },
        [&] {
          draw();
          return timeline_json(view);
        });
  }
}

void add_machine(const Options& options, Output& output) {
  if (options.build)
    output.add("build", [] { return collect_build(shoal::Settings::from_environment()); });
  if (options.settings) output.add("settings", collect_settings);
  if (options.gpus) output.add("gpus", collect_gpus);
  if (options.topology)
    output.add("topology", [&] {
      Topology topology = collect_topology(options.machine, options.pes);
      write_svg(options.svg, to_svg(topology));
      return topology;
    });
}

void add_doctor(const Options& options, Output& output) {
  const auto findings = [&] {
    Subject subject = collect_subject(options.root, options.pes);
    if (!options.ep.empty()) subject.group = ep_shape_from(options.ep);
    std::vector<Finding> found = examine(subject);
    if (has_fault(found)) output.fault();
    return found;
  };
  output.add(
      "doctor", [&] { return to_text(findings(), wants_colour()); },
      [&] { return to_json(findings()); });
}

void print_json(const std::vector<shoal::observe::PeRecord>& records) {
  for (const auto& pe : records) fmt::print("{}\n", shoal::observe::to_json(pe));
}

void write_html(const std::string& file, const LivePage& page) {
  if (!file.empty()) write_file(file, live_html(page), "--html");
}

/// --live: reads the records of this host's processes, twice per report for the rates.
int show_live(const Options& options) {
  auto before = shoal::observe::read_host();
  if (before.empty()) {
    fmt::print(stderr, "no running job of this user has records (other users' jobs need root)\n");
    return EXIT_FAILURE;
  }
  if (options.json) {
    print_json(before);
    return EXIT_SUCCESS;
  }
  for (std::int32_t report = 0; options.repeat == 0 || report < options.repeat; ++report) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
    auto now = shoal::observe::read_host();
    const std::string who_waits = shoal::observe::who_waits(now);
    fmt::print("{}\n{}\n", activity_text(now, before), who_waits);
    const auto waits = wait_matrices(now, {});
    for (const RankMatrix& matrix : waits) fmt::print("{}\n", heat_map_text(matrix));
    const auto network = network_matrices(now, before);
    for (const RankMatrix& matrix : network) fmt::print("{}\n", network_text(matrix));
    const auto loads = expert_loads(now, {});
    for (const ExpertLoads& of_group : loads) fmt::print("{}\n", expert_loads_text(of_group));
    const std::string picture = live_svg(waits, loads, network);
    write_svg(options.svg, picture);
    const bool repeats = options.repeat == 0 || report + 1 < options.repeat;
    write_html(options.html, {.title = "Running jobs",
                              .reload_seconds = repeats ? std::max(1.0, options.interval) : 0,
                              .activity = activity_rows(now, before),
                              .who_waits = who_waits,
                              .svg = picture});
    std::fflush(stdout);
    before = std::move(now);
  }
  return EXIT_SUCCESS;
}

/// --memory and --locate.
int show_memory(const Options& options) {
  const auto maps = shoal::observe::read_host_memory();
  if (maps.empty()) {
    fmt::print(stderr, "no running job of this user has records (other users' jobs need root)\n");
    return EXIT_FAILURE;
  }
  if (options.memory)
    for (const auto& map : maps)
      fmt::print("{}\n",
                 options.json ? shoal::observe::to_json(map) : shoal::observe::to_text(map));
  if (options.place.empty()) return EXIT_SUCCESS;
  const Place place = place_from(options.place);
  const auto found = place.is_offset ? shoal::observe::locate_offset(maps, place.value)
                                     : shoal::observe::locate_address(maps, place.value);
  for (const std::string& text : found) fmt::print("{}\n", text);
  if (found.empty())
    fmt::print("{} lies in no heap and no group of a running job\n", options.place);
  return found.empty() ? EXIT_FAILURE : EXIT_SUCCESS;
}

/// --explain: cause and cure of a message.
int explain(const Options& options) {
  const shoal::messages::Message& message = shoal::messages::explain(options.message);
  const std::string id = fmt::format("{}{}", shoal::Error::kIdPrefix, message.number);
  if (options.json) {
    const nlohmann::json document = {{"id", id}, {"cause", message.cause}, {"cure", message.cure}};
    fmt::print("{}\n", document.dump(2));
  } else {
    fmt::print("{}\nCause: {}\nCure:  {}\n", id, message.cause, message.cure);
  }
  return EXIT_SUCCESS;
}

int show_flight(const Options& options) {
  const auto records = shoal::observe::read_files(options.flight);
  if (options.json) {
    print_json(records);
    return EXIT_SUCCESS;
  }
  std::string who_waits = shoal::observe::who_waits(records);
  for (const auto& pe : records)
    for (const auto& group : pe.groups)
      if (!group.failure.empty())
        who_waits += fmt::format("PE {}, group {}: {}\n", pe.pe, group.number, group.failure);
  for (const auto& pe : records)
    if (!pe.failure.empty()) who_waits += fmt::format("PE {}: {}\n", pe.pe, pe.failure);
  fmt::print("{}", who_waits);
  const auto matrices = wait_matrices(records, {});
  for (const RankMatrix& matrix : matrices) fmt::print("\n{}", heat_map_text(matrix));
  const auto loads = expert_loads(records, {});
  for (const ExpertLoads& of_group : loads) fmt::print("\n{}", expert_loads_text(of_group));
  const std::string picture = live_svg(matrices, loads);
  write_svg(options.svg, picture);
  write_html(options.html, {.title = fmt::format("Flight records in {}", options.flight),
                            .who_waits = who_waits,
                            .svg = picture});
  return EXIT_SUCCESS;
}

int run(Options options) {
  if (options.live) return show_live(options);
  if (!options.message.empty()) return explain(options);
  if (!options.flight.empty()) return show_flight(options);
  if (options.memory || !options.place.empty()) return show_memory(options);
  Output output(options.json);
  if (options.all)
    options.build = options.settings = options.gpus = options.topology = options.connectivity =
        options.nics = options.timeline = true;
  const bool of_world = options.connectivity || options.nics || options.timeline;
  const bool nothing = !options.settings && !options.topology && !of_world && !options.doctor;
  if (nothing && !options.build && !options.gpus) options.build = options.gpus = true;

  // All PEs of a world open it and collect the same results; one of them prints.
  std::optional<WorldView> view;
  if (of_world) {
    try {
      view = collect_world(options.nics);
      if (view->my_pe != 0) return EXIT_SUCCESS;
    } catch (const shoal::Error& error) {
      output.fail("world", error.what());
      if (shoal::Settings::from_environment().pe > 0) return EXIT_FAILURE;
    }
  }
  if (!options.json) fmt::print("Shoal {}\n\n", kVersion);
  add_machine(options, output);
  if (view) add_world(options, *view, output);
  if (options.doctor) add_doctor(options, output);
  return output.finish();
}

}  // namespace

int main(int argc, char** argv) try {
  const shoal::FileSizeSignalBlocked guard;  // a file beyond `ulimit -f` is an error with a message
  Options options;
  CLI::App app{
      "Shows this build of Shoal, this machine, the transports between PEs, and faults of the system.\n"
      "Without options: build and GPUs. Start it under a launcher for --connectivity and --init-timeline of several "
      "PEs:\n  shoal-run -n 4 --no-label shoal-info --connectivity",
      "shoal-info"};
  app.add_flag("-a,--all", options.all, "All of the following, without --doctor");
  app.add_flag("-b,--build", options.build, "Version, compiler, CUDA, modules and plug-ins");
  app.add_flag("-e,-d,--settings", options.settings,
               "Every setting with its value, origin and meaning");
  app.add_flag("--gpus", options.gpus, "GPUs, their capabilities and peer access");
  app.add_flag("--topology", options.topology,
               "GPUs, NICs, distances, a tree, and the NICs of every PE");
  app.add_flag("--connectivity", options.connectivity,
               "The transport of every pair of PEs, and why no other");
  app.add_flag("--nics", options.nics,
               "RDMA NICs with their limits, and the queue pairs of a world with their states");
  app.add_flag("--init-timeline", options.timeline,
               "The phases of the start of a world, with times");
  app.add_flag("--doctor", options.doctor,
               "Faults of this system and their remedies; exit status 1 for a fault");
  app.add_flag("--json", options.json, "One JSON document instead of text");
  app.add_option("--machine", options.machine,
                 "With --topology: a described machine (hwloc's XML) instead of this one");
  app.add_option(
      "--root", options.root,
      "With --doctor: a folder that describes a system (proc, sys, etc, machine.xml) instead of this one");
  app.add_option(
      "--ep", options.ep,
      "With --doctor: TOKENS,HIDDEN,TOPK,EXPERTS,RANKS of an expert-parallel group, whose queue depth, heap and memory "
      "are checked; without it 128,7168,8,256 on two hosts like this one");
  app.add_option(
         "--pes", options.pes,
         "PEs of all jobs on this host together, for --topology without GPUs and for --doctor (SHOAL_LOCAL_SIZE)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option(
      "--svg", options.svg,
      "With --topology, --init-timeline, --live or --flight: write the picture as SVG to this file");
  app.add_option("--html", options.html,
                 "With --live or --flight: write the report as a page for a browser to this file, "
                 "which reads it again while reports repeat");
  auto* const live = app.add_flag(
      "--live", options.live,
      "What the PEs of this user's running jobs on this host do, who waits for whom, and waits and network rates between ranks");
  app.add_option("--interval", options.interval, "With --live: seconds between two readings")
      ->check(shoal::tools::between(0.01, 86400.0))
      ->needs(live);
  app.add_option("--repeat", options.repeat, "With --live: number of reports; 0: without end")
      ->check(CLI::Range(0, 1'000'000'000))
      ->needs(live);
  app.add_option(
         "--flight", options.flight,
         "Compares the flight records in this folder (SHOAL_FLIGHT_DIR): which rank is behind, and in which phase")
      ->excludes(live);
  app.add_flag("--memory", options.memory,
               "What lies where in the heaps and groups of this user's running jobs on this host")
      ->excludes(live);
  app.add_option(
         "--locate", options.place,
         "What lies at an address of a running job (0x7f3a5c012340), or at an offset of its "
         "heaps (+1052672)")
      ->excludes(live);
  app.add_option("--explain", options.message,
                 "Cause and cure of a message, by the id at its start: SHOAL-N114 or N114")
      ->excludes(live);
  app.add_flag("--settings-page", options.page, "Print the page docs/reference/settings.md");
  app.set_version_flag("-n,--version", kVersion);
  shoal::tools::finish(app);
  app.callback([&] {
    const auto need = [](bool asked, bool given, const char* what) {
      if (given && !asked) throw CLI::ValidationError(what);
    };
    need(options.topology || options.all, !options.machine.empty(), "--machine needs --topology");
    need(options.doctor, !options.root.empty(), "--root needs --doctor");
    need(options.doctor, !options.ep.empty(), "--ep needs --doctor");
    need(options.topology || options.doctor || options.all, options.pes > 0,
         "--pes needs --topology or --doctor");
    need(options.topology || options.timeline || options.live || !options.flight.empty(),
         !options.svg.empty(), "--svg needs --topology, --init-timeline, --live or --flight");
    need(options.live || !options.flight.empty(), !options.html.empty(),
         "--html needs --live or --flight");
    need(!(options.topology && options.timeline), !options.svg.empty(),
         "--svg draws one picture: --topology or --init-timeline, not both");
  });
  CLI11_PARSE(app, argc, argv);
  if (options.page) {
    fmt::print("{}", settings_page());
    return EXIT_SUCCESS;
  }
  return run(std::move(options));
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return EXIT_FAILURE;
}
