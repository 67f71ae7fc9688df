// SPDX-License-Identifier: Apache-2.0
// Segments, passing of descriptors, and registered buffers.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "memory/host/fd_exchange.hpp"
#include "memory/host/segment.hpp"
#include "memory/registered_buffers.hpp"
#include "shoal/error.hpp"
#include "support/expect_error.hpp"
#include "support/open_files.hpp"

namespace shoal::memory {
namespace {

Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code{0};
}

TEST(Segment, IsSharedAlignedAndSealed) {
  const auto mine = Segment::create(8192);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mine->base()) % Segment::kAlignment, 0u);
  const auto theirs = Segment::map(mine->descriptor(), 8192);
  EXPECT_NE(theirs->base(), mine->base());
  mine->base()[8191] = std::byte{7};
  EXPECT_EQ(theirs->base()[8191], std::byte{7});
  EXPECT_NE(ftruncate(mine->descriptor().get(), 0), 0) << "a peer could take the pages away";
  EXPECT_EQ(code_of([&] { Segment::map(mine->descriptor(), 4096); }), Code::mismatch);
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(code_of([&] { Segment::map(unsealed, 4096); }), Code::mismatch);
}

TEST(Segment, IsFoundByTokenWhileItLives) {
  auto segment = Segment::create(4096);
  const Token token = segment->token();
  auto other = Segment::find(token);
  EXPECT_EQ(other, segment);
  segment.reset();
  EXPECT_EQ(Segment::find(token), other);
  other.reset();
  EXPECT_EQ(Segment::find(token), nullptr);
}

TEST(FdExchange, GivesEveryPeTheSegmentsOfAllPes) {
  constexpr Pe kPes = 24;  // twice the length of a socket's queue
  SHOAL_SKIP_WITHOUT_FILES(2 * kPes * kPes);
  const Token world = make_token();
  std::vector<FdSocket> sockets(kPes);
  std::vector<std::thread> threads;
  for (Pe pe = 0; pe < kPes; ++pe)
    threads.emplace_back([&, pe] {
      const auto segment = Segment::create(4096);
      std::memcpy(segment->base(), &pe, sizeof pe);
      std::vector<FdPeer> peers;
      for (Pe other = 0; other < kPes; ++other)
        if (other != pe) peers.push_back({other, sockets[static_cast<std::size_t>(other)].name()});
      const auto received =
          exchange_fds(sockets[static_cast<std::size_t>(pe)], segment->descriptor().get(), peers,
                       {world, pe, std::chrono::seconds(20), nullptr});
      ASSERT_EQ(received.size(), peers.size());
      for (const ReceivedFd& from : received) {
        Pe written = -1;
        std::memcpy(&written, Segment::map(from.fd, 4096)->base(), sizeof written);
        EXPECT_EQ(written, from.pe);
        EXPECT_EQ(from.pid, getpid());
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(FdExchange, DropsOtherWorldsAndNamesTheMissingPe) {
  const FdSocket mine;
  const FdSocket stranger;
  const auto segment = Segment::create(4096);
  // PE 1 of another world sends here. It gives up at once because no PE replies.
  EXPECT_EQ(code_of([&] {
              exchange_fds(stranger, segment->descriptor().get(),
                           std::vector<FdPeer>{{0, mine.name()}},
                           {make_token(), 1, std::chrono::milliseconds(1), nullptr});
            }),
            Code::timeout);
  try {
    exchange_fds(mine, segment->descriptor().get(), std::vector<FdPeer>{{1, stranger.name()}},
                 {make_token(), 0, std::chrono::milliseconds(50), nullptr});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::timeout);
    test::expect_parts(error.what(), {"nothing came from PEs [1]"});
  }
}

// With FdExchange::failed a PE that is missing, or cannot pass its memory, is reported alone.
TEST(FdExchange, ReportsThePeerThatFails) {
  const Token world = make_token();
  const FdSocket sockets[3];
  const auto segment = Segment::create(4096);
  std::map<Pe, std::string> lost;
  std::thread second([&] {
    // A descriptor that cannot be passed: PE 0 learns it at once.
    std::map<Pe, std::string> own;
    exchange_fds(sockets[1], 1 << 20, std::vector<FdPeer>{{0, sockets[0].name()}},
                 {world, 1, std::chrono::seconds(20), nullptr,
                  [&](Pe pe, const std::string& reason) { own[pe] = reason; }});
    test::expect_parts(own[0], {"cannot pass symmetric memory to PE 0"});
  });
  const auto received =
      exchange_fds(sockets[0], segment->descriptor().get(),
                   std::vector<FdPeer>{{1, sockets[1].name()}, {2, sockets[2].name()}},
                   {world, 0, std::chrono::seconds(3), nullptr,
                    [&](Pe pe, const std::string& reason) { lost[pe] = reason; }});
  second.join();
  EXPECT_TRUE(received.empty());
  EXPECT_EQ(lost[1], "it cannot pass its symmetric memory");
  test::expect_parts(lost[2], {"within 3000 ms"});
}

TEST(FdExchange, StopsWhenTheCheckThrows) {
  const FdSocket mine;
  const FdSocket silent;
  const auto segment = Segment::create(4096);
  const auto stop = [] { throw Error(Code::peer_failed, "PE 1: gone"); };
  EXPECT_EQ(code_of([&] {
              exchange_fds(mine, segment->descriptor().get(),
                           std::vector<FdPeer>{{1, silent.name()}},
                           {make_token(), 0, std::chrono::seconds(20), stop});
            }),
            Code::peer_failed);
}

TEST(RegisteredBuffers, AreDisjoint) {
  RegisteredBuffers buffers;
  char memory[100] = {};
  buffers.add(memory + 20, 20);
  buffers.add(memory + 40, 10);
  buffers.add(memory, 20);
  for (const int start : {0, 10, 19, 20, 39, 49})
    EXPECT_EQ(code_of([&] { buffers.add(memory + start, 2); }), Code::invalid_argument) << start;
  EXPECT_EQ(code_of([&] { buffers.add(memory + 60, 0); }), Code::invalid_argument);
  EXPECT_EQ(code_of([&] { buffers.add(memory + 60, SIZE_MAX); }), Code::invalid_argument);
  EXPECT_EQ(code_of([&] { buffers.add(nullptr, 5); }), Code::invalid_argument);
  EXPECT_TRUE(buffers.contains(memory + 25, 15));
  EXPECT_FALSE(buffers.contains(memory + 25, 16)) << "neighbours are separate buffers";
  EXPECT_FALSE(buffers.contains(memory + 60, 1));
  buffers.remove(memory + 20);
  EXPECT_EQ(code_of([&] { buffers.remove(memory + 20); }), Code::invalid_argument);
  EXPECT_FALSE(buffers.contains(memory + 25, 1));
  EXPECT_EQ(buffers.count(), 2u);
}

}  // namespace
}  // namespace shoal::memory
