// SPDX-License-Identifier: Apache-2.0
// World::open as a table of named, timed phases. Each phase calls the part of the world that it
// fills in: Placement, Memory, Fabric, Teams, Health.
#include "startup/open.hpp"

#include <cstring>
#include <exception>
#include <set>
#include <utility>

#include "base/check.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "device/device_side.hpp"
#include "fabric/fabric.hpp"
#include "memory/process_id.hpp"
#include "pe/agreement.hpp"
#include "pe/forks.hpp"
#include "pe/health.hpp"
#include "pe/memory.hpp"
#include "pe/wait_order.hpp"
#include "record/files.hpp"
#include "startup/phases.hpp"
#include "startup/summary.hpp"
#include "team/teams.hpp"
#include "topology/cores.hpp"

namespace shoal::detail {

/// World::open on one PE.
class Opening {
 public:
  explicit Opening(WorldOptions options)
      : state_(std::make_shared<WorldState>()),
        settings_(state_->settings_),
        placement_(state_->placement_),
        memory_(*state_->memory_),
        fabric_(*state_->fabric_),
        runner_(state_->bootstrap_, state_->phases_) {
    settings_ = std::move(options.settings);
    state_->bootstrap_ = std::move(options.bootstrap);
  }

  std::shared_ptr<WorldState> run();

 private:
  using Blobs = PhaseRunner::Blobs;
  enum class When {
    always,   ///< once, in every world
    cuda,     ///< once, where the heap is in GPU memory
    network,  ///< once per network that some pair of PEs wants
  };
  struct Phase {
    const char* name;
    void (Opening::*prepare)(BlobWriter& mine);
    void (Opening::*use)(const Blobs& all);  ///< nullptr: no all-gather yet
    When when = When::always;
  };
  static const Phase kPhases[];

  void run(const Phase& phase);

  void check_settings(BlobWriter&);
  void connect_bootstrap(BlobWriter& mine);
  void compare_settings(const Blobs& all);
  void identify(BlobWriter& mine);
  void place(const Blobs& all);
  void open_device(BlobWriter& mine);
  void set_devices(const Blobs& all);
  void create_heap(BlobWriter& mine);
  void connect_heap(const Blobs& all);
  void start_transports(BlobWriter& mine);
  void connect_transports(const Blobs& all);
  void describe_connections(BlobWriter& mine);
  void choose_connections(const Blobs& all);
  void choose_nics(BlobWriter& mine);
  void check_nics(const Blobs& all);
  void start_network(BlobWriter& mine);
  void open_network(const Blobs& all);
  void connect_network(const Blobs&);
  void make_teams(BlobWriter&);
  void nothing(BlobWriter&) {}
  void nothing(const Blobs&) {}

  transport::Context transport_context() const;
  std::function<void()> abort_check() const;
  template <typename Connect>
  void connect_or_abort(const char* phase, Connect&& connect);

