// SPDX-License-Identifier: Apache-2.0
// read_files.cpp: the files of flight records.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/check.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "memory/host/segment.hpp"
#include "record/text.hpp"
#include "shoal/observe.hpp"

namespace shoal::observe {
namespace {

constexpr off_t kMostFileBytes = 1 << 28;

/// The text of a file that any user may have put into the folder.
std::string contents_of(const std::string& file) {
  const memory::FileDescriptor fd(open_foreign_file(file.c_str(), ForeignFile::disk));
  struct stat status{};
  require(fd && fstat(fd.get(), &status) == 0, Code::invalid_argument,
          "SHOAL-N183: it is no regular file, or cannot be read");
  require(status.st_size <= kMostFileBytes, Code::invalid_argument,
          "SHOAL-N183: it has {} bytes; allowed: up to {}", status.st_size, kMostFileBytes);
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

}  // namespace

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
          "SHOAL-N185: {}: no files shoal_flight_*.json there (SHOAL_FLIGHT_DIR)", folder);
  std::sort(records.begin(), records.end(), [](const PeRecord& a, const PeRecord& b) {
    return a.world != b.world ? a.world < b.world : a.pe < b.pe;
  });
  return records;
}

}  // namespace shoal::observe
