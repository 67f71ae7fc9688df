// SPDX-License-Identifier: Apache-2.0
// Names of states and errors, and rates.
#include <infiniband/verbs.h>

#include <array>
#include <cstddef>

namespace {

template <std::size_t kCount>
const char* name(const std::array<const char*, kCount>& names, int index) {
  return index >= 0 && static_cast<std::size_t>(index) < kCount
             ? names[static_cast<std::size_t>(index)]
             : "unknown";
}

struct Rate {
  ibv_rate rate;
  int multiple;  ///< of 2.5 Gb/s; 0: none
  int mbps;
};
constexpr std::array kRates = {
    Rate{IBV_RATE_2_5_GBPS, 1, 2500},    Rate{IBV_RATE_5_GBPS, 2, 5000},
    Rate{IBV_RATE_10_GBPS, 4, 10000},    Rate{IBV_RATE_20_GBPS, 8, 20000},
    Rate{IBV_RATE_30_GBPS, 12, 30000},   Rate{IBV_RATE_40_GBPS, 16, 40000},
    Rate{IBV_RATE_60_GBPS, 24, 60000},   Rate{IBV_RATE_80_GBPS, 32, 80000},
    Rate{IBV_RATE_120_GBPS, 48, 120000}, Rate{IBV_RATE_14_GBPS, 0, 14062},
    Rate{IBV_RATE_56_GBPS, 0, 56250},    Rate{IBV_RATE_112_GBPS, 0, 112500},
    Rate{IBV_RATE_168_GBPS, 0, 168750},  Rate{IBV_RATE_25_GBPS, 0, 25781},
    Rate{IBV_RATE_100_GBPS, 0, 103125},  Rate{IBV_RATE_200_GBPS, 0, 206250},
    Rate{IBV_RATE_300_GBPS, 0, 309375},  Rate{IBV_RATE_28_GBPS, 0, 28125},
    Rate{IBV_RATE_50_GBPS, 0, 53125},    Rate{IBV_RATE_400_GBPS, 0, 425000},
    Rate{IBV_RATE_600_GBPS, 0, 637500},  Rate{IBV_RATE_800_GBPS, 0, 850000},
    Rate{IBV_RATE_1200_GBPS, 0, 1275000}};

}  // namespace

extern "C" {

const char* ibv_wc_status_str(ibv_wc_status status) {
  static constexpr std::array kNames = {"success",
                                        "local length error",
                                        "local QP operation error",
                                        "local EE context operation error",
                                        "local protection error",
                                        "work request flushed",
                                        "memory window bind error",
                                        "bad response error",
                                        "local access error",
                                        "remote invalid request error",
                                        "remote access error",
                                        "remote operation error",
                                        "transport retry count exceeded",
                                        "RNR retry count exceeded",
                                        "local RDD violation error",
                                        "remote invalid RD request",
                                        "remote aborted error",
                                        "invalid EE context number",
                                        "invalid EE context state",
                                        "fatal error",
                                        "response timeout error",
                                        "general error"};
  return name(kNames, status);
}

const char* ibv_node_type_str(ibv_node_type type) {
  static constexpr std::array kNames = {"unknown", "InfiniBand channel adapter",
                                        "InfiniBand switch", "InfiniBand router", "iWARP NIC"};
  return name(kNames, type);
}

const char* ibv_port_state_str(ibv_port_state state) {
  static constexpr std::array kNames = {"no state change", "down",   "init",
                                        "armed",           "active", "active defer"};
  return name(kNames, state);
}

const char* ibv_event_type_str(ibv_event_type event) {
  static constexpr std::array kNames = {"CQ error",
                                        "local work queue catastrophic error",
                                        "invalid request local work queue error",
                                        "local access violation work queue error",
                                        "communication established",
                                        "send queue drained",
                                        "path migrated",
                                        "path migration request error",
                                        "local catastrophic error",
                                        "port active",
                                        "port error",
                                        "LID change",
                                        "partition key table change",
                                        "SM change",
                                        "SRQ error",
                                        "SRQ limit reached",
                                        "last work queue entry reached",
                                        "client reregistration",
                                        "GID table change",
                                        "work queue catastrophic error"};
  return name(kNames, event);
}

int ibv_rate_to_mult(ibv_rate rate) {
  for (const Rate& known : kRates)
    if (known.rate == rate && known.multiple != 0) return known.multiple;
  return -1;
}

ibv_rate mult_to_ibv_rate(int multiple) {
  for (const Rate& known : kRates)
    if (known.multiple == multiple && multiple != 0) return known.rate;
  return IBV_RATE_MAX;
}

int ibv_rate_to_mbps(ibv_rate rate) {
  for (const Rate& known : kRates)
    if (known.rate == rate) return known.mbps;
  return -1;
}

ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const Rate& known : kRates)
    if (known.mbps == mbps) return known.rate;
  return IBV_RATE_MAX;
}

}  // extern "C"
