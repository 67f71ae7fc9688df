// SPDX-License-Identifier: Apache-2.0
// Records in memory that another program has made up: readers neither end nor take memory without
// bound, and their output has neither control characters nor wrong UTF-8.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "record/layout.hpp"
#include "record/map.hpp"
#include "shoal/memory_map.hpp"
#include "shoal/observe.hpp"
#include "support/built.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

using namespace detail::record;

/// A record of this process, which is not one of Shoal's.
class Forged {
 public:
  explicit Forged(unsigned flags = 0)
      : fd_(memfd_create(kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags)) {
    if (fd_ < 0) return;
    EXPECT_EQ(ftruncate(fd_, kRecordBytes), 0);
    EXPECT_EQ(fcntl(fd_, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL), 0);
    if (flags != 0) return;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, kRecordBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0));
    head().magic.store(kMagic);
    head().version.store(kVersion);
    head().pid.store(static_cast<std::uint64_t>(getpid()));
  }
  ~Forged() {
    if (base_ != nullptr) munmap(base_, kRecordBytes);
    close(fd_);
  }
  Forged(const Forged&) = delete;
  Forged& operator=(const Forged&) = delete;

  bool exists() const { return fd_ >= 0; }
  ProcessBlock& head() { return *reinterpret_cast<ProcessBlock*>(base_); }

  template <typename Block>
  Block& section(std::size_t index, Kind kind, std::uint64_t offset, std::uint64_t bytes) {
    Section& section = head().sections[index];
    section.offset.store(offset);
    section.bytes.store(bytes);
    section.kind.store(static_cast<std::uint64_t>(kind));
    return *reinterpret_cast<Block*>(base_ + offset);
  }

 private:
  int fd_;
  std::byte* base_ = nullptr;
};

constexpr std::uint64_t kWorld = 0xf01239ed;
constexpr std::uint64_t kFirst = 1 << 20;

std::vector<observe::PeRecord> read_forged() {
  std::vector<observe::PeRecord> records = observe::read_host();
  std::erase_if(records, [](const auto& record) { return record.world != kWorld; });
  return records;
}

/// All of the words.
template <std::size_t words>
void fill(Text<words>& to, const std::string& with) {
  std::uint64_t copy[words];
  for (std::size_t i = 0; i < sizeof copy; ++i)
    reinterpret_cast<char*>(copy)[i] = with[i % with.size()];
  for (std::size_t i = 0; i < words; ++i) to[i].store(copy[i]);
}

PeBlock& add_pe(Forged& record) {
  auto& pe = record.section<PeBlock>(0, Kind::pe, kFirst, 1 << 20);
  pe.world.store(kWorld);
  pe.n_pes.store(1);
  pe.peers_at.store(sizeof(PeBlock));
  return pe;
}

TEST(ForeignRecords, HolesOfHugePagesAreNotRead) {
  const Forged huge(MFD_HUGETLB);
  if (!huge.exists()) GTEST_SKIP() << "this kernel has no huge pages";
  EXPECT_TRUE(read_forged().empty());
  EXPECT_NO_THROW(observe::read_host_memory());
}

TEST(ForeignRecords, TextsAreEscaped) {
  Forged record;
  PeBlock& pe = add_pe(record);
  const std::string hostile = "\x1b[31m\n\"\\\xff\xc3\xa9\xc2\x9b<";
  fill(pe.host, hostile);
  fill(pe.activity, hostile);
  fill(pe.failure, hostile);
  auto& map = record.section<MapBlock>(1, Kind::map, 2 * kFirst, 1 << 20);
  map.world.store(kWorld);
  fill(map.memory, hostile);
  map.regions.store(1);
  map.places_at.store(sizeof(MapBlock));
  map.regions_at.store(sizeof(MapBlock));
  auto& region =
      *reinterpret_cast<RegionBlock*>(reinterpret_cast<std::byte*>(&map) + sizeof(MapBlock));
  region.bytes.store(1);
  fill(region.name, hostile);

  const auto records = read_forged();
  ASSERT_EQ(records.size(), 1U);
  EXPECT_TRUE(records[0].host.starts_with(R"(\x1b[31m\x0a"\\xff)"
                                          "\xc3\xa9"
                                          R"(\xc2\x9b<)"))
      << records[0].host;
  const nlohmann::json read = nlohmann::json::parse(observe::to_json(records[0]));
  EXPECT_EQ(read.at("failure"), records[0].failure);
  std::ptrdiff_t forged = 0;
  for (const observe::MemoryMap& each : observe::read_host_memory()) {
    const nlohmann::json parsed = nlohmann::json::parse(observe::to_json(each));
    if (each.world == kWorld) ++forged;
  }
  EXPECT_EQ(forged, 1);
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--live", "--interval", "0.01"},
        {"--live", "--json"},
        {"--memory"},
        {"--memory", "--json"}}) {
    std::vector<std::string> command = {program("shoal-info")};
    command.insert(command.end(), options.begin(), options.end());
    const ProcessResult shown = run_program(command);
    EXPECT_TRUE(shown.ok()) << shown.describe();
    expect_parts(shown.out, {"00000000f01239ed"});
    EXPECT_EQ(shown.out.find_first_of("\x1b\xff"), std::string::npos) << options.back();
  }
}

TEST(ForeignRecords, SectionsThatOverlapAreReadOnce) {
  Forged record;
  add_pe(record);
  constexpr std::size_t kSize = 64 << 20, kMostRead = kRecordBytes / 4;
  for (std::size_t i = 1; i < kSections; ++i) {
    auto& group = record.section<GroupBlock>(i, Kind::group, 2 * kFirst, kSize);
    group.world.store(kWorld);
    group.ranks.store(100'000);
    group.peers_at.store(sizeof(GroupBlock));
    group.entries_at.store(sizeof(GroupBlock));
    group.experts_at.store(sizeof(GroupBlock));
    group.launches_at.store(sizeof(GroupBlock));
  }
  const auto records = read_forged();
  ASSERT_EQ(records.size(), 1U);
  EXPECT_GE(records[0].groups.size(), 1U);
  EXPECT_LE(records[0].groups.size(), kMostRead / kSize);
  // A matrix of all pairs of ranks would take 80 GB.
  std::vector<std::string> command = {program("shoal-info"), "--live", "--interval", "0.01"};
#ifdef __SANITIZE_ADDRESS__  // its shadow takes more address space than any limit leaves
  const Environment limit{{"ASAN_OPTIONS", "max_allocation_size_mb=8000:hard_rss_limit_mb=8000"}};
#else
  const Environment limit;
  command.insert(command.begin(), {"/usr/bin/env", "prlimit", "--as=8000000000"});
#endif
  const ProcessResult shown = run_program(command, limit);
  EXPECT_TRUE(shown.ok()) << shown.describe();
}

TEST(ForeignRecords, AGroupHasRanks) {
  Forged record;
  add_pe(record);
  record.section<GroupBlock>(1, Kind::group, 2 * kFirst, 1 << 20).world.store(kWorld);
  const auto records = read_forged();
  ASSERT_EQ(records.size(), 1U);
  EXPECT_TRUE(records[0].groups.empty());
}

}  // namespace
}  // namespace shoal::test