  std::shared_ptr<WorldState> state_;
  Settings& settings_;
  Placement& placement_;
  Memory& memory_;
  Fabric& fabric_;
  PhaseRunner runner_;
};

const Opening::Phase Opening::kPhases[] = {
    {"settings", &Opening::check_settings, nullptr},
    {"bootstrap", &Opening::connect_bootstrap, &Opening::compare_settings},
    {"identity", &Opening::identify, &Opening::place},
    {"device", &Opening::open_device, &Opening::set_devices, When::cuda},
    {"heap", &Opening::create_heap, &Opening::connect_heap},
    {"transports", &Opening::start_transports, &Opening::connect_transports},
    {"connectivity", &Opening::describe_connections, &Opening::choose_connections},
    {"NIC choice", &Opening::choose_nics, &Opening::check_nics, When::network},
    {"network", &Opening::start_network, &Opening::open_network, When::network},
    {"network links", &Opening::nothing, &Opening::connect_network, When::network},
    {"network map", &Opening::describe_connections, &Opening::choose_connections, When::network},
    {"teams", &Opening::make_teams, &Opening::nothing},
    {"final barrier", &Opening::nothing, &Opening::nothing},
};

std::shared_ptr<WorldState> Opening::run() {
  for (const Phase& phase : kPhases) {
    if (phase.when == When::network) continue;
    if (phase.when == When::cuda && !settings_.heap_on_gpu()) continue;
    run(phase);
    if (phase.prepare != &Opening::describe_connections) continue;
    while (!fabric_.network().empty())
      for (const Phase& step : kPhases)
        if (step.when == When::network) run(step);
  }
  state_->open_ = true;
  close_in_children(state_, state_->open_, placement_.my_pe);
  log_summary(placement_, memory_, fabric_, settings_);
  return std::move(state_);
}

void Opening::run(const Phase& phase) {
  // The bootstrap is connected even after a failure: it tells the other PEs.
  const bool always = phase.prepare == &Opening::connect_bootstrap;
  runner_.run(
      phase.name, always, phase.use != nullptr,
      [&](BlobWriter& mine) { (this->*phase.prepare)(mine); },
      [&](const Blobs& all) { (this->*phase.use)(all); });
  log::debug("PE {} of {}: phase {} took {} us", placement_.my_pe, placement_.n_pes, phase.name,
             std::chrono::duration_cast<std::chrono::microseconds>(state_->phases_.back().duration)
                 .count());
}

void Opening::check_settings(BlobWriter&) {
  settings_.validate();
  log::configure(settings_);
}

void Opening::connect_bootstrap(BlobWriter& mine) {
  std::shared_ptr<Bootstrap>& bootstrap = state_->bootstrap_;
  if (bootstrap == nullptr) bootstrap = make_bootstrap(settings_);
  placement_.my_pe = bootstrap->pe();
  placement_.n_pes = bootstrap->n_pes();
  placement_.token = memory::make_token();
  memory_.plan(placement_, settings_);
  mine.value(placement_.token);
  mine.value(kProtocolVersion);
  for (const SharedField& field : shared_fields(settings_, memory_.layout()))
    mine.text(field.value);
}

void Opening::compare_settings(const Blobs& all) {
  std::vector<std::vector<std::string>> values;
  for (std::size_t pe = 0; pe < all.size(); ++pe) {
    BlobReader reader(all[pe]);
    const auto token = reader.value<memory::Token>();
    if (pe == 0) placement_.token = token;
    const auto version = reader.value<std::uint64_t>();
    std::vector<std::string>& of_pe = values.emplace_back(1, std::to_string(version));
    if (version != kProtocolVersion) continue;  // the rest may have another format
    of_pe.clear();
    while (!reader.at_end()) of_pe.push_back(reader.text());
  }
  check_shared(shared_fields(settings_, memory_.layout()), values);
}

void Opening::identify(BlobWriter& mine) {
  const topology::HostIdentity host = topology::read_host_identity(settings_.host_id);
  mine.text(host.id);
  mine.text(host.name);
  mine.text(host.network);
  mine.bytes(topology::allowed_cores());
  mine.value(memory::this_process());
}

void Opening::place(const Blobs& all) {
  std::vector<topology::HostIdentity> hosts;
  std::vector<std::vector<std::byte>> cores;
  std::vector<memory::ProcessId> processes;
  for (const auto& blob : all) {
    BlobReader reader(blob);
    topology::HostIdentity& host = hosts.emplace_back();
    host.id = reader.text();
    host.name = reader.text();
    host.network = reader.text();
    cores.push_back(reader.bytes());
    processes.push_back(reader.value<memory::ProcessId>());
  }
  static_cast<topology::HostMap&>(placement_) = topology::place(hosts, settings_.node_size);
  std::set<std::pair<memory::Token, std::int64_t>> here;
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    const auto i = static_cast<std::size_t>(pe);
    if (placement_.same_host(pe))
      here.emplace(processes[i].token, processes[i].pid);
    else
      cores[i].clear();
  }
  placement_.cores_on_host = topology::count_cores(cores);
  placement_.processes_on_host = static_cast<std::int32_t>(here.size());
}

void Opening::open_device(BlobWriter& mine) {
  mine.value(memory_.open_device(placement_, settings_));
}

void Opening::set_devices(const Blobs& all) {
  std::vector<memory::DeviceDescription> devices;
  for (const auto& blob : all)
    devices.push_back(BlobReader(blob).value<memory::DeviceDescription>());
  memory_.set_devices(std::move(devices));
}

void Opening::create_heap(BlobWriter& mine) {
  mine.bytes(memory_.create_heap(placement_, settings_));
}

void Opening::connect_heap(const Blobs& all) {
  if (!memory_.heap_on_gpu()) return;
  Blobs created;
  for (const auto& blob : all) created.push_back(BlobReader(blob).bytes());
  connect_or_abort("heap", [&] {
    memory_.connect_heap(
        created, {placement_.token, placement_.my_pe, settings_.bootstrap_timeout, abort_check()});
  });
}

std::function<void()> Opening::abort_check() const {
  return [bootstrap = state_->bootstrap_.get()] {
    if (const auto reason = bootstrap->aborted()) fail(Code::peer_failed, "{}", *reason);
    throw_if_interrupted("World::open");
  };
}

/// Runs `connect`, in which the PEs wait for each other. A PE that fails aborts the bootstrap: the
/// other PEs have no all-gather there to learn of the failure.
template <typename Connect>
void Opening::connect_or_abort(const char* phase, Connect&& connect) {
  try {
    connect();
  } catch (const std::exception& error) {
    state_->bootstrap_->abort(fmt::format("failed in phase {}: {}", phase, reason_of(error)));
    throw;
  }
}

