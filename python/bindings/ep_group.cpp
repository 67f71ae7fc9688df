// SPDX-License-Identifier: Apache-2.0
// ep_group.cpp: making groups, size hints and the gate.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/check.hpp"
#include "docs.hpp"
#include "ep.hpp"
#include "shoal/ep/gate.hpp"
#include "world.hpp"
#include "world/state.hpp"

namespace shoal::python {
namespace {

std::chrono::milliseconds milliseconds_from(double seconds) {
  require(seconds >= 0 && seconds <= 1e6, Code::invalid_argument,
          "timeout is {} s; allowed: 0 to 1,000,000", seconds);
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(1000 * seconds)));
}

/// The options that are given by name; both of Group and of size_hint.
ep::GroupOptions options_from(const nb::kwargs& given) {
  ep::GroupOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    try {
      if (name == "hidden")
        options.hidden = nb::cast<std::int64_t>(value);
      else if (name == "top_k")
        options.top_k = nb::cast<std::int32_t>(value);
      else if (name == "experts")
        options.experts = nb::cast<std::int32_t>(value);
      else if (name == "max_tokens")
        options.max_tokens = nb::cast<std::int64_t>(value);
      else if (name == "dtype")
        options.dtype = dtype_from(nb::cast<std::string>(value));
      else if (name == "max_scales")
        options.max_scales = nb::cast<std::int64_t>(value);
      else if (name == "live_results")
        options.live_results = nb::cast<std::int32_t>(value);
      else if (name == "low_latency_max_tokens")
        options.low_latency_max_tokens = nb::cast<std::int64_t>(value);
      else if (name == "preinitialize")
        options.preinitialize = nb::cast<bool>(value);
      else if (name == "mask_failed")
        options.mask_failed = nb::cast<bool>(value);
      else if (name == "timeout")
        options.timeout = milliseconds_from(nb::cast<double>(value));
      else if (name == "threads")
        options.threads = nb::cast<std::int32_t>(value);
      else if (name == "combine_staging")
        options.combine_staging = nb::cast<bool>(value);
      else
        throw nb::type_error(
            fmt::format(
                "ep.Group has no option \"{}\"; there are hidden, top_k, experts, max_tokens, "
                "dtype, max_scales, live_results, low_latency_max_tokens, preinitialize, "
                "mask_failed, timeout, threads and combine_staging",
                name)
                .c_str());
    } catch (const nb::cast_error&) {
      fail(Code::invalid_argument, "ep.Group: {}={} has the wrong type", name,
           nb::cast<std::string>(nb::repr(value)));
    }
  }
  return options;
}

DeviceKind heap_from(const std::string& name) {
  require(name == "host" || name == "cuda", Code::invalid_argument,
          "heap \"{}\"; allowed: \"host\", \"cuda\"", name);
  return name == "host" ? DeviceKind::host : DeviceKind::cuda;
}

nb::dict size_hint(std::int32_t ranks, const nb::kwargs& given) {
  nb::kwargs options;
  DeviceKind heap = DeviceKind::host;
  std::int32_t nodes = 1;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "heap")
      heap = heap_from(nb::cast<std::string>(value));
    else if (name == "nodes")
      nodes = nb::cast<std::int32_t>(value);
    else
      options[key] = value;
  }
  const ep::SizeHint hint = ep::size_hint(options_from(options), ranks, heap, nodes);
  nb::dict parts;
  parts["control"] = hint.control;
  parts["normal"] = hint.normal;
  parts["low_latency"] = hint.low_latency;
  parts["total"] = hint.total();
  return parts;
}

