// SPDX-License-Identifier: Apache-2.0
// flight.cpp: reads flight records from files.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "info/live.hpp"

namespace shoal::info {
namespace {

using nlohmann::json;
using observe::GroupRecord;
using observe::OperationRecord;
using observe::PeRecord;

std::vector<observe::PhaseRecord> phases_of(const json& from) {
  std::vector<observe::PhaseRecord> phases;
  for (const json& phase : from.at("phases"))
    phases.push_back({phase.at("name"), phase.at("start_ns")});
  return phases;
}

OperationRecord operation_of(const json& from) {
  OperationRecord op;
  op.id = from.at("id");
  op.epoch = from.at("epoch");
  op.operation = from.at("operation");
  op.state = from.at("state");
  op.start_ns = from.at("start_ns");
  op.end_ns = from.at("end_ns");
  op.awaited = from.at("awaited");
  op.waiting = from.at("waiting");
  op.wait_ns = from.at("wait_ns");
  op.rows = from.at("rows");
  op.bytes = from.at("bytes");
  op.phases = phases_of(from);
  return op;
}

GroupRecord group_of(const json& from) {
  GroupRecord group;
  group.number = from.at("number");
  group.rank = from.at("rank");
  group.failure = from.at("failure");
  group.pes = from.at("pes").get<std::vector<Pe>>();
  for (const json& op : from.at("operations")) group.operations.push_back(operation_of(op));
  for (const json& total : from.at("totals"))
    group.totals.push_back({total.at("operation"), total.at("operations"), total.at("failures"),
                            total.at("rows"), total.at("bytes"), total.at("time_ns")});
  for (const json& peer : from.at("peers"))
    group.peers.push_back({peer.at("rows"), peer.at("bytes"), peer.at("waits"), peer.at("wait_ns"),
                           peer.at("network_rows"), peer.at("network_bytes")});
  for (const json& histogram : from.at("histograms"))
    group.histograms.push_back(
        {histogram.at("operation"), histogram.at("phase"), histogram.at("count"),
         histogram.at("sum_ns"),
         histogram.at("buckets").get<std::array<std::uint64_t, observe::Histogram::kBuckets>>()});
  group.expert_rows = from.at("expert_rows").get<std::vector<std::uint64_t>>();
  for (const json& launch : from.at("launches"))
    group.launches.push_back(
        {launch.at("epoch"), launch.at("operation"), phases_of(launch), launch.at("end_ns")});
  return group;
}

PeRecord pe_of(const json& from) {
  PeRecord pe;
  const std::string world = from.at("world");
  std::from_chars(world.data(), world.data() + world.size(), pe.world, 16);
  pe.pe = from.at("pe");
  pe.n_pes = from.at("n_pes");
  pe.pid = from.at("pid");
  pe.host = from.at("host");
  pe.read_ns = from.at("read_ns");
  pe.activity = from.at("activity");
  pe.active = from.at("active");
  pe.awaited = from.at("awaited");
  for (const json& group : from.at("groups")) pe.groups.push_back(group_of(group));
  return pe;
}

}  // namespace

std::vector<PeRecord> read_flight_records(const std::string& folder) {
  std::vector<PeRecord> records;
  std::error_code missing;
  for (const auto& file : std::filesystem::directory_iterator(folder, missing)) {
    const std::string name = file.path().filename();
    if (!name.starts_with("shoal_flight_") || !name.ends_with(".json")) continue;
    std::ifstream stream(file.path());
    try {
      records.push_back(pe_of(json::parse(stream)));
    } catch (const json::exception& error) {
      fail(Code::invalid_argument, "{} is not a flight record of this version: {}",
           file.path().string(), error.what());
    }
  }
  require(!records.empty(), Code::invalid_argument,
          "--flight {}: no files shoal_flight_*.json there (SHOAL_FLIGHT_DIR)", folder);
  std::sort(records.begin(), records.end(), [](const PeRecord& a, const PeRecord& b) {
    return a.world != b.world ? a.world < b.world : a.pe < b.pe;
  });
  return records;
}

}  // namespace shoal::info
