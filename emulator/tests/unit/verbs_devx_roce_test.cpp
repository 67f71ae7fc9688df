// SPDX-License-Identifier: Apache-2.0
// Device commands on the wire between hosts, a RoCE v2 port: the address path of a queue pair, and
// the address handle that shows the MAC address of a GID.
// @traits emulated_nic
#include <gtest/gtest.h>

#include <algorithm>

#include "devx_client.hpp"

namespace shoal::emulator::test {
namespace {

using Mac = std::array<std::uint8_t, 6>;
/// ::ffff:127.0.0.1
constexpr std::array<std::uint8_t, 16> kLoopback = {0, 0, 0,    0,    0,    0, 0, 0,
                                                    0, 0, 0xff, 0xff, 0x7f, 0, 0, 1};
constexpr Mac kLoopbackMac = {0x02, 0x53, 0x7f, 0, 0, 1};

/// Before the device is opened.
struct OverUdp {
  OverUdp() {
    setenv("SHOAL_EMULATOR_WIRE", "udp", 1);
    setenv("SHOAL_EMULATOR_UDP_INTERFACE", "lo", 1);
  }
};

class DevxOverRoce : private OverUdp, public DevxClient {
 protected:
  void set_path(std::byte* at) override {
    namespace f = qp_context;
    std::memcpy(at + f::kRemoteGid, gid.data(), gid.size());
    std::memcpy(at + f::kRemoteMac, mac.data(), mac.size());
    set(at, f::kSourceGid, source_gid);
    set(at, f::kUdpSource, 0xc123);
    set(at, f::kTrafficClass, 0x60);
    set(at, f::kDscp, 0x60 >> 2);
    set(at, f::kPriority, 3);
    set(at, f::kHops, 64);
    set(at, f::kPort, port);
  }
  /// A queue pair in INIT, with the key of the memory.
  void create() {
    number = create_qp(create_cq(true));
    ASSERT_NE(number, 0U);
    pair = objects.back();
    key = create_key();
    ASSERT_EQ(change(pair, number, Command::reset_to_init), 0);
  }
  /// Brings it to RTS with few short retries.
  void connect() {
    ASSERT_EQ(change(pair, number, Command::init_to_rtr), 0);
    std::vector<std::byte> in(qp_context::kAt + qp_context::kBytes);
    set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::rtr_to_rts));
    set(in.data(), command::kObject, number);
    set(in.data() + qp_context::kAt, qp_context::kAckTimeout, 8);  // 1 ms
    set(in.data() + qp_context::kAt, qp_context::kRetryCount, 2);
    ASSERT_EQ(
        DIRECT(mlx5dv_devx_obj_modify)(pair, in.data(), in.size(), answer.data(), answer.size()),
        0);
  }
  /// A byte to another place of the memory. The opcode of its completion: 0, or 13 for an error.
  std::uint32_t write() {
    RequestWriter writer(&memory[kRing], 16, number);
    memory[kData] = std::byte{0x5a};
    writer.start(Opcode::write, {.signalled = true}).remote(kData + 64, key);
    writer.data(kData, 1, key).finish();
    ring(writer);
    EXPECT_TRUE(wait([&] { return (entry_word() & 0xff) != 0xff; })) << "nothing completes";
    return (entry_word() & 0xff) >> 4;
  }
  std::uint32_t syndrome() const { return static_cast<std::uint32_t>(memory[kEntries + 55]); }
  bool arrived() const { return memory[kData + 64] == std::byte{0x5a}; }
  /// The context of the queue pair, by QUERY_QP.
  const std::byte* query() {
    std::vector<std::byte> in(16);
    set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::query_qp));
    set(in.data(), command::kObject, number);
    EXPECT_EQ(
        DIRECT(mlx5dv_devx_obj_query)(pair, in.data(), in.size(), answer.data(), answer.size()), 0);
    return answer.data() + qp_context::kAt;
  }

  std::array<std::uint8_t, 16> gid = kLoopback;
  Mac mac = kLoopbackMac;
  std::uint32_t source_gid = 0, port = 1, number = 0, key = 0;
  mlx5dv_devx_obj* pair = nullptr;
};

TEST_F(DevxOverRoce, ThePortIsAnEthernetWithRoceVersion2) {
  std::vector<std::byte> in(16);
  set(in.data(), command::kOpcode, static_cast<std::uint32_t>(Command::query_hca_cap));
  (void)run(in);
  const std::byte* const at = answer.data() + capability::kAt;
  EXPECT_EQ(get(at, capability::kPortType), 1U);
  EXPECT_EQ(get(at, capability::kHasRoce), 1U);
  set(in.data(), command::kModifier, capability::kRoce << 1 | 1);
  (void)run(in);
  EXPECT_EQ(get(at, capability::kUdpTarget), 4791U);
  EXPECT_EQ(get(at, capability::kLeastUdpSource), 0xc000U);
  EXPECT_EQ(get(at, capability::kMostUdpSource), 0xffffU);
  EXPECT_EQ(get(at, capability::kAddresses), 1U);
}

