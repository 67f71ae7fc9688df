// SPDX-License-Identifier: Apache-2.0
// from_json.cpp: records from JSON text and from the files of flight records.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "memory/host/segment.hpp"
#include "record/json_version.hpp"
#include "record/text.hpp"
#include "shoal/observe.hpp"

namespace shoal::observe {
namespace {

using nlohmann::json;

constexpr off_t kMostFileBytes = 1 << 28;

std::string text_of(const json& from) {
  return detail::record::printable(from.get_ref<const std::string&>());
}

std::vector<PhaseRecord> phases_of(const json& from) {
  std::vector<PhaseRecord> phases;
  for (const json& phase : from.at("phases"))
    phases.push_back({text_of(phase.at("name")), phase.at("start_ns")});
  return phases;
}

OperationRecord operation_of(const json& from) {
  OperationRecord op;
  op.id = from.at("id");
  op.epoch = from.at("epoch");
  op.operation = text_of(from.at("operation"));
  op.state = text_of(from.at("state"));
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

std::vector<OperationTotals> totals_of(const json& from) {
  std::vector<OperationTotals> totals;
  for (const json& total : from.at("totals"))
    totals.push_back({text_of(total.at("operation")), total.at("operations"), total.at("failures"),
                      total.at("rows"), total.at("bytes"), total.at("time_ns")});
  return totals;
}

std::vector<Histogram> histograms_of(const json& from) {
  std::vector<Histogram> histograms;
  for (const json& histogram : from.at("histograms"))
    histograms.push_back(
        {text_of(histogram.at("operation")), text_of(histogram.at("phase")), histogram.at("count"),
         histogram.at("sum_ns"),
         histogram.at("buckets").get<std::array<std::uint64_t, Histogram::kBuckets>>()});
  return histograms;
}

GroupRecord group_of(const json& from) {
  GroupRecord group;
  group.number = from.at("number");
  group.rank = from.at("rank");
  group.n_hosts = from.at("n_hosts");
  group.failure = text_of(from.at("failure"));
  group.pes = from.at("pes").get<std::vector<Pe>>();
  require(!group.pes.empty(), Code::invalid_argument, "group {} has no ranks", group.number);
  for (const json& op : from.at("operations")) group.operations.push_back(operation_of(op));
  group.totals = totals_of(from);
  for (const json& peer : from.at("peers"))
    group.peers.push_back({peer.at("rows"), peer.at("bytes"), peer.at("waits"), peer.at("wait_ns"),
                           peer.at("network_rows"), peer.at("network_bytes")});
  group.histograms = histograms_of(from);
  group.expert_rows = from.at("expert_rows").get<std::vector<std::uint64_t>>();
  for (const json& launch : from.at("launches"))
    group.launches.push_back({launch.at("epoch"), text_of(launch.at("operation")),
                              phases_of(launch), launch.at("end_ns"), launch.at("rows"),
                              launch.at("bytes")});
  for (const LaunchRecord& launch : group.launches)
    require(!launch.phases.empty(), Code::invalid_argument, "a launch of group {} has no phases",
            group.number);
  return group;
}

PeRecord pe_of(const json& from) {
  PeRecord pe;
  const std::string world = from.at("world");
  std::from_chars(world.data(), world.data() + world.size(), pe.world, 16);
  pe.pe = from.at("pe");
  pe.n_pes = from.at("n_pes");
  pe.pid = from.at("pid");
  pe.host = text_of(from.at("host"));
  pe.read_ns = from.at("read_ns");
  pe.activity = text_of(from.at("activity"));
  pe.active = from.at("active");
  pe.awaited = from.at("awaited");
  pe.failure = text_of(from.at("failure"));
  pe.totals = totals_of(from);
  for (const json& peer : from.at("peers"))
    pe.peers.push_back(
        {peer.at("operations"), peer.at("bytes"), peer.at("waits"), peer.at("wait_ns")});
  pe.histograms = histograms_of(from);
  for (const json& group : from.at("groups")) pe.groups.push_back(group_of(group));
  return pe;
}

/// The text of a file that any user may have put into the folder.
std::string contents_of(const std::string& file) {
  const memory::FileDescriptor fd(open_foreign_file(file.c_str(), ForeignFile::disk));
  struct stat status{};
  require(fd && fstat(fd.get(), &status) == 0, Code::invalid_argument,
          "it is no regular file, or cannot be read");
  require(status.st_size <= kMostFileBytes, Code::invalid_argument,
          "it has {} bytes; allowed: up to {}", status.st_size, kMostFileBytes);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t at = 0;
  while (at < text.size()) {
    const ssize_t part = ::read(fd.get(), text.data() + at, text.size() - at);
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) break;
    at += static_cast<std::size_t>(part);
  }
  text.resize(at);
  return text;
}

/// `text` with a question mark for every byte that is not part of a character of UTF-8: JSON allows
/// no such byte.
std::string with_characters_only(std::string text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = detail::record::character_bytes(std::string_view(text).substr(at));
    if (bytes == 0) text[at] = '?';
    at += std::max<std::size_t>(bytes, 1);
  }
  return text;
}

}  // namespace

PeRecord from_json(const std::string& text) {
  try {
    const json parsed = json::parse(with_characters_only(text));
    const int version = parsed.at("shoal_record");
    require(version == detail::record::kJsonVersion, Code::invalid_argument,
            "it has format {} of records; this version of Shoal reads format {}", version,
            detail::record::kJsonVersion);
    return pe_of(parsed);
  } catch (const json::exception& error) {
    fail(Code::invalid_argument, "it is not the record of a PE: {}", error.what());
  }
}

std::vector<PeRecord> read_files(const std::string& folder) {
  std::vector<PeRecord> records;
  std::string failure;
  std::error_code missing;
  for (const auto& file : std::filesystem::directory_iterator(folder, missing)) {
    const std::string name = file.path().filename();
    if (!name.starts_with("shoal_flight_") || !name.ends_with(".json")) continue;
    try {
      records.push_back(from_json(contents_of(file.path())));
    } catch (const Error& error) {
      failure = detail::record::printable(
          fmt::format("flight record {}: {}", file.path().string(), reason_of(error)));
      log::warn("{}", failure);
    }
  }
  require(!records.empty() || failure.empty(), Code::invalid_argument, "{}", failure);
  require(!records.empty(), Code::invalid_argument,
          "{}: no files shoal_flight_*.json there (SHOAL_FLIGHT_DIR)", folder);
  std::sort(records.begin(), records.end(), [](const PeRecord& a, const PeRecord& b) {
    return a.world != b.world ? a.world < b.world : a.pe < b.pe;
  });
  return records;
}

}  // namespace shoal::observe
