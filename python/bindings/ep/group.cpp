// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>

#include "../arguments.hpp"
#include "../docs.hpp"
#include "../world/world.hpp"
#include "normal_calls.hpp"
#include "options.hpp"
#include "torch_layouts.hpp"

namespace shoal::python {
namespace {

std::mutex kept_mutex;

/// Groups that were collected without close(). Never destroyed, so that it outlives all Python
/// objects.
std::vector<std::shared_ptr<ep::Group>>& kept_groups() {
  static auto* const groups = new std::vector<std::shared_ptr<ep::Group>>;
  return *groups;
}

}  // namespace

Group::Group(const Team& team, const ep::GroupOptions& options)
    : owned_(std::make_shared<ep::Group>(team, options)),
      keeper(heap_keeper(team)),
      on_gpu(team.world().heap().device().kind == DeviceKind::cuda) {}

Group::~Group() {
  if (closed_) return;
  const std::lock_guard lock(kept_mutex);
  kept_groups().push_back(std::move(owned_));
}

void Group::close() {
  group.close();
  closed_ = true;
}

Result Group::result(const Library* library, Tensor tensor, Stream stream) const {
  if (!tensor.defined()) return {};
  CUstream_st* const used = stream != nullptr || closed_ ? stream : group.stream();
  return {library, keep_heap(std::move(tensor), keeper), reinterpret_cast<std::uintptr_t>(used)};
}

void release_kept_groups() {
  const std::lock_guard lock(kept_mutex);
  std::erase_if(kept_groups(), [](const auto& group) { return !group->team().is_open(); });
}

namespace {

void construct(Group* self, nb::handle given_team, const nb::kwargs& given) {
  const Team* team = nullptr;
  if (!nb::try_cast(given_team, team) || team == nullptr)
    wrong_type("ep.Group", "team", given_team, "a shoal.Team, such as world.team");
  const ep::GroupOptions options = group_options_from("ep.Group", given);
  require(options.experts < 1 || options.top_k <= options.experts, Code::invalid_argument,
          "ep.Group: top_k is {} with {} experts; allowed: at most one top-k slot per expert",
          options.top_k, options.experts);
  release_kept_groups();
  nb::gil_scoped_release released;
  new (self) Group(*team, options);
}

nb::dict statistics(const Group& self) {
  ep::Statistics counted;
  {
    nb::gil_scoped_release released;  // the call waits for asynchronous operations
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

nb::list masked_ranks(const Group& self) {
  const auto masks = [&] {
    nb::gil_scoped_release released;
    return self.group.masked();
  }();
  nb::list list;
  for (const int mask : masks) list.append(mask != 0);
  return list;
}

void bind_lifetime(nb::class_<Group>& group) {
  group
      .def(
          "__init__", &construct, nb::arg("team").none(), nb::arg("options"),
          nb::sig(
              "def __init__(self, team: shoal._core.Team, *, hidden: int, top_k: int, experts: int, "
              "first_expert: collections.abc.Sequence[int] | None = None, none_expert: int = -1, max_tokens: int = 0, dtype: shoal.typing.DType = 'bfloat16', max_scales: int = 0, "
              "live_results: int = 2, low_latency_max_tokens: int = 0, preinitialize: bool = False, "
              "mask_failed: bool = False, timeout: float | datetime.timedelta = 0.0, threads: int = "
              "0, combine_staging: bool = True, chunk_bytes: int = 0, chunks_in_flight: int = 0) -> "
              "None"),
          "Collective over the team.\n\n"
          "hidden: channels of a row. top_k: experts per token, 1 to 128. "
          "experts: of all ranks together; each rank holds experts // ranks consecutive ones, the first experts % ranks "
          "one more. first_expert: the first expert of each rank, if they are spread otherwise; "
          "two equal numbers are a rank without experts. none_expert: an id in topk_idx that means "
          "no expert, as -1 does; from experts on.\n"
          "max_tokens: the most tokens per rank and call in normal mode; 0: no normal mode. "
          "low_latency_max_tokens: the same for low-latency mode.\n"
          "dtype: the widest rows of normal mode. max_scales: the most scales per row; 0: one per "
          "128 channels. live_results: results that can be held at once.\n"
          "preinitialize: call warmup here. mask_failed: low-latency mode continues "
          "without ranks that time out. timeout: limit of every wait, in seconds or as a "
          "datetime.timedelta; 0: SHOAL_TIMEOUT_MS.\n"
          "threads: host threads that move rows; 0: SHOAL_EP_THREADS. combine_staging: allocate "
          "room for expert output outside the heap.\n"
          "chunk_bytes, chunks_in_flight: normal mode between nodes, per pair of nodes; 0: "
          "SHOAL_EP_CHUNK, SHOAL_EP_DEPTH.\n\n"
          "Raises InvalidArgumentError for options outside their limits, ExhaustedError when the "
          "heap is too small (the message names the size), UnsupportedError for ranks without a "
          "transport between them."_doc)
      .def("close", &Group::close, nb::call_guard<nb::gil_scoped_release>(),
           "Frees the group's memory. Collective. Without close() the memory is freed when the "
           "world closes; the garbage collector never frees it. Results that a rank still holds "
           "stay readable until they are released; calls with them raise ClosedError."_doc)
      .def(
          "warmup", [](Group& self) { self.group.warmup(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Runs operations of the largest size on generated tokens, and takes the memory of calls, so "
          "that the first call of each mode is as fast as later ones. Collective."_doc);
}

std::string describe(const Group& self) {
  const ep::GroupOptions& options = self.group.options();
  const Team team = self.group.team();
  if (self.is_closed() || !team.is_open()) return "shoal.ep.Group(closed)";
  std::string text = fmt::format("rank {} of {}, hidden={}, top_k={}, experts={}", team.my_pe(),
                                 team.size(), options.hidden, options.top_k, options.experts);
  if (options.max_tokens > 0)
    text += fmt::format(", max_tokens={}, dtype={}", options.max_tokens, name_of(options.dtype));
  if (options.low_latency_max_tokens > 0)
    text += fmt::format(", low_latency_max_tokens={}", options.low_latency_max_tokens);
  return fmt::format("shoal.ep.Group({})", text);
}

void bind_properties(nb::class_<Group>& group) {
  group
      .def_prop_ro(
          "team", [](const Group& self) { return self.group.team(); }, "The group's team."_doc)
      .def_prop_ro(
          "options", [](const Group& self) { return to_dict(self.group.options()); },
          nb::sig("def options(self) -> dict[str, int | float | str | list[int]]"),
          "The options as a dict."_doc)
      .def_prop_ro(
          "local_experts", [](const Group& self) { return self.group.local_experts(); },
          "Experts on this rank."_doc)
      .def_prop_ro(
          "max_local_experts", [](const Group& self) { return self.group.max_local_experts(); },
          "The most experts of any rank: the first dimension of low-latency results."_doc)
      .def_prop_ro(
          "first_expert", [](const Group& self) { return self.group.first_expert(); },
          nb::sig("def first_expert(self) -> list[int]"),
          "[ranks + 1]: rank r holds the experts from element r up to element r + 1."_doc)
      .def("__repr__", &describe)
      .def("statistics", &statistics, nb::sig("def statistics(self) -> dict[str, float]"),
           "Calls, rows and seconds since the group was created, by name."_doc)
      .def_prop_ro(
          "stream",
          [](const Group& self) { return reinterpret_cast<std::uintptr_t>(self.group.stream()); },
          "The cudaStream_t of calls that name no stream; 0 on the host."_doc)
      .def_prop_rw(
          "_torch_calls",
          [](const Group& self) {
            return self.torch_calls.is_valid() ? self.torch_calls : nb::none();
          },
          [](Group& self, nb::handle_t<NormalCalls> calls) {
            self.torch_calls = nb::borrow(calls);
          },
          nb::for_getter(nb::sig("def _torch_calls(self) -> NormalCalls | None")),
          nb::for_setter(nb::sig("def _torch_calls(self, value: NormalCalls, /) -> None")),
          "State of shoal.torch, which sets it."_doc)
      .def(
          "synchronize", [](Group& self) { self.group.synchronize(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Waits for the group's work on the GPU and raises its errors. No effect on the host."_doc);
}

void bind_masks(nb::class_<Group>& group) {
  group
      .def("masked", &masked_ranks, nb::sig("def masked(self) -> list[bool]"),
           "For each rank, whether low-latency mode masks it."_doc)
      .def(
          "set_mask", [](Group& self, Pe rank, bool masked) { self.group.set_mask(rank, masked); },
          nb::call_guard<nb::gil_scoped_release>(), nb::arg("rank"), nb::arg("masked"),
          "Masks a rank in low-latency mode, or unmasks it. Needs mask_failed."_doc)
      .def(
          "clear_masks", [](Group& self) { self.group.clear_masks(); },
          nb::call_guard<nb::gil_scoped_release>(), "Unmasks all ranks."_doc);
}

}  // namespace

void bind_group(nb::module_& module) {
  nb::class_<Group> group(
      module, "Group", nb::is_weak_referenceable(),
      "Expert-parallel dispatch and combine among the ranks of a team.\n\n"
      "    group = shoal.ep.Group(world.team, hidden=7168, top_k=8, experts=256, max_tokens=4096)\n"
      "    received = ep::detail::dispatch(group, x, group.route(topk_idx), weights=topk_weights)\n"
      "    combined = group.combine(expert_output, received.handle)\n\n"
      "Rank r holds the experts from first_expert[r] up to first_expert[r + 1]; evenly spread, "
      "expert e lives on rank e // (experts / ranks). Every rank makes the same calls in the same "
      "order. Arrays lie where the world's heap lies: NumPy arrays and CPU tensors on the host, "
      "CUDA tensors in GPU memory."_doc);
  bind_lifetime(group);
  bind_properties(group);
  bind_masks(group);
  bind_normal(module, group);
  bind_async(module, group);
  bind_low_latency(module, group);
  bind_low_latency_calls(module);
  bind_normal_calls(module);
  bind_legacy(module);
  bind_elastic(module);
  bind_hybrid(module);
  bind_torch_layouts(module);
  bind_torch_calls(module);
  bind_gate(module);
  bind_routing_maps(module);
}

}  // namespace shoal::python
