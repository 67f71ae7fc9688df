// SPDX-License-Identifier: Apache-2.0
// team.cpp: teams and their collectives.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "base/check.hpp"
#include "docs.hpp"
#include "shoal/collective.hpp"
#include "world.hpp"

namespace shoal::python {
namespace {

std::optional<Team> if_member(Team team) {
  return team.valid() ? std::optional<Team>(std::move(team)) : std::nullopt;
}

std::vector<nb::bytes> gather_bytes(const Team& team, const nb::bytes& mine) {
  const auto* const first = reinterpret_cast<const std::byte*>(mine.c_str());
  const std::vector<std::byte> source(first, first + mine.size());
  std::vector<std::byte> all;
  {
    nb::gil_scoped_release released;
    all = exchange_bytes(team, source);
  }
  std::vector<nb::bytes> blocks;
  for (Pe member = 0; member < team.size(); ++member)
    blocks.emplace_back(reinterpret_cast<const char*>(all.data()) + member * source.size(),
                        source.size());
  return blocks;
}

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

/// Bytes of a block of the smaller array, where the larger one has one per member.
std::size_t block_bytes(const char* what, const TensorView& small, const TensorView& large,
                        Pe members) {
  require(small.dtype == large.dtype && large.size() == small.size() * members,
          Code::invalid_argument, "{}: {} and {}; the latter must have {} times the elements", what,
          small.describe(), large.describe(), members);
  return small.bytes();
}

void check_equal(const char* what, const TensorView& target, const TensorView& source) {
  require(target.dtype == source.dtype && target.size() == source.size(), Code::invalid_argument,
          "{}: target {} and source {} must have the same elements", what, target.describe(),
          source.describe());
}

void bind_collectives(nb::module_& module) {
  module.def(
      "barrier", &barrier, nb::arg("team"), nb::call_guard<nb::gil_scoped_release>(),
      "Completes this PE's operations, then waits for all members. Raises TimeoutError naming who did not come."_doc);
  module.def("sync", &sync, nb::arg("team"), nb::call_guard<nb::gil_scoped_release>(),
             "Waits for all members."_doc);
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
      "The root's `source` to every member's `target`, which may be the same array."_doc);
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
      "Member i's `source` to block i of every `target`."_doc);
  module.def(
      "all_to_all",
      [](const Team& team, const SymmetricArray& target, const SymmetricArray& source) {
        check_alive(target);
        check_alive(source);
        check_equal("all_to_all", target.local, source.local);
        require(source.local.size() % team.size() == 0, Code::invalid_argument,
                "all_to_all: {} is not divisible among {} members", source.local.describe(),
                team.size());
        nb::gil_scoped_release released;
        all_to_all(team, target.local.data, source.local.data, source.local.bytes() / team.size());
      },
      nb::arg("team"), nb::arg("target"), nb::arg("source"),
      "Block j of member i's `source` to block i of member j's `target`; as many equal blocks as members."_doc);
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
      "Element-wise over all members, in member order: the same bits on every member and every time."_doc);
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
      "As reduce, but member i gets block i of the result."_doc);
}

}  // namespace

void bind_team(nb::module_& module) {
  nb::class_<Team>(
      module, "Team",
      "Some of the PEs of a world, in an order: what collectives and ep.Group run on."_doc)
      .def_prop_ro("my_pe", &Team::my_pe, "Index of this PE in the team."_doc)
      .def_prop_ro("size", &Team::size, "Number of members."_doc)
      .def_prop_ro("index", &Team::index, "Index of the team in the world."_doc)
      .def("world_pe", &Team::world_pe, nb::arg("pe"), "Member `pe` as numbered in the world."_doc)
      .def("translate", &Team::translate, nb::arg("pe"), nb::arg("other"),
           "Member `pe` as numbered in another team; None when it is no member there."_doc)
      .def(
          "split_strided",
          [](const Team& self, Pe start, Pe stride, Pe count) {
            nb::gil_scoped_release released;
            return if_member(self.split_strided(start, stride, count));
          },
          nb::arg("start"), nb::arg("stride"), nb::arg("count"),
          "The team of `count` members from `start` on, `stride` apart; None on those that are not in it. Collective."_doc)
      .def(
          "split_2d",
          [](const Team& self, Pe x_range) {
            std::pair<Team, Team> teams;
            {
              nb::gil_scoped_release released;
              teams = self.split_2d(x_range);
            }
            return nb::make_tuple(teams.first, teams.second);
          },
          nb::arg("x_range"),
          "My row and my column of the team laid out row by row, `x_range` wide. Collective."_doc)
      .def("destroy", &Team::destroy, nb::call_guard<nb::gil_scoped_release>(),
           "Returns the team's slot. Collective over its members."_doc)
      .def(
          "exchange", &gather_bytes, nb::arg("data"),
          "All-gather of up to 512 bytes, as many on all members: a list by member. For agreeing on sizes and choices."_doc)
      .def("__repr__", [](const Team& self) {
        return fmt::format("shoal.Team(index {}, member {} of {})", self.index(), self.my_pe(),
                           self.size());
      });
  bind_collectives(module);
}

}  // namespace shoal::python