TEST_F(DevxOverRoce, DataTravelByGidAndMacAddress) {
  create();
  connect();
  EXPECT_EQ(write(), 0U);
  EXPECT_TRUE(arrived());
}

TEST_F(DevxOverRoce, PacketsToAnotherMacAddressGetLost) {
  create();
  mac[5] = 2;
  connect();
  EXPECT_EQ(write(), 13U);
  EXPECT_EQ(syndrome(), 0x15U);  // retries exceeded
  EXPECT_FALSE(arrived());
}

TEST_F(DevxOverRoce, WithoutAMacAddressNothingArrives) {
  create();
  mac = {};
  connect();
  EXPECT_EQ(write(), 13U);
  EXPECT_EQ(syndrome(), 0x15U);
}

TEST_F(DevxOverRoce, PathsThatTheDeviceRefusesChangeNothing) {
  create();
  source_gid = 1;
  EXPECT_EQ(change(pair, number, Command::init_to_rtr), EREMOTEIO);
  EXPECT_EQ(status(), Status::bad_index);
  source_gid = 0;
  gid[0] = 0xfe;  // no IPv4 address
  EXPECT_EQ(change(pair, number, Command::init_to_rtr), EREMOTEIO);
  EXPECT_EQ(status(), Status::bad_parameter);
  gid = kLoopback;
  port = 2;
  EXPECT_EQ(change(pair, number, Command::init_to_rtr), EREMOTEIO);
  EXPECT_EQ(status(), Status::bad_parameter);
  EXPECT_EQ(get(query(), qp_context::kState), 1U);  // INIT
  port = 1;
  connect();
  EXPECT_EQ(write(), 0U);
}

TEST_F(DevxOverRoce, AQueryShowsThePath) {
  namespace f = qp_context;
  create();
  connect();
  const std::byte* const at = query();
  EXPECT_EQ(get(at, f::kSourceGid), 0U);
  EXPECT_EQ(get(at, f::kHops), 64U);
  EXPECT_EQ(get(at, f::kTrafficClass), 0x60U);
  EXPECT_EQ(get(at, f::kDscp), 0x18U);
  EXPECT_EQ(get(at, f::kUdpSource), 0xc123U);
  EXPECT_EQ(get(at, f::kPriority), 3U);
  EXPECT_EQ(get(at, f::kAckTimeout), 8U);
  EXPECT_EQ(std::memcmp(at + f::kRemoteGid, gid.data(), gid.size()), 0);
  EXPECT_EQ(std::memcmp(at + f::kRemoteMac, mac.data(), mac.size()), 0);
}

TEST_F(DevxOverRoce, AddressHandlesShowTheMacAddress) {
  ibv_pd* const pd = VERBS(ibv_alloc_pd)(context);
  ibv_ah_attr attributes = {};
  attributes.port_num = 1;
  attributes.is_global = 1;
  attributes.dlid = 0xc123;
  attributes.grh.hop_limit = 64;
  attributes.grh.traffic_class = 0x60;
  const auto make = [&](const std::array<std::uint8_t, 16>& of) {
    std::memcpy(attributes.grh.dgid.raw, of.data(), of.size());
    errno = 0;
    return VERBS(ibv_create_ah)(pd, &attributes);
  };
  ibv_ah* const handle = make(kLoopback);
  ASSERT_NE(handle, nullptr);
  mlx5dv_ah shown = {};
  mlx5dv_obj object = {};
  object.ah.in = handle;
  object.ah.out = &shown;
  ASSERT_EQ(DIRECT(mlx5dv_init_obj, "MLX5_1.2")(&object, MLX5DV_OBJ_AH), 0);
  EXPECT_TRUE(std::equal(kLoopbackMac.begin(), kLoopbackMac.end(), shown.av->rmac));
  EXPECT_EQ(std::memcmp(shown.av->rgid, kLoopback.data(), kLoopback.size()), 0);
  EXPECT_EQ(shown.av->hop_limit, 64);
  EXPECT_EQ(shown.av->tclass, 0x60);
  EXPECT_EQ(swap_bytes(shown.av->rlid), 0xc123);
  EXPECT_EQ(VERBS(ibv_dealloc_pd)(pd), EBUSY);
  EXPECT_EQ(VERBS(ibv_destroy_ah)(handle), 0);
  auto other = kLoopback;
  other[0] = 0xfe;
  EXPECT_EQ(make(other), nullptr);  // no IPv4 address
  EXPECT_EQ(errno, EINVAL);
  // From 127.0.0.1 there is no route to other hosts.
  other = kLoopback;
  other[12] = 203, other[14] = 113;
  EXPECT_EQ(make(other), nullptr);
  EXPECT_NE(errno, 0);
  attributes.grh.sgid_index = 1;
  EXPECT_EQ(make(kLoopback), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attributes.grh.sgid_index = 0;
  attributes.is_global = 0;
  EXPECT_EQ(make(kLoopback), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(VERBS(ibv_dealloc_pd)(pd), 0);
}

}  // namespace
}  // namespace shoal::emulator::test
