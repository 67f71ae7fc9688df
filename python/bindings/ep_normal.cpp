// SPDX-License-Identifier: Apache-2.0
// ep_normal.cpp: route, dispatch and combine.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>

#include "base/check.hpp"
#include "docs.hpp"
#include "ep.hpp"
#include "world.hpp"

namespace shoal::python {
namespace {

/// What dispatch and combine take by name, with what keeps the arrays.
struct Options {
  ep::DispatchOptions dispatch;
  ep::CombineOptions combine;
  std::optional<std::string> dtype;
  Inputs arrays;
};

Options dispatch_options(const nb::kwargs& given) {
  Options options;
  nb::kwargs launch;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "weights")
      options.dispatch.weights = options.arrays.read(value, "weights");
    else if (name == "scales")
      options.dispatch.scales = options.arrays.read(value, "scales");
    else if (name == "dtype")
      options.dtype = nb::cast<std::optional<std::string>>(value);
    else if (name == "expert_alignment")
      options.dispatch.expert_alignment = nb::cast<std::int32_t>(value);
    else if (name == "expert_major")
      options.dispatch.expert_major = nb::cast<bool>(value);
    else if (name == "worst_case_rows")
      options.dispatch.worst_case_rows = nb::cast<std::int64_t>(value);
    else if (name == "copy_out")
      options.dispatch.copy_out = nb::cast<bool>(value);
    else
      launch[key] = value;
  }
  options.dispatch.launch = launch_from(launch);
  return options;
}

Options combine_options(const nb::kwargs& given) {
  Options options;
  nb::kwargs launch;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "dtype") {
      options.dtype = nb::cast<std::optional<std::string>>(value);
      continue;
    }
    if (name == "weights")
      options.combine.weights = options.arrays.read(value, "weights");
    else if (name == "out")
      options.combine.out = options.arrays.write(value, "out");
    else if (name == "bias") {
      const bool many = nb::isinstance<nb::tuple>(value) || nb::isinstance<nb::list>(value);
      for (nb::handle bias : many ? nb::borrow(value) : nb::object(nb::make_tuple(value)))
        if (!bias.is_none()) options.combine.bias.push_back(options.arrays.read(bias, "bias"));
    } else
      launch[key] = value;
  }
  options.combine.launch = launch_from(launch);
  return options;
}

struct Dispatched {
  nb::object x, scales, topk_idx, topk_weights, source_token, expert_first_row, row_count,
      expert_counts;
  std::vector<std::int64_t> rows_per_source, tokens_per_expert;
  std::int64_t rows = 0;
  ep::Handle handle;
};

struct Combined {
  nb::object x, topk_weights;
};

struct Routing {
  ep::Routing routing;
  nb::object topk_idx, rank_counts, expert_counts;
};

Dispatched to_python(const Group& group, ep::Dispatched result, void* stream) {
  const auto give = [&](Tensor& tensor) { return group.output(std::move(tensor), stream); };
  return {give(result.x),
          give(result.scales),
          give(result.topk_idx),
          give(result.topk_weights),
          give(result.source_token),
          give(result.expert_first_row),
          give(result.row_count),
          give(result.expert_counts),
          std::move(result.rows_per_source),
          std::move(result.tokens_per_expert),
          result.rows,
          std::move(result.handle)};
}

Combined to_python(const Group& group, ep::Combined result, void* stream, nb::handle out) {
  return {out.is_none() ? group.output(std::move(result.x), stream) : nb::borrow(out),
          group.output(std::move(result.topk_weights), stream)};
}

Routing route(const Group& self, nb::handle topk_idx, const nb::kwargs& given) {
  const Input indices = input(topk_idx, "topk_idx");
  ep::Launch launch = launch_from(given);
  follow(launch, self, indices);
  ep::Routing routing;
  {
    nb::gil_scoped_release released;
    routing = self.group.route(indices.view, launch);
  }
  const auto give = [&](const Tensor& tensor) { return self.output(tensor, launch.stream); };
  return {routing, give(routing.topk_idx), give(routing.rank_counts), give(routing.expert_counts)};
}

