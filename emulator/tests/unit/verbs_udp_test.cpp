// SPDX-License-Identifier: Apache-2.0
// The emulated device on the wire between hosts, as clients of libibverbs see it: a RoCE v2 port
// whose GID is the address of the host. Both ends of the connection are in this process.
// @traits emulated_nic
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "verbs_library.hpp"

#undef ibv_reg_mr
#undef ibv_get_device_list

namespace shoal::emulator::test {
namespace {

constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
/// ::ffff:127.0.0.1
constexpr std::array<std::uint8_t, 16> kLoopback = {0, 0, 0,    0,    0,    0, 0, 0,
                                                    0, 0, 0xff, 0xff, 0x7f, 0, 0, 1};

class VerbsOverUdp : public ::testing::Test {
 protected:
  VerbsOverUdp() {
    setenv("SHOAL_EMULATOR_WIRE", "udp", 1);
    setenv("SHOAL_EMULATOR_UDP_INTERFACE", "lo", 1);
    ibv_device** const list = VERBS(ibv_get_device_list)(nullptr);
    context = VERBS(ibv_open_device)(list[0]);
    VERBS(ibv_free_device_list)(list);
    if (context == nullptr) throw std::runtime_error("no device");
    domain = VERBS(ibv_alloc_pd)(context);
    region = VERBS(ibv_reg_mr)(domain, memory.data(), memory.size(), kAll);
    queue = VERBS(ibv_create_cq)(context, 64, nullptr, nullptr, 0);
    for (ibv_qp*& pair : pairs) {
      ibv_qp_init_attr init = {};
      init.send_cq = init.recv_cq = queue;
      init.cap = {.max_send_wr = 16,
                  .max_recv_wr = 1,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = 0};
      init.qp_type = IBV_QPT_RC;
      pair = VERBS(ibv_create_qp)(domain, &init);
      ibv_qp_attr attributes = {};
      attributes.qp_state = IBV_QPS_INIT;
      attributes.port_num = 1;
      attributes.qp_access_flags = kAll;
      EXPECT_EQ(modify(pair, attributes, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    }
  }
  ~VerbsOverUdp() override {
    for (ibv_qp* pair : pairs) EXPECT_EQ(VERBS(ibv_destroy_qp)(pair), 0);
    EXPECT_EQ(VERBS(ibv_destroy_cq)(queue), 0);
    EXPECT_EQ(VERBS(ibv_dereg_mr)(region), 0);
    EXPECT_EQ(VERBS(ibv_dealloc_pd)(domain), 0);
    EXPECT_EQ(VERBS(ibv_close_device)(context), 0);
  }

  static int modify(ibv_qp* pair, ibv_qp_attr& attributes, int mask) {
    return VERBS(ibv_modify_qp)(pair, &attributes, mask | IBV_QP_STATE);
  }
  /// Connects to the other queue pair at `gid`; nullptr: without a global address.
  int to_receive(ibv_qp* pair, std::uint32_t remote, const std::array<std::uint8_t, 16>* gid) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.dest_qp_num = remote;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.dlid = 1;  // means nothing here
    attributes.ah_attr.is_global = gid != nullptr ? 1 : 0;
    if (gid != nullptr) std::memcpy(attributes.ah_attr.grh.dgid.raw, gid->data(), gid->size());
    return modify(pair, attributes,
                  IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }
  int to_send(ibv_qp* pair) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 10;  // 4 ms
    attributes.retry_cnt = 2;
    return modify(pair, attributes,
                  IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_MAX_QP_RD_ATOMIC);
  }
  /// The status of a write of `bytes` from the start of the memory to its second half.
  ibv_wc_status write(ibv_qp* pair, std::uint32_t bytes) {
    const auto address = reinterpret_cast<std::uint64_t>(memory.data());
    ibv_sge part{.addr = address, .length = bytes, .lkey = region->lkey};
    ibv_send_wr request = {}, *bad = nullptr;
    request.sg_list = &part;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma = {.remote_addr = address + memory.size() / 2, .rkey = region->rkey};
    EXPECT_EQ(ibv_post_send(pair, &request, &bad), 0);
    ibv_wc completion = {};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (ibv_poll_cq(queue, 1, &completion) == 0)
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error("nothing completes");
    return completion.status;
  }

  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_mr* region = nullptr;
  ibv_cq* queue = nullptr;
  std::array<ibv_qp*, 2> pairs{};
  alignas(64) std::array<unsigned char, 1 << 17> memory{};
};

TEST_F(VerbsOverUdp, ThePortIsAnEthernetWithTheAddressOfTheHost) {
  ibv_port_attr port = {};
  EXPECT_EQ(verbs_get_ctx(context)->query_port(context, 1, &port, sizeof port), 0);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.lid, 0);
  EXPECT_EQ(port.active_mtu, IBV_MTU_4096);
  ibv_gid gid = {};
  EXPECT_EQ(VERBS(ibv_query_gid)(context, 1, 0, &gid), 0);
  EXPECT_EQ(std::memcmp(gid.raw, kLoopback.data(), kLoopback.size()), 0);
  ibv_gid_entry entry = {};
  const auto query = VERBS(_ibv_query_gid_ex, "IBVERBS_1.11");
  EXPECT_EQ(query(context, 1, 0, &entry, 0, sizeof entry), 0);
  EXPECT_EQ(entry.gid_type, static_cast<std::uint32_t>(IBV_GID_TYPE_ROCE_V2));
  EXPECT_NE(entry.ndev_ifindex, 0U);
}

TEST_F(VerbsOverUdp, DataTravelByGidAndQueuePairNumber) {
  for (std::size_t i = 0; i < memory.size() / 2; ++i)
    memory[i] = static_cast<unsigned char>(i * 7 + i / 256);
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(to_receive(pairs[i], pairs[1 - i]->qp_num, &kLoopback), 0);
    ASSERT_EQ(to_send(pairs[i]), 0);
  }
  EXPECT_EQ(write(pairs[0], memory.size() / 2), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(memory.data(), memory.data() + memory.size() / 2, memory.size() / 2), 0);
}

/// Devices of this process, opened.
class SeveralDevices : public ::testing::Test {
 protected:
  ~SeveralDevices() override {
    for (ibv_context* const context : contexts)
      if (context != nullptr) EXPECT_EQ(VERBS(ibv_close_device)(context), 0);
  }
  void open(const char* interfaces) {
    setenv("SHOAL_EMULATOR_WIRE", "udp", 1);
    setenv("SHOAL_EMULATOR_UDP_INTERFACE", interfaces, 1);
    int count = 0;
    ibv_device** const list = VERBS(ibv_get_device_list)(&count);
    for (int i = 0; i < count; ++i) {
      names.emplace_back(VERBS(ibv_get_device_name)(list[i]));
      guids.insert(VERBS(ibv_get_device_guid)(list[i]));
      contexts.push_back(VERBS(ibv_open_device)(list[i]));
    }
    EXPECT_EQ(list[count], nullptr);
    VERBS(ibv_free_device_list)(list);
  }

