// SPDX-License-Identifier: Apache-2.0
// PEs and ranges that do not exist, and heap calls that disagree, are rejected with the value and
// the allowed range. Nothing changes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

constexpr Pe kPes = 3;

constexpr AtomicOp kAtomicOps[] = {AtomicOp::fetch,   AtomicOp::set,         AtomicOp::add,
                                   AtomicOp::bit_and, AtomicOp::bit_or,      AtomicOp::bit_xor,
                                   AtomicOp::swap,    AtomicOp::compare_swap};

void run(const std::function<void(World&)>& body) {
  run_threads(kPes, world_settings(), [&](World& world) {
    body(world);
    barrier(world.team());
    check_rma(world);  // the world stays usable after the refused calls
  });
}

TEST(WorldArguments, AtomicsRefuseWhatDoesNotExist) {
  run([](World& world) {
    const std::size_t size = world.heap().size();
    for (const AtomicOp op : kAtomicOps) {
      const auto refuse = [&](std::string_view text, RemoteAddress target, std::size_t width) {
        SCOPED_TRACE(static_cast<int>(op));
        expect_error(Code::invalid_argument, text,
                     [&] { world.atomic_word(op, target, 1, 0, width); });
      };
      refuse("PE -1; the world has PEs 0 to 2", {-1, 0}, 8);
      refuse("PE 3; the world has PEs 0 to 2", {kPes, 0}, 8);
      refuse("leave the symmetric heap", {1, size}, 8);
      refuse("leave the symmetric heap", {1, size + 64}, 4);
      refuse("leave the symmetric heap", {1, SIZE_MAX - 7}, 8);
      refuse("a word of 3 bytes; allowed: 4 or 8", {1, 0}, 3);
      refuse("a word of 0 bytes; allowed: 4 or 8", {1, 0}, 0);
      refuse("a word of 16 bytes; allowed: 4 or 8", {1, 0}, 16);
      refuse("not a multiple of the word's 8 bytes", {1, 4}, 8);
      refuse("not a multiple of the word's 4 bytes", {1, 2}, 4);
    }
    world.atomic_word(AtomicOp::fetch, {1, size - 8}, 0, 0, 8);  // the last word of all
  });
}

// An empty span has no element to access, even where its address is good.
TEST(WorldArguments, OperationsOnOneElementRefuseEmptySpans) {
  run([](World& world) {
    const RemoteSpan<std::int64_t> empty{{1, 64}, 0};
    const RemoteSpan<std::uint64_t> no_flag{{1, 64}, 0};
    const auto refuse = [&](std::string_view text, const std::function<void()>& call) {
      expect_error(Code::invalid_argument, text, call);
    };
    refuse("SHOAL-N794: put_value: an empty span as target", [&] { world.put_value(empty, 1); });
    refuse("SHOAL-N794: get_value: an empty span as source", [&] { world.get_value(empty); });
    for (const AtomicOp op : kAtomicOps)
      refuse("SHOAL-N794: atomic: an empty span as target", [&] { world.atomic(op, empty, 1); });
    const auto refuse_atomic = [&](const std::function<void()>& call) {
      refuse("SHOAL-N794: atomic: an empty span as target", call);
    };
    refuse_atomic([&] { world.atomic_fetch(empty); });
    refuse_atomic([&] { world.atomic_set(empty, 1); });
    refuse_atomic([&] { world.atomic_fetch_add(empty, 1); });
    refuse_atomic([&] { world.atomic_fetch_and(empty, 1); });
    refuse_atomic([&] { world.atomic_fetch_or(empty, 1); });
    refuse_atomic([&] { world.atomic_fetch_xor(empty, 1); });
    refuse_atomic([&] { world.atomic_swap(empty, 1); });
    refuse_atomic([&] { world.atomic_compare_swap(empty, 0, 1); });
    refuse("SHOAL-N794: signal: an empty span as signal", [&] { world.signal_set(no_flag, 1); });
    refuse("SHOAL-N794: signal: an empty span as signal", [&] { world.signal_add(no_flag, 1); });
    refuse("SHOAL-N794: put_signal: an empty span as signal", [&] {
      world.put_signal(empty, std::span<const std::int64_t>(), no_flag, SignalOp::set, 1);
    });
  });
}

