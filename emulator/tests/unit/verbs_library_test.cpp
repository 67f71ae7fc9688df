// SPDX-License-Identifier: Apache-2.0
// The emulated libibverbs and libmlx5 as a client loads them: by dlopen, with the symbol versions
// and structures of rdma-core. Both ends of each connection are in this process.
// @traits emulated_nic
#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/big_endian.hpp"
#include "engine/request_writer.hpp"
#include "verbs_library.hpp"

#undef ibv_reg_mr
#undef ibv_query_port
#undef ibv_get_device_list

namespace shoal::emulator::test {
namespace {

constexpr auto kDeadline = std::chrono::seconds(20);
constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC;

/// A device, its port, and memory.
class VerbsLibrary : public ::testing::Test {
 protected:
  VerbsLibrary() {
    int count = 0;
    ibv_device** const list = VERBS(ibv_get_device_list)(&count);
    EXPECT_EQ(count, 1);
    context = VERBS(ibv_open_device)(list[0]);
    VERBS(ibv_free_device_list)(list);
    if (context == nullptr) throw std::runtime_error("no device");
    EXPECT_EQ(verbs_get_ctx(context)->query_port(context, 1, &port, sizeof port), 0);
    domain = VERBS(ibv_alloc_pd)(context);
    region = VERBS(ibv_reg_mr)(domain, memory.data(), memory.size(), kAll);
    EXPECT_NE(region, nullptr);
  }
  ~VerbsLibrary() override {
    for (ibv_qp* pair : pairs) EXPECT_EQ(VERBS(ibv_destroy_qp)(pair), 0);
    for (ibv_cq* queue : queues) EXPECT_EQ(VERBS(ibv_destroy_cq)(queue), 0);
    EXPECT_EQ(VERBS(ibv_dereg_mr)(region), 0);
    EXPECT_EQ(VERBS(ibv_dealloc_pd)(domain), 0);
    EXPECT_EQ(VERBS(ibv_close_device)(context), 0);
  }

  ibv_cq* make_queue(ibv_comp_channel* channel = nullptr, int size = 64) {
    ibv_cq* const queue = VERBS(ibv_create_cq)(context, size, nullptr, channel, 0);
    if (queue != nullptr) queues.push_back(queue);
    return queue;
  }
  ibv_qp* make_pair(ibv_cq* queue, std::uint32_t depth = 16) {
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = queue;
    init.cap = {.max_send_wr = depth,
                .max_recv_wr = 16,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = 32};
    init.qp_type = IBV_QPT_RC;
    ibv_qp* const pair = VERBS(ibv_create_qp)(domain, &init);
    if (pair != nullptr) pairs.push_back(pair);
    return pair;
  }
  void connect(ibv_qp* pair, std::uint32_t remote, int timeout = 14) {
    const auto modify = [&](ibv_qp_attr attributes, int mask) {
      ASSERT_EQ(VERBS(ibv_modify_qp)(pair, &attributes, mask | IBV_QP_STATE), 0);
    };
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = kAll;
    modify(attributes, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = remote;
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.dlid = port.lid;
    attributes.ah_attr.port_num = 1;
    modify(attributes, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = static_cast<std::uint8_t>(timeout);
    attributes.retry_cnt = attributes.rnr_retry = 2;
    attributes.max_rd_atomic = 4;
    modify(attributes, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_MAX_QP_RD_ATOMIC);
  }
  ibv_wc wait(ibv_cq* queue) {
    ibv_wc completion = {};
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (ibv_poll_cq(queue, 1, &completion) == 0)
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "nothing completes";
        break;
      }
    return completion;
  }
  int post(ibv_qp* pair, ibv_wr_opcode opcode, std::size_t local, std::size_t remote,
           std::uint32_t bytes, std::uint64_t id, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge part{.addr = address(local), .length = bytes, .lkey = region->lkey};
    ibv_send_wr request = {}, *bad = nullptr;
    request.wr_id = id;
    request.sg_list = &part;
    request.num_sge = 1;
    request.opcode = opcode;
    request.send_flags = flags;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      request.wr.atomic = {
          .remote_addr = address(remote), .compare_add = 5, .swap = 0, .rkey = region->rkey};
    else
      request.wr.rdma = {.remote_addr = address(remote), .rkey = region->rkey + bad_key};
    return ibv_post_send(pair, &request, &bad);
  }
  int post_receive(ibv_qp* pair, std::size_t at, std::uint32_t bytes, std::uint64_t id) {
    ibv_sge part{.addr = address(at), .length = bytes, .lkey = region->lkey};
    ibv_recv_wr request = {}, *bad = nullptr;
    request.wr_id = id;
    request.sg_list = &part;
    request.num_sge = 1;
    return ibv_post_recv(pair, &request, &bad);
  }
  std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uint64_t>(memory.data()) + offset;
  }

