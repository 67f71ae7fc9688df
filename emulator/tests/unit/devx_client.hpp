// SPDX-License-Identifier: Apache-2.0
// devx_client.hpp: a client that creates a completion queue, a queue pair and a key by device
// commands in its own memory. The queue pair is connected to itself.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/mlx5/command_format.hpp"
#include "engine/big_endian.hpp"
#include "engine/completion_queue.hpp"
#include "engine/request_writer.hpp"
#include "verbs_library.hpp"

#undef ibv_get_device_list

namespace shoal::emulator::test {

using namespace mlx5;

inline constexpr auto kDeadline = std::chrono::seconds(20);
/// Opens the device that the environment describes when it is constructed.
class DevxClient : public ::testing::Test {
 protected:
  using Answer = std::array<std::byte, 4112>;

  DevxClient() {
    ibv_device** const list = VERBS(ibv_get_device_list)(nullptr);
    mlx5dv_context_attr attributes = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX, .comp_mask = 0};
    context = DIRECT(mlx5dv_open_device)(list[0], &attributes);
    VERBS(ibv_free_device_list)(list);
    if (context == nullptr) throw std::runtime_error("no device");
    uar = DIRECT(mlx5dv_devx_alloc_uar)(context, MLX5DV_UAR_ALLOC_TYPE_NC);
    umem =
        DIRECT(mlx5dv_devx_umem_reg)(context, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
    std::memset(&memory[kEntries], 0xff, kQueueSize * kCqeBytes);
    std::vector<std::byte> in(16);
    set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::alloc_pd));
    domain = run(in);
  }
  ~DevxClient() override {
    for (auto at = objects.rbegin(); at != objects.rend(); ++at)
      EXPECT_EQ(DIRECT(mlx5dv_devx_obj_destroy)(*at), 0);
    EXPECT_EQ(DIRECT(mlx5dv_devx_umem_dereg)(umem), 0);
    DIRECT(mlx5dv_devx_free_uar)(uar);
    EXPECT_EQ(VERBS(ibv_close_device)(context), 0);
  }

  /// A command without an object; the number in its answer.
  std::uint32_t run(const std::vector<std::byte>& in) {
    EXPECT_EQ(DIRECT(mlx5dv_devx_general_cmd)(context, in.data(), in.size(), answer.data(),
                                              answer.size()),
              0)
        << get(answer.data(), command::kStatus);
    return get(answer.data(), command::kObject);
  }
  std::uint32_t create(const std::vector<std::byte>& in) {
    mlx5dv_devx_obj* const made =
        DIRECT(mlx5dv_devx_obj_create)(context, in.data(), in.size(), answer.data(), answer.size());
    if (made == nullptr) return 0;
    objects.push_back(made);
    return get(answer.data(), command::kObject);
  }
  std::uint32_t create_cq(bool collapsed, std::uint32_t log_size = kLogQueueSize) {
    namespace f = cq_context;
    std::vector<std::byte> in(f::kCommandBytes);
    set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::create_cq));
    std::byte* const at = in.data() + f::kAt;
    set(at, f::kCollapsed, collapsed);
    set(at, f::kIgnoreOverrun, collapsed);
    set(at, f::kLogSize, log_size);
    set(at, f::kRecordUmemValid, 1);
    set(at, f::kRecordUmem, umem->umem_id);
    store_be(at + f::kRecordOffset, std::uint64_t{kQueueRecord});
    set(in.data(), f::kUmemValid, 1);
    set(in.data(), f::kUmem, umem->umem_id);
    store_be(in.data() + f::kUmemOffset, std::uint64_t{kEntries});
    return create(in);
  }
  std::uint32_t create_qp(std::uint32_t queue) {
    namespace f = qp_context;
    std::vector<std::byte> in(f::kCommandBytes);
    set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::create_qp));
    std::byte* const at = in.data() + f::kAt;
    set(at, f::kDomain, domain);
    set(at, f::kLogSendBlocks, 4);
    set(at, f::kUarPage, uar->page_id);
    set(at, f::kSendCq, queue);
    set(at, f::kReceiveCq, queue);
    set(at, f::kReceiveType, 3);  // none
    set(at, f::kRecordUmemValid, 1);
    set(at, f::kRecordUmem, umem->umem_id);
    store_be(at + f::kRecordOffset, std::uint64_t{kPairRecord});
    set(in.data(), f::kUmemValid, 1);
    set(in.data(), f::kUmem, umem->umem_id);
    store_be(in.data() + f::kUmemOffset, std::uint64_t{kRing});
    return create(in);
  }
  /// The whole key of all of `memory`, which begins at address 0.
  std::uint32_t create_key() {
    namespace f = key_context;
    std::vector<std::byte> in(0x110);
    set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::create_mkey));
    std::byte* const at = in.data() + f::kAt;
    for (const Field right : {f::kAtomic, f::kRemoteWrite, f::kRemoteRead, f::kLocalWrite})
      set(at, right, 1);
    set(at, f::kMode, f::kTranslated);
    set(at, f::kVariant, 0x42);
    set(at, f::kDomain, domain);
    store_be(at + f::kLength, std::uint64_t{memory.size()});
    set(in.data(), f::kUmemValid, 1);
    set(in.data(), f::kUmem, umem->umem_id);
    return create(in) << 8 | 0x42;
  }
  int change(mlx5dv_devx_obj* pair, std::uint32_t number, Command to, std::uint32_t ordering = 0) {
    namespace f = qp_context;
    std::vector<std::byte> in(f::kAt + f::kBytes);
    set(in.data(), command::kOpcode, static_cast<std::uint32_t>(to));
    set(in.data(), command::kObject, number);
    std::byte* const at = in.data() + f::kAt;
    set(at, f::kRemoteRead, 1);
    set(at, f::kRemoteWrite, 1);
    set(at, f::kRemoteAtomic, 1);
    set(at, f::kMtu, 5);
    set(at, f::kRemoteQp, number);  // to itself
    set_path(at);
    set(at, f::kLogReads, 2);
    set(at, f::kLogRemoteReads, 2);
    set(at, f::kAckTimeout, 14);
    set(at, f::kRetryCount, 7);
    set(at, f::kOrdering0, ordering & 1);
    set(at, f::kOrdering1, ordering >> 1);
    return DIRECT(mlx5dv_devx_obj_modify)(pair, in.data(), in.size(), answer.data(), answer.size());
  }
  /// The path of INIT2RTR_QP, in the context at `at`.
  virtual void set_path(std::byte* at) { set(at, qp_context::kRemoteLid, lid()); }
  Status status() const { return static_cast<Status>(get(answer.data(), command::kStatus)); }
  std::uint32_t lid() {
    std::vector<std::byte> in(16);
    set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::query_vport));
    (void)run(in);
    return get(answer.data(), vport::kLid);
  }
  void ring(const RequestWriter& writer) {
    auto* const record = reinterpret_cast<std::uint32_t*>(&memory[kPairRecord + 4]);
    std::atomic_ref(*record).store(swap_bytes(std::uint32_t{writer.posted()}),
                                   std::memory_order_release);
    // GPU code writes the same: the next free index and no size.
    std::array<std::byte, 8> word{};
    store_be(word.data(), std::uint32_t{writer.posted()} << 8);
    store_be(word.data() + 4, 1U << 8);
    std::uint64_t stored;
    std::memcpy(&stored, word.data(), sizeof stored);
    std::atomic_ref(*static_cast<std::uint64_t*>(uar->reg_addr)).store(stored);
  }
  /// The request index and opcode of the last completion in entry 0.
  template <typename Done>
  bool wait(Done done) {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (!done())
      if (std::chrono::steady_clock::now() > end) return false;
    return true;
  }
  std::uint32_t entry_word() {
    auto* const word = reinterpret_cast<std::uint32_t*>(&memory[kEntries + 60]);
    return swap_bytes(std::atomic_ref(*word).load(std::memory_order_acquire));
  }

  static constexpr std::size_t kRing = 0, kEntries = 4096, kQueueRecord = 8192, kPairRecord = 8256,
                               kData = 12288;
  static constexpr std::uint32_t kLogQueueSize = 4, kQueueSize = 1 << kLogQueueSize;
  ibv_context* context = nullptr;
  mlx5dv_devx_uar* uar = nullptr;
  mlx5dv_devx_umem* umem = nullptr;
  std::uint32_t domain = 0;
  alignas(4096) std::array<std::byte, 16384> memory{};
  Answer answer{};
  std::vector<mlx5dv_devx_obj*> objects;
};

}  // namespace shoal::emulator::test
