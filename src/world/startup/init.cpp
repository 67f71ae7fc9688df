// SPDX-License-Identifier: Apache-2.0
// World::open as a table of named, timed phases (requirement D9).
//
// Each phase has a local half that prepares this PE's contribution, an all-gather, and a half that
// uses everybody's. The all-gather also carries failures: when either half of a phase fails on some
// PE, the next all-gather tells all of them, and all of them throw.
#include "world/startup/init.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/align.hpp"
#include "base/check.hpp"
#include "base/log.hpp"
#include "topology/nic_plan.hpp"
#include "world/device_side.hpp"
#include "world/parts.hpp"
#include "world/startup/agreement.hpp"
#include "world/startup/blob.hpp"
#include "world/teams/team.hpp"

namespace shoal::detail {

/// World::open on one PE.
class Opening {
 public:
  explicit Opening(WorldOptions options)
      : state_(std::make_shared<WorldState>()), parts_(state_->parts()) {
    parts_.settings = std::move(options.settings);
    parts_.bootstrap = std::move(options.bootstrap);
  }

  std::shared_ptr<WorldState> run();

 private:
  using Blobs = std::vector<std::vector<std::byte>>;
  struct Phase {
    const char* name;
    void (Opening::*prepare)(BlobWriter& mine);
    void (Opening::*use)(const Blobs& all);  ///< nullptr: nothing is gathered yet
    bool cuda_only = false;                  ///< left out where the heap is on the host
    bool network_only = false;               ///< left out where no pair needs a network transport
  };
  struct Failure {
    const char* phase;
    Code code;
    std::string message;
  };
  static const Phase kPhases[];

  void run(const Phase& phase);
  template <typename Step>
  void attempt(const char* phase, Step&& step);
  Blobs gather(const char* phase, std::vector<std::byte> mine);
  [[noreturn]] void throw_agreed(const std::vector<std::pair<Pe, Failure>>& failures) const;

  void check_settings(BlobWriter&);
  void connect_bootstrap(BlobWriter& mine);
  void compare_settings(const Blobs& all);
  void identify(BlobWriter& mine);
  void place(const Blobs& all);
  void open_device(BlobWriter& mine);
  void know_devices(const Blobs& all);
  void create_heap(BlobWriter& mine);
  void connect_heap(const Blobs& all);
  void start_transports(BlobWriter& mine);
  void connect_transports(const Blobs& all);
  void map_connections(BlobWriter& mine);
  void choose_connections(const Blobs& all);
  void choose_nics(BlobWriter& mine);
  void check_nics(const Blobs& all);
  void start_network(BlobWriter& mine);
  void connect_network(const Blobs& all);
  void use_connections();
  std::byte* peer_heap(Pe pe) const;
  transport::Context transport_context() const;
  memory::FdExchange fd_exchange() const;
  std::function<void()> abort_check() const;
  void make_teams(BlobWriter&);
  void nothing(BlobWriter&) {}
  void nothing(const Blobs&) {}

