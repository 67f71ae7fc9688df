// SPDX-License-Identifier: Apache-2.0
// The C ABI of worlds with PEs as threads: heap, put, get, signals, waits, teams, failures.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "support/capi/capi.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

int32_t pe_of(shoal_world* world) {
  int32_t pe = -1;
  ok(shoal_world_pe(world, &pe));
  return pe;
}
int32_t n_pes_of(shoal_world* world) {
  int32_t n_pes = -1;
  ok(shoal_world_n_pes(world, &n_pes));
  return n_pes;
}

TEST(CApiWorld, PutGetAndSignalsGoAroundTheRing) {
  run_pes(4, [](shoal_world* world) {
    const int32_t me = pe_of(world), n = n_pes_of(world), next = (me + 1) % n,
                  previous = (me + n - 1) % n;
    EXPECT_EQ(n, 4);
    void* memory = nullptr;
    ok(shoal_malloc(world, 1024, &memory));
    auto* box = static_cast<int32_t*>(memory);
    ok(shoal_calloc(world, 2, sizeof(std::uint64_t), &memory));
    auto* flags = static_cast<std::uint64_t*>(memory);

    const int32_t sent[3] = {me, me * 10, me * 100};
    ok(shoal_put_signal(world, box, sent, sizeof sent, &flags[0], SHOAL_SIGNAL_SET, 7, next));
    std::uint64_t seen = 0;
    ok(shoal_signal_wait(world, &flags[0], SHOAL_EQUAL, 7, &seen));
    EXPECT_EQ(seen, 7u);
    const int32_t wanted[3] = {previous, previous * 10, previous * 100};
    EXPECT_EQ(std::memcmp(box, wanted, sizeof wanted), 0);

    for (int32_t pe = 0; pe < n; ++pe) ok(shoal_signal(world, &flags[1], SHOAL_SIGNAL_ADD, 1, pe));
    ok(shoal_signal_wait(world, &flags[1], SHOAL_GREATER_EQUAL, 4, nullptr));
    ok(shoal_signal_fetch(world, &flags[1], &seen));
    EXPECT_EQ(seen, 4u);

    int32_t got[3] = {};
    ok(shoal_get(world, got, box, sizeof got, next));  // what this PE has put there
    EXPECT_EQ(std::memcmp(got, sent, sizeof got), 0);
    ok(shoal_put(world, box + 8, &me, sizeof me, next));
    ok(shoal_fence(world));
    ok(shoal_put_nbi(world, box + 9, &me, sizeof me, next));
    int32_t later = -1;
    ok(shoal_quiet(world));
    ok(shoal_get_nbi(world, &later, box + 9, sizeof later, next));
    ok(shoal_quiet(world));
    EXPECT_EQ(later, me);

    void* there = nullptr;
    ok(shoal_peer_pointer(world, box, next, &there));
    ASSERT_NE(there, nullptr);
    EXPECT_EQ(std::memcmp(there, sent, sizeof sent), 0);

    shoal_team* team = nullptr;
    ok(shoal_world_team(world, SHOAL_TEAM_WORLD, &team));
    ok(shoal_barrier(team));
    ok(shoal_team_destroy(team));
    ok(shoal_free(world, flags));
    ok(shoal_free(world, box));
  });
}

