// SPDX-License-Identifier: Apache-2.0
// shoal/device/types.hpp: parameters of kernels (the world, the team, the arrays of an all-to-all)
// and the failure report.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/operation.hpp>
#include <shoal/pe.hpp>

namespace shoal::device {

namespace proxy {
struct Ring;
}
namespace gda {
struct Routes;
}

/// Why a FailureReport was written.
enum class FailureKind : std::uint32_t {
  none = 0,
  wait_until,      ///< the deadline passed
  wait_until_all,  ///< the deadline passed; the variable is the first that did not compare as asked
  wait_until_any,  ///< the deadline passed; the variable is the first of the array
  barrier,         ///< the deadline passed before PE `awaited` came
  bad_address,     ///< the PE does not exist or the range leaves the heap; nothing was done
  unreachable,     ///< this PE's GPU cannot reach the heap of PE `awaited`; nothing was done
  bad_index,       ///< fetch_entries: `seen` is no index of the table's `expected` entries
  proxy_failed,    ///< an earlier request to the proxy failed: operation `seen`, Code `expected`
  proxy_timeout,   ///< the deadline passed before the proxy had room or completed operation `seen`
  proxy_aborted,   ///< the world was closed or failed while the proxy had requests
  gda_failed,      ///< a queue of the NIC has ended: cause `expected`
  gda_timeout,     ///< the deadline passed before the NIC had completed an operation
  gda_aborted,     ///< the world was closed while the NIC had requests
  collective,      ///< the deadline passed before PE `awaited` came to a collective
  block_too_large,  ///< all_to_all_v: PE `awaited` sent `bytes` bytes, which were cut off
  no_collectives,   ///< the team has no collectives in kernels; `awaited`: a PE out of reach, or -1
                    ///< where it has too many PEs. Nothing was done
};

/// The first failure in a kernel of this PE since the report was last taken. It lies in host memory
/// that the GPU writes; read it with shoal::cuda::check_failures or take_failure.
///
/// | field | set for |
/// |---|---|
/// | awaited | all kinds but bad_index; -1 where no PE is known |
/// | offset | all kinds; of bad_index: which of the indices |
/// | bytes | bad_address, unreachable, proxy_failed, proxy_timeout, gda, block_too_large |
/// | compare, width, is_signed, waited_ns | waits, barrier and collective; waited_ns: gda_timeout |
/// | expected, seen | waits, barrier, collective, bad_index, proxy_failed, gda |
/// | seen | proxy_timeout |
///
/// For gda, `seen` is the operation plus 256 times the number of the queue pair, and `expected` the
/// word that says why the queue ended.
struct FailureReport {
  enum State : std::uint32_t { empty = 0, filling = 1, complete = 2 };

  std::uint32_t state;
  FailureKind kind;
  Pe awaited;
  Compare compare;
  std::uint8_t width;       ///< bytes of the variable: 4 or 8
  std::uint8_t is_signed;   ///< whether `expected` and `seen` are signed
  std::uint64_t offset;     ///< of the variable or range, in bytes from the start of this PE's heap
  std::uint64_t bytes;      ///< length of the range
  std::uint64_t expected;   ///< the value that the variable was compared with
  std::uint64_t seen;       ///< the last value of the variable
  std::uint64_t waited_ns;  ///< how long the wait took
  std::uint32_t block[3];   ///< blockIdx of the thread that failed
  std::uint32_t thread[3];  ///< its threadIdx
};

/// The world as kernels of one PE see it, from shoal::cuda::device_world. Pass it by value, best as
/// `__grid_constant__ const`. Valid until the world is closed.
struct World {
  std::byte* heap;           ///< start of this PE's heap
  std::byte* window;         ///< when `bases` is nullptr: PE p's heap is at window + p * stride
  std::size_t stride;        ///< bytes
  std::byte* const* bases;   ///< nullptr, or the start of every PE's heap, in device memory; a
                             ///< nullptr element: not reachable
  std::size_t heap_bytes;    ///< of every heap
  std::uint64_t timeout_ns;  ///< deadline of every wait (SHOAL_TIMEOUT_MS)
  FailureReport* failure;    ///< in host memory
  Pe my_pe;
  Pe n_pes;
  const proxy::Ring* proxy;  ///< nullptr, or serves heaps that this GPU does not reach; in this
                             ///< GPU's memory
  const gda::Routes* gda;    ///< nullptr, or queues of a NIC to such heaps, which serve what they
                             ///< can; never without `proxy`
};

/// A team as kernels of its PEs see it, from shoal::cuda::device_team. Valid until the team is
/// destroyed.
struct Team {
  static constexpr Pe kMaxPes = 1024;    ///< PEs of the world, at most
  static constexpr int kEpochBits = 40;  ///< low bits of an epoch; the rest is the generation

  std::uint64_t* arrived;    ///< in this PE's heap, by world PE: epoch of the last barrier entered
  std::uint64_t* epoch;      ///< in this PE's heap: epoch of the last barrier that this PE entered
  std::uint64_t generation;  ///< distinguishes teams that used the same index one after another
  std::uint64_t members[kMaxPes / 64];  ///< bit p: world PE p belongs to the team

  // For collectives (collective.cuh), in teams of up to kMaxCollectivePes PEs.
  static constexpr Pe kMaxCollectivePes = 128;

  Pe my_pe;  ///< this PE's index in the team
  Pe size;   ///< number of PEs
  /// In this PE's heap: groups of threads that have finished the collective that runs.
  std::uint64_t* finished;
  /// In this PE's heap, two halves by parity of the epoch: a slot for packets from each PE of the
  /// team. nullptr: none.
  std::byte* packets;
  std::uint64_t slot_bytes;              ///< of a slot, a multiple of 16
  std::uint64_t packet_limit;            ///< up to so many bytes per PE travel as packets
  std::uint64_t one_shot_limit;          ///< up to so many bytes a PE reads all of a reduction
  std::uint16_t pes[kMaxCollectivePes];  ///< by index in the team: the number in the world
};

/// The sizes of an all-to-all with a size per pair of PEs, in bytes: arrays in GPU memory with an
/// element for each PE of the team, which kernels may have written.
struct AllToAllV {
  void* target = nullptr;        ///< any memory of this GPU
  const void* source = nullptr;  ///< in the heap, at the same offset on every PE
  /// In the heap, at the same offset on every PE: this PE sends send_bytes[j] bytes at source +
  /// send_offsets[j] to PE j.
  const std::uint64_t* send_bytes = nullptr;
  const std::uint64_t* send_offsets = nullptr;
  /// Data from PE i arrive at target + receive_offsets[i]. Any memory of this GPU.
  const std::uint64_t* receive_offsets = nullptr;
  /// nullptr, or the room for each PE in bytes: a larger block is cut off there, and
  /// the call returns false and reports block_too_large. The team stays usable.
  const std::uint64_t* receive_room = nullptr;
  /// nullptr, or where the number of bytes that PE i sent is written.
  std::uint64_t* received = nullptr;
};

/// The result of wait_until_any and test_any when no variable compares as asked.
inline constexpr std::size_t kNoIndex = static_cast<std::size_t>(-1);

}  // namespace shoal::device
