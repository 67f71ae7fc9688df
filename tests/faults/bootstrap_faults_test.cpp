// SPDX-License-Identifier: Apache-2.0
// Faults while PEs find each other: strangers, wrong keys, wrong numbers, PEs that never connect or
// die.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <thread>

#include "bootstrap/tcp/socket.hpp"
#include "support/expect_error.hpp"
#include "support/open_files.hpp"
#include "support/process/process.hpp"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

Settings on_loopback(int timeout_ms = 10'000) {
  Settings settings;
  settings.socket_interface = "lo";
  settings.bootstrap_timeout = std::chrono::milliseconds(timeout_ms);
  return settings;
}

struct Outcome {
  std::string error = "no error";
  std::optional<Code> code;
};

Outcome outcome_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.what(), error.code()};
  }
  return {};
}

/// Starts PEs 0 and 1 of 2, each on its own thread. expect_met() waits until they have met.
struct Pair {
  explicit Pair(const UniqueId& id) {
    for (const int pe : {0, 1})
      threads.emplace_back([&outcome = outcomes[pe], id, pe] {
        outcome = outcome_of([&] { connect_unique_id(id, pe, 2, on_loopback())->barrier("met"); });
      });
  }
  void expect_met() {
    for (auto& thread : threads) thread.join();
    for (const auto& outcome : outcomes) EXPECT_EQ(outcome.error, "no error");
  }
  Outcome outcomes[2];
  std::vector<std::thread> threads;
};

bootstrap::Fd stranger(const UniqueId& id) {
  const auto addresses = bootstrap::resolve(
      *bootstrap::parse_host_port(id.host + ":" + std::to_string(id.port)), "any", "test");
  std::string reason;
  bootstrap::Fd fd =
      bootstrap::connect_to(addresses.front(), Clock::now() + std::chrono::seconds(5), reason);
  EXPECT_TRUE(fd.valid()) << reason;
  return fd;
}

/// Reads until the other side closes.
bool is_turned_away(const bootstrap::Fd& fd, std::chrono::milliseconds limit) {
  char buffer[256];
  const auto deadline = Clock::now() + limit;
  while (bootstrap::wait_ready(fd.get(), POLLIN, deadline))
    if (recv(fd.get(), buffer, sizeof buffer, 0) <= 0) return true;
  return false;
}

TEST(BootstrapFaults, StrangersAreTurnedAwayAndTheJobGoesOn) {
  const UniqueId id = UniqueId::create(on_loopback());
  const auto garbage = stranger(id), silent = stranger(id), half = stranger(id);
  {
    const auto gone = stranger(id);
  }
  ASSERT_GT(send(garbage.get(), "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n", 36, MSG_NOSIGNAL), 0);
  ASSERT_GT(send(half.get(), "SHL1", 4, MSG_NOSIGNAL), 0);
  EXPECT_TRUE(is_turned_away(garbage, std::chrono::seconds(5)));
  Pair(id).expect_met();
}

TEST(BootstrapFaults, SilentStrangerIsTurnedAwayInAFewSeconds) {
  const UniqueId id = UniqueId::create(on_loopback());
  EXPECT_TRUE(is_turned_away(stranger(id), std::chrono::seconds(8)));
}

