// SPDX-License-Identifier: Apache-2.0
// world/team.cpp: the Python class Team.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "../docs.hpp"
#include "shoal/collective.hpp"
#include "world.hpp"

namespace shoal::python {
namespace {

std::optional<Team> if_valid(Team team) {
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
  for (Pe pe = 0; pe < team.size(); ++pe)
    blocks.emplace_back(reinterpret_cast<const char*>(all.data()) + pe * source.size(),
                        source.size());
  return blocks;
}

}  // namespace

void bind_team(nb::module_& module) {
  nb::class_<Team>(module, "Team",
                   "An ordered subset of the PEs of a world, for collectives and ep.Group."_doc)
      .def_prop_ro("my_pe", &Team::my_pe, "Index of this PE in the team."_doc)
      .def_prop_ro("size", &Team::size, "Number of PEs."_doc)
      .def_prop_ro("index", &Team::index, "Index of the team in the world."_doc)
      .def("world_pe", &Team::world_pe, nb::arg("pe"), "The world's index of PE `pe`."_doc)
      .def("translate", &Team::translate, nb::arg("pe"), nb::arg("other"),
           "The index of PE `pe` in another team; None where it is not in that team."_doc)
      .def(
          "split_strided",
          [](const Team& self, Pe start, Pe stride, Pe count) {
            nb::gil_scoped_release released;
            return if_valid(self.split_strided(start, stride, count));
          },
          nb::arg("start"), nb::arg("stride"), nb::arg("count"),
          "The team of `count` PEs from `start`, `stride` apart; None on PEs outside the set that "
          "they pass. One call makes any number of disjoint teams: PEs of the same set pass the "
          "same numbers. Collective."_doc)
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
          nb::arg("x_range"), nb::sig("def split_2d(self, x_range: int) -> tuple[Team, Team]"),
          "This PE's row and column of the team, laid out row by row, `x_range` wide. Collective."_doc)
      .def("destroy", &Team::free, nb::call_guard<nb::gil_scoped_release>(),
           "Frees the team's slot. Collective over its PEs."_doc)
      .def("exchange", &gather_bytes, nb::arg("data"),
           "All-gathers up to 512 bytes, the same number on all PEs, for agreeing on sizes and "
           "choices. "
           "Returns a list by PE."_doc)
      .def("__repr__", [](const Team& self) {
        if (!self.is_open()) return std::string("shoal.Team(closed)");
        constexpr Pe kMost = 16;
        std::string pes;
        for (Pe pe = 0; pe < std::min(self.size(), kMost); ++pe)
          pes += fmt::format("{}{}", pe == 0 ? "" : ", ", self.world_pe(pe));
        return fmt::format("shoal.Team(PE {} of {}, world PEs [{}{}])", self.my_pe(), self.size(),
                           pes, self.size() > kMost ? ", ..." : "");
      });
}

}  // namespace shoal::python
