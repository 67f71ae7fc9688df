// SPDX-License-Identifier: Apache-2.0
#include "observe.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "docs.hpp"
#include "shoal/memory_map.hpp"
#include "shoal/observe.hpp"

namespace shoal::python {
namespace {

template <typename Records>
std::vector<std::string> as_json(const Records& records) {
  std::vector<std::string> texts;
  for (const auto& record : records) texts.push_back(observe::to_json(record));
  return texts;
}

}  // namespace

void bind_observe(nb::module_& module) {
  const nb::call_guard<nb::gil_scoped_release> released;
  module.def(
      "_host_records", [] { return as_json(observe::read_host()); }, released,
      "JSON of the PEs of this host; shoal.observe.read_host parses it."_doc);
  module.def(
      "_process_records", [] { return as_json(observe::read_process()); }, released,
      "JSON of the PEs of this process; shoal.observe.read_process parses it."_doc);
  module.def(
      "_host_memory", [] { return as_json(observe::read_host_memory()); }, released,
      "JSON of the maps of this host; shoal.observe.read_host_memory parses it."_doc);
  module.def(
      "_process_memory", [] { return as_json(observe::read_process_memory()); }, released,
      "JSON of the maps of this process; shoal.observe.read_process_memory parses it."_doc);
  module.def(
      "_locate_address",
      [](std::uint64_t address, bool host) {
        return observe::locate_address(
            host ? observe::read_host_memory() : observe::read_process_memory(), address);
      },
      nb::arg("address"), nb::arg("host"), released, "Places of an address."_doc);
  module.def(
      "_who_waits", [] { return observe::who_waits(observe::read_host()); }, released,
      "Who waits for whom on this host, as text."_doc);
  module.def("_write_flight_record", &observe::write_flight_record, nb::arg("world"),
             nb::arg("directory"), released,
             "Writes the record of the world's PE; returns the name of the file."_doc);
}

}  // namespace shoal::python
