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
      "_locate_offset",
      [](std::uint64_t offset, bool host) {
        return observe::locate_offset(
            host ? observe::read_host_memory() : observe::read_process_memory(), offset);
      },
      nb::arg("offset"), nb::arg("host"), released, "Places of an offset of the heaps."_doc);
  module.def(
      "_file_records",
      [](const std::string& folder) { return as_json(observe::read_files(folder)); },
      nb::arg("folder"), released,
      "JSON of the records in a folder; shoal.observe.read_files parses it."_doc);
  module.def(
      "_who_waits",
      [](const std::vector<std::string>& records) {
        std::vector<observe::PeRecord> parsed;
        for (const std::string& record : records) parsed.push_back(observe::from_json(record));
        return observe::who_waits(parsed);
      },
      nb::arg("records"), released, "Who waits for whom in the JSON of records, as text."_doc);
  module.def("_write_flight_record", &observe::write_flight_record, nb::arg("world"),
             nb::arg("directory"), released,
             "Writes the record of the world's PE; returns the name of the file."_doc);
}

}  // namespace shoal::python