TEST(WorldArguments, StridedAndNullBuffersAreRefused) {
  run([](World& world) {
    const std::size_t size = world.heap().size();
    std::array<std::byte, 64> local{};
    const auto get = [&](void* target, RemoteAddress source, std::size_t stride,
                         std::size_t element, std::size_t count) {
      world.get_strided_bytes(target, 8, source, stride, element, count);
    };
    const auto refuse = [&](std::string_view text, const std::function<void()>& call) {
      expect_error(Code::invalid_argument, text, call);
    };
    refuse("PE -1", [&] { get(local.data(), {-1, 0}, 8, 8, 2); });
    refuse("PE 3", [&] { get(local.data(), {kPes, 0}, 8, 8, 2); });
    refuse("leave the symmetric heap", [&] { get(local.data(), {1, size - 8}, 8, 8, 2); });
    refuse("leave the symmetric heap", [&] { get(local.data(), {1, size}, 8, 8, 1); });
    refuse("leave the symmetric heap",
           [&] { get(local.data(), {1, 0}, SIZE_MAX / 2, 8, 4); });  // would wrap around
    refuse("leave the symmetric heap", [&] { get(local.data(), {1, 8}, 1, SIZE_MAX - 4, 1); });
    refuse("is null", [&] { get(nullptr, {1, 0}, 8, 8, 2); });
    refuse("is null", [&] { world.get_bytes(nullptr, {1, 0}, 8); });
    refuse("is null", [&] { world.get_bytes_nbi(nullptr, {1, 0}, 8); });
    refuse("is null", [&] { world.put_bytes_nbi({1, 0}, nullptr, 8); });
    refuse("is null", [&] { world.put_strided_bytes({1, 0}, 8, nullptr, 8, 8, 2); });
    refuse("is null",
           [&] { world.put_signal_bytes({1, 0}, nullptr, 8, {{1, 64}, 1}, SignalOp::set, 1); });
    refuse("they must be one PE", [&] {
      world.put_signal_bytes({1, 0}, local.data(), 8, {{0, 64}, 1}, SignalOp::set, 1);
    });
    refuse("an empty span as signal", [&] { world.signal_set({{1, 64}, 0}, 1); });
    get(local.data(), {1, size - 16}, 8, 8, 2);  // the last two words of all
    get(nullptr, {1, size}, 8, 8, 0);            // nothing
  });
}

TEST(WorldArguments, QueriesRefuseWhatDoesNotExist) {
  run([](World& world) {
    SymmetricHeap& heap = world.heap();
    int outside = 0;
    const auto refuse = [&](std::string_view text, const std::function<void()>& call) {
      expect_error(Code::invalid_argument, text, call);
    };
    refuse("PE -1; the world has PEs 0 to 2", [&] { world.describe_transport(-1); });
    refuse("PE 3; the world has PEs 0 to 2", [&] { world.describe_transport(kPes); });
    refuse("PE -1; the world has PEs 0 to 2", [&] { heap.peer_pointer(heap.base(), -1); });
    refuse("PE 3; the world has PEs 0 to 2", [&] { heap.peer_pointer(heap.base(), kPes); });
    refuse("not in this PE's symmetric heap", [&] { heap.peer_pointer(&outside, 0); });
    refuse("not in this PE's symmetric heap", [&] { heap.offset_of(&outside); });
    refuse("not in this PE's symmetric heap", [&] { heap.offset_of(nullptr); });
    refuse("not in this PE's symmetric heap", [&] { heap.offset_of(heap.base() - 1); });
    refuse("not in this PE's symmetric heap", [&] { heap.offset_of(heap.base() + heap.size()); });
    EXPECT_EQ(heap.offset_of(heap.base() + heap.size() - 1), heap.size() - 1);

    const Team all = world.team(), self = world.self_team();
    refuse("it has PEs 0 to 2", [&] { all.translate(-1, self); });
    refuse("it has PEs 0 to 2", [&] { all.translate(kPes, self); });
    refuse("it has PEs 0 to 0", [&] { self.translate(1, all); });
    refuse("is invalid", [&] { all.translate(0, Team()); });
    refuse("is invalid", [&] { Team().translate(0, all); });
    EXPECT_EQ(all.translate((world.my_pe() + 1) % kPes, self), std::nullopt);
  });
}

