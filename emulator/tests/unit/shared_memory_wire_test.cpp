// SPDX-License-Identifier: Apache-2.0
// Packets between the slots of a shared-memory wire, here all in one process.
#include "wire/shared_memory_wire.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <thread>

#include "support/temporary_folder.hpp"
#include "wire/impaired_wire.hpp"
#include "wire/packet_format.hpp"

namespace shoal::emulator::test {
namespace {

class SharedMemoryWireTest : public ::testing::Test {
 protected:
  SharedMemoryWireTest() {
    options.file = folder_.at("wire");
    options.slots = 4;
    options.ring_bytes = 1 << 15;
  }

  static Packet packet(const SharedMemoryWire& from, const SharedMemoryWire& to, std::uint32_t psn,
                       std::size_t bytes = 0) {
    Packet made;
    made.source = from.lid();
    made.target = to.lid();
    made.psn = psn;
    made.payload.assign(bytes, static_cast<std::byte>(psn));
    return made;
  }
  static std::vector<Packet> receive(LiveWire& wire, std::size_t most = 1000) {
    std::vector<Packet> packets;
    wire.poll(most, [&](Packet&& arrived) { packets.push_back(std::move(arrived)); });
    return packets;
  }

  SharedMemoryOptions options;

 private:
  shoal::test::TemporaryFolder folder_;
};

TEST_F(SharedMemoryWireTest, AFileThatAnotherUserCanHaveMadeIsRefused) {
  const std::string other = options.file + ".other";
  std::ofstream(other) << "";
  std::filesystem::create_symlink(other, options.file);
  EXPECT_THROW(SharedMemoryWire{options}, std::runtime_error);
  EXPECT_EQ(std::filesystem::file_size(other), 0U);
  std::filesystem::remove(options.file);
  std::ofstream(options.file) << "";
  std::filesystem::permissions(options.file, std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  EXPECT_THROW(SharedMemoryWire{options}, std::runtime_error);
  std::filesystem::remove(options.file);
  EXPECT_NO_THROW(SharedMemoryWire{options});
}

TEST_F(SharedMemoryWireTest, PacketsArriveInOrderAndWhole) {
  SharedMemoryWire a(options), b(options);
  EXPECT_NE(a.lid(), b.lid());
  for (std::uint32_t psn = 0; psn < 1000; ++psn) {  // many laps of the ring
    Packet sent = packet(a, b, psn, psn * 37 % (kMostPayloadBytes + 1));
    sent.kind = PacketKind::atomic_request;
    sent.atomic = {.opcode = Opcode::masked_fetch_add,
                   .size = 4,
                   .swap_or_add = psn,
                   .compare = 2,
                   .swap_mask = 3,
                   .compare_mask_or_boundary = 4};
    sent.any_path = sent.solicited = psn % 2 == 0;
    sent.address = std::uint64_t{psn} << 40;
    const Packet copy = sent;
    a.send(std::move(sent));
    const std::vector<Packet> got = receive(b);
    ASSERT_EQ(got.size(), 1U) << psn;
    EXPECT_EQ(got[0].psn, psn);
    EXPECT_EQ(got[0].payload, copy.payload);
    EXPECT_EQ(got[0].atomic.compare_mask_or_boundary, 4U);
    EXPECT_EQ(got[0].atomic.swap_or_add, psn);
    EXPECT_EQ(got[0].address, copy.address);
    EXPECT_EQ(got[0].any_path, copy.any_path);
    EXPECT_EQ(got[0].solicited, copy.solicited);
  }
}

TEST_F(SharedMemoryWireTest, AFullRingHoldsUpTheSenderAndLosesNothing) {
  SharedMemoryWire a(options), b(options);
  std::uint32_t sent = 0;
  while (a.ready()) a.send(packet(a, b, sent++, 4096));
  EXPECT_GE(sent, 4U);
  EXPECT_TRUE(a.busy());
  std::uint32_t expected = 0;
  for (int round = 0; round < 10 && expected < sent; ++round) {
    for (const Packet& got : receive(b, 3)) EXPECT_EQ(got.psn, expected++);
    (void)receive(a);  // sends what waits
  }
  EXPECT_EQ(expected, sent);
  EXPECT_TRUE(a.ready());
  EXPECT_EQ(a.dropped(), 0U);
}

TEST_F(SharedMemoryWireTest, AStoppedTargetDoesNotHoldUpOthers) {
  SharedMemoryWire a(options), stopped(options), c(options);
  while (a.ready()) a.send(packet(a, stopped, 0, 4096));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  (void)receive(a);
  EXPECT_TRUE(a.ready());
  a.send(packet(a, c, 7));
  EXPECT_EQ(receive(c).size(), 1U);
}

TEST_F(SharedMemoryWireTest, PacketsForAnEndedProcessAreDropped) {
  SharedMemoryWire a(options);
  auto b = std::make_unique<SharedMemoryWire>(options);
  while (a.ready()) a.send(packet(a, *b, 0, 4096));
  b.reset();
  for (int i = 0; i < 40 && a.busy(); ++i) {
    (void)receive(a);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(a.busy());
  EXPECT_TRUE(a.ready());
  EXPECT_GT(a.dropped(), 0U);
}

TEST_F(SharedMemoryWireTest, ASlotIsFreeAgainAndItsOldPacketsAreGone) {
  SharedMemoryWire a(options);
  for (int round = 0; round < 10; ++round) {
    SharedMemoryWire other(options);
    EXPECT_TRUE(receive(other).empty());
    a.send(packet(a, other, 1));
  }
}

TEST_F(SharedMemoryWireTest, AllSlotsInUseIsAnError) {
  std::vector<std::unique_ptr<SharedMemoryWire>> wires;
  for (int i = 0; i < 4; ++i) wires.push_back(std::make_unique<SharedMemoryWire>(options));
  try {
    const SharedMemoryWire more(options);
    FAIL() << "a fifth process got one of 4 slots";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("all 4 slots"), std::string::npos) << error.what();
  }
}

TEST_F(SharedMemoryWireTest, AnotherFileIsRefusedAndStays) {
  std::ofstream(options.file) << std::string(4096, 'x');
  EXPECT_THROW(SharedMemoryWire wire(options), std::runtime_error);
  EXPECT_TRUE(std::filesystem::exists(options.file));
}

// A page beyond the end of the file would end the process by a signal.
TEST_F(SharedMemoryWireTest, AFileShorterThanItsHeaderSaysIsRefused) {
  const SharedMemoryWire user(options);
  std::filesystem::resize_file(options.file, 8192);
  try {
    const SharedMemoryWire wire(options);
    FAIL() << "a file of 8192 bytes was mapped";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("has 8192 bytes where its header says "),
              std::string::npos)
        << error.what();
  }
}

TEST_F(SharedMemoryWireTest, MoreThan64ProcessesMeet) {
  options.slots = SharedMemoryOptions().slots;
  std::vector<std::unique_ptr<SharedMemoryWire>> wires;
  for (int i = 0; i < 70; ++i) wires.push_back(std::make_unique<SharedMemoryWire>(options));
  for (const auto& [from, to] : {std::pair{0, 69}, {69, 0}, {69, 68}}) {
    wires[from]->send(packet(*wires[from], *wires[to], 7));
    const std::vector<Packet> got = receive(*wires[to]);
    ASSERT_EQ(got.size(), 1U) << from << " " << to;
    EXPECT_EQ(got[0].source, wires[from]->lid());
  }
}

/// A small file system, which the test fills.
class FullFileSystem : public SharedMemoryWireTest {
 protected:
  /// Runs `body` in a process that has such a file system.
  template <typename Body>
  void in_process(const Body& body) {
    const pid_t child = fork();
    if (child == 0) {
      const int spaces = geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER;
      const std::string folder = std::filesystem::path(options.file).parent_path();
      if (unshare(spaces) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          mount("none", folder.c_str(), "tmpfs", 0, "size=2m") != 0)
        _exit(77);
      body();
      _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "mount namespaces are not available";
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  std::string fill() const {
    const std::string name = std::filesystem::path(options.file).replace_filename("filler");
    std::ofstream file(name, std::ios::binary);
    const std::string page(4096, 'x');
    while (file.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) continue;
    return name;
  }
};

TEST_F(FullFileSystem, IsAnErrorOfANewWire) {
  in_process([&] {
    (void)fill();
    try {
      const SharedMemoryWire wire(options);
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("SHOAL_EMULATOR_DIRECTORY"), std::string::npos)
          << error.what();
    }
  });
}

// Beyond the limit, a signal would end the process.
TEST_F(FullFileSystem, ALimitOfFileSizesIsAnError) {
  in_process([&] {
    const rlimit little{.rlim_cur = 1 << 16, .rlim_max = 1 << 16};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
    try {
      const SharedMemoryWire wire(options);
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("ulimit -f"), std::string::npos) << error.what();
    }
  });
}

TEST_F(FullFileSystem, KeepsRingsSmallAndRefusesNewOnes) {
  options.ring_bytes = 1 << 19;
  in_process([&] {
    SharedMemoryWire a(options), b(options), c(options);
    std::uint32_t sent = 0, expected = 0;
    const auto move = [&](std::uint32_t until, std::size_t at_once) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (expected < until) {
        if (std::chrono::steady_clock::now() > end) return ADD_FAILURE() << "at " << expected;
        for (std::size_t i = 0; i < at_once && a.ready(); ++i, ++sent)
          a.send(packet(a, b, sent, std::size_t{sent} * 37 % (kMostPayloadBytes + 1)));
        for (const Packet& got : receive(b)) {
          EXPECT_EQ(got.psn, expected++);
          EXPECT_EQ(got.payload.size(), std::size_t{got.psn} * 37 % (kMostPayloadBytes + 1));
        }
        (void)receive(a);  // sends what waits
      }
    };
    move(20, 3);  // beyond the first step of the ring
    const std::string filler = fill();
    move(2000, 100);
    EXPECT_EQ(a.dropped() + b.dropped(), 0U);
    EXPECT_TRUE(a.prepare(b.lid()));
    EXPECT_FALSE(a.prepare(c.lid()));
    a.send(packet(a, c, 1));
    EXPECT_EQ(a.dropped(), 1U);
    std::filesystem::remove(filler);
    move(6000, 100);
    EXPECT_TRUE(a.prepare(c.lid()));
  });
}

TEST_F(SharedMemoryWireTest, TheLastProcessRemovesTheFile) {
  {
    SharedMemoryWire a(options);
    {
      const SharedMemoryWire b(options);
    }
    EXPECT_TRUE(std::filesystem::exists(options.file));
    SharedMemoryWire c(options);
    a.send(packet(a, c, 1));
    EXPECT_EQ(receive(c).size(), 1U);
  }
  EXPECT_FALSE(std::filesystem::exists(options.file));
}

TEST_F(SharedMemoryWireTest, WhatKilledProcessesLeaveGoesWithTheNextWire) {
  const std::string folder = std::filesystem::path(options.file).parent_path();
  SharedMemoryOptions killed = options;
  killed.file = folder + "/killed";
  const pid_t child = fork();
  if (child == 0) {
    const SharedMemoryWire wire(killed);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(std::filesystem::exists(killed.file));
  std::ofstream(folder + "/foreign") << std::string(4096, 'x');
  SharedMemoryOptions used = options;
  used.file = folder + "/used";
  const SharedMemoryWire user(used);  // its process lives
  const SharedMemoryWire next(options);
  EXPECT_FALSE(std::filesystem::exists(killed.file));
  EXPECT_TRUE(std::filesystem::exists(folder + "/foreign"));
  EXPECT_TRUE(std::filesystem::exists(used.file));
}

TEST_F(SharedMemoryWireTest, ProcessesThatComeAndGoAlwaysMeet) {
  // Each round one end removes the file while the other may be joining.
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        SharedMemoryWire a(options);
        if (!std::filesystem::exists(options.file)) ADD_FAILURE() << "removed while in use";
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(std::filesystem::exists(options.file));
}

TEST_F(SharedMemoryWireTest, SleepEndsWithAPacket) {
  SharedMemoryWire a(options), b(options);
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    a.send(packet(a, b, 1));
  });
  const auto start = std::chrono::steady_clock::now();
  std::vector<Packet> got;
  while (got.empty() && std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
    (void)b.sleep(std::chrono::seconds(10));
    got = receive(b);
  }
  sender.join();
  EXPECT_EQ(got.size(), 1U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

TEST_F(SharedMemoryWireTest, ImpairmentsLoseDuplicateAndReorder) {
  SharedMemoryWire b(options);
  auto inner = std::make_unique<SharedMemoryWire>(options);
  SharedMemoryWire& a = *inner;
  ImpairedWire wire(std::move(inner),
                    {.loss = 0.1, .duplication = 0.1, .reordering = 0.1, .seed = 3});
  std::vector<std::uint32_t> got;
  const auto take = [&] {
    (void)receive(wire);
    for (const Packet& arrived : receive(b)) got.push_back(arrived.psn);
  };
  for (std::uint32_t psn = 0; psn < 2000; ++psn) {
    Packet sent = packet(a, b, psn);
    sent.any_path = true;
    wire.send(std::move(sent));
    take();
  }
  while (wire.busy()) take();
  std::vector<std::uint32_t> sorted = got;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_NE(sorted, got);  // some came late
  const auto unique =
      static_cast<std::size_t>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
  EXPECT_LT(unique, 2000U);
  EXPECT_GT(unique, 1600U);
  EXPECT_GT(got.size(), unique);
}

TEST(PacketFormat, BytesThatAreNoPacketAreRefused) {
  Packet packet, read;
  packet.kind = PacketKind::atomic_request;
  packet.atomic.size = 8;
  std::vector<std::byte> bytes(kPacketHeaderBytes);
  encode_header(packet, bytes.data());
  EXPECT_TRUE(decode_packet(bytes, read));
  EXPECT_FALSE(decode_packet(std::span(bytes).first(kPacketHeaderBytes - 1), read));
  bytes.push_back(std::byte{0});  // more payload than the header says
  EXPECT_FALSE(decode_packet(bytes, read));
  bytes.pop_back();
  packet.atomic.size = 3;
  encode_header(packet, bytes.data());
  EXPECT_FALSE(decode_packet(bytes, read));
  bytes[0] = std::byte{0x7f};
  EXPECT_FALSE(decode_packet(bytes, read));
}

}  // namespace
}  // namespace shoal::emulator::test
