// SPDX-License-Identifier: Apache-2.0
// world/collectives.cpp: collectives of teams over symmetric arrays, which the host waits for or
// which are queued on a stream.
#include "shoal/collective.hpp"

#include <nanobind/stl/string.h>

#include <map>

#include "../arguments.hpp"
#include "../arrays/streams.hpp"
#include "../check.hpp"
#include "../docs.hpp"
#include "shoal/cuda_collective.hpp"
#include "world.hpp"

namespace shoal::python {
namespace {

ReduceOp reduce_op(const std::string& name) {
  static const std::map<std::string, ReduceOp> kNames = {
      {"sum", ReduceOp::sum},    {"prod", ReduceOp::prod},   {"min", ReduceOp::min},
      {"max", ReduceOp::max},    {"and", ReduceOp::bit_and}, {"or", ReduceOp::bit_or},
      {"xor", ReduceOp::bit_xor}};
  const auto found = kNames.find(name);
  require(found != kNames.end(), Code::invalid_argument,
          "op \"{}\"; allowed: \"sum\", \"prod\", \"min\", \"max\", \"and\", \"or\", \"xor\"",
          name);
  return found->second;
}

const Team& team_from(const char* call, nb::handle value) {
  return object_from<Team>(call, "team", value, "a shoal.Team, such as world.team");
}

/// The arguments of a collective that has a target and a source.
struct Arrays {
  const char* call;
  const Team& team;
  const TensorView &target, &source;
  void* to;
  const void* from;

  Arrays(const char* of_call, nb::handle given_team, nb::handle given_target,
         nb::handle given_source)
      : call(of_call),
        team(team_from(call, given_team)),
        target(symmetric_from(call, "target", given_target).local),
        source(symmetric_from(call, "source", given_source).local),
        to(target.data),
        from(source.data) {}

  void check_equal() const {
    require(target.dtype == source.dtype && target.size() == source.size(), Code::invalid_argument,
            "{}: target {} and source {} must have the same elements", call, target.describe(),
            source.describe());
  }

