// SPDX-License-Identifier: Apache-2.0
// verbs_raw_direct.hpp: posting and polling without libibverbs: requests, doorbells and completions
// in memory, as SHOAL_VERBS_INTERFACE=devx. Mlx5 devices and the emulated NIC.
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <sched.h>

#include <bit>
#include <cstdint>

#include "base/check.hpp"
#include "base/mlx5/host_bus.hpp"
#include "shoal/device/detail/mlx5/work_queue.hpp"

namespace shoal::bench {

/// The rings of a queue pair and its completion queue, of which this process is the only user. The
/// caller bounds what is in flight.
class DirectQueues {
 public:
  DirectQueues(ibv_qp* pair, ibv_cq* queue) {
    mlx5dv_qp sends{};
    mlx5dv_cq completions{};
    mlx5dv_obj objects{};
    objects.qp = {.in = pair, .out = &sends};
    objects.cq = {.in = queue, .out = &completions};
    const int code = mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ);
    require(code == 0 && sends.sq.stride == mlx5::kBlockBytes &&
                completions.cqe_size == sizeof(mlx5::CompletionEntry),
            Code::unsupported, "the device shows no queues of the mlx5 format (error {})", code);
    sends_ = {.ring = static_cast<mlx5::Segment*>(sends.sq.buf),
              .blocks = sends.sq.wqe_cnt,
              .number = pair->qp_num,
              .record = &reinterpret_cast<mlx5::DoorbellRecord*>(sends.dbrec)->sends,
              .doorbell = static_cast<std::uint64_t*>(sends.bf.reg)};
    completions_ = {
        .entries = static_cast<const mlx5::CompletionEntry*>(completions.buf),
        .log_size = static_cast<std::uint32_t>(std::countr_zero(completions.cqe_cnt)),
        .record = &reinterpret_cast<mlx5::CompletionRecord*>(completions.dbrec)->consumed};
  }

  /// Requests with one part each. One doorbell.
  void post(const ibv_send_wr& first) {
    mlx5::Posted posted;
    for (const ibv_send_wr* request = &first; request != nullptr; request = request->next)
      posted = write(*request);
    mlx5::publish(sends_, posted, bus_);
  }
  /// Completions that have come.
  int poll() {
    int count = 0;
    mlx5::Completion completion;
    for (; mlx5::next(completions_, consumed_, bus_, completion); ++count)
      require(!completion.failed, Code::system, "a request failed: syndrome {:#x}, vendor {:#x}",
              static_cast<unsigned>(completion.syndrome), completion.vendor);
    empty_ = count != 0 ? 0 : empty_ + 1;
    if (count != 0) mlx5::release(completions_, consumed_, bus_);
    if (empty_ % kPollsBeforeYield == kPollsBeforeYield - 1) sched_yield();
    return count;
  }

 private:
  /// The thread of the emulated NIC needs a core. Its ibv_poll_cq yields as often.
  static constexpr std::uint32_t kPollsBeforeYield = 16;

  mlx5::Posted write(const ibv_send_wr& request) {
    const ibv_sge& part = *request.sg_list;
    const mlx5::Flags flags{.signalled = (request.send_flags & IBV_SEND_SIGNALED) != 0};
    const mlx5::Memory remote{request.wr.rdma.remote_addr, request.wr.rdma.rkey};
    const mlx5::Part parts[] = {{{part.addr, part.lkey}, part.length}};
    mlx5::Posted posted;
    if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      posted = mlx5::write_atomic(sends_, index_, mlx5::Opcode::fetch_add,
                                  {request.wr.atomic.remote_addr, request.wr.atomic.rkey},
                                  request.wr.atomic.compare_add, 0, parts[0].local, flags);
    else if ((request.send_flags & IBV_SEND_INLINE) != 0)
      posted =
          mlx5::write_inline(sends_, index_, remote, reinterpret_cast<const std::byte*>(part.addr),
                             part.length, flags);
    else
      posted = mlx5::write_data(
          sends_, index_,
          request.opcode == IBV_WR_RDMA_READ ? mlx5::Opcode::read : mlx5::Opcode::write, remote,
          parts, 1, flags);
    index_ = posted.next;
    return posted;
  }

  mlx5::SendQueue sends_;
  mlx5::CompletionQueue completions_;
  std::uint32_t index_ = 0, consumed_ = 0, empty_ = 0;
  mlx5::HostBus bus_;
};

}  // namespace shoal::bench