/// nullptr: it is a Handle. Throws Error{invalid_argument} for what is neither.
const Routing* routing_of(nb::handle layout) {
  if (nb::isinstance<Routing>(layout)) return &nb::cast<const Routing&>(layout);
  require(nb::isinstance<ep::Handle>(layout), Code::invalid_argument,
          "dispatch goes by a Routing or the Handle of an earlier dispatch, got a {}",
          nb::cast<std::string>(layout.type().attr("__name__")));
  return nullptr;
}

Dispatched dispatch(Group& self, nb::handle x, nb::handle layout, const nb::kwargs& given) {
  Options options = dispatch_options(given);
  const Input rows = input(x, "x", options.dtype);
  follow(options.dispatch.launch, self, rows);
  const Routing* const routing = routing_of(layout);
  const ep::Handle* const handle =
      routing == nullptr ? &nb::cast<const ep::Handle&>(layout) : nullptr;
  ep::Dispatched result;
  {
    nb::gil_scoped_release released;
    result = routing != nullptr ? self.group.dispatch(rows.view, routing->routing, options.dispatch)
                                : self.group.dispatch(rows.view, *handle, options.dispatch);
  }
  return to_python(self, std::move(result), options.dispatch.launch.stream);
}

Combined combine(Group& self, nb::handle y, const ep::Handle& handle, const nb::kwargs& given) {
  Options options = combine_options(given);
  const Input rows = input(y, "y", options.dtype);
  follow(options.combine.launch, self, rows);
  ep::Combined result;
  {
    nb::gil_scoped_release released;
    result = self.group.combine(rows.view, handle, options.combine);
  }
  nb::object out = given.contains("out") ? nb::borrow(given["out"]) : nb::none();
  return to_python(self, std::move(result), options.combine.launch.stream, out);
}

/// What asynchronous operations may wait for: set by any thread, once.
struct HostEvent {
  std::promise<void> promise;
  ep::Future event = promise.get_future().share();
  std::atomic<bool> is_set = false;

  void set() {
    if (!is_set.exchange(true)) promise.set_value();
  }
  ~HostEvent() { set(); }  // nobody can any more
};

/// An operation on the group's own stream, with everything that it reads until it is done.
struct Future {
  std::function<bool(std::chrono::milliseconds)> wait;
  std::function<nb::object()> take;
  nb::object group, input;
  Options options;
  std::optional<Input> rows;

  bool done() const { return !take || wait(std::chrono::milliseconds(0)); }
  nb::object result() {
    require(static_cast<bool>(take), Code::invalid_argument, "result() of a Future is taken once");
    const auto done_soon = [&] {
      nb::gil_scoped_release released;
      return wait(std::chrono::milliseconds(100));
    };
    while (!done_soon())  // ends, once it has started: every wait inside has its deadline
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    require(static_cast<bool>(take), Code::invalid_argument, "result() of a Future is taken once");
    return std::exchange(take, nullptr)();
  }
  ~Future() {
    if (!take) return;
    nb::gil_scoped_release released;  // its inputs must stay until it is done
    wait(std::chrono::hours(1));
  }
};

/// `launch_of(options)` is where the call runs, `start(group, view, options)` returns the
/// std::future; `finish` makes its result one of Python's.
template <typename LaunchOf, typename Start, typename Finish>
std::unique_ptr<Future> begin(nb::handle_t<Group> group, nb::handle array, const char* what,
                              Options options, const LaunchOf& launch_of, const Start& start,
                              const Finish& finish) {
  auto future = std::make_unique<Future>();
  future->group = nb::borrow(group);
  future->options = std::move(options);
  future->rows = input(array, what, future->options.dtype);
  auto& self = nb::cast<Group&>(group);
  ep::Launch& launch = launch_of(future->options);
  follow(launch, self, *future->rows);
  auto running = std::make_shared<decltype(start(self.group, TensorView{}, future->options))>(
      start(self.group, future->rows->view, future->options));
  future->wait = [running](std::chrono::milliseconds time) {
    return running->wait_for(time) == std::future_status::ready;
  };
  future->take = [running, finish, &self, stream = launch.stream]() -> nb::object {
    return nb::cast(finish(self, running->get(), stream));
  };
  return future;
}