nb::dict statistics(const Group& self) {
  ep::Statistics counted;
  {
    nb::gil_scoped_release released;  // it waits for asynchronous operations
    counted = self.group.statistics();
  }
  const auto seconds = [](std::chrono::nanoseconds time) {
    return std::chrono::duration<double>(time).count();
  };
  nb::dict all;
  all["dispatches"] = counted.dispatches;
  all["combines"] = counted.combines;
  all["low_latency_dispatches"] = counted.low_latency_dispatches;
  all["low_latency_combines"] = counted.low_latency_combines;
  all["rows_sent"] = counted.rows_sent;
  all["rows_received"] = counted.rows_received;
  all["dispatch_time"] = seconds(counted.dispatch_time);
  all["combine_time"] = seconds(counted.combine_time);
  all["low_latency_dispatch_time"] = seconds(counted.low_latency_dispatch_time);
  all["low_latency_combine_time"] = seconds(counted.low_latency_combine_time);
  all["wait_time"] = seconds(counted.wait_time);
  return all;
}

std::vector<int> masked_members(const Group& self) {
  nb::gil_scoped_release released;
  return self.group.masked();
}

nb::dict options_of(const Group& self) {
  const ep::GroupOptions& options = self.group.options();
  nb::dict all;
  all["hidden"] = options.hidden;
  all["top_k"] = options.top_k;
  all["experts"] = options.experts;
  all["max_tokens"] = options.max_tokens;
  all["dtype"] = std::string(name_of(options.dtype));
  all["max_scales"] = options.max_scales;
  all["live_results"] = options.live_results;
  all["low_latency_max_tokens"] = options.low_latency_max_tokens;
  all["preinitialize"] = options.preinitialize;
  all["mask_failed"] = options.mask_failed;
  all["timeout"] = std::chrono::duration<double>(options.timeout).count();
  all["threads"] = options.threads;
  all["combine_staging"] = options.combine_staging;
  return all;
}

nb::tuple gate(nb::handle logits, nb::handle bias, std::int32_t top_k, std::int32_t groups,
               std::int32_t groups_kept, const std::string& score, bool normalize,
               float routed_scaling) {
  const Input scores = input(logits, "logits"), shift = optional_input(bias, "bias");
  require(score == "sigmoid" || score == "softmax", Code::invalid_argument,
          "score \"{}\"; allowed: \"sigmoid\", \"softmax\"", score);
  ep::GateOptions options;
  options.experts = scores.view.rank == 2 ? static_cast<std::int32_t>(scores.view.shape[1]) : 0;
  options.groups = groups;
  options.groups_kept = groups_kept;
  options.top_k = top_k;
  options.score = score == "sigmoid" ? ep::GateScore::sigmoid : ep::GateScore::softmax;
  options.normalize = normalize;
  options.routed_scaling = routed_scaling;
  ep::Gated chosen = ep::gate(scores.view, shift.view, options);
  return nb::make_tuple(output(std::move(chosen.topk_idx)), output(std::move(chosen.topk_weights)));
}

}  // namespace

Group::Group(const Team& team, const ep::GroupOptions& options)
    : owned_(std::make_shared<ep::Group>(team, options)),
      keeper(heap_keeper(team)),
      on_gpu(team.state().world->cuda() != nullptr) {}