TEST(CApiWorld, AtomicsOfBothWidths) {
  run_pes(3, [](shoal_world* world) {
    const int32_t me = pe_of(world), n = n_pes_of(world);
    void* memory = nullptr;
    ok(shoal_calloc(world, 4, sizeof(std::uint64_t), &memory));
    auto* words = static_cast<std::uint64_t*>(memory);
    auto* narrow = reinterpret_cast<std::uint32_t*>(words + 1);
    shoal_team* team = nullptr;
    ok(shoal_world_team(world, SHOAL_TEAM_WORLD, &team));

    std::uint64_t before = 99;
    ok(shoal_atomic(world, SHOAL_ATOMIC_ADD, &words[0], 8, 10, 0, 0, &before));
    EXPECT_LT(before, 10u * n);
    EXPECT_EQ(before % 10, 0u);
    ok(shoal_atomic(world, SHOAL_ATOMIC_OR, narrow, 4, 1U << me, 0, 1, nullptr));
    ok(shoal_barrier(team));
    ok(shoal_atomic(world, SHOAL_ATOMIC_FETCH, &words[0], 8, 0, 0, 0, &before));
    EXPECT_EQ(before, 10u * n);
    ok(shoal_atomic(world, SHOAL_ATOMIC_FETCH, narrow, 4, 0, 0, 1, &before));
    EXPECT_EQ(before, 7u);
    ok(shoal_sync(team));

    // Exactly one PE finds 30.
    ok(shoal_atomic(world, SHOAL_ATOMIC_COMPARE_SWAP, &words[0], 8, 1000 + me, 30, 0, &before));
    EXPECT_TRUE(before == 30 || (before >= 1000 && before < 1003)) << before;
    ok(shoal_barrier(team));
    ok(shoal_atomic(world, SHOAL_ATOMIC_FETCH, &words[0], 8, 0, 0, 0, &before));
    EXPECT_TRUE(before >= 1000 && before < 1003) << before;

    EXPECT_EQ(shoal_atomic(world, SHOAL_ATOMIC_ADD, &words[0], 2, 1, 0, 0, nullptr),
              SHOAL_INVALID_ARGUMENT);
    expect_parts(shoal_last_error(), {"width is 2; allowed: 4 or 8"});
    EXPECT_EQ(shoal_atomic(world, 8, &words[0], 8, 1, 0, 0, nullptr), SHOAL_INVALID_ARGUMENT);
    shoal_shared_buffer* buffer = nullptr;
    EXPECT_EQ(shoal_share_buffer(world, words, 8, &buffer), SHOAL_UNSUPPORTED)
        << "the heap is on the host";
    EXPECT_EQ(buffer, nullptr);
    ok(shoal_shared_buffer_destroy(nullptr));
    ok(shoal_barrier(team));
    ok(shoal_team_destroy(team));
    ok(shoal_free(world, words));
  });
}

TEST(CApiWorld, Collectives) {
  run_pes(3, [](shoal_world* world) {
    const int32_t me = pe_of(world), n = n_pes_of(world);
    shoal_team* team = nullptr;
    ok(shoal_world_team(world, SHOAL_TEAM_WORLD, &team));
    void* memory = nullptr;
    ok(shoal_calloc(world, 64, sizeof(std::int64_t), &memory));
    auto* source = static_cast<std::int64_t*>(memory);
    auto* target = source + 32;
    for (int32_t i = 0; i < n; ++i) source[i] = 100 * me + i;
    ok(shoal_sync(team));

    ok(shoal_broadcast(team, target, source, 8, 2));
    EXPECT_EQ(target[0], 200);
    ok(shoal_all_gather(team, target, source, 8));
    for (int32_t i = 0; i < n; ++i) EXPECT_EQ(target[i], 100 * i);
    ok(shoal_all_to_all(team, target, source, 8));
    for (int32_t i = 0; i < n; ++i) EXPECT_EQ(target[i], 100 * i + me);
    ok(shoal_reduce(team, SHOAL_INT64, SHOAL_SUM, target, source, 3));
    for (int32_t i = 0; i < n; ++i) EXPECT_EQ(target[i], 300 + 3 * i);
    ok(shoal_reduce_scatter(team, SHOAL_INT64, SHOAL_MAX, target, source, 1));
    EXPECT_EQ(target[0], 200 + me);

    // PE i sends i + 1 words to each; they land by sender, the last one first.
    std::vector<std::size_t> send(n, 8 * (me + 1)), send_at(n, 0), receive(n), receive_at(n);
    std::size_t at = 0;
    for (int32_t i = n - 1; i >= 0; --i) {
      receive[i] = 8 * (i + 1);
      receive_at[i] = at;
      at += receive[i];
    }
    ok(shoal_all_to_all_v(team, target, receive.data(), receive_at.data(), source, send.data(),
                          send_at.data()));
    const std::int64_t wanted[] = {200, 201, 202, 100, 101, 0};
    EXPECT_EQ(std::memcmp(target, wanted, sizeof wanted), 0);

    EXPECT_EQ(shoal_broadcast(team, target, source, 8, 3), SHOAL_INVALID_ARGUMENT);
    EXPECT_EQ(shoal_reduce(team, SHOAL_INT64, 7, target, source, 1), SHOAL_INVALID_ARGUMENT);
    EXPECT_EQ(shoal_reduce(team, SHOAL_FLOAT8_E4M3, SHOAL_SUM, target, source, 1),
              SHOAL_INVALID_ARGUMENT);
    EXPECT_EQ(shoal_all_to_all_v(team, target, nullptr, receive_at.data(), source, send.data(),
                                 send_at.data()),
              SHOAL_INVALID_ARGUMENT);
    expect_parts(shoal_last_error(), {"receive_bytes is NULL"});
    EXPECT_EQ(shoal_sync(nullptr), SHOAL_INVALID_ARGUMENT);
    ok(shoal_barrier(team));
    ok(shoal_team_destroy(team));
    ok(shoal_free(world, source));
  });
}