  std::vector<std::string> names;
  std::set<std::uint64_t> guids;
  std::vector<ibv_context*> contexts;
};

TEST_F(SeveralDevices, HaveNicsOfTheirOwn) {
  open("lo,127.0.0.1");
  ASSERT_EQ(names, (std::vector<std::string>{"mlx5_0", "mlx5_1"}));
  EXPECT_EQ(guids.size(), 2U);
  ibv_pd* const domain = VERBS(ibv_alloc_pd)(contexts[1]);
  alignas(64) std::array<unsigned char, 64> memory{};
  // The quota of one device is not used by the other: 20 keys each.
  std::vector<ibv_mr*> regions;
  ibv_pd* const first = VERBS(ibv_alloc_pd)(contexts[0]);
  for (ibv_pd* const at : {first, domain})
    for (int i = 0; i < 20; ++i)
      regions.push_back(VERBS(ibv_reg_mr)(at, memory.data(), memory.size(), kAll));
  EXPECT_EQ(std::ranges::count(regions, nullptr), 0);
  EXPECT_EQ(VERBS(ibv_reg_mr)(domain, memory.data(), memory.size(), kAll), nullptr);
  for (ibv_mr* const region : regions) EXPECT_EQ(VERBS(ibv_dereg_mr)(region), 0);
  for (ibv_pd* const at : {first, domain}) EXPECT_EQ(VERBS(ibv_dealloc_pd)(at), 0);
}

TEST_F(SeveralDevices, ADeviceWithoutItsInterfaceCannotBeOpenedAlone) {
  testing::internal::CaptureStderr();
  open("lo,nowhere0");
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_EQ(contexts.size(), 2U);
  EXPECT_NE(contexts[0], nullptr);
  EXPECT_EQ(contexts[1], nullptr);
  EXPECT_NE(said.find("mlx5_1 cannot be opened: no interface is or has \"nowhere0\""),
            std::string::npos)
      << said;
}

TEST_F(SeveralDevices, AMalformedListIsRefused) {
  for (const char* const list : {"lo,", ",lo", "lo,,lo", "a,b,c,d,e,f,g,h,i"}) {
    testing::internal::CaptureStderr();
    open(list);
    const std::string said = testing::internal::GetCapturedStderr();
    for (ibv_context* const context : contexts) EXPECT_EQ(context, nullptr) << list;
    EXPECT_NE(said.find("SHOAL_EMULATOR_UDP_INTERFACE is \"" + std::string(list) +
                        "\"; allowed: 1 to 8 interfaces, with commas between them"),
              std::string::npos)
        << said;
  }
}

TEST_F(SeveralDevices, HaveATraceEach) {
  const std::string file = testing::TempDir() + "shoal-several-devices";
  setenv("SHOAL_EMULATOR_TRACE", file.c_str(), 1);
  testing::internal::CaptureStderr();
  open("lo,lo");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("allowed with several devices: a name with %d"), std::string::npos) << said;
  EXPECT_EQ(std::ranges::count(contexts, nullptr), 2);
  setenv("SHOAL_EMULATOR_TRACE", (file + "%d").c_str(), 1);
  open("lo,lo");
  unsetenv("SHOAL_EMULATOR_TRACE");
  EXPECT_EQ(std::ranges::count(contexts, nullptr), 2) << "the first two";
  for (const char* const number : {"0", "1"})
    EXPECT_TRUE(std::filesystem::remove(file + number)) << number;
}

TEST_F(VerbsOverUdp, ASilentAddressEndsTheConnection) {
  std::array<std::uint8_t, 16> other = kLoopback;
  other[15] = 2;  // 127.0.0.2
  ASSERT_EQ(to_receive(pairs[0], pairs[1]->qp_num, &other), 0);
  ASSERT_EQ(to_send(pairs[0]), 0);
  EXPECT_EQ(write(pairs[0], 100), IBV_WC_RETRY_EXC_ERR);
}

TEST_F(VerbsOverUdp, PathsWithoutAnIpv4GidAreRefusedAndChangeNothing) {
  EXPECT_EQ(to_receive(pairs[0], pairs[1]->qp_num, nullptr), EINVAL);
  std::array<std::uint8_t, 16> local = kLoopback;
  local[0] = 0xfe;
  EXPECT_EQ(to_receive(pairs[0], pairs[1]->qp_num, &local), EINVAL);
  EXPECT_EQ(pairs[0]->state, IBV_QPS_INIT);
  EXPECT_EQ(to_receive(pairs[0], pairs[1]->qp_num, &kLoopback), 0);
}

}  // namespace
}  // namespace shoal::emulator::test