namespace {

std::mutex kept_mutex;
std::vector<std::shared_ptr<ep::Group>>& kept_groups() {
  static auto* const groups =
      new std::vector<std::shared_ptr<ep::Group>>;  // outlives everything of Python's
  return *groups;
}

bool world_is_closed(const ep::Group& group) {
  try {
    group.team().state();
    return false;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

Group::~Group() {
  if (closed_) return;
  const std::lock_guard lock(kept_mutex);
  kept_groups().push_back(std::move(owned_));
}

void Group::close() {
  group.close();
  closed_ = true;
}

void release_kept_groups() {
  const std::lock_guard lock(kept_mutex);
  std::erase_if(kept_groups(), [](const auto& group) { return world_is_closed(*group); });
}

nb::object Group::output(Tensor tensor, void* stream) const {
  void* const used = stream != nullptr || closed_ ? stream : group.stream();
  return heap_output(std::move(tensor), keeper, reinterpret_cast<std::uintptr_t>(used));
}

namespace {

/// A number, or that of one of torch's objects.
std::uintptr_t number_of(nb::handle value, const char* attribute) {
  if (PyLong_Check(value.ptr()))
    return nb::cast<std::uintptr_t>(value);  // to ask for an attribute in vain costs more
  return nb::cast<std::uintptr_t>(nb::hasattr(value, attribute) ? nb::object(value.attr(attribute))
                                                                : nb::borrow(value));
}

void* event_from(nb::handle value, const std::string& name) {
  if (value.is_none()) return nullptr;
  const std::uintptr_t number = number_of(value, "cuda_event");
  require(number != 0, Code::invalid_argument,
          "{}: the event does not exist yet; an event of torch's is made by its first record()",
          name);
  return reinterpret_cast<void*>(number);
}

}  // namespace

ep::Launch launch_from(const nb::kwargs& options) {
  ep::Launch launch;
  for (const auto& [key, value] : options) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "stream")  // 0 is how CUDA and torch write the default stream; in C++ nullptr is
                           // the group's own
      launch.stream = value.is_none() ? nullptr
                                      : reinterpret_cast<void*>(std::max<std::uintptr_t>(
                                            number_of(value, "cuda_stream"), 1));
    else if (name == "after")
      launch.after = event_from(value, name);
    else if (name == "done")
      launch.done = event_from(value, name);
    else if (name == "sms")
      launch.sms = nb::cast<std::int32_t>(value);
    else
      throw nb::type_error(fmt::format("unexpected argument \"{}\"", name).c_str());
  }
  return launch;
}

void follow(ep::Launch& launch, const Group& group, const Input& main) {
  if (launch.stream != nullptr || !group.on_gpu || main.stream == kReady) return;
  launch.stream = reinterpret_cast<void*>(main.stream);
}

void bind_group(nb::module_& module) {
  nb::class_<Group> group(
      module, "Group", nb::is_weak_referenceable(),
      "Expert-parallel dispatch and combine among the members of a team, over which the experts are "
      "spread: expert e lives on member e // (experts / size). Every member makes the same calls in "
      "the same order. Lives where the world's heap lies: NumPy arrays and CPU tensors on the host, "
      "CUDA tensors in GPU memory."_doc);
  group
      .def(
          "__init__",
          [](Group* self, const Team& team, const nb::kwargs& given) {
            const ep::GroupOptions options = options_from(given);
            release_kept_groups();
            nb::gil_scoped_release released;
            new (self) Group(team, options);
          },
          nb::arg("team"), nb::arg("options"),
          nb::sig(
              "def __init__(self, team: shoal._core.Team, *, hidden: int, top_k: int, experts: int, max_tokens: "
              "int = 0, dtype: str "
              "= 'bfloat16', max_scales: int = 0, live_results: int = 2, low_latency_max_tokens: int = 0, "
              "preinitialize: "
              "bool = False, mask_failed: bool = False, timeout: float = 0.0, threads: int = 0, combine_staging: "
              "bool = True) -> None"),
          "Collective over the team.\n\n"
          "hidden: channels of a row. top_k: experts per token, 1 to 32. experts: of all members together; divisible "
          "by their number.\n"
          "max_tokens: tokens per member and call of normal mode, at most; 0: no normal mode. low_latency_max_tokens: "
          "the same for low latency.\n"
          "dtype: the widest rows of normal mode. max_scales: scales per row at most; 0: one per 128 channels. "
          "live_results: results held at once, at least.\n"
          "preinitialize: touch all memory now. mask_failed: low latency goes on without members that time out. "
          "timeout: of every wait, in seconds; 0: SHOAL_TIMEOUT_MS.\n"
          "threads: that move rows on the host; 0: SHOAL_EP_THREADS. combine_staging: room for answers that lie "
          "outside the heap.\n\n"
          "Raises InvalidArgumentError for options outside their limits, ExhaustedError when the heap is too small, "
          "naming "
          "the size it needs, UnsupportedError for members that do not reach each other."_doc)
      .def(
          "close", &Group::close, nb::call_guard<nb::gil_scoped_release>(),
          "Returns the group's memory. Collective. Without it the memory is returned when the world closes; the "
          "garbage "
          "collector never does it. Raises InvalidArgumentError on all members while any of them holds "
          "results."_doc)
      .def_prop_ro(
          "team", [](const Group& self) { return self.group.team(); }, "Whose group it is."_doc)
      .def_prop_ro("options", &options_of, "The options as a dict."_doc)
      .def_prop_ro(
          "local_experts", [](const Group& self) { return self.group.local_experts(); },
          "Experts of a member."_doc)
      .def(
          "masked",
          [](const Group& self) {
            nb::list masks;
            for (const int mask : masked_members(self)) masks.append(mask != 0);
            return masks;
          },
          nb::sig("def masked(self) -> list[bool]"),
          "By member: whether low latency leaves it out."_doc)
      .def(
          "set_mask",
          [](Group& self, Pe member, bool masked) { self.group.set_mask(member, masked); },
          nb::call_guard<nb::gil_scoped_release>(), nb::arg("member"), nb::arg("masked"),
          "Leaves a member out of low latency, or takes it back. Needs mask_failed."_doc)
      .def(
          "clear_masks", [](Group& self) { self.group.clear_masks(); },
          nb::call_guard<nb::gil_scoped_release>(), "Takes all members back."_doc)
      .def(
          "warmup", [](Group& self) { self.group.warmup(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Runs operations of the largest size on made-up tokens, so that the first real one is not slower. Collective."_doc)
      .def("statistics", &statistics,
           "Calls, rows and seconds since the group was made, by name."_doc)
      .def_prop_ro(
          "stream",
          [](const Group& self) { return reinterpret_cast<std::uintptr_t>(self.group.stream()); },
          "cudaStream_t of the group, for calls that name none; 0 on the host."_doc)
      .def(
          "synchronize", [](Group& self) { self.group.synchronize(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Waits until the group's work on the GPU is done; raises what went wrong there. Nothing on the host."_doc);
  bind_normal(module, group);
  bind_low_latency(module, group);
  bind_hooked(module);

  module.def(
      "size_hint", &size_hint, nb::arg("ranks"), nb::arg("options"),
      nb::sig(
          "def size_hint(ranks: int, *, heap: str = 'host', nodes: int = 1, **options: typing.Any) -> "
          "dict[str, int]"),
      "Bytes of the heap that a group of `ranks` members with Group's options takes on each of them: control, "
      "normal, low_latency and total."_doc);
  module.def(
      "low_latency_size_hint",
      [](std::int64_t max_tokens, std::int64_t hidden, std::int32_t ranks, std::int32_t experts,
         std::int32_t top_k, const std::string& heap) {
        return ep::low_latency_size_hint(max_tokens, hidden, ranks, experts, top_k,
                                         heap_from(heap));
      },
      nb::arg("max_tokens"), nb::arg("hidden"), nb::arg("ranks"), nb::arg("experts"),
      nb::arg("top_k") = 8, nb::arg("heap") = "host", "The low-latency part alone, in bytes."_doc);
  module.def(
      "gate", &gate, nb::arg("logits"), nb::arg("bias") = nb::none(), nb::kw_only(),
      nb::arg("top_k"), nb::arg("groups") = 1, nb::arg("groups_kept") = 1,
      nb::arg("score") = "sigmoid", nb::arg("normalize") = true, nb::arg("routed_scaling") = 1.0F,
      "From router logits (float32 [tokens, experts], on the host) to (topk_idx int64, topk_weights float32), "
      "[tokens, top_k] each, as DeepSeek-V3 does it: scores are sigmoid or softmax; `bias` (float32 [experts]) "
      "only selects; of `groups` groups of experts the best `groups_kept` are considered."_doc);
}

}  // namespace shoal::python