  ibv_context* context = nullptr;
  ibv_port_attr port = {};
  ibv_pd* domain = nullptr;
  ibv_mr* region = nullptr;
  alignas(64) std::array<unsigned char, 65536> memory{};
  std::uint32_t bad_key = 0;
  std::vector<ibv_qp*> pairs;
  std::vector<ibv_cq*> queues;
};

TEST_F(VerbsLibrary, PortIsAnActiveInfiniBandLink) {
  EXPECT_NE(port.lid, 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
  ibv_device_attr attributes = {};
  EXPECT_EQ(VERBS(ibv_query_device)(context, &attributes), 0);
  EXPECT_EQ(attributes.vendor_id, 0x02c9U);
}

TEST_F(VerbsLibrary, OperationsOfAReliableConnection) {
  ibv_cq *a_queue = make_queue(), *b_queue = make_queue();
  ibv_qp *a = make_pair(a_queue), *b = make_pair(b_queue);
  connect(a, b->qp_num);
  connect(b, a->qp_num);
  std::memset(memory.data(), 7, 5000);
  ASSERT_EQ(post(a, IBV_WR_RDMA_WRITE, 0, 8192, 5000, 1), 0);
  ibv_wc done = wait(a_queue);
  EXPECT_EQ(done.status, IBV_WC_SUCCESS);
  EXPECT_EQ(done.wr_id, 1U);
  EXPECT_EQ(done.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(memory[8192 + 4999], 7);
  ASSERT_EQ(post(b, IBV_WR_RDMA_READ, 20000, 8192, 5000, 2), 0);
  EXPECT_EQ(wait(b_queue).status, IBV_WC_SUCCESS);
  EXPECT_EQ(memory[20000 + 4999], 7);
  std::memset(memory.data() + 16, 0, 16);
  ASSERT_EQ(post(a, IBV_WR_ATOMIC_FETCH_AND_ADD, 24, 16, 8, 3), 0);
  EXPECT_EQ(wait(a_queue).opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(memory[16], 5);
  ASSERT_EQ(post_receive(b, 30000, 100, 40), 0);
  ASSERT_EQ(post(a, IBV_WR_SEND_WITH_IMM, 0, 0, 30, 4, IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
  done = wait(b_queue);
  EXPECT_EQ(done.opcode, IBV_WC_RECV);
  EXPECT_EQ(done.wr_id, 40U);
  EXPECT_EQ(done.byte_len, 30U);
  EXPECT_EQ(done.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(wait(a_queue).status, IBV_WC_SUCCESS);
}

TEST_F(VerbsLibrary, AWrongKeyEndsTheConnectionAndFlushes) {
  ibv_cq *a_queue = make_queue(), *b_queue = make_queue();
  ibv_qp *a = make_pair(a_queue), *b = make_pair(b_queue);
  connect(a, b->qp_num);
  connect(b, a->qp_num);
  bad_key = 0x100;
  ASSERT_EQ(post(a, IBV_WR_RDMA_WRITE, 0, 0, 8, 1, 0), 0);  // unsignalled: reported all the same
  bad_key = 0;
  (void)post(a, IBV_WR_RDMA_WRITE, 0, 0, 8, 2, 0);
  const ibv_wc first = wait(a_queue), second = wait(a_queue);
  EXPECT_EQ(first.wr_id, 1U);
  EXPECT_EQ(first.status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(second.wr_id, 2U);
  EXPECT_EQ(second.status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(VerbsLibrary, NoPeerIsARetryError) {
  ibv_cq* const queue = make_queue();
  ibv_qp* const a = make_pair(queue);
  connect(a, 0xffff00, 5);  // 131 us; no queue pair has this number
  ASSERT_EQ(post(a, IBV_WR_RDMA_WRITE, 0, 0, 8, 9), 0);
  EXPECT_EQ(wait(queue).status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(VerbsLibrary, AFullQueueAndMissingAttributesAreErrors) {
  ibv_cq* const queue = make_queue();
  ibv_qp* const a = make_pair(queue, 4);
  EXPECT_EQ(post(a, IBV_WR_RDMA_WRITE, 0, 0, 8, 1), EINVAL);  // in the reset state
  connect(a, 0xffff00, 20);
  int posted = 0;
  while (posted < 1000 && post(a, IBV_WR_RDMA_WRITE, 0, 0, 8, 1, 0) == 0) ++posted;
  EXPECT_GE(posted, 4);
  EXPECT_LT(posted, 1000);
  EXPECT_EQ(post(a, IBV_WR_RDMA_WRITE, 0, 0, 8, 1, 0), ENOMEM);
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(VERBS(ibv_modify_qp)(a, &attributes, IBV_QP_STATE), 0);
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  EXPECT_EQ(VERBS(ibv_modify_qp)(a, &attributes, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
  EXPECT_EQ(a->state, IBV_QPS_RESET);
}

TEST_F(VerbsLibrary, QuotaIsAnErrorAndLeaksNothing) {
  while (make_queue() != nullptr) ASSERT_LE(queues.size(), 16U);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(queues.size(), 16U);
  EXPECT_EQ(VERBS(ibv_destroy_cq)(queues.back()), 0);
  queues.pop_back();
  EXPECT_NE(make_queue(), nullptr);
}

TEST_F(VerbsLibrary, QueuePairsPastTheQuotaAreRefused) {
  ibv_cq* const queue = make_queue();
  while (make_pair(queue) != nullptr) ASSERT_LE(pairs.size(), 24U);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(pairs.size(), 24U);
  EXPECT_EQ(VERBS(ibv_destroy_qp)(pairs.back()), 0);
  pairs.pop_back();
  EXPECT_NE(make_pair(queue), nullptr);
}

TEST_F(VerbsLibrary, MemoryPastTheQuotaIsNotRegistered) {
  std::vector<ibv_mr*> regions;
  const auto add = [&] {
    ibv_mr* const made = VERBS(ibv_reg_mr)(domain, memory.data(), 64, kAll);
    if (made != nullptr) regions.push_back(made);
    return made != nullptr;
  };
  while (add()) ASSERT_LE(regions.size(), 20U);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(regions.size(), 19U) << "in addition to the region of all of the memory";
  EXPECT_EQ(VERBS(ibv_dereg_mr)(regions.back()), 0);
  regions.pop_back();
  EXPECT_TRUE(add());
  for (ibv_mr* const made : regions) EXPECT_EQ(VERBS(ibv_dereg_mr)(made), 0);
}

TEST_F(VerbsLibrary, QueuesThatAreTooLargeAreRefused) {
  ibv_device_attr device = {};
  ASSERT_EQ(VERBS(ibv_query_device)(context, &device), 0);
  ibv_cq* const queue = make_queue();
  EXPECT_EQ(make_queue(nullptr, device.max_cqe + 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  const auto create = [&](const ibv_qp_cap& cap) {
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = queue;
    init.qp_type = IBV_QPT_RC;
    init.cap = cap;
    errno = 0;
    ibv_qp* const made = VERBS(ibv_create_qp)(domain, &init);
    if (made != nullptr) pairs.push_back(made);
    return made == nullptr ? errno : 0;
  };
  constexpr ibv_qp_cap kSmall{.max_send_wr = 16,
                              .max_recv_wr = 16,
                              .max_send_sge = 1,
                              .max_recv_sge = 1,
                              .max_inline_data = 0};
  const auto requests = static_cast<std::uint32_t>(device.max_qp_wr);
  const auto parts = static_cast<std::uint32_t>(device.max_sge);
  ibv_qp_cap cap = kSmall;
  cap.max_send_wr = requests + 1;
  EXPECT_EQ(create(cap), EINVAL);
  cap.max_send_wr = requests;  // a request of several blocks
  cap.max_inline_data = 200;
  EXPECT_EQ(create(cap), EINVAL);
  cap.max_send_wr = requests / 8;
  EXPECT_EQ(create(cap), 0);
  cap = kSmall;
  cap.max_recv_wr = 1U << 20;
  EXPECT_EQ(create(cap), EINVAL);
  cap = kSmall;
  cap.max_inline_data = 4096;
  EXPECT_EQ(create(cap), EINVAL);
  cap = kSmall;
  cap.max_send_sge = parts + 1;
  EXPECT_EQ(create(cap), EINVAL);
  cap = kSmall;
  cap.max_recv_sge = parts + 1;
  EXPECT_EQ(create(cap), EINVAL);
  EXPECT_EQ(pairs.size(), 1U);
}

TEST_F(VerbsLibrary, UnmappedMemoryIsNotRegistered) {
  EXPECT_EQ(VERBS(ibv_reg_mr)(domain, reinterpret_cast<void*>(4096), 4096, kAll), nullptr);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(VERBS(ibv_reg_mr)(domain, memory.data(), 64, IBV_ACCESS_REMOTE_WRITE), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// Addresses of a GPU are mapped in the process, but processors cannot access them.
TEST_F(VerbsLibrary, MemoryThatCannotBeReadIsNotRegistered) {
  constexpr std::size_t kBytes = 8192;
  void* const reserved = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(reserved, MAP_FAILED);
  EXPECT_EQ(VERBS(ibv_reg_mr)(domain, reserved, kBytes, kAll), nullptr);
  EXPECT_EQ(errno, EFAULT);
  ASSERT_EQ(mprotect(reserved, kBytes / 2, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(VERBS(ibv_reg_mr)(domain, reserved, kBytes, kAll), nullptr);
  EXPECT_EQ(errno, EFAULT);
  munmap(reserved, kBytes);
}

TEST_F(VerbsLibrary, AnArmedQueueRaisesAnEvent) {
  ibv_comp_channel* const channel = VERBS(ibv_create_comp_channel, "IBVERBS_1.0")(context);
  ibv_cq* const queue = make_queue(channel);
  ibv_qp* const a = make_pair(queue);
  connect(a, a->qp_num);  // to itself
  ASSERT_EQ(ibv_req_notify_cq(queue, 0), 0);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(post(a, IBV_WR_RDMA_WRITE, 0, 64, 8, 1), 0);
    ibv_cq* ready = nullptr;
    void* client = nullptr;
    ASSERT_EQ(VERBS(ibv_get_cq_event)(channel, &ready, &client), 0);
    EXPECT_EQ(ready, queue);
    VERBS(ibv_ack_cq_events)(queue, 1);
    // perftest arms before it polls, when the completion has had its event.
    ASSERT_EQ(ibv_req_notify_cq(queue, 0), 0);
    pollfd readable{.fd = channel->fd, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&readable, 1, 0), 0) << round;
    EXPECT_EQ(wait(queue).status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(VERBS(ibv_destroy_comp_channel, "IBVERBS_1.0")(channel), EBUSY);
  pairs.clear();
  queues.clear();
  EXPECT_EQ(VERBS(ibv_destroy_qp)(a), 0);
  EXPECT_EQ(VERBS(ibv_destroy_cq)(queue), 0);
  EXPECT_EQ(VERBS(ibv_destroy_comp_channel, "IBVERBS_1.0")(channel), 0);
}

TEST_F(VerbsLibrary, ARefusedRequestRaisesAnEventAtItsTarget) {
  ibv_cq *a_queue = make_queue(), *b_queue = make_queue();
  ibv_qp *a = make_pair(a_queue), *b = make_pair(b_queue);
  connect(a, b->qp_num);
  connect(b, a->qp_num);
  bad_key = 0x100;
  ASSERT_EQ(post(a, IBV_WR_RDMA_WRITE, 0, 0, 8, 1), 0);
  EXPECT_EQ(wait(a_queue).status, IBV_WC_REM_ACCESS_ERR);
  ibv_async_event event{};
  ASSERT_EQ(VERBS(ibv_get_async_event)(context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event.element.qp, b);
  VERBS(ibv_ack_async_event)(&event);
}

TEST_F(VerbsLibrary, ALostCompletionRaisesAnEvent) {
  ibv_cq* const small = make_queue(nullptr, 1);
  ibv_qp* const a = make_pair(small);
  connect(a, a->qp_num);
  for (int i = 0; i < 8; ++i) (void)post(a, IBV_WR_RDMA_WRITE, 0, 64, 8, 1);
  ibv_async_event event{};
  ASSERT_EQ(VERBS(ibv_get_async_event)(context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event.element.cq, small);
  VERBS(ibv_ack_async_event)(&event);
}

// Clients read errno where a call returns no error number.
TEST_F(VerbsLibrary, ACallThatFailsSetsErrno) {
  errno = ENODEV;
  EXPECT_EQ(VERBS(ibv_rereg_mr)(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kAll),
            IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EOPNOTSUPP);
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit little = before;
  little.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + (16U << 20);
  ibv_device_attr device = {};
  ASSERT_EQ(VERBS(ibv_query_device)(context, &device), 0);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  ibv_cq* const large = make_queue(nullptr, device.max_cqe);
  const int error = errno;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(large, nullptr) << "256 MiB of 16";
  EXPECT_EQ(error, ENOMEM);
}

// UCX hides the atomics of devices with IBV_ATOMIC_GLOB, which ConnectX NICs do not report.
TEST_F(VerbsLibrary, ReportsAtomicsAsConnectXDoes) {
  ibv_device_attr_ex device = {};
  ASSERT_EQ(verbs_get_ctx(context)->query_device_ex(context, nullptr, &device, sizeof device), 0);
  EXPECT_EQ(device.orig_attr.atomic_cap, IBV_ATOMIC_HCA);
  EXPECT_EQ(device.pci_atomic_caps.fetch_add,
            static_cast<std::uint16_t>(IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP));
}

// Atomics of the NIC and of processors on one word: none is lost.
TEST_F(VerbsLibrary, AtomicsAgreeWithThoseOfProcessors) {
  ibv_cq* const queue = make_queue();
  ibv_qp* const a = make_pair(queue);
  connect(a, a->qp_num);
  auto& word = *reinterpret_cast<std::uint64_t*>(memory.data() + 1024);
  std::atomic<bool> stop{false};
  std::uint64_t added = 0;
  std::thread processor([&] {
    for (; !stop; ++added) std::atomic_ref(word).fetch_add(1'000'000);
  });
  constexpr std::uint64_t kTimes = 1000;
  for (std::uint64_t i = 0; i < kTimes; ++i) {
    ASSERT_EQ(post(a, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1024, 8, 1), 0);
    EXPECT_EQ(wait(queue).status, IBV_WC_SUCCESS);
  }
  stop = true;
  processor.join();
  EXPECT_EQ(word, added * 1'000'000 + kTimes * 5);
}

// The bus delays writes to memory with relaxed ordering beyond their completion.
TEST_F(VerbsLibrary, RelaxedMemoryIsWrittenLate) {
  alignas(64) std::array<std::uint64_t, 8> target{};
  ibv_mr* const relaxed =
      VERBS(ibv_reg_mr)(domain, target.data(), sizeof target, kAll | IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_NE(relaxed, nullptr);
  ibv_cq* const queue = make_queue();
  ibv_qp* const a = make_pair(queue);
  connect(a, a->qp_num);
  memory[0] = 77;
  ibv_sge part{.addr = address(0), .length = 8, .lkey = region->lkey};
  ibv_send_wr request = {}, *bad = nullptr;
  request.sg_list = &part;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma = {.remote_addr = reinterpret_cast<std::uint64_t>(target.data()),
                     .rkey = relaxed->rkey};
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(ibv_post_send(a, &request, &bad), 0);
  EXPECT_EQ(wait(queue).status, IBV_WC_SUCCESS);
  const std::atomic_ref word(target[0]);
  const std::uint64_t seen = word.load();
  const auto now = std::chrono::steady_clock::now();
  if (now - start < std::chrono::milliseconds(50)) EXPECT_EQ(seen, 0);
  while (word.load() != 77 && std::chrono::steady_clock::now() < now + kDeadline)
    std::this_thread::yield();
  EXPECT_EQ(word.load(), 77);
  EXPECT_EQ(VERBS(ibv_dereg_mr)(relaxed), 0);
}

// The file descriptor stands for a dma-buf.
TEST_F(VerbsLibrary, MemoryOfAFileDescriptorIsRegistered) {
  const int fd = memfd_create("dma-buf", 0);
  ASSERT_EQ(ftruncate(fd, 8192), 0);
  constexpr std::uint64_t kIova = 0x7000'0000'1000;
  ibv_mr* const buffer =
      VERBS(ibv_reg_dmabuf_mr, "IBVERBS_1.12")(domain, 4096, 4096, kIova, fd, kAll);
  ASSERT_NE(buffer, nullptr) << std::strerror(errno);
  EXPECT_EQ(VERBS(ibv_reg_dmabuf_mr, "IBVERBS_1.12")(domain, 4096, 8192, kIova, fd, kAll), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(VERBS(ibv_reg_dmabuf_mr, "IBVERBS_1.12")(domain, 0, 4096, kIova, -1, kAll), nullptr);
  EXPECT_EQ(errno, EBADF);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // cannot be mapped
  EXPECT_EQ(VERBS(ibv_reg_dmabuf_mr, "IBVERBS_1.12")(domain, 0, 4096, kIova, ends[0], kAll),
            nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  close(ends[0]);
  close(ends[1]);

  ibv_cq* const queue = make_queue();
  ibv_qp* const a = make_pair(queue);
  connect(a, a->qp_num);
  memory[0] = 77;
  ibv_sge part{.addr = address(0), .length = 64, .lkey = region->lkey};
  ibv_send_wr request = {}, *bad = nullptr;
  request.sg_list = &part;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma = {.remote_addr = kIova + 128, .rkey = buffer->rkey};
  ASSERT_EQ(ibv_post_send(a, &request, &bad), 0);
  EXPECT_EQ(wait(queue).status, IBV_WC_SUCCESS);
  unsigned char seen = 0;
  ASSERT_EQ(pread(fd, &seen, 1, 4096 + 128), 1);
  EXPECT_EQ(seen, 77);
  EXPECT_EQ(VERBS(ibv_dereg_mr)(buffer), 0);
  close(fd);
}

TEST_F(VerbsLibrary, ADirectClientPostsByDoorbellAlone) {
  ibv_cq* const queue = make_queue();
  ibv_qp* const a = make_pair(queue);
  connect(a, a->qp_num);
  mlx5dv_qp pair = {};
  mlx5dv_cq completions = {};
  mlx5dv_obj object = {};
  object.qp = {.in = a, .out = &pair};
  object.cq = {.in = queue, .out = &completions};
  ASSERT_EQ(DIRECT(mlx5dv_init_obj, "MLX5_1.2")(&object, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ), 0);
  RequestWriter writer(static_cast<std::byte*>(pair.sq.buf), pair.sq.wqe_cnt, a->qp_num);
  memory[0] = 42;
  writer.start(Opcode::write, {.signalled = true}).remote(address(100), region->rkey);
  writer.data(address(0), 1, region->lkey).finish();
  const std::uint32_t counter = swap_bytes(std::uint32_t{writer.posted()});
  std::atomic_ref(pair.dbrec[MLX5_SND_DBR]).store(counter, std::memory_order_release);
  std::uint64_t word;
  std::memcpy(&word, pair.sq.buf, sizeof word);
  std::atomic_ref(*static_cast<std::uint64_t*>(pair.bf.reg)).store(word);
  auto* const last =
      reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(completions.buf) + 60);
  const auto opcode_and_owner = [&] {
    return std::atomic_ref(*last).load(std::memory_order_acquire) >> 24;
  };
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (opcode_and_owner() != 0 && std::chrono::steady_clock::now() < end) continue;
  EXPECT_EQ(opcode_and_owner(), 0U);  // a request's completion in the first lap
  EXPECT_EQ(memory[100], 42);
}

}  // namespace
}  // namespace shoal::emulator::test
