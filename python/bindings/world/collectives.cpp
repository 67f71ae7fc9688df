// SPDX-License-Identifier: Apache-2.0
// world/collectives.cpp: collectives of teams over symmetric arrays.
#include "shoal/collective.hpp"

#include <nanobind/stl/string.h>

#include <map>

#include "../check.hpp"
#include "../docs.hpp"
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

/// Bytes of `small`, where `large` has a block of its size for each PE.
std::size_t block_bytes(const char* what, const TensorView& small, const TensorView& large,
                        Pe pes) {
  require(small.dtype == large.dtype && large.size() == small.size() * pes, Code::invalid_argument,
          "{}: {} and {}; the latter must have {} times the elements", what, small.describe(),
          large.describe(), pes);
  return small.bytes();
}

void check_equal(const char* what, const TensorView& target, const TensorView& source) {
  require(target.dtype == source.dtype && target.size() == source.size(), Code::invalid_argument,
          "{}: target {} and source {} must have the same elements", what, target.describe(),
          source.describe());
}

void bind_barriers(nb::module_& module) {
  module.def(
      "barrier", &barrier, nb::arg("team"), nb::call_guard<nb::gil_scoped_release>(),
      "Completes this PE's operations, then waits for all PEs of the team. Raises TimeoutError, "
      "naming the PE that is late."_doc);
  module.def("sync", &sync, nb::arg("team"), nb::call_guard<nb::gil_scoped_release>(),
             "Waits for all PEs of the team."_doc);
}

void bind_copies(nb::module_& module) {
  module.def(
      "broadcast",
      [](const Team& team, const SymmetricArray& target, const SymmetricArray& source, Pe root) {
        check_alive(target);
        check_alive(source);
        check_equal("broadcast", target.local, source.local);
        nb::gil_scoped_release released;
        broadcast(team, target.local.data, source.local.data, source.local.bytes(), root);
      },
      nb::arg("team"), nb::arg("target"), nb::arg("source"), nb::arg("root"),
      "Copies the root's `source` to the `target` of every PE, which may be the same array."_doc);
  module.def(
      "all_gather",
      [](const Team& team, const SymmetricArray& target, const SymmetricArray& source) {
        check_alive(target);
        check_alive(source);
        const std::size_t bytes =
            block_bytes("all_gather", source.local, target.local, team.size());
        nb::gil_scoped_release released;
        all_gather(team, target.local.data, source.local.data, bytes);
      },
      nb::arg("team"), nb::arg("target"), nb::arg("source"),
      "Copies the `source` of PE i to block i of every `target`."_doc);
  module.def(
      "all_to_all",
      [](const Team& team, const SymmetricArray& target, const SymmetricArray& source) {
        check_alive(target);
        check_alive(source);
        check_equal("all_to_all", target.local, source.local);
        require(source.local.size() % team.size() == 0, Code::invalid_argument,
                "all_to_all: {} is not divisible among {} PEs", source.local.describe(),
                team.size());
        nb::gil_scoped_release released;
        all_to_all(team, target.local.data, source.local.data, source.local.bytes() / team.size());
      },
      nb::arg("team"), nb::arg("target"), nb::arg("source"),
      "Copies block j of the `source` of PE i to block i of the `target` of PE j. Arrays have as "
      "many equal blocks as the team has PEs."_doc);
}

void bind_reductions(nb::module_& module) {
  module.def(
      "reduce",
      [](const Team& team, const SymmetricArray& target, const SymmetricArray& source,
         const std::string& op) {
        check_alive(target);
        check_alive(source);
        check_equal("reduce", target.local, source.local);
        const ReduceOp kind = reduce_op(op);
        nb::gil_scoped_release released;
        reduce(team, source.local.dtype, kind, target.local.data, source.local.data,
               static_cast<std::size_t>(source.local.size()));
      },
      nb::arg("team"), nb::arg("target"), nb::arg("source"), nb::arg("op") = "sum",
      "Reduces element-wise over all PEs, in their order, with the same bits on every PE and in "
      "every call."_doc);
  module.def(
      "reduce_scatter",
      [](const Team& team, const SymmetricArray& target, const SymmetricArray& source,
         const std::string& op) {
        check_alive(target);
        check_alive(source);
        block_bytes("reduce_scatter", target.local, source.local, team.size());
        const ReduceOp kind = reduce_op(op);
        nb::gil_scoped_release released;
        reduce_scatter(team, source.local.dtype, kind, target.local.data, source.local.data,
                       static_cast<std::size_t>(target.local.size()));
      },
      nb::arg("team"), nb::arg("target"), nb::arg("source"), nb::arg("op") = "sum",
      "As reduce, but PE i gets block i of the result."_doc);
}

}  // namespace

void bind_collectives(nb::module_& module) {
  bind_barriers(module);
  bind_copies(module);
  bind_reductions(module);
}

}  // namespace shoal::python