  std::shared_ptr<WorldState> state_;
  WorldParts& parts_;
  std::optional<Failure> failure_;  // of this PE; reported by the next all-gather
  std::string network_;  // the network transport to try next; the same on all PEs, empty: none
};

const Opening::Phase Opening::kPhases[] = {
    {"settings", &Opening::check_settings, nullptr},
    {"bootstrap", &Opening::connect_bootstrap, &Opening::compare_settings},
    {"identity", &Opening::identify, &Opening::place},
    {"device", &Opening::open_device, &Opening::know_devices, true},
    {"heap", &Opening::create_heap, &Opening::connect_heap},
    {"transports", &Opening::start_transports, &Opening::connect_transports},
    {"connectivity", &Opening::map_connections, &Opening::choose_connections},
    {"NIC choice", &Opening::choose_nics, &Opening::check_nics, false, true},
    {"network", &Opening::start_network, &Opening::connect_network, false, true},
    {"network map", &Opening::map_connections, &Opening::choose_connections, false, true},
    {"teams", &Opening::make_teams, &Opening::nothing},
    {"final barrier", &Opening::nothing, &Opening::nothing},
};

std::shared_ptr<WorldState> Opening::run() {
  for (const Phase& phase : kPhases) {
    if (phase.cuda_only && parts_.settings.heap != "cuda") continue;
    if (phase.network_only) continue;
    run(phase);
    // As long as some pair wants a network that has not been tried, another round with the next
    // one.
    if (phase.prepare == &Opening::map_connections)
      while (!network_.empty())
        for (const Phase& step : kPhases)
          if (step.network_only) run(step);
  }
  parts_.open = true;
  return std::move(state_);
}

void Opening::run(const Phase& phase) {
  const auto start = Clock::now();
  BlobWriter mine;
  const bool connecting = phase.prepare == &Opening::connect_bootstrap;
  if (!failure_ || connecting) attempt(phase.name, [&] { (this->*phase.prepare)(mine); });
  if (connecting && parts_.bootstrap == nullptr)
    fail(failure_->code, "this PE failed in phase {}: {}", failure_->phase, failure_->message);
  std::chrono::nanoseconds waited{};
  if (phase.use != nullptr) {
    const auto asked = Clock::now();
    const Blobs all = gather(phase.name, mine.take());
    waited = Clock::now() - asked;
    attempt(phase.name, [&] { (this->*phase.use)(all); });
  }
  parts_.phases.push_back({phase.name, Clock::now() - start, waited});
  log::debug(
      "PE {} of {}: phase {} took {} us", parts_.my_pe, parts_.n_pes, phase.name,
      std::chrono::duration_cast<std::chrono::microseconds>(parts_.phases.back().duration).count());
}

/// Runs one half of a phase; what it throws is kept for the next all-gather. Only the first failure
/// counts.
template <typename Step>
void Opening::attempt(const char* phase, Step&& step) {
  std::optional<Failure> caught;
  try {
    step();
  } catch (const Error& error) {
    caught = Failure{phase, error.code(), reason_of(error)};
  } catch (const std::exception& error) {
    caught = Failure{phase, Code::system, error.what()};
  }
  if (caught && !failure_) failure_ = std::move(caught);
}

Opening::Blobs Opening::gather(const char* phase, std::vector<std::byte> mine) {
  BlobWriter blob;
  blob.value<std::uint8_t>(failure_.has_value());
  if (failure_) {
    blob.value(failure_->code);
    blob.text(failure_->phase);
    blob.text(failure_->message);
  } else {
    blob.bytes(mine);
  }
  Blobs gathered;
  try {
    gathered = parts_.bootstrap->all_gather(blob.take(), phase);
  } catch (const std::exception& error) {
    // A bootstrap that fails here alone must say so to the others; where it has failed for all,
    // nobody listens.
    parts_.bootstrap->abort(fmt::format("failed in phase {}: {}", phase, reason_of(error)));
    if (failure_)
      fail(failure_->code, "PE {} failed in phase {}: {}", parts_.my_pe, failure_->phase,
           failure_->message);
    throw;
  }

  Blobs all;
  std::vector<std::string> phases;  // keeps the names that failures point to
  phases.reserve(gathered.size());
  std::vector<std::pair<Pe, Failure>> failures;
  for (std::size_t pe = 0; pe < gathered.size(); ++pe) {
    BlobReader reader(gathered[pe]);
    if (reader.value<std::uint8_t>() == 0) {
      all.push_back(reader.bytes());
      continue;
    }
    const auto code = reader.value<Code>();
    phases.push_back(reader.text());
    failures.emplace_back(static_cast<Pe>(pe), Failure{phases.back().c_str(), code, reader.text()});
  }
  if (!failures.empty()) throw_agreed(failures);
  return all;
}

void Opening::throw_agreed(const std::vector<std::pair<Pe, Failure>>& failures) const {
  const auto& [pe, first] = failures.front();
  // What all PEs found alike, such as a disagreement between them, is nobody's fault in particular.
  const auto same = [&](const auto& other) { return other.second.message == first.message; };
  const bool by_all = static_cast<Pe>(failures.size()) == parts_.n_pes &&
                      std::all_of(failures.begin(), failures.end(), same);
  const Code code = failure_ ? failure_->code : Code::peer_failed;
  if (by_all && parts_.n_pes > 1)
    fail(code, "all PEs failed in phase {}: {}", first.phase, first.message);
  fail(code, "PE {} failed in phase {}: {}", pe, first.phase, first.message);
}

void Opening::check_settings(BlobWriter&) {
  parts_.settings.validate();
  log::configure(parts_.settings);
}

void Opening::connect_bootstrap(BlobWriter& mine) {
  if (parts_.bootstrap == nullptr) parts_.bootstrap = make_bootstrap(parts_.settings);
  parts_.my_pe = parts_.bootstrap->pe();
  parts_.n_pes = parts_.bootstrap->n_pes();
  parts_.layout = ControlLayout(parts_.n_pes, parts_.settings.max_teams);
  parts_.token = memory::make_token();
  mine.value(parts_.token);
  mine.value(kProtocolVersion);
  for (const SharedField& field : shared_fields(parts_.settings, parts_.layout))
    mine.text(field.value);
}

void Opening::compare_settings(const Blobs& all) {
  std::vector<std::vector<std::string>> values;
  for (std::size_t pe = 0; pe < all.size(); ++pe) {
    BlobReader reader(all[pe]);
    const auto token = reader.value<memory::Token>();
    if (pe == 0) parts_.token = token;
    const auto version = reader.value<std::uint64_t>();
    std::vector<std::string>& of_pe = values.emplace_back(1, std::to_string(version));
    if (version != kProtocolVersion) continue;  // what follows may look different
    of_pe.clear();
    while (!reader.at_end()) of_pe.push_back(reader.text());
  }
  check_shared(shared_fields(parts_.settings, parts_.layout), values);
}

void Opening::identify(BlobWriter& mine) {
  const topology::HostIdentity host = topology::read_host_identity(parts_.settings.host_id);
  mine.text(host.id);
  mine.text(host.name);
}

void Opening::place(const Blobs& all) {
  std::vector<topology::HostIdentity> hosts;
  for (const auto& blob : all) {
    BlobReader reader(blob);
    std::string id = reader.text();
    hosts.push_back({std::move(id), reader.text()});
  }
  parts_.placement = topology::place(hosts, parts_.settings.node_size);
}

void Opening::open_device(BlobWriter& mine) {
  const auto& hosts = parts_.placement.host_of;
  const bool one_host =
      std::all_of(hosts.begin(), hosts.end(), [&](auto host) { return host == hosts.front(); });
  memory::DeviceRequest request;
  request.ordinal = parts_.settings.device;
  request.index = parts_.placement.index_on_host[static_cast<std::size_t>(parts_.my_pe)];
  request.probe_fabric = parts_.settings.cuda_handle == "fabric" ||
                         (parts_.settings.cuda_handle == "automatic" && !one_host);
  request.timeout = parts_.settings.timeout;
  parts_.device = memory::open_device(request);
  mine.value(parts_.device->description());
}

void Opening::know_devices(const Blobs& all) {
  for (const auto& blob : all)
    parts_.devices.push_back(BlobReader(blob).value<memory::DeviceDescription>());
}

void Opening::create_heap(BlobWriter& mine) {
  const bool on_host = parts_.settings.heap != "cuda";
  const std::size_t behind =
      on_host ? heap_bytes(parts_.settings) : align_up(parts_.settings.staging_size, kPageBytes);
  parts_.heap_staging = parts_.layout.bytes() + behind;
  parts_.segment = memory::Segment::create(
      parts_.heap_staging +
      (on_host ? 0 : align_up(transport::heap_staging(parts_.n_pes, parts_.settings), kPageBytes)));
  if (!on_host) {
    memory::DeviceHeapContext context;
    context.device = parts_.device;
    context.my_pe = parts_.my_pe;
    context.devices = parts_.devices;
    context.host_of = parts_.placement.host_of;
    context.handle = memory::choose_handle(parts_.settings.cuda_handle, parts_.devices,
                                           parts_.placement.host_of);
    context.bytes = memory::device_heap_bytes(parts_.settings.symmetric_size, parts_.devices);
    context.world = parts_.token;
    parts_.device_heap = memory::make_device_heap(std::move(context));
    mine.bytes(parts_.device_heap->add(parts_.device_heap->step(1)));
  }
  parts_.allocator = memory::Allocator(parts_.heap_size());
  if (!on_host) parts_.staging = memory::Allocator(behind);
}

void Opening::connect_heap(const Blobs& all) {
  if (!parts_.device_heap) return;
  Blobs additions;
  for (const auto& blob : all) additions.push_back(BlobReader(blob).bytes());
  try {
    parts_.device_heap->connect(additions, fd_exchange());
  } catch (const std::exception& error) {
    // The others may be waiting inside connect for this PE, where no all-gather reaches them.
    parts_.bootstrap->abort(fmt::format("failed in phase heap: {}", reason_of(error)));
    throw;
  }
  parts_.device_heap->commit();
}

std::function<void()> Opening::abort_check() const {
  return [bootstrap = parts_.bootstrap.get()] {
    if (const auto reason = bootstrap->aborted()) fail(Code::peer_failed, "{}", *reason);
  };
}

memory::FdExchange Opening::fd_exchange() const {
  return {parts_.token, parts_.my_pe, parts_.settings.bootstrap_timeout, abort_check()};
}

transport::Context Opening::transport_context() const {
  transport::Context context;
  context.my_pe = parts_.my_pe;
  context.n_pes = parts_.n_pes;
  context.host_of = parts_.placement.host_of;
  context.node_of = parts_.placement.node_of;
  context.settings = &parts_.settings;
  context.segment = parts_.segment;
  context.device_heap = parts_.device_heap;
  context.world = parts_.token;
  context.timeout = parts_.settings.bootstrap_timeout;
  context.check = abort_check();
  context.failure = [state = state_.get()](Pe pe) {
    return state->has_failed(pe) ? state->failure().value_or("") : std::string();
  };
  context.host_route = [parts = &parts_](Pe pe) -> transport::Transport& {
    return parts->route(pe);
  };
  context.staging = parts_.heap_staging;
  return context;
}

void Opening::start_transports(BlobWriter& mine) {
  const transport::Context context = transport_context();
  for (const transport::Factory make : transport::factories()) {
    parts_.transports.push_back(make(context));
    mine.bytes(parts_.transports.back()->address());
  }
  if (!parts_.device_heap) return;
  for (const transport::Factory make : transport::heap_factories()) {
    parts_.heap_transports.push_back(make(context));
    mine.bytes(parts_.heap_transports.back()->address());
  }
}

void Opening::connect_transports(const Blobs& all) {
  std::vector<BlobReader> readers(all.begin(), all.end());
  try {
    for (auto* const transports : {&parts_.transports, &parts_.heap_transports}) {
      for (const auto& transport : *transports) {
        Blobs addresses;
        for (BlobReader& reader : readers) addresses.push_back(reader.bytes());
        transport->connect(addresses);
      }
    }
  } catch (const std::exception& error) {
    // The others may be waiting inside connect for this PE, where no all-gather reaches them.
    parts_.bootstrap->abort(fmt::format("failed in phase transports: {}", reason_of(error)));
    throw;
  }
}

/// This PE's side of the map: what each transport offers to each PE, and why it does not.
void Opening::map_connections(BlobWriter& mine) {
  const auto describe = [&](Connectivity& map, const auto& transports) {
    map.n_pes = static_cast<std::size_t>(parts_.n_pes);
    map.node_of = parts_.placement.node_of;
    map.names.clear();
    map.reasons.clear();
    for (const auto& transport : transports) map.names.emplace_back(transport->name());
    for (Pe pe = 0; pe < parts_.n_pes; ++pe) {
      map.reasons.emplace_back();
      for (const auto& transport : transports)
        map.reasons.back().push_back(transport->reach(pe).reason);
    }
    for (const transport::Capabilities capabilities : connectivity_row(transports, parts_.n_pes))
      mine.value(capabilities);
  };
  describe(parts_.connectivity, parts_.transports);
  describe(parts_.heap_connectivity, parts_.heap_transports);
  read_preferences(parts_.connectivity, parts_.settings, kHostTransports);
  read_preferences(parts_.heap_connectivity, parts_.settings, kHeapTransports);
}

void Opening::choose_connections(const Blobs& all) {
  parts_.connectivity.map.clear();
  parts_.heap_connectivity.map.clear();
  for (const auto& blob : all) {
    BlobReader reader(blob);
    for (auto* const map : {&parts_.connectivity, &parts_.heap_connectivity})
      for (std::size_t i = 0; i < map->names.size() * map->n_pes; ++i)
        map->map.push_back(reader.value<transport::Capabilities>());
  }
  if (!network_.empty()) {
    drop_where_broken(parts_.connectivity, network_);
    const std::string& dropped = parts_.connectivity.dropped.back();
    if (!dropped.empty()) log::info("PE {}: transport {} is {}", parts_.my_pe, network_, dropped);
  }
  network_ = next_network(parts_.connectivity, transport::network_names());
  if (network_.empty()) use_connections();
}

/// The NICs of this PE by the plan of its host, which all jobs on the host share (D14).
void Opening::choose_nics(BlobWriter& mine) {
  if (parts_.nics) return;  // the second network uses the same
  const auto me = static_cast<std::size_t>(parts_.my_pe);
  const auto& host_of = parts_.placement.host_of;
  const Settings& settings = parts_.settings;
  const auto on_host =
      static_cast<std::int32_t>(std::count(host_of.begin(), host_of.end(), host_of[me]));
  const Pe index = parts_.placement.index_on_host[me];
  const topology::Machine machine = topology::read_machine();
  const auto seats = topology::host_seats(
      machine, settings.local_size > 0 ? static_cast<std::int32_t>(settings.local_size) : on_host);
  std::string gpu =
      parts_.device
          ? memory::describe_gpus().gpus.at(static_cast<std::size_t>(parts_.device->device)).pci
          : "";
  if (!gpu.empty() && machine.gpus.empty()) {  // containers may hide the PCI bus
    log::info("PE {}: this machine shows no GPU on its PCI bus: NICs are chosen without GPU {}",
              parts_.my_pe, gpu);
    gpu.clear();
  }
  const std::int32_t seat = topology::seat_of(
      machine, static_cast<std::int32_t>(seats.size()), gpu,
      settings.local_index >= 0 ? static_cast<std::int32_t>(settings.local_index) : index);
  const topology::NicPlan plan =
      topology::plan_nics(machine, seats, topology::nic_binding(settings));
  const std::vector<topology::NicUse>& uses = plan.of_seat[static_cast<std::size_t>(seat)];
  parts_.nics.emplace();
  for (const topology::NicUse& use : uses)
    parts_.nics->push_back(machine.nics[static_cast<std::size_t>(use.nic)].label());
  mine.text(topology::read_host_identity(settings.host_id).name);
  for (const std::vector<std::string>& list :
       {*parts_.nics, topology::networks_of(machine, uses)}) {
    mine.value<std::uint64_t>(list.size());
    for (const std::string& text : list) mine.text(text);
  }
}

/// NICs that cannot reach each other are named here, by rail: a network would only find that nobody
/// answers, in time.
void Opening::check_nics(const Blobs& all) {
  std::vector<topology::RailEnd> ends;
  for (const auto& blob : all) {
    if (blob.empty()) return;  // checked in the round of the first network
    BlobReader reader(blob);
    topology::RailEnd& end = ends.emplace_back();
    end.host = parts_.placement.host_of[ends.size() - 1];
    end.host_name = reader.text();
    for (auto* const list : {&end.nics, &end.networks})
      for (auto left = reader.value<std::uint64_t>(); left > 0; --left)
        list->push_back(reader.text());
  }
  topology::check_rails(topology::rails(parts_.placement), ends);
}

void Opening::start_network(BlobWriter& mine) {
  transport::Context context = transport_context();
  for (Pe pe = 0; pe < parts_.n_pes; ++pe)
    context.wanted.push_back(wants(parts_.connectivity, parts_.my_pe, pe, network_));
  context.nics = parts_.nics.value_or(std::vector<std::string>());
  parts_.transports.push_back(transport::make_network(network_, context));
  mine.bytes(parts_.transports.back()->address());
}

void Opening::connect_network(const Blobs& all) {
  Blobs addresses;
  for (const auto& blob : all) addresses.push_back(BlobReader(blob).bytes());
  try {
    parts_.transports.back()->connect(addresses);
  } catch (const std::exception& error) {
    parts_.transports.back() = transport::make_unavailable(network_, error.what());
  }
}

void Opening::use_connections() {
  choose_transports(parts_.connectivity, parts_.my_pe);
  // A network that was dropped goes: its thread would poll for nobody, and what becomes of its
  // connections is no news.
  for (std::size_t t = 0; t < parts_.connectivity.dropped.size(); ++t)
    if (const std::string& why = parts_.connectivity.dropped[t]; !why.empty())
      parts_.transports[t] = transport::make_unavailable(parts_.connectivity.names[t], why);
  choose_heap_transports(parts_.heap_connectivity, parts_.my_pe);
  for (Pe pe = 0; pe < parts_.n_pes; ++pe) parts_.peer_base.push_back(peer_heap(pe));
  for (std::size_t t = 0; t < parts_.heap_transports.size(); ++t) {
    std::vector<Pe> carried;
    for (Pe pe = 0; pe < parts_.n_pes; ++pe)
      if (parts_.heap_connectivity.transport_of[static_cast<std::size_t>(pe)] == t)
        carried.push_back(pe);
    parts_.heap_transports[t]->carry(carried);
  }
}

/// Start of the heap of `pe` where the pair has load_store, else nullptr.
std::byte* Opening::peer_heap(Pe pe) const {
  if (!parts_.device_heap) {
    std::byte* const base = parts_.route(pe).base(pe);
    return base == nullptr ? nullptr : base + parts_.layout.bytes();
  }
  const auto i = static_cast<std::size_t>(pe);
  if ((parts_.heap_connectivity.capabilities[i] & transport::capability::load_store) == 0)
    return nullptr;
  return parts_.heap_transports[parts_.heap_connectivity.transport_of[i]]->base(pe);
}

void Opening::make_teams(BlobWriter&) {
  make_predefined_teams(*state_);
  parts_.joins_read.resize(static_cast<std::size_t>(parts_.n_pes));
  parts_.health.emplace(parts_.n_pes, parts_.layout, parts_.segment->base(), parts_.transports,
                        parts_.bootstrap);
  state_->spin_ = parts_.settings.spin;
  state_->networked_ = parts_.transports.size() > transport::factories().size();
  if (parts_.device_heap) parts_.device_side = make_device_side(parts_);
}

std::shared_ptr<WorldState> open_world(WorldOptions options) {
  return Opening(std::move(options)).run();
}

}  // namespace shoal::detail