TEST(WorldArguments, WaitsRefuseWhatIsNoWordOfTheHeap) {
  run([](World& world) {
    const auto array = world.heap().allocate<std::int64_t>(4);
    const std::vector<std::int64_t> zero{0};
    const auto refuse = [&](const std::int64_t* first, std::size_t count) {
      const std::span<const std::int64_t> words(first, count);
      expect_error(Code::invalid_argument, "not aligned words",
                   [&] { world.wait_all(words, Compare::equal, zero); });
      expect_error(Code::invalid_argument, "not aligned words",
                   [&] { world.wait_any(words, Compare::equal, zero); });
      expect_error(Code::invalid_argument, "not aligned words",
                   [&] { world.test_some(words, Compare::equal, zero); });
    };
    const std::byte* const end = world.heap().base() + world.heap().size();
    const auto word_at = [](const std::byte* where) {
      return reinterpret_cast<const std::int64_t*>(where);
    };
    refuse(word_at(end - 8), 2);  // the second one is past the heap
    refuse(word_at(end), 1);
    refuse(word_at(world.heap().base() - 8), 2);  // the first one is before it
    refuse(word_at(reinterpret_cast<const std::byte*>(array.data()) + 4), 1);
    expect_error(Code::invalid_argument, "not an aligned word",
                 [&] { world.signal_fetch(reinterpret_cast<const std::uint64_t*>(end)); });
    const std::vector<int> skip{0, 1};
    expect_error(Code::invalid_argument, "skip has 2 elements for 4 variables", [&] {
      world.test_all(std::span<const std::int64_t>(array.span()), Compare::equal, zero, skip);
    });
    world.test(word_at(end - 8), Compare::equal, 0);  // the last word
  });
}

TEST(WorldArguments, WaitsTakeAnyContiguousRange) {
  run([](World& world) {
    auto array = world.heap().allocate<std::int64_t>(4);
    auto rows = world.heap().allocate<std::array<std::uint32_t, 2>>(1);
    for (std::size_t i = 0; i < 4; ++i) array[i] = static_cast<std::int64_t>(i);
    rows[0] = {7, 8};
    const std::array<std::int64_t, 4> values{0, 1, 2, 3};
    const std::vector<std::uint32_t> seven{7};
    world.wait_all(array.span(), Compare::equal, values);
    world.wait_all(array.span().first<4>(), Compare::equal, values);
    EXPECT_TRUE(world.test_all(array.span(), Compare::equal, values));
    EXPECT_TRUE(world.test_all<std::int64_t>(array.span(), Compare::equal, values)) << "as in 0.1";
    EXPECT_EQ(world.wait_any(array.span().subspan<1>(), Compare::equal, std::span(values).first(1),
                             std::array{1, 1, 1}),
              World::no_index);
    EXPECT_EQ(world.wait_any(rows[0], Compare::equal, seven), 0u);
    EXPECT_EQ(world.test_any(rows[0], Compare::greater, seven), 1u);
    EXPECT_EQ(world.wait_some(rows[0], Compare::greater_equal, seven),
              (std::vector<std::size_t>{0, 1}));
    EXPECT_EQ(world.test_some(std::as_const(rows[0]), Compare::less, seven),
              std::vector<std::size_t>());
    std::vector<std::int64_t> elsewhere(4);
    expect_error(Code::invalid_argument, "not aligned words",
                 [&] { world.wait_all(elsewhere, Compare::equal, values); });
  });
}

TEST(RemoteSpan, SubspanStaysInside) {
  const RemoteSpan<std::int32_t> span{{2, 400}, 10};
  const auto part = span.subspan(3, 7);
  EXPECT_EQ(part.address.pe, 2);
  EXPECT_EQ(part.address.offset, 412u);
  EXPECT_EQ(part.count, 7u);
  EXPECT_EQ(span.subspan(10, 0).count, 0u);
  for (const auto& [first, length] : {std::pair<std::size_t, std::size_t>{0, 11},
                                      {3, 8},
                                      {11, 0},
                                      {3, SIZE_MAX},
                                      {SIZE_MAX, 1},
                                      {SIZE_MAX, SIZE_MAX}})
    expect_error(
        Code::invalid_argument,
        fmt::format("subspan: {} elements from element {} leave the span of 10", length, first),
        [&span, first = first, length = length] { span.subspan(first, length); });
  expect_error(Code::invalid_argument, "1 elements from element 10 leave the span of 10",
               [&] { span[10]; });
}

TEST(RunThreads, RefusesNumbersOfPesOutsideItsLimits) {
  constexpr Pe kMost = std::numeric_limits<Pe>::max();
  for (const Pe n : {0, -1, 513, kMost})
    expect_error(Code::invalid_argument, std::to_string(n),
                 [n] { run_threads(n, world_settings(), [](World&) { ADD_FAILURE() << "ran"; }); });
  for (const Pe n : {0, -1, kMost})
    expect_error(Code::invalid_argument, std::to_string(n), [n] { thread_bootstraps(n); });
}

