// SPDX-License-Identifier: Apache-2.0
// A world closes the objects that use its memory before it releases that memory.
#include "pe/closers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/world/world_errors.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

using detail::Closable;
using detail::WorldEnd;

/// Writes to a word of the heap from its own thread until the world closes it.
class Writer final : public Closable {
 public:
  explicit Writer(World& world)
      : word_(static_cast<std::uint64_t*>(world.heap().malloc(sizeof(std::uint64_t)))),
        thread_([this] {
          while (!stop_) std::atomic_ref(*word_).fetch_add(1, std::memory_order_relaxed);
        }) {}
  ~Writer() override { end(); }

  void close_with_world(WorldEnd how) noexcept override {
    ++calls;
    ended = how;
    end();
  }

  std::atomic<int> calls = 0;
  std::optional<WorldEnd> ended;  // read after the world has closed this

 private:
  void end() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  std::uint64_t* word_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST(WorldClosers, CloseEndsWorkBeforeMemoryIsReleased) {
  run_threads(3, world_settings(), [](World& world) {
    const auto writer = std::make_shared<Writer>(world);
    state_of(world).closers().add(writer);
    world.close();
    EXPECT_EQ(writer->calls, 1);
    EXPECT_EQ(writer->ended, WorldEnd::closed);
  });
}

TEST(WorldClosers, RunThreadsEndsWorkThatOutlivesTheBody) {
  constexpr Pe kPes = 3;
  std::vector<std::shared_ptr<Writer>> writers(kPes);
  run_threads(kPes, world_settings(), [&](World& world) {
    auto& writer = writers[static_cast<std::size_t>(world.my_pe())];
    writer = std::make_shared<Writer>(world);
    state_of(world).closers().add(writer);
  });
  for (const auto& writer : writers) {
    EXPECT_EQ(writer->calls, 1);
    EXPECT_EQ(writer->ended, WorldEnd::closed);
  }
}

TEST(WorldClosers, AFailedBodyEndsWorkAsFailed) {
  constexpr Pe kPes = 3;
  std::vector<std::shared_ptr<Writer>> writers(kPes);
  EXPECT_THROW(run_threads(kPes, world_settings(),
                           [&](World& world) {
                             auto& writer = writers[static_cast<std::size_t>(world.my_pe())];
                             writer = std::make_shared<Writer>(world);
                             state_of(world).closers().add(writer);
                             barrier(world.team());
                             if (world.my_pe() == 1) throw std::runtime_error("out of tokens");
                             barrier(world.team());
                           }),
               std::runtime_error);
  for (const auto& writer : writers) {
    EXPECT_EQ(writer->calls, 1);
    EXPECT_EQ(writer->ended, WorldEnd::failed);
  }
}

/// Records the order in which objects are closed.
class Noted final : public Closable {
 public:
  Noted(std::string& order, char name) : order_(order), name_(name) {}
  void close_with_world(WorldEnd) noexcept override { order_ += name_; }

 private:
  std::string& order_;
  char name_;
};

TEST(WorldClosers, TheLastOneIsClosedFirst) {
  std::string order;
  run_threads(1, world_settings(), [&](World& world) {
    auto& closers = state_of(world).closers();
    const auto a = std::make_shared<Noted>(order, 'a');
    const auto b = std::make_shared<Noted>(order, 'b');
    closers.add(a);
    closers.add(std::make_shared<Noted>(order, 'x'));  // destroyed at once: not called
    closers.add(b);
    world.close();
  });
  EXPECT_EQ(order, "ba");
}

TEST(WorldClosers, AnEndedWorldTakesNoMore) {
  std::string order;
  run_threads(1, world_settings(), [&](World& world) {
    auto& closers = state_of(world).closers();
    const World keeps = world;
    world.close();
    const auto late = std::make_shared<Noted>(order, 'a');
    expect_error(Code::closed, "", [&] { closers.add(late); });
  });
  EXPECT_EQ(order, "");
}

}  // namespace
}  // namespace shoal::test
