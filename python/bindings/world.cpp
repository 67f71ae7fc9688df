// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"
#include "docs.hpp"
#include "ep.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <map>
#include <numeric>

#include "base/check.hpp"
#include "memory/device.hpp"
#include "world/memory/memory.hpp"
#include "world/state.hpp"

namespace shoal::python {
namespace {

using Overrides = std::map<std::string, std::string>;  // by name of the environment variable

/// {"symmetric_size": "1G"} by SHOAL_SYMMETRIC_SIZE; "timeout" is taken for SHOAL_TIMEOUT_MS.
Overrides overrides_from(nb::handle given) {
  Overrides overrides;
  if (given.is_none()) return overrides;
  for (const auto& [key, value] : nb::cast<nb::dict>(given)) {
    const std::string field = nb::cast<std::string>(key);
    std::string name = "SHOAL_", known;
    for (const char letter : field)
      name += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    for (const SettingInfo& info : settings_table()) {
      if (info.name == name || info.name == name + "_MS") known = info.name;
    }
    if (known.empty()) {
      std::string fields;
      for (const SettingInfo& info : settings_table()) {
        std::string lower(info.name.substr(6));
        for (char& letter : lower)
          letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
        fields += (fields.empty() ? "" : ", ") + lower;
      }
      fail(Code::invalid_argument, "no setting \"{}\"; there are {}", field, fields);
    }
    if (!value.is_none()) overrides[known] = nb::cast<std::string>(nb::str(value));
  }
  return overrides;
}

Settings settings_from(nb::handle given) {
  const Overrides overrides = overrides_from(given);
  return Settings::from([&](const std::string& name) -> std::optional<std::string> {
    if (const auto found = overrides.find(name); found != overrides.end()) return found->second;
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

World open_world(nb::handle given) {
  const Settings settings = settings_from(given);
  nb::gil_scoped_release released;
  return World::open({settings, nullptr});
}

World open_with_id(const std::string& id, Pe pe, Pe n_pes, nb::handle given) {
  const Settings settings = settings_from(given);
  nb::gil_scoped_release released;
  return World::open({settings, connect_unique_id(UniqueId::parse(id), pe, n_pes, settings)});
}

/// "ValueError: text", for the other PEs.
std::string reason_of(nb::handle type, nb::handle value) {
  const auto name = nb::cast<std::string>(type.attr("__name__"));
  const auto text = nb::cast<std::string>(nb::str(value));
  return text.empty() ? name : name + ": " + text;
}

void close_world(World& world) {
  world.close();
  release_kept_groups();
}

/// What `body` returned on each PE; the first exception of Python's is raised again as it was.
nb::list run_threads_of_python(Pe n_pes, const nb::callable& body, nb::handle given) {
  const Settings settings = settings_from(given);
  std::vector<nb::object> results(static_cast<std::size_t>(std::max(n_pes, 0)));
  std::exception_ptr raised;
  try {
    nb::gil_scoped_release released;
    run_threads(n_pes, settings, [&](World& world) {
      const auto pe = static_cast<std::size_t>(world.my_pe());
      nb::gil_scoped_acquire acquired;
      try {
        results[pe] = body(world);
      } catch (const nb::python_error& error) {
        if (!raised) raised = std::current_exception();
        throw std::runtime_error(reason_of(error.type(), error.value()));
      }
    });
  } catch (...) {
    if (!raised) raised = std::current_exception();
  }
  release_kept_groups();
  if (raised) std::rethrow_exception(raised);
  nb::list list;
  for (nb::object& result : results) list.append(std::move(result));
  return list;
}

Tensor heap_tensor(void* memory, DataType dtype, const std::vector<std::int64_t>& shape,
                   Device device) {
  TensorView view;
  view.data = memory;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  view.device = device;
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = shape[i];
    view.strides[i] = stride;
    stride *= shape[i];
  }
  return Tensor(view, nullptr);
}

SymmetricArray allocate(const World& world, const std::vector<std::int64_t>& shape,
                        const std::string& dtype) {
  const DataType type = dtype_from(dtype);
  require(shape.size() <= TensorView::kMaxRank, Code::invalid_argument,
          "zeros: {} dimensions; allowed: up to {}", shape.size(), TensorView::kMaxRank);
  std::size_t count = 1;
  for (const std::int64_t extent : shape) {
    require(extent >= 0, Code::invalid_argument, "zeros: an extent of {}; allowed: 0 and more",
            extent);
    require(!__builtin_mul_overflow(count, static_cast<std::size_t>(extent), &count),
            Code::invalid_argument, "zeros: more elements than can be counted");
  }
  SymmetricArray array{world, {}, 0};
  void* memory = nullptr;
  {
    nb::gil_scoped_release released;
    memory = world.heap().calloc(count, size_of(type));
  }
  const memory::Device* const gpu = world.state().cuda();
  const Device device = gpu != nullptr ? Device{DeviceKind::cuda, gpu->device} : Device{};
  array.local = heap_tensor(memory, type, shape, device);
  array.local.owner = heap_keeper(world.team());
  array.offset = memory == nullptr ? 0 : world.heap().offset_of(memory);
  return array;
}

void release(SymmetricArray& array) {
  check_alive(array);
  nb::gil_scoped_release released;
  array.world.heap().free(array.local.data);
  array.world = World();
}

RemoteArray on(const SymmetricArray& array, Pe pe) {
  check_alive(array);
  require(pe >= 0 && pe < array.world.n_pes(), Code::invalid_argument,
          "on: PE {}; the world has PEs 0 to {}", pe, array.world.n_pes() - 1);
  return {pe, array.offset, static_cast<std::size_t>(array.local.size()), array.local.dtype};
}

RemoteArray slice(const RemoteArray& array, const nb::slice& range) {
  const auto [start, stop, step, length] = range.compute(array.count);
  require(step == 1, Code::invalid_argument, "a RemoteArray is sliced with step 1, got {}", step);
  return {array.pe, array.offset + static_cast<std::size_t>(start) * size_of(array.dtype), length,
          array.dtype};
}

RemoteArray element(const RemoteArray& array, std::int64_t index) {
  const auto count = static_cast<std::int64_t>(array.count);
  if (index < 0) index += count;
  if (index < 0 || index >= count) throw nb::index_error("RemoteArray index out of range");
  return {array.pe, array.offset + static_cast<std::size_t>(index) * size_of(array.dtype), 1,
          array.dtype};
}

/// Arrays of all PEs in memory of any allocator, while they are shared.
struct SharedArrays {
  World world;
  SharedBuffer buffer;
  nb::object mine;
};

std::unique_ptr<SharedArrays> share(const World& world, nb::handle array) {
  const Input given = optional_input(array, "share_buffer");
  require(!given.view.defined() || given.view.contiguous(), Code::invalid_argument,
          "share_buffer: a contiguous array, got {}", given.view.describe());
  auto shared = std::make_unique<SharedArrays>(SharedArrays{world, {}, nb::borrow(array)});
  nb::gil_scoped_release released;
  shared->buffer =
      world.heap().share_buffer(given.view.data, given.view.defined() ? given.view.bytes() : 0);
  return shared;
}

void unshare(SharedArrays& shared) {
  {
    nb::gil_scoped_release released;
    shared.world.heap().unshare_buffer(shared.buffer);
  }
  shared.mine = nb::none();
}

void bind_symmetric_arrays(nb::module_& module) {
  nb::class_<SharedArrays>(module, "SharedBuffer",
                           "What PEs share by World.share_buffer, until unshare."_doc)
      .def(
          "bytes", [](const SharedArrays& self, Pe pe) { return self.buffer.bytes(pe); },
          nb::arg("pe"), "Bytes that PE `pe` shares."_doc)
      .def(
          "address",
          [](const SharedArrays& self, Pe pe) {
            return reinterpret_cast<std::uintptr_t>(self.buffer.on(pe));
          },
          nb::arg("pe"), "Where they lie for this PE's GPU; 0: out of its reach, or none."_doc)
      .def(
          "unshare", &unshare,
          "Ends it. Collective over the world, in the same order as other calls, before the memory goes."_doc);
  nb::class_<SymmetricArray>(
      module, "SymmetricArray",
      "An array that lies at the same place of every PE's heap; made by World.zeros."_doc)
      .def_prop_ro(
          "local",
          [](const SymmetricArray& self) {
            check_alive(self);
            return output(self.local, kReady);
          },
          "This PE's copy, as an Array."_doc)
      .def("on", &on, nb::arg("pe"),
           "The copy of world PE `pe`, as target or source of put, get, signal and atomic."_doc)
      .def(
          "free", &release,
          "Returns the memory. Collective over the world: all PEs call, in the same order. Without it the memory is "
          "returned when the world closes; the garbage collector never does it."_doc)
      .def("__repr__", [](const SymmetricArray& self) {
        return fmt::format("shoal.SymmetricArray({})", self.local.describe());
      });
  nb::class_<RemoteArray>(module, "RemoteArray",
                          "Elements of a SymmetricArray on one PE; slices select some of them."_doc)
      .def_ro("pe", &RemoteArray::pe, "Whose, as numbered in the world."_doc)
      .def("__len__", [](const RemoteArray& self) { return self.count; })
      .def("__getitem__", &slice)
      .def("__getitem__", &element)
      .def("__repr__", [](const RemoteArray& self) {
        return fmt::format("shoal.RemoteArray({} elements of {} on PE {})", self.count,
                           name_of(self.dtype), self.pe);
      });
}

}  // namespace

void check_alive(const SymmetricArray& array) {
  require(array.world.is_open(), Code::closed, "the array is freed, or its world is closed");
}

std::shared_ptr<void> heap_keeper(const Team& team) {
  struct Keeper {  // members go in reverse order: the heap before the GPU's context
    std::shared_ptr<memory::Device> device;
    std::shared_ptr<memory::Segment> segment;
    std::shared_ptr<memory::DeviceHeap> heap;
  };
  const detail::Memory& memory = team.state().world->memory();
  return std::make_shared<Keeper>(
      Keeper{memory.device(), memory.segment(), memory.device_heap()});
}

nb::object heap_output(Tensor tensor, const std::shared_ptr<void>& keeper, std::uintptr_t stream) {
  struct Held {  // the array goes before the heap
    std::shared_ptr<void> heap, array;
  };
  if (tensor.defined())
    tensor.owner = std::make_shared<Held>(Held{keeper, std::move(tensor.owner)});
  return output(std::move(tensor), stream);
}

void bind_world(nb::module_& module) {
  bind_symmetric_arrays(module);
  nb::class_<UniqueId>(
      module, "UniqueId",
      "The name of a world, to be given to its PEs by any means; str() is its text, a secret. The "
      "object serves the world while it starts: keep it until World.from_unique_id has returned "
      "everywhere."_doc)
      .def_static(
          "create", [](nb::handle settings) { return UniqueId::create(settings_from(settings)); },
          nb::arg("settings") = nb::none(), "A new name, served by this process."_doc)
      .def("__str__", &UniqueId::to_string);

  nb::class_<World> world(
      module, "World",
      "A world of PEs that share symmetric memory. Made by open, from_torch, from_mpi4py, "
      "from_unique_id or run_threads, by all PEs together. `with` closes it; leaving by an exception "
      "tells the other PEs, whose calls then raise PeerFailedError.\n\n"
      "settings, everywhere: a dict of docs/reference/settings.md's names without SHOAL_, in lower case: "
      "{\"symmetric_size\": \"1G\", \"timeout\": 5000, \"heap\": \"host\"}; they override the "
      "environment."_doc);
  world
      .def_static(
          "open", &open_world, nb::arg("settings") = nb::none(),
          "As the environment says: shoal-run, SHOAL_PE and SHOAL_N_PES with a unique id, or alone."_doc)
      .def_static("from_unique_id", &open_with_id, nb::arg("unique_id"), nb::arg("pe"),
                  nb::arg("n_pes"), nb::arg("settings") = nb::none(),
                  "As PE `pe` of the `n_pes` that know the text of a UniqueId."_doc)
      .def_static(
          "from_torch",
          [](nb::handle group, nb::handle settings) {
            return nb::module_::import_("shoal.connect").attr("from_torch")(group, settings);
          },
          nb::arg("group") = nb::none(), nb::arg("settings") = nb::none(),
          nb::sig(
              "def from_torch(group: typing.Any = None, settings: dict | None = None) -> World"),
          "The ranks of a torch.distributed process group of any backend, in rank order; None: the default group."_doc)
      .def_static(
          "from_mpi4py",
          [](nb::handle comm, nb::handle settings) {
            return nb::module_::import_("shoal.connect").attr("from_mpi4py")(comm, settings);
          },
          nb::arg("comm"), nb::arg("settings") = nb::none(),
          nb::sig("def from_mpi4py(comm: typing.Any, settings: dict | None = None) -> World"),
          "The ranks of an mpi4py communicator, in rank order."_doc)
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__",
          [](World& self, nb::handle type, nb::handle value, nb::handle) {
            const bool failed = !type.is_none();
            const std::string reason = failed ? reason_of(type, value) : "";
            nb::gil_scoped_release released;
            if (!failed || !self.is_open())
              close_world(self);
            else
              self.state().fail_world(reason);
          },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none())
      .def(
          "close", &close_world, nb::call_guard<nb::gil_scoped_release>(),
          "Ends the world after a barrier of all PEs. Arrays of its heap stay readable while they are held. Closing "
          "twice does nothing."_doc)
      .def_prop_ro("is_open", &World::is_open, "Whether calls are possible."_doc)
      .def_prop_ro("my_pe", &World::my_pe, "Index of this PE, from 0."_doc)
      .def_prop_ro("n_pes", &World::n_pes, "Number of PEs."_doc)
      .def_prop_ro("my_pe_on_node", &World::my_pe_on_node,
                   "Index of this PE among those of its node."_doc)
      .def_prop_ro("pes_per_node", &World::pes_per_node, "PEs of each node."_doc)
      .def_prop_ro("team", &World::team, "All PEs."_doc)
      .def_prop_ro("node_team", &World::node_team, "The PEs of this PE's node."_doc)
      .def_prop_ro("shared_team", &World::shared_team,
                   "The PEs whose heaps this PE reaches by load and store."_doc)
      .def_prop_ro("same_index_team", &World::same_index_team,
                   "The PEs with this PE's index on every node: a rail."_doc)
      .def_prop_ro("self_team", &World::self_team, "This PE alone."_doc)
      .def("make_team_id", &World::make_team_id, "A number that names a team for make_team."_doc)
      .def(
          "make_team", &World::make_team, nb::arg("id"), nb::arg("size"), nb::arg("index"),
          nb::call_guard<nb::gil_scoped_release>(),
          "The team of the `size` PEs that call with this id, each with its own index. Collective over them alone."_doc)
      .def(
          "zeros", &allocate, nb::arg("shape"), nb::arg("dtype") = "float32",
          "An array of zeros on every PE. Collective: all PEs call with the same arguments, in the same order. Raises "
          "ExhaustedError when the heap is too small, naming SHOAL_SYMMETRIC_SIZE."_doc)
      .def(
          "share_buffer", &share, nb::arg("array").none(), nb::rv_policy::take_ownership,
          "Lets the GPUs of all PEs read and write a contiguous CUDA array of this PE where it lies, whatever "
          "allocated it; combine then fetches answers from there without a copy. Collective over the world; None: "
          "this PE shares nothing. Raises UnsupportedError, on all PEs, where the heap is on the host and for memory "
          "that cannot be passed on."_doc)
      .def("describe_transport", &World::describe_transport, nb::arg("pe"),
           "The transport to PE `pe` and what it can do, as text."_doc)
      .def_prop_ro(
          "init_phases",
          [](const World& self) {
            std::vector<std::pair<std::string, double>> phases;
            for (const InitPhase& phase : self.init_phases())
              phases.emplace_back(phase.name,
                                  std::chrono::duration<double>(phase.duration).count());
            return phases;
          },
          "The steps of opening the world and the seconds that each took on this PE."_doc)
      .def_prop_ro(
          "heap_size", [](const World& self) { return self.heap().size(); },
          "Bytes of this PE's heap."_doc)
      .def_prop_ro(
          "heap_used", [](const World& self) { return self.heap().used(); },
          "Bytes of it in use."_doc)
      .def_prop_ro(
          "heap_device",
          [](const World& self) {
            const memory::Device* const gpu = self.state().cuda();
            return gpu != nullptr ? fmt::format("cuda:{}", gpu->device) : std::string("cpu");
          },
          "Where the heap lies: \"cpu\" or \"cuda:N\"."_doc);
  bind_remote(world);

  module.def(
      "run_threads", &run_threads_of_python, nb::arg("n_pes"), nb::arg("body"),
      nb::arg("settings") = nb::none(),
      "Calls body(world) on `n_pes` threads of this process, a PE each; returns what they returned, by PE. The "
      "first exception ends them all and is raised again."_doc);
}

}  // namespace shoal::python