TEST(SymmetricHeap, DisagreementIsToldToAllAndChangesNothing) {
  run([](World& world) {
    SymmetricHeap& heap = world.heap();
    void* const a = heap.malloc(1000);
    void* const b = heap.malloc(1000);
    std::memset(a, 0x5a, 1000);
    std::memset(b, 0xa5, 1000);
    const std::size_t used = heap.used(), largest = heap.largest_free();
    const bool odd = world.my_pe() == 1;
    const auto disagree = [&](std::string_view text, const std::function<void()>& call) {
      SCOPED_TRACE(text);
      expect_error(Code::mismatch, text, call);
      EXPECT_EQ(heap.used(), used);
      EXPECT_EQ(heap.largest_free(), largest);
    };
    disagree("PE 0, 2: free of 1024 bytes at offset", [&] { heap.free(odd ? b : a); });
    // A wrong pointer fails for its caller alone: the call that this PE makes next is the one that
    // differs.
    if (odd)
      expect_error(Code::invalid_argument, "did not return", [&] { heap.free(heap.base() + 64); });
    disagree("PE 1: malloc of 64 bytes",
             [&] { odd ? static_cast<void>(heap.malloc(64)) : heap.free(a); });
    disagree("PE 0, 2: malloc of 100 bytes", [&] { heap.calloc(odd ? 11 : 10, 10); });
    disagree("PE 1: malloc of more bytes than can be counted",
             [&] { heap.calloc(odd ? SIZE_MAX : 1, 16); });
    disagree("PE 1: malloc of 100 bytes aligned to 4096",
             [&] { heap.align(odd ? 4096 : 8192, 100); });
    disagree("PE 0, 2: malloc of 100 bytes at",
             [&] { odd ? heap.align(1 << 20, 100) : heap.malloc(100); });
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(static_cast<unsigned char*>(a)[i], 0x5a);
      ASSERT_EQ(static_cast<unsigned char*>(b)[i], 0xa5);
    }
    heap.free(a);
    heap.free(b);
  });
}

TEST(SymmetricHeap, OutOfMemorySaysHowMuchThereIs) {
  run([](World& world) {
    SymmetricHeap& heap = world.heap();
    const auto held = heap.allocate<std::byte>(1 << 20);
    const std::size_t free = heap.size() - heap.used();
    const auto refused = [&](std::string_view text) {
      expect_error(Code::exhausted, text, [&] { heap.malloc(free + 4096); });
    };
    refused("no room for " + std::to_string(free + 4096) + " bytes");
    refused(std::to_string(free) + " of " + std::to_string(heap.size()) + " bytes are free");
    refused("the largest block has " + std::to_string(heap.largest_free()));
    refused("SHOAL_SYMMETRIC_SIZE");
  });
}

TEST(SymmetricHeap, LargestFreeCanBeAllocated) {
  run([](World& world) {
    SymmetricHeap& heap = world.heap();
    void* const first = heap.malloc(3000);
    void* const second = heap.malloc(5000);
    heap.free(first);  // a hole, so that the largest block is not all that is free
    const std::size_t largest = heap.largest_free();
    EXPECT_LT(largest, heap.size() - heap.used());
    expect_error(Code::exhausted, "the largest block", [&] { heap.malloc(largest + 1); });
    void* const all = heap.malloc(largest);
    ASSERT_NE(all, nullptr);
    EXPECT_LT(heap.largest_free(), largest);
    heap.free(all);
    EXPECT_EQ(heap.largest_free(), largest);
    heap.free(second);
  });
}

TEST(SymmetricArray, MoveAssignmentReturnsTheMemory) {
  run([](World& world) {
    SymmetricHeap& heap = world.heap();
    const auto next_heap_call = [&] { heap.free(heap.malloc(8)); };
    const std::size_t before = heap.used();
    auto array = heap.allocate<int>(1000);
    const std::size_t with_one = heap.used();
    auto other = heap.allocate<int>(1000);
    int* const kept = other.data();
    EXPECT_GT(heap.used(), with_one);
    array = std::move(other);
    next_heap_call();
    EXPECT_EQ(heap.used(), with_one);
    EXPECT_EQ(array.data(), kept);
    EXPECT_EQ(other.data(), nullptr);  // NOLINT(bugprone-use-after-move): it is empty
    EXPECT_EQ(other.size(), 0u);
    array = {};
    next_heap_call();
    EXPECT_EQ(heap.used(), before);
    EXPECT_EQ(array.size(), 0u);
  });
}

}  // namespace
}  // namespace shoal::test
