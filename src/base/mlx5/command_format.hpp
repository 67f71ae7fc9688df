// SPDX-License-Identifier: Apache-2.0
// command_format.hpp: fields of device commands (DEVX), as clients of mlx5dv write them.
//
// Commands and responses are big endian. A field is a range of bits of the 32-bit word at an
// offset.
// Source: rdma-core, providers/mlx5/mlx5_ifc.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "shoal/device/detail/mlx5/format.hpp"

namespace shoal::mlx5 {

struct Field {
  std::size_t offset;  ///< bytes
  unsigned high = 31, low = 0;

  constexpr std::uint32_t mask() const {
    return static_cast<std::uint32_t>((std::uint64_t{1} << (high - low + 1)) - 1);
  }
};

inline std::uint32_t get(const std::byte* at, Field field) {
  std::uint32_t word;
  std::memcpy(&word, at + field.offset, sizeof word);
  return big(word) >> field.low & field.mask();
}
inline void set(std::byte* at, Field field, std::uint32_t value) {
  std::uint32_t word;
  std::memcpy(&word, at + field.offset, sizeof word);
  const std::uint32_t mask = field.mask() << field.low;
  word = big((big(word) & ~mask) | (value << field.low & mask));
  std::memcpy(at + field.offset, &word, sizeof word);
}
inline std::uint64_t get64(const std::byte* at, std::size_t offset) {
  std::uint64_t word;
  std::memcpy(&word, at + offset, sizeof word);
  return big(word);
}
inline void set64(std::byte* at, std::size_t offset, std::uint64_t value) {
  const std::uint64_t word = big(value);
  std::memcpy(at + offset, &word, sizeof word);
}

enum class Command : std::uint16_t {
  query_hca_cap = 0x100,
  create_mkey = 0x200,
  create_cq = 0x400,
  query_cq = 0x402,
  create_qp = 0x500,
  reset_to_init = 0x502,
  init_to_rtr = 0x503,
  rtr_to_rts = 0x504,
  to_error = 0x507,
  to_reset = 0x50a,
  query_qp = 0x50b,
  query_vport = 0x762,
  alloc_pd = 0x800,
};

/// Fields of every command and response.
namespace command {
constexpr Field kOpcode{0x0, 31, 16}, kModifier{0x4, 15, 0}, kStatus{0x0, 31, 24}, kSyndrome{0x4},
    kObject{0x8, 23, 0};
constexpr std::size_t kResponseBytes = 16;
}  // namespace command

/// Context of a completion queue, and what follows it in CREATE_CQ.
namespace cq_context {
constexpr std::size_t kAt = 0x10, kCommandBytes = 0x60;
constexpr Field kRecordUmemValid{0x0, 25, 25}, kEntrySize{0x0, 23, 21}, kCollapsed{0x0, 20, 20},
    kIgnoreOverrun{0x0, 17, 17}, kCompressed{0x0, 14, 14}, kRecordUmem{0x4}, kLogSize{0xc, 28, 24},
    kUarPage{0xc, 23, 0}, kEventQueue{0x14};
constexpr std::size_t kRecordOffset = 0x38;
constexpr std::size_t kUmemOffset = 0x50;  // of the command
constexpr Field kUmem{0x58}, kUmemValid{0x5c, 31, 31};
}  // namespace cq_context

/// Context of a queue pair, and what follows it in CREATE_QP.
namespace qp_context {
constexpr std::size_t kAt = 0x18, kBytes = 232, kCommandBytes = 272;
constexpr Field kOptional{0x10};  // of the command
constexpr Field kState{0x0, 31, 28}, kService{0x0, 23, 16}, kMigration{0x0, 12, 11},
    kOrdering0{0x4, 25, 25}, kOrderingForce{0x4, 24, 24}, kDomain{0x4, 23, 0}, kMtu{0x8, 31, 29},
    kLogMaxMessage{0x8, 28, 24}, kLogReceives{0x8, 22, 19}, kLogReceiveStride{0x8, 18, 16},
    kNoSendQueue{0x8, 15, 15}, kLogSendBlocks{0x8, 14, 11}, kUarPage{0xc, 23, 0},
    kUserIndex{0x10, 23, 0}, kRemoteQp{0x14, 23, 0}, kGlobal{0x1c, 23, 23}, kRemoteLid{0x1c, 15, 0},
    kAckTimeout{0x20, 31, 27}, kSourceGid{0x20, 23, 16}, kHops{0x20, 7, 0},
    kTrafficClass{0x24, 27, 20}, kDscp{0x38, 21, 16}, kUdpSource{0x38, 15, 0},
    kPriority{0x3c, 30, 28}, kServiceLevel{0x3c, 27, 24}, kPort{0x3c, 23, 16},
    kLogAckRequest{0x70, 31, 28}, kLogReads{0x70, 23, 21}, kRetryCount{0x70, 18, 16},
    kRnrRetry{0x70, 15, 13}, kSendPsn{0x78, 23, 0}, kSendCq{0x7c, 23, 0},
    kLogRemoteReads{0x90, 23, 21}, kRemoteRead{0x90, 15, 15}, kRemoteWrite{0x90, 14, 14},
    kRemoteAtomic{0x90, 13, 13}, kAtomicMode{0x90, 19, 16}, kOrdering1{0x90, 3, 3},
    kMinRnr{0x94, 28, 24}, kReceivePsn{0x94, 23, 0}, kReceiveCq{0x9c, 23, 0},
    kReceiveType{0xac, 26, 24}, kSrq{0xac, 23, 0}, kRecordUmemValid{0xd0, 28, 28},
    kRecordUmem{0xe4};
/// The address path: on an Ethernet, the last 6 bytes are the destination's MAC address.
constexpr std::size_t kPath = 0x18, kPathBytes = 44, kRemoteGid = 0x28, kRemoteMac = 0x3e,
                      kRecordOffset = 0xa0;
constexpr std::size_t kUmemOffset = 0x100;  // of the command
constexpr Field kUmem{0x108}, kUmemValid{0x10c, 31, 31};
/// Bits of kOptional.
constexpr std::uint32_t kSetsRemoteRead = 1 << 1, kSetsRemoteAtomic = 1 << 2,
                        kSetsRemoteWrite = 1 << 3;
}  // namespace qp_context

/// Context of a memory key, and what follows it in CREATE_MKEY.
namespace key_context {
constexpr std::size_t kAt = 0x10, kCommandBytes = 0x70;
constexpr Field kUmemValid{0xc, 30, 30};  // of the command
constexpr Field kAtomic{0x0, 14, 14}, kRemoteWrite{0x0, 13, 13}, kRemoteRead{0x0, 12, 12},
    kLocalWrite{0x0, 11, 11}, kRelaxed{0x0, 18, 18}, kMode{0x0, 9, 8}, kVariant{0x4, 7, 0},
    kDomain{0xc, 23, 0};
constexpr std::size_t kStart = 0x10, kLength = 0x18;
constexpr Field kUmem{0x64};               // of the command
constexpr std::size_t kUmemOffset = 0x68;  // of the command
constexpr std::uint32_t kTranslated = 1;   // of kMode
}  // namespace key_context

/// Responses of QUERY_HCA_CAP, at kAt.
namespace capability {
constexpr std::size_t kAt = 0x10, kResponseBytes = 4112;
enum Type : std::uint32_t { kGeneral = 0, kOdp = 2, kAtomic = 3, kRoce = 4, kGeneral2 = 0x20 };
constexpr Field kLogMaxQpSize{0x10, 23, 16}, kLogMaxQp{0x10, 4, 0}, kLogMaxCqSize{0x18, 23, 16},
    kLogMaxCq{0x18, 4, 0}, kLogReads{0x28, 21, 16}, kLogRemoteReads{0x28, 5, 0},
    kPortType{0x34, 9, 8}, kPorts{0x34, 7, 0}, kLogMaxMessage{0x38, 28, 24},
    kOutOfOrderWrites{0x38, 21, 21}, kCqeVersion{0x3c, 3, 0}, kHasRoce{0x40, 2, 2},
    kHasAtomics{0x40, 1, 1}, kIgnoreOverrun{0x44, 31, 31}, kBlueFlame{0x4c, 31, 31},
    kLogRegister{0x4c, 20, 16}, kMaxRequestBytes{0x50, 15, 0}, kOutOfOrderAll{0x64, 11, 11};
constexpr Field kOrderingForce{0x10, 23, 23};  // general_2
constexpr Field kHostEndian{0x8, 31, 30}, kOperations{0x10}, kSizes{0x14}, kPciAtomics{0x50};
// RoCE
constexpr Field kChoosesUdpSource{0x0, 27, 27}, kL3Types{0x10, 19, 16}, kRoceVersions{0x10, 7, 0},
    kUdpTarget{0x14, 15, 0}, kMostUdpSource{0x18, 31, 16}, kLeastUdpSource{0x18, 15, 0},
    kAddresses{0x1c, 15, 0};
}  // namespace capability

namespace vport {
constexpr std::size_t kResponseBytes = 0x10 + 0x200;
constexpr Field kLid{0x10 + 0x5c, 31, 16};
}  // namespace vport

}  // namespace shoal::mlx5