TEST(CApiWorld, TeamsAreHandles) {
  run_pes(4, [](shoal_world* world) {
    const int32_t me = pe_of(world);
    const int32_t sizes[] = {4, 4, 4, 1, 1};
    for (int32_t which = SHOAL_TEAM_WORLD; which <= SHOAL_TEAM_SELF; ++which) {
      shoal_team* team = nullptr;
      ok(shoal_world_team(world, which, &team));
      int32_t size = 0;
      ok(shoal_team_size(team, &size));
      EXPECT_EQ(size, sizes[which]) << which;
      ok(shoal_team_destroy(team));
    }
    shoal_team *all = nullptr, *odd = nullptr;
    ok(shoal_world_team(world, SHOAL_TEAM_WORLD, &all));
    for (int round = 0; round < 200;
         ++round) {  // more than SHOAL_MAX_TEAMS: destroying returns the slot
      ok(shoal_team_split(all, 3, -2, 2, &odd));
      EXPECT_EQ(odd != nullptr, me % 2 == 1);
      if (odd != nullptr) {
        int32_t pe = -1, world_pe = -1;
        ok(shoal_team_pe(odd, &pe));
        EXPECT_EQ(pe, me == 3 ? 0 : 1);
        ok(shoal_team_world_pe(odd, 1, &world_pe));
        EXPECT_EQ(world_pe, 1);
        expect_failure(shoal_team_world_pe(odd, 2, &world_pe), SHOAL_INVALID_ARGUMENT, "2");
        ok(shoal_barrier(odd));
      }
      ok(shoal_team_destroy(odd));
    }
    shoal_team* none = all;
    expect_failure(shoal_world_team(world, 5, &none), SHOAL_INVALID_ARGUMENT,
                   "which is 5; allowed: 0");
    expect_failure(shoal_team_split(all, 0, 1, 9, &none), SHOAL_INVALID_ARGUMENT, "9");
    EXPECT_EQ(none, all) << "nothing is written by a call that fails";
    ok(shoal_team_destroy(all));
  });
}

TEST(CApiWorld, BadArgumentsAreNamed) {
  run_pes(2, [](shoal_world* world) {
    void* memory = nullptr;
    ok(shoal_calloc(world, 4, 8, &memory));
    auto* flags = static_cast<std::uint64_t*>(memory);
    std::uint64_t local = 0;
    expect_failure(shoal_put(world, flags, &local, 8, 2), SHOAL_INVALID_ARGUMENT, "2");
    expect_failure(shoal_put(world, &local, &local, 8, 0), SHOAL_INVALID_ARGUMENT, "heap");
    expect_failure(shoal_get(world, &local, &local, 8, 0), SHOAL_INVALID_ARGUMENT, "heap");
    expect_failure(shoal_signal(world, flags, 2, 1, 0), SHOAL_INVALID_ARGUMENT,
                   "shoal_signal: op is 2; allowed: 0 to 1");
    expect_failure(shoal_signal_wait(world, flags, 6, 0, nullptr), SHOAL_INVALID_ARGUMENT,
                   "shoal_signal_wait: compare is 6; allowed: 0 to 5");
    expect_failure(shoal_put(nullptr, flags, &local, 8, 0), SHOAL_INVALID_ARGUMENT,
                   "shoal_put: world is NULL");
    expect_failure(shoal_malloc(world, 8, nullptr), SHOAL_INVALID_ARGUMENT, "pointer is NULL");
    expect_failure(shoal_malloc(world, std::size_t{1} << 40, &memory), SHOAL_EXHAUSTED,
                   "SHOAL_SYMMETRIC_SIZE");
    EXPECT_EQ(memory, flags);
    ok(shoal_free(world, flags));
  });
}

TEST(CApiWorld, AClosedWorldSaysSo) {
  run_pes(2, [](shoal_world* world) {
    shoal_team *all = nullptr, *part = nullptr;
    ok(shoal_world_team(world, SHOAL_TEAM_WORLD, &all));
    ok(shoal_team_split(all, 0, 1, 2, &part));
    ok(shoal_world_close(world));
    ok(shoal_world_close(world));
    int32_t pe = 77;
    expect_failure(shoal_world_pe(world, &pe), SHOAL_CLOSED, "closed");
    EXPECT_EQ(pe, 77);
    expect_failure(shoal_barrier(all), SHOAL_CLOSED, "closed");
    EXPECT_EQ(shoal_team_destroy(part), SHOAL_OK) << "its slot went with the world";
    ok(shoal_team_destroy(all));
  });
}

