// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/port/queue_pair.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"

namespace shoal::transport::verbs {
namespace {

constexpr std::uint8_t kRetryForever = 7;  ///< without a receive queue no peer is ever not ready
constexpr std::uint8_t kNotReadyTimer = 12;
constexpr std::uint8_t kHops = 64;

/// 24 bits that packets of an earlier connection do not have.
std::uint32_t random_packet_number() {
  std::uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number))
    fail_errno("SHOAL-N337: transport verbs: getrandom");
  return number & 0xffffff;
}

int bytes_of(std::uint8_t mtu) {
  return 128 << mtu;
}

}  // namespace

const char* name_of(ibv_qp_state state) {
  constexpr std::array kNames = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state < kNames.size() ? kNames[state] : "ERR";
}

QueueLimits QueueLimits::of(const Port& port, const Settings& settings, std::size_t queue_pairs) {
  const ibv_device_attr& device = port.device();
  require(settings.verbs_depth <= device.max_qp_wr, Code::unsupported,
          "SHOAL-N383: SHOAL_VERBS_DEPTH is {}; queue pairs of {} have at most {} requests",
          settings.verbs_depth, port.label(), device.max_qp_wr);
  require(
      queue_pairs <= static_cast<std::size_t>(device.max_qp), Code::unsupported,
      "SHOAL-N396: {} queue pairs are needed; {} has at most {}. Setting: SHOAL_VERBS_QUEUE_PAIRS",
      queue_pairs, port.label(), device.max_qp);
  const int atomics = std::min(device.max_qp_rd_atom, device.max_qp_init_rd_atom);
  require(atomics >= 1, Code::unsupported, "SHOAL-N394: {} allows no reads and atomics in flight",
          port.label());
  QueueLimits limits;
  limits.depth = static_cast<std::uint32_t>(settings.verbs_depth);
  limits.inline_bytes = static_cast<std::uint32_t>(settings.verbs_inline);
  limits.atomics = static_cast<std::uint8_t>(std::min(atomics, 255));
  limits.retries = static_cast<std::uint8_t>(settings.verbs_retries);
  limits.timeout = static_cast<std::uint8_t>(settings.verbs_timeout);
  limits.service_level = static_cast<std::uint8_t>(settings.verbs_service_level);
  limits.traffic_class = static_cast<std::uint8_t>(settings.verbs_traffic_class);
  return limits;
}

QueuePair::QueuePair(const Port& port, const QueueLimits& limits, const QueuePairName& name)
    : port_(port), limits_(limits), name_(name), first_packet_(random_packet_number()) {}

void QueuePair::refuse_creation(const std::string& problem, std::size_t existing) const {
  fail(Code::unsupported,
       "SHOAL-N396: {} cannot be created: {}; {} others exist (device: at most {}), send queue {} "
       "(at most {}), inline {} bytes. Settings: SHOAL_VERBS_QUEUE_PAIRS, SHOAL_VERBS_DEPTH, "
       "SHOAL_VERBS_INLINE",
       describe(), problem, existing, port_.device().max_qp, limits_.depth,
       port_.device().max_qp_wr, limits_.inline_bytes);
}

std::string QueuePair::describe() const {
  return fmt::format("queue pair {} of {} for PE {} on {} (PE {})", name_.index + 1, name_.count,
                     name_.peer, port_.label(), name_.my_pe);
}

void QueuePair::change(ibv_qp_attr& attributes, int mask, const std::string& detail) {
  const std::string problem = modify(attributes, mask);
  require(problem.empty(), Code::unsupported, "SHOAL-N397: {} does not change to {}: {}; {}",
          describe(), name_of(attributes.qp_state), problem, detail);
}

void QueuePair::to_init() {
  auto attributes = zeroed<ibv_qp_attr>();
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = port_.number();
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                               IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  change(
      attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
      fmt::format("port {} (device: {} ports), partition key 0, remote access to read, write and "
                  "atomics (device: atomic capability {}). Setting: SHOAL_NIC_LIST",
                  port_.number(), port_.device().phys_port_cnt,
                  static_cast<int>(port_.device().atomic_cap)));
}

void QueuePair::connect(const PathAddress& path, const QueueAddress& peer) {
  to_receive(path, peer);
  to_send();
}

void QueuePair::to_receive(const PathAddress& path, const QueueAddress& peer) {
  auto attributes = zeroed<ibv_qp_attr>();
  attributes.qp_state = IBV_QPS_RTR;
  const std::uint8_t mtu =
      std::min(path.mtu, static_cast<std::uint8_t>(port_.attributes().active_mtu));
  attributes.path_mtu = static_cast<ibv_mtu>(mtu);
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.first_packet;
  attributes.max_dest_rd_atomic = limits_.atomics;
  attributes.min_rnr_timer = kNotReadyTimer;
  attributes.ah_attr.dlid = path.lid;
  attributes.ah_attr.sl = limits_.service_level;
  attributes.ah_attr.port_num = port_.number();
  attributes.ah_attr.is_global = port_.routed() ? 1 : 0;
  if (port_.routed()) {
    std::memcpy(attributes.ah_attr.grh.dgid.raw, path.gid, sizeof path.gid);
    attributes.ah_attr.grh.sgid_index = port_.gid_index();
    attributes.ah_attr.grh.hop_limit = kHops;
    attributes.ah_attr.grh.traffic_class = limits_.traffic_class;
  }
  change(attributes,
         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
         fmt::format(
             "path MTU {} (port: {}), remote LID {}, {}, remote queue pair {:#x}, {} reads "
             "and atomics accepted (device: at most {}), service level {}. Settings: "
             "SHOAL_VERBS_GID_INDEX, SHOAL_VERBS_SERVICE_LEVEL, SHOAL_NIC_LIST",
             bytes_of(mtu), bytes_of(static_cast<std::uint8_t>(port_.attributes().active_mtu)),
             path.lid, port_.routed() ? fmt::format("GID index {}", port_.gid_index()) : "no GID",
             peer.number, limits_.atomics, port_.device().max_qp_rd_atom, limits_.service_level));
}

void QueuePair::to_send() {
  auto attributes = zeroed<ibv_qp_attr>();
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = first_packet_;
  attributes.timeout = limits_.timeout;
  attributes.retry_cnt = limits_.retries;
  attributes.rnr_retry = kRetryForever;
  attributes.max_rd_atomic = limits_.atomics;
  change(attributes,
         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
             IBV_QP_MAX_QP_RD_ATOMIC,
         fmt::format("timeout {} (at most 31), {} retries (at most 7), {} reads and atomics in "
                     "flight (device: at most {}). Settings: SHOAL_VERBS_TIMEOUT, "
                     "SHOAL_VERBS_RETRIES",
                     limits_.timeout, limits_.retries, limits_.atomics,
                     port_.device().max_qp_init_rd_atom));
}

}  // namespace shoal::transport::verbs