/// What the host waits for before an operation starts; `rest` is what else was given. The HostEvent
/// itself is not kept: an operation whose event nobody can set any more starts.
struct After {
  ep::Future event;
  nb::kwargs rest;

  explicit After(const nb::kwargs& given) {
    for (const auto& [key, value] : given) {
      if (nb::cast<std::string>(key) == "after" && nb::isinstance<HostEvent>(value)) {
        event = nb::cast<const HostEvent&>(value).event;
      } else {
        rest[key] = value;
      }
    }
  }
};

std::unique_ptr<Future> dispatch_async(nb::handle_t<Group> self, nb::handle x, nb::handle layout,
                                       const nb::kwargs& given) {
  const Routing* const routing = routing_of(layout);
  const After after(given);
  return begin(
      self, x, "x", dispatch_options(after.rest),
      [](Options& options) -> ep::Launch& { return options.dispatch.launch; },
      [&](ep::Group& group, const TensorView& view, const Options& call) {
        require(routing != nullptr, Code::invalid_argument,
                "dispatch_async goes by a Routing, got a Handle");
        return group.dispatch_async(view, routing->routing, call.dispatch, after.event);
      },
      [](const Group& group, ep::Dispatched result, void* stream) {
        return to_python(group, std::move(result), stream);
      });
}

std::unique_ptr<Future> combine_async(nb::handle_t<Group> self, nb::handle y,
                                      const ep::Handle& handle, const nb::kwargs& given) {
  nb::object out = given.contains("out") ? nb::borrow(given["out"]) : nb::none();
  const After after(given);
  return begin(
      self, y, "y", combine_options(after.rest),
      [](Options& options) -> ep::Launch& { return options.combine.launch; },
      [&](ep::Group& group, const TensorView& view, const Options& call) {
        return group.combine_async(view, handle, call.combine, after.event);
      },
      [out](const Group& group, ep::Combined result, void* stream) {
        return to_python(group, std::move(result), stream, out);
      });
}

}  // namespace