TEST(CApiWorld, OpensAloneAndByUniqueId) {
  CSettings alone;
  alone.set("SHOAL_BOOTSTRAP", "single").set("SHOAL_SYMMETRIC_SIZE", "16M");
  shoal_world* world = nullptr;
  ok(shoal_world_open(alone.get(), &world));
  EXPECT_EQ(n_pes_of(world), 1);
  ok(shoal_world_destroy(world));  // without close: allowed

  CSettings settings;
  shoal_unique_id* id = nullptr;
  ok(shoal_unique_id_create(settings.get(), &id));
  const char* text = nullptr;
  ok(shoal_unique_id_text(id, &text));
  std::vector<std::thread> threads;
  for (const char* pe : {"0", "1"})
    threads.emplace_back([=] {
      CSettings own;
      own.set("SHOAL_BOOTSTRAP", "uid")
          .set("SHOAL_UNIQUE_ID", text)
          .set("SHOAL_PE", pe)
          .set("SHOAL_N_PES", "2");
      own.set("SHOAL_SYMMETRIC_SIZE", "16M");
      shoal_world* mine = nullptr;
      ASSERT_EQ(shoal_world_open(own.get(), &mine), SHOAL_OK) << shoal_last_error();
      EXPECT_EQ(pe_of(mine), pe[0] - '0');
      EXPECT_EQ(n_pes_of(mine), 2);
      EXPECT_EQ(shoal_world_close(mine), SHOAL_OK) << shoal_last_error();
      shoal_world_destroy(mine);
    });
  for (std::thread& thread : threads) thread.join();
  ok(shoal_unique_id_destroy(id));
  CSettings wrong;
  wrong.set("SHOAL_BOOTSTRAP", "uid");
  world = nullptr;
  expect_failure(shoal_world_open(wrong.get(), &world), SHOAL_INVALID_ARGUMENT, "SHOAL_");
  EXPECT_EQ(world, nullptr);
}

TEST(CApiWorld, WhatABodyReturnsIsReturned) {
  CSettings settings;
  settings.set("SHOAL_SYMMETRIC_SIZE", "16M");
  const auto failing = [](shoal_world* world, void*) -> shoal_status {
    int32_t pe = 0;
    ok(shoal_world_pe(world, &pe));
    if (pe == 1)
      return shoal_put(world, &pe, &pe, sizeof pe,
                       0);  // one PE fails; the other waits for it and learns it
    shoal_team* team = nullptr;
    ok(shoal_world_team(world, SHOAL_TEAM_WORLD, &team));
    const shoal_status status = shoal_barrier(team);
    shoal_team_destroy(team);
    return status;
  };
  expect_failure(shoal_run_threads(2, settings.get(), failing, nullptr), SHOAL_INVALID_ARGUMENT,
                 "heap");
  EXPECT_EQ(std::string(shoal_last_error()).find("shoal: shoal: "), std::string::npos);
  expect_failure(
      shoal_run_threads(
          1, settings.get(), [](shoal_world*, void*) -> shoal_status { return 4711; }, nullptr),
      SHOAL_INTERNAL, "a body returned 4711");
  expect_failure(
      shoal_run_threads(
          1, settings.get(), [](shoal_world*, void*) -> shoal_status { throw 1; }, nullptr),
      SHOAL_INTERNAL, "not a std::exception");
  expect_failure(shoal_run_threads(0, settings.get(), failing, nullptr), SHOAL_INVALID_ARGUMENT,
                 "0 PEs");
  expect_failure(shoal_run_threads(INT32_MAX, settings.get(), failing, nullptr),
                 SHOAL_INVALID_ARGUMENT, "allowed: 1 to 512");
}

TEST(CApiWorld, AWaitEndsAtItsDeadline) {
  CSettings settings;
  settings.set("SHOAL_SYMMETRIC_SIZE", "16M").set("SHOAL_TIMEOUT_MS", "50");
  const auto waiting = [](shoal_world* world, void*) -> shoal_status {
    void* flag = nullptr;
    ok(shoal_calloc(world, 1, 8, &flag));
    return shoal_signal_wait(world, static_cast<std::uint64_t*>(flag), SHOAL_EQUAL, 1, nullptr);
  };
  expect_failure(shoal_run_threads(1, settings.get(), waiting, nullptr), SHOAL_TIMEOUT, "50 ms");
}

}  // namespace
}  // namespace shoal::test