  /// Throws unless `large` has a block of the size of `small` for each PE.
  void check_blocks(const TensorView& small, const TensorView& large) const {
    require(small.dtype == large.dtype && large.size() == small.size() * team.size(),
            Code::invalid_argument, "{}: {} and {}; the latter must have {} times the elements",
            call, small.describe(), large.describe(), team.size());
  }
};

/// The element type of reductions on streams.
cuda::ElementType element_type(const char* what, DataType dtype) {
  using cuda::ElementType;
  switch (dtype) {
    case DataType::float32:
      return ElementType::float32;
    case DataType::float16:
      return ElementType::float16;
    case DataType::bfloat16:
      return ElementType::bfloat16;
    case DataType::float64:
      return ElementType::float64;
    case DataType::int8:
      return ElementType::int8;
    case DataType::uint8:
      return ElementType::uint8;
    case DataType::int32:
      return ElementType::int32;
    case DataType::int64:
      return ElementType::int64;
    case DataType::none:
    case DataType::float8_e4m3:
      break;
  }
  fail(Code::invalid_argument,
       "{}: dtype {}; allowed: float16, bfloat16, float32, float64, int8, "
       "uint8, int32, int64",
       what, name_of(dtype));
}

/// Runs, without the GIL, on_host() if there is no stream, else on_stream(collectives of the
/// stream).
template <typename OnHost, typename OnStream>
void run(const char* what, const Team& team, const nb::object& stream, OnHost&& on_host,
         OnStream&& on_stream) {
  CUstream_st* const queue = stream_from(what, stream);
  const nb::gil_scoped_release released;  // other PEs may be threads of this process
  if (queue == nullptr) return on_host();
  on_stream(cuda::StreamCollectives(team, static_cast<cuda::Stream>(queue)));
}

void bind_barriers(nb::module_& module) {
  module.def(
      "barrier",
      [](nb::handle given, const nb::object& stream) {
        const Team& team = team_from("barrier", given);
        run(
            "barrier", team, stream, [&] { barrier(team); },
            [](const cuda::StreamCollectives& on) { on.barrier(); });
      },
      nb::arg("team").none(), nb::arg("stream") = nb::none(),
      nb::sig("def barrier(team: Team, stream: shoal.typing.Stream | None = None) -> None"),
      "Completes this PE's operations, then waits for all PEs of the team. Raises TimeoutError, "
      "naming the PE that is late. With `stream`, a torch.cuda.Stream or its number, the stream "
      "waits instead."_doc);
  module.def(
      "sync",
      [](nb::handle given) {
        const Team& team = team_from("sync", given);
        const nb::gil_scoped_release released;
        sync(team);
      },
      nb::arg("team").none(), nb::sig("def sync(team: Team) -> None"),
      "Waits for all PEs of the team."_doc);
}

void bind_copies(nb::module_& module) {
  module.def(
      "broadcast",
      [](nb::handle team, nb::handle target, nb::handle source, Pe root, const nb::object& stream) {
        const Arrays of("broadcast", team, target, source);
        of.check_equal();
        const std::size_t bytes = of.source.bytes();
        run(
            of.call, of.team, stream,
            [&] { broadcast_bytes(of.team, of.to, of.from, bytes, root); },
            [&](const cuda::StreamCollectives& on) {
              on.broadcast_bytes(of.to, of.from, bytes, root);
            });
      },
      nb::arg("team").none(), nb::arg("target").none(), nb::arg("source").none(), nb::arg("root"),
      nb::arg("stream") = nb::none(),
      nb::sig("def broadcast(team: Team, target: SymmetricArray[shoal.typing.SupportsDLPack], "
              "source: SymmetricArray[shoal.typing.SupportsDLPack], root: int, stream: "
              "shoal.typing.Stream | None = None) -> None"),
      "Copies the root's `source` to the `target` of every PE, which may be the same array. With "
      "`stream`, queued there: arrays must be in GPU memory."_doc);
  module.def(
      "all_gather",
      [](nb::handle team, nb::handle target, nb::handle source, const nb::object& stream) {
        const Arrays of("all_gather", team, target, source);
        of.check_blocks(of.source, of.target);
        const std::size_t bytes = of.source.bytes();
        run(
            of.call, of.team, stream, [&] { all_gather_bytes(of.team, of.to, of.from, bytes); },
            [&](const cuda::StreamCollectives& on) { on.all_gather_bytes(of.to, of.from, bytes); });
      },
      nb::arg("team").none(), nb::arg("target").none(), nb::arg("source").none(),
      nb::arg("stream") = nb::none(),
      nb::sig("def all_gather(team: Team, target: SymmetricArray[shoal.typing.SupportsDLPack], "
              "source: SymmetricArray[shoal.typing.SupportsDLPack], stream: shoal.typing.Stream | "
              "None = None) -> None"),
      "Copies the `source` of PE i to block i of every `target`. `stream`: as broadcast."_doc);
  module.def(
      "all_to_all",
      [](nb::handle team, nb::handle target, nb::handle source, const nb::object& stream) {
        const Arrays of("all_to_all", team, target, source);
        of.check_equal();
        require(of.source.size() % of.team.size() == 0, Code::invalid_argument,
                "all_to_all: {} is not divisible among {} PEs", of.source.describe(),
                of.team.size());
        const std::size_t bytes = of.source.bytes() / static_cast<std::size_t>(of.team.size());
        run(
            of.call, of.team, stream, [&] { all_to_all_bytes(of.team, of.to, of.from, bytes); },
            [&](const cuda::StreamCollectives& on) { on.all_to_all_bytes(of.to, of.from, bytes); });
      },
      nb::arg("team").none(), nb::arg("target").none(), nb::arg("source").none(),
      nb::arg("stream") = nb::none(),
      nb::sig("def all_to_all(team: Team, target: SymmetricArray[shoal.typing.SupportsDLPack], "
              "source: SymmetricArray[shoal.typing.SupportsDLPack], stream: shoal.typing.Stream | "
              "None = None) -> None"),
      "Copies block j of the `source` of PE i to block i of the `target` of PE j. Arrays have as "
      "many equal blocks as the team has PEs. `stream`: as broadcast."_doc);
}

void bind_reductions(nb::module_& module) {
  module.def(
      "reduce",
      [](nb::handle team, nb::handle target, nb::handle source, const std::string& op,
         const nb::object& stream) {
        const Arrays of("reduce", team, target, source);
        of.check_equal();
        const ReduceOp kind = reduce_op(op);
        const DataType dtype = of.source.dtype;
        const auto count = static_cast<std::size_t>(of.source.size());
        run(
            of.call, of.team, stream, [&] { reduce(of.team, dtype, kind, of.to, of.from, count); },
            [&](const cuda::StreamCollectives& on) {
              on.reduce(element_type(of.call, dtype), kind, of.to, of.from, count);
            });
      },
      nb::arg("team").none(), nb::arg("target").none(), nb::arg("source").none(),
      nb::arg("op") = "sum", nb::arg("stream") = nb::none(),
      nb::sig("def reduce(team: Team, target: SymmetricArray[shoal.typing.SupportsDLPack], source: "
              "SymmetricArray[shoal.typing.SupportsDLPack], op: str = 'sum', stream: "
              "shoal.typing.Stream | None = None) -> None"),
      "Reduces element-wise over all PEs, in their order, with the same bits on every PE and in "
      "every call. `stream`: as broadcast; the same bits, too."_doc);
  module.def(
      "reduce_scatter",
      [](nb::handle team, nb::handle target, nb::handle source, const std::string& op,
         const nb::object& stream) {
        const Arrays of("reduce_scatter", team, target, source);
        of.check_blocks(of.target, of.source);
        const ReduceOp kind = reduce_op(op);
        const DataType dtype = of.source.dtype;
        const auto count = static_cast<std::size_t>(of.target.size());
        run(
            of.call, of.team, stream,
            [&] { reduce_scatter(of.team, dtype, kind, of.to, of.from, count); },
            [&](const cuda::StreamCollectives& on) {
              on.reduce_scatter(element_type(of.call, dtype), kind, of.to, of.from, count);
            });
      },
      nb::arg("team").none(), nb::arg("target").none(), nb::arg("source").none(),
      nb::arg("op") = "sum", nb::arg("stream") = nb::none(),
      nb::sig("def reduce_scatter(team: Team, target: SymmetricArray[shoal.typing.SupportsDLPack], "
              "source: SymmetricArray[shoal.typing.SupportsDLPack], op: str = 'sum', stream: "
              "shoal.typing.Stream | None = None) -> None"),
      "Like reduce, but PE i gets block i of the result."_doc);
}

}  // namespace

void bind_collectives(nb::module_& module) {
  bind_barriers(module);
  bind_copies(module);
  bind_reductions(module);
}

}  // namespace shoal::python
