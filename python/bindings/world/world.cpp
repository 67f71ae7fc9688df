// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "../arguments.hpp"
#include "../check.hpp"
#include "../docs.hpp"
#include "../interrupt.hpp"
#include "../settings.hpp"

namespace shoal::python {
namespace {

void (*release_after_close)() = nullptr;  ///< set by bind_world

/// The Python object of a world. Where an exception unwinds through the object's owner, the world
/// fails with it (shoal/_unwinding.py).
nb::object watched(World world) {
  const nb::object second = nb::cast(world);  // another handle of the same world
  nb::object first = nb::cast(std::move(world));
  nb::module_::import_("shoal._unwinding").attr("watch_world")(first, second);
  return first;
}

nb::object open_world(nb::handle given) {
  const Settings settings = settings_from(given);
  World world;
  {
    nb::gil_scoped_release released;
    world = World::open({settings, nullptr});
  }
  return watched(std::move(world));
}

nb::object open_with_id(const std::string& id, Pe pe, Pe n_pes, nb::handle given) {
  const Settings settings = settings_from(given);
  World world;
  {
    nb::gil_scoped_release released;
    world = World::open({settings, connect_unique_id(UniqueId::parse(id), pe, n_pes, settings)});
  }
  return watched(std::move(world));
}

/// "ValueError: text", as the other PEs report it.
std::string reason_of(nb::handle type, nb::handle value) {
  const auto name = nb::cast<std::string>(type.attr("__name__"));
  const auto text = nb::cast<std::string>(nb::str(value));
  return text.empty() ? name : name + ": " + text;
}

void close_world(World& world) {
  world.close();
  release_after_close();
}

/// World.close. While an exception unwinds, as in `finally`, the other PEs do not come to the
/// barrier: the world fails with the exception instead.
void close_unless_unwinding(nb::object self) {
  const nb::object error = nb::module_::import_("shoal._unwinding").attr("unwinding_through")(self);
  auto& world = nb::cast<World&>(self);
  const std::string reason = error.is_none() ? "" : reason_of(error.type(), error);
  nb::gil_scoped_release released;
  if (reason.empty() || !world.is_open())
    close_world(world);
  else
    world.abort(reason);
}

/// Closes the world, or fails it after an exception, so that no PE waits for this one.
void exit_world(World& world, nb::handle type, nb::handle value, nb::handle /*traceback*/) {
  const bool failed = !type.is_none();
  const std::string reason = failed ? reason_of(type, value) : "";
  nb::gil_scoped_release released;
  if (failed && world.is_open()) return world.abort(reason);
  try {
    close_world(world);
  } catch (const Error& error) {
    // A child that a PE has forked leaves the block, for example by SystemExit.
    if (error.code() != Code::closed) throw;
  }
}

/// The worlds of run_threads, which fail when Ctrl-C interrupts the thread that waits for them.
class Interruptible {
 public:
  /// Adds the world of a thread. Throws Error{system} after an interrupt.
  void add(const World& world) {
    const std::lock_guard lock(mutex_);
    require(!interrupted_, Code::system, "run_threads was interrupted");
    worlds_.push_back(world);
  }