TEST(BootstrapFaults, ManyStrangersDoNotKeepPesOut) {
  SHOAL_SKIP_WITHOUT_FILES(512);
  const UniqueId id = UniqueId::create(on_loopback(20'000));
  std::vector<bootstrap::Fd> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(stranger(id));
  crowd.erase(crowd.begin(), crowd.begin() + 150);
  Pair(id).expect_met();
}

/// True if the other side has closed the connection.
bool is_closed(const bootstrap::Fd& fd) {
  char buffer[256];
  ssize_t count = 0;
  while ((count = recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
  }
  return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

// Silent strangers are dropped five seconds after they connected. The root must not wait for that
// before it accepts the PEs behind them: a stranger in the middle of the queue is still connected
// when the PEs have met.
TEST(BootstrapFaults, AThousandSilentStrangersDelayNothing) {
  SHOAL_SKIP_WITHOUT_FILES(4096);
  const UniqueId id = UniqueId::create(on_loopback(60'000));
  std::vector<bootstrap::Fd> crowd;
  for (int i = 0; i < 1'000; ++i) crowd.push_back(stranger(id));
  const auto meet = [&](int pe) {
    return outcome_of([&] {
      const auto bootstrap = connect_unique_id(id, pe, 2, on_loopback(60'000));
      bootstrap->barrier("met");
      // The root ends with the world and closes all connections then.
      if (pe == 0) EXPECT_FALSE(is_closed(crowd[700]));
      bootstrap->barrier("looked");
    });
  };
  Outcome other;
  std::thread thread([&] { other = meet(1); });
  EXPECT_EQ(meet(0).error, "no error");
  thread.join();
  EXPECT_EQ(other.error, "no error");
}

UniqueId with_port_of(UniqueId id, const bootstrap::Fd& listener) {
  id.port = bootstrap::local_address(listener.get()).port();
  return id;
}

bootstrap::Fd listen_anywhere() {
  bootstrap::Address any;
  any.storage.ss_family = AF_INET;
  any.size = 16;
  return bootstrap::listen_at(any);
}

/// Address of the loopback interface, with a port that was free.
std::string free_address() {
  return fmt::format("127.0.0.1:{}", bootstrap::local_address(listen_anywhere().get()).port());
}

bootstrap::Fd accept_one(const bootstrap::Fd& listener) {
  EXPECT_TRUE(
      bootstrap::wait_ready(listener.get(), POLLIN, Clock::now() + std::chrono::seconds(20)));
  return bootstrap::Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

/// Moves what has arrived at `from` to `to`. False: `from` has ended.
bool forward(const bootstrap::Fd& from, const bootstrap::Fd& to) {
  char buffer[4096];
  const ssize_t count = recv(from.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
  return count > 0 &&
         send(to.get(), buffer, static_cast<std::size_t>(count), MSG_NOSIGNAL) == count;
}

/// Connects `pe` with the root until one of them ends. `greets`: whether the root hears the PE.
void relay(const bootstrap::Fd& pe, const bootstrap::Fd& root, bool greets) {
  bool open = true;
  while (open) {
    pollfd entries[] = {{root.get(), POLLIN, 0}, {greets ? pe.get() : -1, POLLIN, 0}};
    if (poll(entries, 2, 20'000) <= 0) return;
    if (entries[0].revents != 0) open = forward(root, pe);
    if (open && entries[1].revents != 0) open = forward(pe, root);
  }
}

// A PE may get no core between its connection and its greeting. Here a relay delays the first
// greeting of PE 1 until strangers have taken its place at the root.
TEST(BootstrapFaults, APeThatStrangersPushedOutConnectsAgain) {
  SHOAL_SKIP_WITHOUT_FILES(4096);
  const UniqueId id = UniqueId::create(on_loopback());
  const bootstrap::Fd listener = listen_anywhere();
  std::vector<bootstrap::Fd> crowd;
  std::thread relays([&] {
    {
      const bootstrap::Fd slow = accept_one(listener), root = stranger(id);
      for (int i = 0; i < 600; ++i) crowd.push_back(stranger(id));
      relay(slow, root, false);
    }
    const bootstrap::Fd again = accept_one(listener), root = stranger(id);
    relay(again, root, true);
  });
  Outcome other;
  std::thread thread([&] {
    other = outcome_of([&] { connect_unique_id(id, 0, 2, on_loopback())->barrier("met"); });
  });
  const Outcome slow = outcome_of(
      [&] { connect_unique_id(with_port_of(id, listener), 1, 2, on_loopback())->barrier("met"); });
  EXPECT_EQ(slow.error, "no error");
  // This ends the wait for PE 1 if it does not come back.
  if (slow.code) stranger(with_port_of(id, listener));
  relays.join();
  thread.join();
  EXPECT_EQ(other.error, "no error");
}

TEST(BootstrapFaults, APeThatStrangersAlwaysPushOutSaysSo) {
  const bootstrap::Fd listener = listen_anywhere();
  const UniqueId id =
      with_port_of(UniqueId::parse("shoal1:127.0.0.1:1:" + std::string(64, '0')), listener);
  std::atomic<bool> stop{false};
  std::thread root([&] {
    while (!stop) {
      if (!bootstrap::wait_ready(listener.get(), POLLIN,
                                 Clock::now() + std::chrono::milliseconds(50)))
        continue;
      const bootstrap::Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      // Longer than the root keeps a silent connection while many others connect.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
  });
  const Outcome outcome = outcome_of([&] { connect_unique_id(id, 1, 2, on_loopback(2'000)); });
  stop = true;
  root.join();
  EXPECT_EQ(outcome.code, Code::timeout) << outcome.error;
  test::expect_parts(outcome.error, {"PE 1 of 2 ", " within 2000 ms. The root dropped this PE ",
                                     " before it had proven the key", "strangers"});
}

// The same number of strangers with fewer descriptors: the root needs descriptors for PEs.
SHOAL_PE_BODY(root_with_few_descriptors) {
  const UniqueId id = UniqueId::create(on_loopback(30'000));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::cout << "id " << id.to_string() << std::endl;
  const Outcome outcome = outcome_of([&] { connect_unique_id(id, 0, 2, on_loopback(30'000)); });
  std::cout << "outcome " << outcome.error << std::endl;
}

TEST(BootstrapFaults, StrangersDoNotUseUpTheDescriptorsOfTheRoot) {
  auto group = test::start_pes(1, "root_with_few_descriptors");
  ASSERT_TRUE(group.pes[0].wait_for_output("id shoal1:")) << group.pes[0].err();
  const std::string out = group.pes[0].out();
  const std::size_t begin = out.find("id ") + 3;
  const UniqueId id = UniqueId::parse(out.substr(begin, out.find('\n', begin) - begin));
  std::vector<bootstrap::Fd> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(stranger(id));
  EXPECT_EQ(outcome_of([&] { connect_unique_id(id, 1, 2, on_loopback(30'000)); }).error,
            "no error");
  test::expect_parts(group.pes[0].wait().out, {"outcome no error"});
}

TEST(BootstrapFaults, ErrorAboutMissingPesCountsStrangers) {
  const UniqueId id = UniqueId::create(on_loopback());
  const auto silent = stranger(id), garbage = stranger(id);
  ASSERT_GT(send(garbage.get(), "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n", 36, MSG_NOSIGNAL), 0);
  EXPECT_TRUE(is_turned_away(garbage, std::chrono::seconds(5)));
  const Outcome outcome = outcome_of([&] { connect_unique_id(id, 0, 2, on_loopback(300)); });
  EXPECT_EQ(outcome.code, Code::timeout);
  test::expect_parts(outcome.error, {"PE 1 of 2 did not connect within 300 ms",
                                     "2 connections came without proof of the key"});
}

TEST(BootstrapFaults, WrongKeyIsTurnedAwayAndSaysSo) {
  const UniqueId id = UniqueId::create(on_loopback());
  UniqueId wrong = id;
  wrong.key[5] ^= std::byte{1};
  const Outcome outcome = outcome_of([&] { connect_unique_id(wrong, 0, 2, on_loopback()); });
  EXPECT_EQ(outcome.code, Code::mismatch);
  test::expect_parts(outcome.error, {"the key differs"});
  Pair(id).expect_met();
}

TEST(BootstrapFaults, WrongIndexIsRefusedWithItsReasonAndTheJobGoesOn) {
  const UniqueId id = UniqueId::create(on_loopback());
  const Outcome beyond = outcome_of([&] { connect_unique_id(id, 2, 2, on_loopback()); });
  EXPECT_EQ(beyond.code, Code::invalid_argument);
  test::expect_parts(beyond.error, {"gave 2 as its PE; allowed: 0 to 1"});
  EXPECT_EQ(outcome_of([&] { connect_unique_id(id, -1, 2, on_loopback()); }).code,
            Code::invalid_argument);
  EXPECT_EQ(outcome_of([&] { connect_unique_id(id, 0, 0, on_loopback()); }).code,
            Code::invalid_argument);
  Pair(id).expect_met();
}

TEST(BootstrapFaults, SecondPeOfTheSameIndexIsRefused) {
  const UniqueId id = UniqueId::create(on_loopback());
  Outcome outcomes[2];
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (Outcome& outcome : outcomes)
    threads.emplace_back([&] {
      outcome = outcome_of([&] { connect_unique_id(id, 0, 2, on_loopback())->barrier("met"); });
      ++ended;
    });
  EXPECT_TRUE(test::wait_for([&] { return ended == 1; }));  // the other one waits for PE 1
  EXPECT_EQ(outcome_of([&] { connect_unique_id(id, 1, 2, on_loopback())->barrier("met"); }).error,
            "no error");
  for (std::thread& thread : threads) thread.join();
  const Outcome &refused = outcomes[outcomes[0].code ? 0 : 1],
                &joined = outcomes[outcomes[0].code ? 1 : 0];
  EXPECT_EQ(refused.code, Code::invalid_argument);
  test::expect_parts(refused.error, {"taken by PE 0 (pid "});
  EXPECT_EQ(joined.error, "no error");
}

TEST(BootstrapFaults, DifferentNumbersOfPesFailBoth) {
  const UniqueId id = UniqueId::create(on_loopback());
  Outcome other;
  std::thread thread(
      [&] { other = outcome_of([&] { connect_unique_id(id, 0, 2, on_loopback()); }); });
  const Outcome mine = outcome_of([&] { connect_unique_id(id, 1, 3, on_loopback()); });
  thread.join();
  for (const Outcome& outcome : {mine, other}) {
    EXPECT_EQ(outcome.code, Code::mismatch) << outcome.error;
    test::expect_parts(outcome.error, {"SHOAL_N_PES"});
  }
}

TEST(BootstrapFaults, PesThatNeverComeAreNamed) {
  const UniqueId id = UniqueId::create(on_loopback());
  Outcome other;
  std::thread thread(
      [&] { other = outcome_of([&] { connect_unique_id(id, 0, 4, on_loopback(400)); }); });
  const Outcome mine = outcome_of([&] { connect_unique_id(id, 2, 4, on_loopback(400)); });
  thread.join();
  for (const Outcome& outcome : {mine, other}) {
    EXPECT_EQ(outcome.code, Code::timeout) << outcome.error;
    test::expect_parts(outcome.error, {"PEs 1, 3 of 4 did not connect within 400 ms",
                                       "SHOAL_BOOTSTRAP_TIMEOUT_MS"});
  }
  EXPECT_NE(
      outcome_of([&] { connect_unique_id(id, 1, 4, on_loopback()); }).error.find("did not connect"),
      std::string::npos)
      << "a late PE receives the failure";
}

TEST(BootstrapFaults, NoProcessListens) {
  UniqueId id = UniqueId::parse("shoal1:127.0.0.1:1:" + std::string(64, '0'));
  const Outcome outcome = outcome_of([&] { connect_unique_id(id, 0, 1, on_loopback()); });
  EXPECT_EQ(outcome.code, Code::peer_failed);
  test::expect_parts(outcome.error, {"127.0.0.1:1"});
  EXPECT_EQ(outcome.error.find("within"), std::string::npos) << "it did not wait";
}

TEST(BootstrapFaults, RootThatIsNone) {
  // The system accepts connections, and nothing is sent.
  const bootstrap::Fd mute = listen_anywhere();
  const UniqueId id =
      with_port_of(UniqueId::parse("shoal1:127.0.0.1:1:" + std::string(64, '0')), mute);
  const Outcome outcome = outcome_of([&] { connect_unique_id(id, 0, 1, on_loopback(300)); });
  EXPECT_EQ(outcome.code, Code::timeout) << outcome.error;
}

SHOAL_PE_BODY(victim) {
  const auto bootstrap = make_bootstrap(pe.settings);
  bootstrap->barrier("start");
  std::cout << "started" << std::endl;
  if (bootstrap->pe() == 1) pause();
  const Outcome outcome = outcome_of([&] { bootstrap->barrier("never"); });
  EXPECT_EQ(outcome.code, Code::peer_failed) << outcome.error;
  std::cout << outcome.error << std::endl;
}

TEST(BootstrapFaults, KilledPeIsReportedByName) {
  auto group =
      test::start_pes(3, "victim", {.env = {{"SHOAL_BOOTSTRAP_TIMEOUT_MS", test::kNever}}});
  for (auto& process : group.pes) ASSERT_TRUE(process.wait_for_output("started")) << process.err();
  group.pes[1].send(SIGKILL);
  const std::string who = "PE 1 (pid " + std::to_string(group.pes[1].pid()) + " on host ";
  for (const std::size_t pe : {0u, 2u}) {
    const auto result = group.pes[pe].wait();
    EXPECT_TRUE(result.ok()) << result.describe();
    test::expect_parts(result.out, {who, "ended without closing"});
  }
}

/// True if this process has a TCP connection on which it has sent data and all of it has arrived.
/// The first data that a PE sends is its hello.
bool has_introduced_itself() {
  constexpr int kEstablished =
      1;  // TCP_ESTABLISHED of netinet/tcp.h, whose tcp_info lacks the counters
  for (int fd = 3; fd < 64; ++fd) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_state != kEstablished)
      continue;
    // The opening of a connection counts as one byte.
    if (info.tcpi_unacked == 0 && info.tcpi_bytes_acked > 1) return true;
  }
  return false;
}

/// PE 2 never connects.
SHOAL_PE_BODY(join_incomplete) {
  if (pe.settings.pe == 2) {
    for (;;) pause();
  }
  std::thread watcher([] {
    if (test::wait_for(has_introduced_itself)) std::cout << "joined" << std::endl;
  });
  const Outcome outcome = outcome_of([&] { make_bootstrap(pe.settings); });
  std::cout << (outcome.code ? name_of(*outcome.code) : "nothing") << ": " << outcome.error
            << std::endl;
  watcher.join();
}

TEST(BootstrapFaults, PeKilledWhileOthersAreMissingIsReportedByName) {
  auto group = test::start_pes(3, "join_incomplete",
                               {.env = {{"SHOAL_BOOTSTRAP_TIMEOUT_MS", test::kNever}}});
  for (const std::size_t pe : {0u, 1u})
    ASSERT_TRUE(group.pes[pe].wait_for_output("joined")) << group.pes[pe].err();
  group.pes[1].send(SIGKILL);
  const auto result = group.pes[0].wait();
  EXPECT_TRUE(result.ok()) << result.describe();
  const std::string who = "PE 1 (pid " + std::to_string(group.pes[1].pid()) + " on host ";
  test::expect_parts(result.out, {"peer_failed: ", who, "ended without closing"});
}

TEST(BootstrapFaults, WrongSessionSecretIsTurnedAwayAndTheJobGoesOn) {
  Settings settings = on_loopback();
  settings.session_id = free_address();
  settings.session_secret = "s3cret";
  Outcome root;
  std::thread thread(
      [&] { root = outcome_of([&] { connect_session(0, 2, settings)->barrier("met"); }); });
  Settings wrong = settings;
  wrong.session_secret = "guessed";
  const Outcome outcome = outcome_of([&] { connect_session(1, 2, wrong); });
  EXPECT_EQ(outcome.code, Code::mismatch) << outcome.error;
  test::expect_parts(outcome.error, {"the key differs", "SHOAL_SESSION_SECRET"});
  EXPECT_EQ(outcome.error.find("guessed"), std::string::npos)
      << "a secret is never printed: " << outcome.error;
  EXPECT_EQ(outcome_of([&] { connect_session(1, 2, settings)->barrier("met"); }).error, "no error");
  thread.join();
  EXPECT_EQ(root.error, "no error");
}

SHOAL_PE_BODY(aborts) {
  const auto bootstrap = make_bootstrap(pe.settings);
  if (bootstrap->pe() == 2) {
    bootstrap->abort("no room on this host");
    return;  // the process ends at once, and the reason must still arrive
  }
  const Outcome outcome = outcome_of([&] { bootstrap->barrier("never"); });
  EXPECT_EQ(outcome.error, "shoal: PE 2: no room on this host");
}

TEST(BootstrapFaults, AbortReachesAllAlthoughTheProcessEnds) {
  test::expect_success(test::run_pes(4, "aborts"));
}

SHOAL_PE_BODY(root_dies) {
  Settings settings = pe.settings;
  settings.unique_id.clear();
  const auto bootstrap = make_bootstrap(settings);
  bootstrap->barrier("start");
  std::cout << "started" << std::endl;
  if (bootstrap->pe() == 0) pause();
  const Outcome outcome = outcome_of([&] { bootstrap->barrier("never"); });
  EXPECT_EQ(outcome.code, Code::peer_failed) << outcome.error;
  test::expect_parts(outcome.error, {"the root of the bootstrap"});
}

TEST(BootstrapFaults, RootThatDiesIsReported) {
  auto group = test::start_pes(3, "root_dies", {.env = {{"SHOAL_SESSION_ID", free_address()}}});
  for (auto& process : group.pes) ASSERT_TRUE(process.wait_for_output("started")) << process.err();
  group.pes[0].send(SIGKILL);
  for (const std::size_t pe : {1u, 2u}) {
    const auto result = group.pes[pe].wait();
    EXPECT_TRUE(result.ok()) << result.describe();
  }
}

}  // namespace
}  // namespace shoal
