// SPDX-License-Identifier: Apache-2.0
// Queue pairs, completion queues and keys that a client creates by device commands in its own
// memory, as GPU-initiated transports do, and drives by doorbells.
// @traits emulated_nic
#include <gtest/gtest.h>

#include "devx_client.hpp"

namespace shoal::emulator::test {
namespace {

using Devx = DevxClient;

TEST_F(Devx, CapabilitiesOfTheDevice) {
  std::vector<std::byte> in(16);
  set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::query_hca_cap));
  (void)run(in);
  const std::byte* const at = answer.data() + capability::kAt;
  EXPECT_EQ(get(at, capability::kLogMaxQpSize), 15U);
  EXPECT_EQ(get(at, capability::kCqeVersion), 1U);
  set(in.data(), command::kModifier, capability::kAtomic << 1 | 1);
  (void)run(in);
  EXPECT_EQ(get(at, capability::kOperations), 0xfU);
  EXPECT_NE(lid(), 0U);
}

TEST_F(Devx, ACollapsedQueueCompletesWritesAndAtomics) {
  const std::uint32_t queue = create_cq(true);
  ASSERT_NE(queue, 0U);
  const std::uint32_t number = create_qp(queue);
  ASSERT_NE(number, 0U);
  mlx5dv_devx_obj* const pair = objects.back();
  const std::uint32_t key = create_key();
  ASSERT_EQ(change(pair, number, Command::reset_to_init), 0);
  ASSERT_EQ(change(pair, number, Command::init_to_rtr, 2), 0);
  ASSERT_EQ(change(pair, number, Command::rtr_to_rts), 0);
  RequestWriter writer(&memory[kRing], 16, number);
  for (std::uint32_t i = 0; i < 100; ++i) {  // laps of the ring
    memory[kData] = static_cast<std::byte>(i);
    writer.start(Opcode::write, {.signalled = false}).remote(kData + 64, key);
    writer.data(kData, 1, key).finish();
    const AtomicOperands add{.opcode = Opcode::fetch_add, .swap_or_add = 1};
    writer.start(Opcode::fetch_add, {.signalled = true}).remote(kData + 128, key);
    writer.atomic(add).data(kData + 192, 8, key);
    const std::uint16_t index = writer.finish();
    ring(writer);
    ASSERT_TRUE(wait([&] { return entry_word() >> 16 == index && (entry_word() & 0xff) == 0; }))
        << i << ": " << entry_word();
    EXPECT_EQ(memory[kData + 64], static_cast<std::byte>(i));
  }
  std::uint64_t sum;
  std::memcpy(&sum, &memory[kData + 128], sizeof sum);
  EXPECT_EQ(sum, 100U);
}

TEST_F(Devx, AQueryShowsStateAndOrdering) {
  namespace f = qp_context;
  const std::uint32_t number = create_qp(create_cq(false));
  mlx5dv_devx_obj* const pair = objects.back();
  ASSERT_EQ(change(pair, number, Command::reset_to_init), 0);
  ASSERT_EQ(change(pair, number, Command::init_to_rtr, 1), 0);
  std::vector<std::byte> in(16);
  set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::query_qp));
  set(in.data(), command::kObject, number);
  const auto query = [&] {
    return DIRECT(mlx5dv_devx_obj_query)(pair, in.data(), in.size(), answer.data(), answer.size());
  };
  ASSERT_EQ(query(), 0);
  const std::byte* const at = answer.data() + f::kAt;
  EXPECT_EQ(get(at, f::kState), 2U);
  EXPECT_EQ(get(at, f::kOrdering0), 1U);
  EXPECT_EQ(get(at, f::kOrdering1), 0U);
  EXPECT_EQ(get(at, f::kMtu), 5U);
  EXPECT_EQ(get(at, f::kRemoteQp), number);
  ASSERT_EQ(change(pair, number, Command::to_error), 0);
  ASSERT_EQ(query(), 0);
  EXPECT_EQ(get(at, f::kState), 6U);
}

// The limits of libibverbs' objects (verbs_library.hpp).
TEST_F(Devx, ObjectsPastTheQuotaAreRefused) {
  const auto fill = [&](const auto& create_one) {
    const std::size_t before = objects.size();
    while (objects.size() <= before + 100) {
      const std::size_t made = objects.size();
      create_one();
      if (objects.size() == made) break;
    }
    EXPECT_EQ(errno, EREMOTEIO);
    EXPECT_EQ(status(), Status::limit_exceeded);
    const std::size_t created = objects.size() - before;
    EXPECT_EQ(DIRECT(mlx5dv_devx_obj_destroy)(objects.back()), 0);
    objects.pop_back();
    create_one();
    EXPECT_EQ(objects.size(), before + created) << "room for one more after one was destroyed";
    return created;
  };
  std::uint32_t queue = 0;
  EXPECT_EQ(fill([&] {
              if (const std::uint32_t made = create_cq(false); made != 0) queue = made;
            }),
            16U);
  EXPECT_EQ(fill([&] { (void)create_qp(queue); }), 24U);
  EXPECT_EQ(fill([&] { (void)create_key(); }), 20U);
}

TEST_F(Devx, CommandsThatCannotBeExecutedSayWhy) {
  EXPECT_EQ(create_cq(false, 20), 0U);  // larger than the umem
  EXPECT_EQ(errno, EREMOTEIO);
  EXPECT_EQ(status(), Status::bad_resource);
  EXPECT_EQ(create_qp(0xffff), 0U);  // no such completion queue
  EXPECT_EQ(status(), Status::bad_resource);
  std::vector<std::byte> in(16);
  set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::create_qp));
  EXPECT_EQ(create(in), 0U);
  EXPECT_EQ(status(), Status::bad_input_length);
  set(in.data(), command::kOpcode, 0x710);  // CREATE_DCT
  EXPECT_EQ(create(in), 0U);
  EXPECT_EQ(status(), Status::bad_operation);
  const std::uint32_t number = create_qp(create_cq(false));
  EXPECT_EQ(change(objects.back(), number, Command::rtr_to_rts), EREMOTEIO);
  EXPECT_EQ(status(), Status::bad_qp_state);
  // A queue in use stays.
  EXPECT_EQ(DIRECT(mlx5dv_devx_obj_destroy)(objects.front()), EREMOTEIO);
}

}  // namespace
}  // namespace shoal::emulator::test