void bind_normal(nb::module_& module, nb::class_<Group>& group) {
  nb::class_<ep::Handle>(
      module, "Handle",
      "The layout of one dispatch: for its combine, and for later dispatches of the same routing."_doc)
      .def_prop_ro("received_rows", &ep::Handle::received_rows,
                   "Rows that the dispatch received, as Dispatched.rows."_doc);
  nb::class_<Routing>(module, "Routing",
                      "Where the tokens of this member go; good for any number of dispatches."_doc)
      .def_ro("topk_idx", &Routing::topk_idx,
              nb::for_getter(nb::sig("def topk_idx(self) -> shoal._core.Array")),
              "int64 [tokens, top_k], a copy; -1: no expert."_doc)
      .def_prop_ro(
          "tokens", [](const Routing& self) { return self.routing.tokens(); },
          "Number of tokens."_doc)
      .def_prop_ro(
          "tokens_per_rank", [](const Routing& self) { return self.routing.tokens_per_rank; },
          "[members], each token counted once per member; empty on GPUs."_doc)
      .def_prop_ro(
          "tokens_per_expert", [](const Routing& self) { return self.routing.tokens_per_expert; },
          "[experts]; empty on GPUs."_doc)
      .def_ro("rank_counts", &Routing::rank_counts,
              nb::for_getter(nb::sig("def rank_counts(self) -> shoal._core.Array | None")),
              "tokens_per_rank in GPU memory (int32), else None."_doc)
      .def_ro("expert_counts", &Routing::expert_counts,
              nb::for_getter(nb::sig("def expert_counts(self) -> shoal._core.Array | None")),
              "tokens_per_expert in GPU memory (int32), else None."_doc)
      .def(
          "is_token_in_rank",
          [](const Routing& self, std::int64_t token, std::int32_t rank) {
            return self.routing.is_token_in_rank(token, rank);
          },
          nb::arg("token"), nb::arg("rank"), "Whether a token goes to a member."_doc);
  nb::class_<Dispatched>(module, "Dispatched", "What one dispatch received."_doc)
      .def_ro(
          "x", &Dispatched::x, nb::for_getter(nb::sig("def x(self) -> shoal._core.Array")),
          "[rows, hidden]: ordered by source member, then by token; expert_major: by expert."_doc)
      .def_ro("scales", &Dispatched::scales,
              nb::for_getter(nb::sig("def scales(self) -> shoal._core.Array | None")),
              "[rows, n], or None where none were sent."_doc)
      .def_ro(
          "topk_idx", &Dispatched::topk_idx,
          nb::for_getter(nb::sig("def topk_idx(self) -> shoal._core.Array | None")),
          "int64 [rows, top_k]: experts of this member from 0 on; -1: elsewhere. ExpertMajor: [rows, 1]."_doc)
      .def_ro("topk_weights", &Dispatched::topk_weights,
              nb::for_getter(nb::sig("def topk_weights(self) -> shoal._core.Array | None")),
              "float32, as topk_idx; 0 where that is -1; None without weights."_doc)
      .def_ro("source_token", &Dispatched::source_token,
              nb::for_getter(nb::sig("def source_token(self) -> shoal._core.Array | None")),
              "int32 [rows]: index of the token at its source."_doc)
      .def_ro("expert_first_row", &Dispatched::expert_first_row,
              nb::for_getter(nb::sig("def expert_first_row(self) -> shoal._core.Array | None")),
              "int32 [local experts + 1], expert_major only."_doc)
      .def_ro("rows_per_source", &Dispatched::rows_per_source, "[members]."_doc)
      .def_ro("tokens_per_expert", &Dispatched::tokens_per_expert,
              "[local experts], rounded up to expert_alignment."_doc)
      .def_ro("rows", &Dispatched::rows,
              "Rows that hold tokens; -1 on GPUs with worst_case_rows."_doc)
      .def_ro("row_count", &Dispatched::row_count,
              nb::for_getter(nb::sig("def row_count(self) -> shoal._core.Array | None")),
              "The same in GPU memory (int32 [1]), else None."_doc)
      .def_ro("expert_counts", &Dispatched::expert_counts,
              nb::for_getter(nb::sig("def expert_counts(self) -> shoal._core.Array | None")),
              "int32 [local experts] in GPU memory, not aligned, else None."_doc)
      .def_prop_ro(
          "handle", [](const Dispatched& self) { return self.handle; }, nb::rv_policy::move,
          "For the combine, and for dispatches of the same layout."_doc);  // a copy: it must not
                                                                           // keep the rows
  nb::class_<Combined>(module, "Combined", "The sums of one combine."_doc)
      .def_ro("x", &Combined::x, nb::for_getter(nb::sig("def x(self) -> shoal._core.Array")),
              "[tokens, hidden], dtype of the answers; the array given as out=."_doc)
      .def_ro("topk_weights", &Combined::topk_weights,
              nb::for_getter(nb::sig("def topk_weights(self) -> shoal._core.Array | None")),
              "float32 [tokens, top_k], or None without weights."_doc);

  static const char* const kDispatchText =
      "Sends each token to the members that hold its experts. Collective.\n\nx: bfloat16, float16, float32 or "
      "float8_e4m3 [tokens, hidden], or int8 or uint8 rows; contiguous, rows a multiple of 16 bytes; dtype= says what "
      "other arrays hold. The second argument is a Routing, or the Handle of an earlier dispatch (no counts are "
      "exchanged then).\nweights: float32 [tokens, top_k]. scales: float32 or int32 [tokens, n], any strides. "
      "expert_alignment: tokens_per_expert is rounded up to it. expert_major: a row for each (token, expert), grouped by "
      "expert. worst_case_rows: results have exactly so many rows; the others have topk_idx -1. copy_out: results "
      "outside the heap.\nstream, after, done, sms: on GPUs, the stream (cudaStream_t or torch.cuda.Stream; None: the "
      "current stream of torch for its tensors, else what the array is ready on, else Group.stream), events to wait "
      "for and to record (cudaEvent_t or torch.cuda.Event), and the SMs to use."_doc;
  nb::class_<HostEvent>(
      module, "HostEvent",
      "What dispatch_async and combine_async may wait for (after=): set once, by any thread."_doc)
      .def(nb::init<>(), "Not set."_doc)
      .def("set", &HostEvent::set, "Lets what waits for it go on; a second time does nothing."_doc)
      .def_prop_ro(
          "is_set", [](const HostEvent& self) { return self.is_set.load(); },
          "Whether it is set."_doc);
  nb::class_<Future>(module, "Future", "An operation on the group's own stream."_doc)
      .def("done", &Future::done, "Whether result() would not wait."_doc)
      .def("result", &Future::result, nb::sig("def result(self) -> Dispatched | Combined"),
           "What the call returns, once; raises what went wrong."_doc);
  group
      .def(
          "route", &route, nb::arg("topk_idx"), nb::arg("launch"),
          nb::sig(
              "def route(self, topk_idx: typing.Any, *, stream: typing.Any = None, after: typing.Any = None, "
              "done: typing.Any = None, sms: int = 0) -> Routing"),
          "Where tokens go: int64 or int32 [tokens, top_k] of experts, -1: none. Local. Raises InvalidArgumentError "
          "for an index outside the experts or the same expert twice, naming the token."_doc)
      .def(
          "dispatch", &dispatch, nb::arg("x"), nb::arg("routing"), nb::arg("options"),
          nb::sig(
              "def dispatch(self, x: typing.Any, routing: Routing | Handle, *, weights: typing.Any = None, "
              "scales: typing.Any = None, dtype: str | None = None, expert_alignment: int = 1, expert_major: bool = "
              "False, worst_case_rows: int = 0, copy_out: bool = False, stream: typing.Any = None, after: "
              "typing.Any = None, done: typing.Any = None, sms: int = 0) -> Dispatched"),
          kDispatchText)
      .def(
          "combine", &combine, nb::arg("y"), nb::arg("handle"), nb::arg("options"),
          nb::sig(
              "def combine(self, y: typing.Any, handle: Handle, *, weights: typing.Any = None, bias: typing.Any = "
              "(), dtype: str | None = None, out: typing.Any = None, stream: typing.Any = None, after: typing.Any "
              "= None, done: typing.Any = None, sms: int = 0) -> Combined"),
          "Sums the answers to the rows of a dispatch, back at their sources. Collective.\n\ny: bfloat16, float16 or "
          "float32 [rows, hidden], contiguous; rows in the group's memory (Dispatched.x written in place) are fetched "
          "from there, others are copied first. weights: float32 [rows, top_k], summed back too. bias: up to two "
          "arrays [tokens, hidden], added before the rows. out: where to put the result."_doc)
      .def(
          "dispatch_async", &dispatch_async, nb::arg("x"), nb::arg("routing"), nb::arg("options"),
          nb::sig(
              "def dispatch_async(self, x: typing.Any, routing: Routing, **options: typing.Any) -> Future"),
          "As dispatch, on the group's own stream; operations run there one after another, and arrays must stay "
          "unchanged until the Future is done. after: also a HostEvent, before which it does not start."_doc)
      .def(
          "combine_async", &combine_async, nb::arg("y"), nb::arg("handle"), nb::arg("options"),
          nb::sig(
              "def combine_async(self, y: typing.Any, handle: Handle, **options: typing.Any) -> Future"),
          "As combine, on the group's own stream."_doc);
}

}  // namespace shoal::python
