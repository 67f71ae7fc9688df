// SPDX-License-Identifier: Apache-2.0
// ep/normal.cpp: route, dispatch and combine.
#include "normal.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "../arguments.hpp"
#include "../check.hpp"
#include "../docs.hpp"
#include "options.hpp"

namespace shoal::python {
namespace {

/// bias= of combine: None, an array, or a tuple or list of them.
void read_bias(NormalOptions& options, nb::handle given) {
  const bool many = nb::isinstance<nb::tuple>(given) || nb::isinstance<nb::list>(given);
  for (nb::handle bias : many ? nb::borrow(given) : nb::object(nb::make_tuple(given)))
    if (!bias.is_none()) {
      refuse_gradient("combine", "bias", bias, "shoal.torch.combine and add the bias");
      options.combine.bias.push_back(options.arrays.read(bias, "bias", options.dtype));
    }
}

Routing route(const Group& self, nb::handle topk_idx, const nb::kwargs& given) {
  const Input indices = input(topk_idx, "topk_idx");
  ep::RouteOptions options;
  ep::Launch& launch = options.launch;
  Inputs arrays;
  for (const auto& [key, value] : given) {
    const std::string_view name = text_of(key);
    if (name == "is_token_in_rank")
      options.is_token_in_rank = arrays.write(value, "is_token_in_rank");
    else
      read_launch("route", name, value, launch);
  }
  follow(launch, self, indices);
  ep::Routing routing;
  {
    nb::gil_scoped_release released;
    routing = self.group.route(indices.view, options);
  }
  const auto give = [&](const Tensor& tensor) {
    return self.result(library_of(topk_idx), tensor, launch.stream);
  };
  const auto counts = routing.device_counts.value_or(ep::Routing::DeviceCounts());
  return {routing, give(routing.topk_idx), give(counts.tokens_per_rank),
          give(counts.tokens_per_expert), give(counts.tokens_per_node)};
}

/// Empty on GPUs.
ep::Routing::Counts host_counts(const Routing& routing) {
  return routing.routing.counts.value_or(ep::Routing::Counts());
}

Dispatched dispatch(Group& self, nb::handle x, nb::handle layout, const nb::kwargs& given) {
  NormalOptions options = dispatch_options_from("dispatch", given);
  refuse_gradient("dispatch", "x", x, kDispatchWithGradient);
  const Input rows = input(x, "x", options.dtype);
  follow(options.dispatch.launch, self, rows);
  const Routing* const routing = routing_from(layout);
  const ep::Handle* const handle =
      routing == nullptr ? &nb::cast<const ep::Handle&>(layout) : nullptr;
  ep::detail::AnyDispatched result;
  {
    nb::gil_scoped_release released;
    result = routing != nullptr
                 ? ep::detail::dispatch(self.group, rows.view, routing->routing, options.dispatch)
                 : ep::detail::dispatch(self.group, rows.view, *handle, options.dispatch);
  }
  return to_python(self, library_of(x), std::move(result), options.dispatch.launch.stream);
}

/// The fields that Group::unpack reads.
ep::detail::AnyDispatched untyped(const Dispatched& received) {
  ep::detail::AnyDispatched any;
  any.x = received.x.tensor();
  any.scales = received.scales.tensor();
  any.topk_idx = received.topk_idx.tensor();
  any.topk_weights = received.topk_weights.tensor();
  any.source_token = received.source_token.tensor();
  any.expert_first_row = received.expert_first_row.tensor();
  any.row_count = received.row_count.tensor();
  any.handle = received.handle;
  return any;
}

void unpack(Group& self, nb::handle given_result, const nb::kwargs& given) {
  constexpr const char* kCall = "unpack";
  const ep::detail::AnyDispatched received =
      untyped(object_from<const Dispatched>(kCall, "received", given_result, "a Dispatched"));
  ep::UnpackOptions to;
  Inputs arrays;
  for (const auto& [key, value] : given) {
    const std::string_view name = text_of(key);
    const auto write = [&](const char* what) {
      const TensorView array = arrays.write(value, what);
      if (array.defined()) follow(to.launch, self, arrays.last());
      return array;
    };
    if (name == "scales")
      to.scales = write("scales");
    else if (name == "topk_idx")
      to.topk_idx = write("topk_idx");
    else if (name == "topk_weights")
      to.topk_weights = write("topk_weights");
    else if (name == "source_token")
      to.source_token = write("source_token");
    else if (name == "clear_unused")
      to.clear_unused = argument<bool>(kCall, name, value);
    else
      read_launch(kCall, name, value, to.launch);
  }
  nb::gil_scoped_release released;
  ep::detail::unpack(self.group, received, to);
}

Combined combine(Group& self, nb::handle y, nb::handle given_handle, const nb::kwargs& given) {
  const ep::Handle& handle = handle_from("combine", given_handle);
  NormalOptions options = combine_options_from("combine", given);
  refuse_gradient("combine", "y", y, kCombineWithGradient);
  const Input rows = input(y, "y", options.dtype);
  follow(options.combine.launch, self, rows);
  ep::Combined result;
  {
    nb::gil_scoped_release released;
    result = self.group.combine(rows.view, handle, options.combine);
  }
  nb::object out = given.contains("out") ? nb::borrow(given["out"]) : nb::none();
  return to_python(self, library_of(y), std::move(result), options.combine.launch.stream, out);
}

/// A property that returns a Result.
template <typename T>
void def_result(nb::class_<T>& type, const char* name, Result T::* field, const char* signature,
                const char* doc) {
  type.def_prop_ro(
      name, [field](const T& self) { return (self.*field).get(); }, nb::sig(signature), doc);
}

/// "[3, 0, 5]", the first 16 of more.
template <typename Count>
std::string shortened(const std::vector<Count>& counts) {
  constexpr std::size_t kMost = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(counts.size(), kMost); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", counts[i]);
  return fmt::format("[{}{}]", text, counts.size() > kMost ? ", ..." : "");
}

std::string describe(const Dispatched& self) {
  std::string text = self.rows < 0 ? "rows counted on the GPU" : fmt::format("{} rows", self.rows);
  text += fmt::format(", x {}", self.x.summary());
  for (const auto& [name, field] :
       {std::pair{"scales", &self.scales}, std::pair{"topk_idx", &self.topk_idx},
        std::pair{"topk_weights", &self.topk_weights}})
    if (field->defined()) text += fmt::format(", {} {}", name, field->summary());
  if (!self.rows_per_source.empty())
    text += fmt::format(", rows_per_source {}", shortened(self.rows_per_source));
  return fmt::format("shoal.ep.Dispatched({})", text);
}

std::string describe(const Combined& self) {
  const std::string weights =
      self.topk_weights.defined() ? ", topk_weights " + self.topk_weights.summary() : "";
  return fmt::format("shoal.ep.Combined(x {}{})", self.x.summary(), weights);
}

void bind_routing(nb::module_& module) {
  nb::class_<Routing> routing(
      module, "Routing", nb::is_generic(), nb::sig("class Routing(typing.Generic[A_co])"),
      "The destinations of this rank's tokens, for any number of dispatches."_doc);
  refuse_numpy(routing, "its topk_idx, or tokens_per_expert");
  def_result(routing, "topk_idx", &Routing::topk_idx, "def topk_idx(self) -> A_co",
             "int64 [tokens, top_k], a copy; -1: no expert."_doc);
  def_result(routing, "rank_counts", &Routing::rank_counts, "def rank_counts(self) -> A_co | None",
             "tokens_per_rank in GPU memory (int32); None on the host."_doc);
  def_result(routing, "expert_counts", &Routing::expert_counts,
             "def expert_counts(self) -> A_co | None",
             "tokens_per_expert in GPU memory (int32); None on the host."_doc);
  def_result(routing, "node_counts", &Routing::node_counts, "def node_counts(self) -> A_co | None",
             "tokens_per_node in GPU memory (int32); None on the host."_doc);
  routing
      .def_prop_ro(
          "tokens", [](const Routing& self) { return self.routing.tokens(); },
          "Number of tokens."_doc)
      .def_prop_ro(
          "tokens_per_rank", [](const Routing& self) { return host_counts(self).tokens_per_rank; },
          "[ranks], each token counted once per rank; empty on GPUs."_doc)
      .def_prop_ro(
          "tokens_per_expert",
          [](const Routing& self) { return host_counts(self).tokens_per_expert; },
          "[experts]; empty on GPUs."_doc)
      .def_prop_ro(
          "tokens_per_node", [](const Routing& self) { return host_counts(self).tokens_per_node; },
          "[nodes], each token counted once per node (ranks that reach each other by load and "
          "store); empty on GPUs."_doc)
      .def(
          "is_token_in_rank",
          [](const Routing& self, std::int64_t token, std::int32_t rank) {
            return self.routing.is_token_in_rank(token, rank);
          },
          nb::call_guard<nb::gil_scoped_release>(), nb::arg("token"), nb::arg("rank"),
          "True if a token goes to a rank. On GPUs the call waits for the group's work; "
          "Group.route fills an array for all tokens."_doc)
      .def("__repr__", [](const Routing& self) {
        const auto counts = host_counts(self).tokens_per_rank;
        return fmt::format("shoal.ep.Routing({} tokens, tokens_per_rank {})", self.routing.tokens(),
                           counts.empty() ? "on the GPU" : shortened(counts));
      });
}

void bind_dispatched(nb::module_& module) {
  nb::class_<Dispatched> dispatched(module, "Dispatched", nb::is_generic(),
                                    nb::sig("class Dispatched(typing.Generic[A_co])"),
                                    "The result of a dispatch."_doc);
  refuse_numpy(dispatched, "its x, topk_idx or topk_weights");
  def_result(dispatched, "x", &Dispatched::x, "def x(self) -> A_co",
             "[rows, hidden], ordered by source rank and token; with expert_major by expert."_doc);
  def_result(dispatched, "scales", &Dispatched::scales, "def scales(self) -> A_co | None",
             "[rows, n]; None without scales and quantize."_doc);
  def_result(dispatched, "topk_idx", &Dispatched::topk_idx, "def topk_idx(self) -> A_co | None",
             "int64 [rows, top_k]: local experts from 0; -1: expert elsewhere. With expert_major "
             "[rows, 1]."_doc);
  def_result(dispatched, "topk_weights", &Dispatched::topk_weights,
             "def topk_weights(self) -> A_co | None",
             "float32 of the shape of topk_idx; 0 where that is -1; None without weights."_doc);
  def_result(dispatched, "source_token", &Dispatched::source_token,
             "def source_token(self) -> A_co | None",
             "int32 [rows]: index of the token at its source."_doc);
  def_result(dispatched, "expert_first_row", &Dispatched::expert_first_row,
             "def expert_first_row(self) -> A_co | None",
             "int32 [local experts + 1]; with expert_major only."_doc);
  def_result(dispatched, "row_count", &Dispatched::row_count, "def row_count(self) -> A_co | None",
             "rows in GPU memory (int32 [1]); None on the host."_doc);
  def_result(dispatched, "expert_counts", &Dispatched::expert_counts,
             "def expert_counts(self) -> A_co | None",
             "int32 [local experts] in GPU memory, not aligned; None on the host."_doc);
  dispatched.def("__repr__", [](const Dispatched& self) { return describe(self); })
      .def_ro("rows_per_source", &Dispatched::rows_per_source, "[ranks]."_doc)
      .def_ro("tokens_per_expert", &Dispatched::tokens_per_expert,
              "[local experts], rounded up to expert_alignment."_doc)
      .def_ro("rows", &Dispatched::rows,
              "Rows that hold tokens; -1 on GPUs with worst_case_rows."_doc)
      // A copy, because a reference would keep the rows alive.
      .def_prop_ro(
          "handle", [](const Dispatched& self) { return self.handle; }, nb::rv_policy::move,
          "For the combine, and for dispatches of the same layout."_doc);
}

void bind_calls(nb::class_<Group>& group) {
  group
      .def(
          "route", &route, nb::arg("topk_idx"), nb::arg("launch"),
          nb::sig(
              "def route(self, topk_idx: A, *, is_token_in_rank: shoal.typing.SupportsDLPack | None "
              "= None, stream: shoal.typing.Stream | None = None, after: shoal.typing.Event | None ="
              " None, done: shoal.typing.Event | None = None, sms: int = 0) -> Routing[A]"),
          "Computes the destinations of tokens. Local. topk_idx: int64 or int32 [tokens, top_k]; "
          "-1: no expert. is_token_in_rank: uint8 [tokens, ranks], is filled with 1 where a token "
          "goes to a rank. Raises InvalidArgumentError, naming the token, for an index outside the "
          "experts and for an expert that a token names twice."_doc)
      .def(
          "dispatch", &dispatch, nb::arg("x").none(), nb::arg("routing") = nb::none(),
          nb::arg("options"),
          nb::sig(
              "def dispatch(self, x: A, routing: Routing[shoal.typing.SupportsDLPack] | Handle, *, "
              "weights: shoal.typing.SupportsDLPack | None = None, scales: "
              "shoal.typing.SupportsDLPack | None = None, quantize: str = 'none', global_scale: "
              "shoal.typing.SupportsDLPack | None = None, dtype: shoal.typing.DType | None = None, "
              "expert_alignment: int = 1, expert_major: bool = False, worst_case_rows: int = 0, "
              "copy_out: bool = False, transient: bool = False, stream: shoal.typing.Stream | None ="
              " None, after: shoal.typing.Event | None = None, done: shoal.typing.Event | None = "
              "None, sms: int = 0) -> Dispatched[A]"),
          "Sends each token to the ranks of its experts. Collective.\n\n"
          "x: bfloat16, float16, float32 or float8_e4m3 [tokens, hidden], or int8 or uint8 rows; "
          "contiguous, with rows of a multiple of 16 bytes, in GPU memory also aligned to 16 bytes. "
          "dtype names the type where the array cannot. routing: a Routing, or the Handle of an "
          "earlier dispatch, which needs no exchange of counts.\n"
          "weights: float32 [tokens, top_k]. scales: float32 or int32 [tokens, n], any strides. "
          "quantize: the form in which bfloat16 rows travel and arrive, with their scales: "
          "\"none\", \"fp8\", \"fp8_power_of_two\", \"fp8_ue8m0\", \"mxfp8\" or \"nvfp4\". "
          "global_scale: float32 [1], for nvfp4, the same on all ranks; with expert_major also "
          "[experts], on one node. "
          "expert_alignment: tokens_per_expert is rounded up to it. expert_major: one row per "
          "(token, expert), grouped by expert. worst_case_rows: the number of rows of the result; "
          "unused rows have topk_idx -1. copy_out: results lie outside the heap. "
          "transient: the result is read and released before the group's next call or replay, so "
          "that it may lie where CUDA graphs write.\n"
          "stream, after, done, sms, on GPUs: the stream (cudaStream_t or torch.cuda.Stream), "
          "events to wait for and to record (cudaEvent_t or torch.cuda.Event), and the number of "
          "SMs. stream=None is the current stream of torch for its tensors, else the stream on "
          "which the array is ready, else Group.stream."_doc)
      .def(
          "unpack", &unpack, nb::arg("received"), nb::arg("options"),
          nb::sig(
              "def unpack(self, received: Dispatched[shoal.typing.SupportsDLPack], *, scales: "
              "shoal.typing.SupportsDLPack | None = None, topk_idx: "
              "shoal.typing.SupportsDLPack | None = None, topk_weights: "
              "shoal.typing.SupportsDLPack | None = None, source_token: "
              "shoal.typing.SupportsDLPack | None = None, clear_unused: bool = False, stream: "
              "shoal.typing.Stream | None = None, after: shoal.typing.Event | None = None, done: "
              "shoal.typing.Event | None = None, sms: int = 0) -> None"),
          "Copies what came beside the rows of a dispatch to arrays of any strides, in one kernel. "
          "Local.\n\n"
          "Each array has the shape of the field of its name. One-byte scales are int32 "
          "[rows, ceil(n / 4)], four to a word; or, with expert_major and an expert_alignment that "
          "is a multiple of 128, uint8 [ceil(rows / 128), ceil(n / 4), 512], the tiles that "
          "cuBLASLt and CUTLASS read. clear_unused: rows of x without a token become 0, with "
          "worst_case_rows."_doc)
      .def(
          "combine", &combine, nb::arg("y").none(), nb::arg("handle") = nb::none(),
          nb::arg("options"),
          nb::sig(
              "def combine(self, y: A, handle: Handle, *, weights: shoal.typing.SupportsDLPack | "
              "None = None, quantize: str = 'none', bias: shoal.typing.SupportsDLPack | "
              "collections.abc.Sequence[shoal.typing.SupportsDLPack | None] | None = (), dtype: "
              "shoal.typing.DType | None = None, out: shoal.typing.SupportsDLPack | None = None, "
              "unsummed: bool = False, stream: shoal.typing.Stream | None = None, after: "
              "shoal.typing.Event | None = None, done: shoal.typing.Event | None = None, sms: int = "
              "0) -> Combined[A]"),
          "Sums the expert output of a dispatch's rows at their sources. Collective.\n\n"
          "y: bfloat16, float16 or float32 [rows, hidden], contiguous. Rows in the group's memory "
          "(Dispatched.x written in place) need no copy. weights: float32 [rows, top_k], summed "
          "too. quantize: fp8 or mxfp8, in which the rows of a bfloat16 y travel (docs/guide/"
          "formats.md); equal on all ranks. bias: up to two arrays [tokens, hidden], added first. "
          "out: the array for the result. unsummed: the rows of an expert-major dispatch come back "
          "in top-k order, [tokens, top_k, hidden], each as its expert wrote it, zeros where a slot "
          "has no expert. dtype names the type of y, bias and out where the arrays cannot."_doc);
}

}  // namespace

NormalOptions dispatch_options_from(std::string_view call, const nb::kwargs& given) {
  NormalOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "weights") {
      refuse_gradient(call, name, value, kDispatchWithGradient);
      options.dispatch.weights = options.arrays.read(value, "weights");
    } else if (name == "scales")
      options.dispatch.scales = options.arrays.read(value, "scales");
    else if (name == "quantize")
      options.dispatch.quantize = quantize_from(call, value);
    else if (name == "global_scale")
      options.dispatch.global_scale = options.arrays.read(value, "global_scale");
    else if (name == "dtype")
      options.dtype = optional_dtype(call, value);
    else if (name == "expert_alignment")
      options.dispatch.expert_alignment = argument<std::int32_t>(call, name, value);
    else if (name == "expert_major")
      options.dispatch.expert_major = argument<bool>(call, name, value);
    else if (name == "worst_case_rows")
      options.dispatch.worst_case_rows = argument<std::int64_t>(call, name, value);
    else if (name == "copy_out")
      options.dispatch.copy_out = argument<bool>(call, name, value);
    else if (name == "transient")
      options.dispatch.transient = argument<bool>(call, name, value);
    else
      read_launch(call, name, value, options.dispatch.launch);
  }
  return options;
}