transport::Context Opening::transport_context() const {
  transport::Context context;
  context.my_pe = placement_.my_pe;
  context.n_pes = placement_.n_pes;
  context.host_of = placement_.host_of;
  context.node_of = placement_.node_of;
  context.network_of = placement_.network_of;
  context.crowded = placement_.pes_on_host() > placement_.cores_on_host;
  context.settings = &settings_;
  context.segment = memory_.segment();
  context.device_heap = memory_.device_heap();
  context.world = placement_.token;
  context.timeout = settings_.bootstrap_timeout;
  context.check = abort_check();
  context.failure = [state = state_.get()](Pe pe) {
    // While a world starts, the PEs that end do so through the bootstrap.
    if (!state->open_) return state->bootstrap_->aborted().value_or("");
    return state->health_.has_failed(pe) ? state->health_.failure().value_or("") : std::string();
  };
  context.alternatives = [fabric = &fabric_](Pe pe) { return fabric->other_transports(pe); };
  context.host_route = [fabric = &fabric_](Pe pe) -> transport::Transport& {
    return fabric->route(pe);
  };
  context.wait_point = memory_.layout().wait_point();
  context.staging = memory_.transport_staging();
  return context;
}

void Opening::start_transports(BlobWriter& mine) {
  fabric_.start_transports(transport_context(), mine);
}

void Opening::connect_transports(const Blobs& all) {
  connect_or_abort("transports", [&] { fabric_.connect_transports(all); });
}

void Opening::describe_connections(BlobWriter& mine) {
  fabric_.describe_connections(settings_, mine);
}
void Opening::choose_connections(const Blobs& all) {
  fabric_.choose_connections(settings_, all);
}
void Opening::choose_nics(BlobWriter& mine) {
  fabric_.choose_nics(settings_, mine);
}
void Opening::check_nics(const Blobs& all) {
  fabric_.check_nics(all);
}
void Opening::start_network(BlobWriter& mine) {
  fabric_.start_network(transport_context(), mine);
}
void Opening::open_network(const Blobs& all) {
  fabric_.open_network(all);
}
void Opening::connect_network(const Blobs&) {
  // With the half that connecting may take, a PE stays in time for the next all-gather.
  fabric_.connect_network(settings_.bootstrap_timeout / 4);
}

namespace {

/// Names the world to readers of its records, without showing the token.
std::uint64_t number_of(const memory::Token& token) {
  std::uint64_t words[2];
  static_assert(sizeof words == sizeof token);
  std::memcpy(words, token.data(), sizeof words);
  return mixed(mixed(words[0]) ^ words[1]);
}

/// The heap as this PE sees it; its allocations are added while the world runs.
record::MapRecorder map_of_heap(std::uint64_t world, const Placement& placement,
                                const Memory& memory, const Fabric& fabric) {
  constexpr std::size_t kMostAllocations = 1024;
  observe::MemoryMap map;
  map.world = world;
  map.pe = placement.my_pe;
  map.memory = "heap";
  map.bytes = memory.heap_size();
  const auto& bases = fabric.peer_bases();
  for (Pe pe = 0; pe < placement.n_pes; ++pe) {
    map.pes.push_back(pe);
    map.addresses.push_back(reinterpret_cast<std::uintptr_t>(bases[static_cast<std::size_t>(pe)]));
  }
  return {map, kMostAllocations};
}

}  // namespace

void Opening::make_teams(BlobWriter&) {
  state_->teams_->create_predefined(*state_, placement_,
                                    load_store_peers(fabric_.heap_map(), placement_.my_pe),
                                    settings_.max_teams);
  state_->recorder_ = record::PeRecorder(settings_, number_of(placement_.token), placement_.my_pe,
                                         placement_.n_pes, topology::read_host_identity("").name);
  memory_.map() = map_of_heap(state_->recorder_.world(), placement_, memory_, fabric_);
  record::watch_signal(settings_);
  state_->health_.start(state_->bootstrap_);
  Waits::Surroundings around;
  around.times = wait_times(settings_.spin, placement_.pes_on_host(), placement_.processes_on_host,
                            placement_.cores_on_host);
  around.networked = fabric_.uses_network();
  around.polls_per_yield = fabric_.polls_per_yield();
  around.wait_points = fabric_.wait_points();
  if (around.networked && std::ranges::count(around.wait_points, nullptr) + 1 == placement_.n_pes)
    around.times.polls = 0;  // all that is waited for comes over networks
  state_->waits_.configure(std::move(around));
  if (memory_.heap_on_gpu())
    state_->device_side_ = make_device_side({settings_, placement_, memory_, fabric_});
}

std::shared_ptr<WorldState> open_world(WorldOptions options) {
  return Opening(std::move(options)).run();
}

}  // namespace shoal::detail