  /// Runs `work` on a thread of its own and returns when it has ended. Throws what it throws.
  template <typename Work>
  void run(const Work& work) {
    std::exception_ptr raised;
    bool ended = false;
    std::condition_variable changed;
    std::thread thread([&] {
      try {
        work();
      } catch (...) {
        raised = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      ended = true;
      changed.notify_all();
    });
    {
      std::unique_lock lock(mutex_);
      while (!changed.wait_for(lock, std::chrono::milliseconds(20), [&] { return ended; })) {
        lock.unlock();  // Python's signal handlers may take long
        const bool now = check_signals();
        lock.lock();
        if (!now) continue;
        interrupted_ = true;
        for (const World& world : worlds_) world.abort("the program was interrupted");
      }
      worlds_.clear();
    }
    thread.join();
    if (raised) std::rethrow_exception(raised);
    require(!interrupted_, Code::system, "run_threads was interrupted");
  }

 private:
  std::mutex mutex_;
  std::vector<World> worlds_;
  bool interrupted_ = false;
};

/// The Python exceptions of the PEs. Keeps the one that caused the others, as run_threads of C++.
class Raised {
 public:
  /// The exception that is being handled. Needs the GIL.
  void add(const nb::python_error& error) {
    const nb::module_ errors = nb::module_::import_("shoal.errors");
    const auto is = [&](const char* name) {
      return nb::isinstance(error.value(), errors.attr(name));
    };
    const int rank = is("PeerFailedError") ? 2 : is("TimeoutError") ? 1 : 0;
    if (first_ != nullptr && rank_ <= rank) return;
    first_ = std::current_exception();
    rank_ = rank;
  }
  /// `other`: an exception of C++, which counts if there is none of Python.
  void add(std::exception_ptr other) {
    if (first_ == nullptr) first_ = std::move(other);
  }
  void rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
  int rank_ = 0;  // higher: more likely a consequence of another PE's exception
};

/// The results of `body` by PE. Raises the Python exception that caused the others, unchanged.
nb::list run_threads_of_python(nb::handle number, nb::handle body, nb::handle given) {
  const auto n_pes = argument<Pe>("run_threads", "n_pes", number);
  if (PyCallable_Check(body.ptr()) == 0)
    wrong_type("run_threads", "body", body, "a function that takes a World");
  const Settings settings = settings_from(given);
  std::vector<nb::object> results;
  Raised raised;
  Interruptible worlds;
  const auto run_pe = [&](World& world) {
    worlds.add(world);
    const auto pe = static_cast<std::size_t>(world.my_pe());
    nb::gil_scoped_acquire acquired;
    // Only here, where run_threads has accepted the number.
    results.resize(static_cast<std::size_t>(n_pes));
    try {
      nb::object result = body(world);
      results[pe] = std::move(result);
    } catch (const nb::python_error& error) {
      raised.add(error);
      throw std::runtime_error(reason_of(error.type(), error.value()));
    }
  };
  try {
    nb::gil_scoped_release released;
    worlds.run([&] { run_threads(n_pes, settings, run_pe); });
  } catch (...) {
    raised.add(std::current_exception());
  }
  release_after_close();
  if (raise_interrupt()) throw nb::python_error();
  raised.rethrow();
  nb::list list;
  for (nb::object& result : results) list.append(std::move(result));
  return list;
}

std::vector<std::pair<std::string, double>> init_phases(const World& world) {
  std::vector<std::pair<std::string, double>> phases;
  for (const InitPhase& phase : world.init_phases())
    phases.emplace_back(phase.name, std::chrono::duration<double>(phase.duration).count());
  return phases;
}

nb::list pairs_of(const std::vector<PairConnectivity>& pairs) {
  nb::list list;
  for (const PairConnectivity& pair : pairs) {
    nb::list transports;
    for (const TransportVerdict& verdict : pair.transports) {
      nb::dict entry;
      entry["name"] = verdict.transport;
      entry["chosen"] = verdict.chosen;
      entry["capabilities"] = verdict.capabilities;
      entry["why"] = verdict.why;
      transports.append(entry);
    }
    nb::dict entry;
    entry["a"] = pair.a;
    entry["b"] = pair.b;
    const TransportVerdict* const chosen = pair.chosen();
    entry["chosen"] = chosen == nullptr ? nb::none() : nb::cast(chosen->transport);
    entry["transports"] = transports;
    list.append(entry);
  }
  return list;
}

nb::dict connectivity(const World& world) {
  ConnectivityReport report;
  {
    nb::gil_scoped_release released;  // collective: other PEs may be threads of this process
    report = world.connectivity();
  }
  nb::list pes;
  for (const PePlace& place : report.pes) {
    nb::dict entry;
    entry["host"] = place.host;
    entry["host_index"] = place.host_index;
    entry["node"] = place.node;
    entry["nics"] = place.nics ? nb::cast(*place.nics) : nb::none();
    pes.append(entry);
  }
  nb::dict result;
  result["pes"] = pes;
  result["pairs"] = pairs_of(report.pairs);
  result["heap_pairs"] = pairs_of(report.heap_pairs);
  return result;
}

std::string heap_device(const World& world) {
  const Device device = world.heap().device();
  return device.kind == DeviceKind::cuda ? fmt::format("cuda:{}", device.index) : "cpu";
}

/// "64M", "1.5K"
std::string in_bytes(std::size_t bytes) {
  constexpr std::string_view kUnits[] = {"", "K", "M", "G", "T"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; unit < 4 && value >= 1024; ++unit) value /= 1024;
  return fmt::format("{:.4g}{}", value, kUnits[unit]);
}

std::string describe(const World& world) {
  if (!world.is_open()) return "shoal.World(closed)";
  return fmt::format("shoal.World(PE {} of {}, {} PEs per node, heap of {} on {}, {} in use)",
                     world.my_pe(), world.n_pes(), world.pes_per_node(),
                     in_bytes(world.heap().size()), heap_device(world),
                     in_bytes(world.heap().used()));
}

/// A function of shoal.connect, which is Python.
nb::object connect(const char* function, nb::handle source, nb::handle settings) {
  return nb::module_::import_("shoal.connect").attr(function)(source, settings);
}

void bind_unique_id(nb::module_& module) {
  nb::class_<UniqueId>(
      module, "UniqueId",
      "The name of a world, which a program passes to all PEs; str() is its text, a secret. The "
      "object serves the world while it starts: keep it until World.from_unique_id has returned on "
      "all PEs."_doc)
      .def_static(
          "create", [](nb::handle settings) { return UniqueId::create(settings_from(settings)); },
          nb::arg("settings") = nb::none(),
          nb::sig("def create(settings: shoal.typing.Settings | None = None) -> UniqueId"),
          "A new name, served by this process."_doc)
      .def("__str__", &UniqueId::to_string);
}

void bind_open(nb::class_<World>& world) {
  world
      .def_static("open", &open_world, nb::arg("settings") = nb::none(),
                  nb::sig("def open(settings: shoal.typing.Settings | None = None) -> World"),
                  "Opens the world that the environment describes: shoal-run, SHOAL_PE and "
                  "SHOAL_N_PES with a unique id, or a world of one PE."_doc)
      .def_static("from_unique_id", &open_with_id, nb::arg("unique_id"), nb::arg("pe"),
                  nb::arg("n_pes"), nb::arg("settings") = nb::none(),
                  nb::sig("def from_unique_id(unique_id: str, pe: int, n_pes: int, settings: "
                          "shoal.typing.Settings | None = None) -> World"),
                  "Joins as PE `pe` of `n_pes`; unique_id is the text of a UniqueId."_doc)
      .def_static(
          "from_torch",
          [](nb::handle group, nb::handle settings) {
            return connect("from_torch", group, settings);
          },
          nb::arg("group") = nb::none(), nb::arg("settings") = nb::none(),
          // Not torch's own name: the generator of stubs would import torch to find it.
          nb::sig("def from_torch(group: shoal.typing.ProcessGroup | None = None, settings: "
                  "shoal.typing.Settings | None = None) -> World"),
          "A world of the ranks of a torch.distributed process group of any backend, in rank "
          "order; "
          "None: the default group."_doc)
      .def_static(
          "from_mpi4py",
          [](nb::handle comm, nb::handle settings) {
            return connect("from_mpi4py", comm, settings);
          },
          nb::arg("comm"), nb::arg("settings") = nb::none(),
          nb::sig(
              "def from_mpi4py(comm: shoal.typing.Communicator, settings: shoal.typing.Settings | "
              "None = None) -> World"),
          "A world of the ranks of an mpi4py communicator, in rank order."_doc)
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> World"))
      .def("__exit__", &exit_world, nb::arg("type").none(), nb::arg("value").none(),
           nb::arg("traceback").none())
      .def("close", &close_unless_unwinding,
           "Closes the world after a barrier of all PEs. Arrays of its heap stay readable while "
           "they are held. Later calls have no effect. Where the program handles an exception, as "
           "in `finally`, the world fails with it, as at the end of a `with` block."_doc)
      .def_prop_ro("is_open", &World::is_open, "True if the world is open."_doc)
      .def_prop_ro(
          "settings", [](const World& self) { return self.settings(); },
          "The settings in force."_doc)
      .def("__repr__", &describe);
}

void bind_teams(nb::class_<World>& world) {
  world.def_prop_ro("my_pe", &World::my_pe, "Index of this PE, from 0."_doc)
      .def_prop_ro("n_pes", &World::n_pes, "Number of PEs."_doc)
      .def_prop_ro("my_pe_on_node", &World::my_pe_on_node, "Index of this PE on its node."_doc)
      .def_prop_ro("pes_per_node", &World::pes_per_node, "PEs of each node."_doc)
      .def_prop_ro("team", &World::team, "All PEs."_doc)
      .def_prop_ro("node_team", &World::node_team, "The PEs of this PE's node."_doc)
      .def_prop_ro("shared_team", &World::shared_team,
                   "The PEs whose heaps this PE accesses by load and store."_doc)
      .def_prop_ro("same_index_team", &World::same_index_team,
                   "The PEs with this PE's index on every node: a rail."_doc)
      .def_prop_ro("self_team", &World::self_team, "This PE alone."_doc)
      .def("make_team_id", &World::make_team_id, "A number that names a team for make_team."_doc)
      .def("make_team", &World::make_team, nb::arg("id"), nb::arg("size"), nb::arg("index"),
           nb::call_guard<nb::gil_scoped_release>(),
           "The team of the `size` PEs that call with this id, each with its own index. Collective "
           "over these PEs."_doc);
}

void bind_heap(nb::class_<World>& world) {
  world
      .def(
          "zeros", &zeros, nb::arg("shape"), nb::arg("dtype") = "float32", nb::kw_only(),
          nb::arg("like") = nb::none(),
          nb::sig(
              "@overload\n"
              "def zeros(self, shape: int | collections.abc.Sequence[int], dtype: torch.dtype) -> "
              "SymmetricArray[torch.Tensor]: ...\n"
              "@typing.overload\n"
              "def zeros(self, shape: int | collections.abc.Sequence[int], dtype: numpy.dtype | "
              "type[numpy.generic]) -> SymmetricArray[numpy.ndarray]: ...\n"
              "@typing.overload\n"
              "def zeros(self, shape: int | collections.abc.Sequence[int], dtype: str = ...) -> "
              "SymmetricArray[Array]: ...\n"
              "@typing.overload\n"
              "def zeros(self, shape: int | collections.abc.Sequence[int], dtype: shoal.typing.DType"
              " = ..., *, like: types.ModuleType) -> SymmetricArray[typing.Any]: ...\n"
              "@typing.overload\n"
              "def zeros(self, shape: int | collections.abc.Sequence[int], dtype: shoal.typing.DType"
              " = ..., *, like: A) -> SymmetricArray[A]"),
          "An array of zeros on every PE. shape: an int or a sequence of ints. dtype: a name, or a "
          "dtype of NumPy, torch, JAX or ml_dtypes, whose library SymmetricArray.local then has. "
          "like: an array or a module of the library that it has instead. Collective: all PEs call with the same arguments, in the "
          "same order. Raises ExhaustedError when the heap is too small, naming "
          "SHOAL_SYMMETRIC_SIZE."_doc)
      .def_prop_ro(
          "heap_size", [](const World& self) { return self.heap().size(); },
          "Bytes of this PE's heap."_doc)
      .def_prop_ro(
          "heap_used", [](const World& self) { return self.heap().used(); },
          "Allocated bytes of this PE's heap."_doc)
      .def_prop_ro("heap_device", &heap_device, "Device of the heap: \"cpu\" or \"cuda:N\"."_doc);
}

}  // namespace

void bind_world(nb::module_& module, void (*after_close)()) {
  release_after_close = after_close;
  bind_symmetric_arrays(module);
  bind_unique_id(module);
  nb::class_<World> world(
      module, "World", nb::is_weak_referenceable(),
      "PEs that share symmetric memory.\n\n"
      "    with shoal.World.open() as world:\n"
      "        numbers = world.zeros((world.n_pes,), \"int64\")\n"
      "        world.put(numbers.on(1), source)\n\n"
      "All PEs open a world together: by open, from_torch, from_mpi4py, from_unique_id or "
      "run_threads. `with` closes it. Leaving by an exception fails it; calls of the other PEs "
      "then "
      "raise PeerFailedError.\n\n"
      "settings, in all calls: a dict by the names of docs/reference/settings.md in lower case "
      "without SHOAL_, which overrides the environment: {\"symmetric_size\": \"1G\", \"timeout\": "
      "5.0, \"heap\": \"host\"}. Durations are seconds as a number or a datetime.timedelta."_doc);
  bind_open(world);
  bind_teams(world);
  bind_heap(world);
  bind_shared_buffers(module, world);
  bind_one_sided(world);
  world
      .def("describe_transport", &World::describe_transport, nb::arg("pe"),
           "The transport to PE `pe` and its capabilities, as text."_doc)
      .def(
          "connectivity", &connectivity,
          nb::sig("def connectivity(self) -> dict[str, list[dict[str, object]]]"),
          "How the PEs reach each other; the same dict on all PEs. Collective.\n\n"
          "\"pes\": by PE, its \"host\", \"host_index\", \"node\" and \"nics\" (None: no pair needs "
          "a network). \"pairs\": for every pair \"a\" <= \"b\" the transport \"chosen\" (None: none "
          "reaches) and all \"transports\": \"name\", \"chosen\", \"capabilities\", \"why\". "
          "\"heap_pairs\": the same for heaps in GPU memory; else empty.\n\n"
          "    report = world.connectivity()\n"
          "    print([(p[\"a\"], p[\"b\"], p[\"chosen\"]) for p in report[\"pairs\"]])"_doc)
      .def_prop_ro("init_phases", &init_phases,
                   "The steps of opening the world, and the seconds of each on this PE."_doc);

  module.def(
      "run_threads", &run_threads_of_python, nb::arg("n_pes").none(), nb::arg("body").none(),
      nb::arg("settings") = nb::none(),
      nb::sig("def run_threads(n_pes: int, body: collections.abc.Callable[[World], R], settings: "
              "shoal.typing.Settings | None = None) -> list[R]"),
      "Calls body(world) on `n_pes` threads of this process, one per PE. Returns the results "
      "by PE. The first exception ends all of them and is raised again."_doc);
}

}  // namespace shoal::python