NormalOptions combine_options_from(std::string_view call, const nb::kwargs& given) {
  NormalOptions options;
  nb::object out = nb::none(), bias = nb::none();
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "dtype")
      options.dtype = optional_dtype(call, value);
    else if (name == "weights") {
      refuse_gradient(call, name, value, kCombineWithGradient);
      options.combine.weights = options.arrays.read(value, "weights");
    } else if (name == "quantize")
      options.combine.quantize = quantize_from(call, value);
    else if (name == "out")
      out = nb::borrow(value);
    else if (name == "bias")
      bias = nb::borrow(value);
    else if (name == "unsummed")
      options.combine.unsummed = argument<bool>(call, name, value);
    else
      read_launch(call, name, value, options.combine.launch);
  }
  options.combine.out = options.arrays.write(out, "out", options.dtype);
  read_bias(options, bias);
  return options;
}

Dispatched to_python(const Group& group, const Library* library, ep::detail::AnyDispatched result,
                     Stream stream) {
  const auto give = [&](Tensor& tensor) {
    return group.result(library, std::move(tensor), stream);
  };
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

Combined to_python(const Group& group, const Library* library, ep::Combined result, Stream stream,
                   nb::handle out) {
  return {out.is_none() ? group.result(library, std::move(result.x), stream) : Result(out),
          group.result(library, or_undefined(result.topk_weights), stream)};
}

const ep::Handle& handle_from(std::string_view call, nb::handle given) {
  return object_from<const ep::Handle>(call, "handle", given,
                                       "the Handle of a dispatch, Dispatched.handle");
}

const Routing* routing_from(nb::handle layout) {
  if (nb::isinstance<Routing>(layout)) return &nb::cast<const Routing&>(layout);
  require(nb::isinstance<ep::Handle>(layout), Code::invalid_argument,
          "dispatch needs a Routing or the Handle of an earlier dispatch, got a {}",
          nb::cast<std::string>(layout.type().attr("__name__")));
  return nullptr;
}

void bind_normal(nb::module_& module, nb::class_<Group>& group) {
  nb::class_<ep::Handle>(
      module, "Handle",
      "The layout of a dispatch, for its combine and for later dispatches of the same routing."_doc)
      .def_prop_ro(
          "received_rows", [](const ep::Handle& self) { return self.received_rows().value_or(-1); },
          "Rows that the dispatch received; Dispatched.rows."_doc)
      .def("__repr__", [](const ep::Handle& self) {
        const std::optional<std::int64_t> rows = self.received_rows();
        return rows ? fmt::format("shoal.ep.Handle({} rows received)", *rows)
                    : std::string("shoal.ep.Handle(rows counted on the GPU)");
      });
  bind_routing(module);
  bind_dispatched(module);
  nb::class_<Combined> combined(module, "Combined", nb::is_generic(),
                                nb::sig("class Combined(typing.Generic[A_co])"),
                                "The result of a combine."_doc);
  refuse_numpy(combined, "its x or topk_weights");
  def_result(
      combined, "x", &Combined::x, "def x(self) -> A_co",
      "[tokens, hidden], with unsummed [tokens, top_k, hidden], dtype of y; the array passed "
      "as out=."_doc);
  def_result(combined, "topk_weights", &Combined::topk_weights,
             "def topk_weights(self) -> A_co | None",
             "float32 [tokens, top_k]; None without weights."_doc);
  combined.def("__repr__", [](const Combined& self) { return describe(self); });
  bind_calls(group);
}

}  // namespace shoal::python
