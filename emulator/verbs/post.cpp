// SPDX-License-Identifier: Apache-2.0
// Posting of send and receive requests: client structures to mlx5 work requests.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/big_endian.hpp"
#include "verbs/objects.hpp"

namespace shoal::emulator {
namespace {

/// The operation of a request; false for those that the emulator does not have.
bool opcode_of(ibv_wr_opcode from, Opcode& to) {
  switch (from) {
    case IBV_WR_SEND:
      to = Opcode::send;
      return true;
    case IBV_WR_SEND_WITH_IMM:
      to = Opcode::send_immediate;
      return true;
    case IBV_WR_SEND_WITH_INV:
      to = Opcode::send_invalidate;
      return true;
    case IBV_WR_RDMA_WRITE:
      to = Opcode::write;
      return true;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      to = Opcode::write_immediate;
      return true;
    case IBV_WR_RDMA_READ:
      to = Opcode::read;
      return true;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      to = Opcode::compare_swap;
      return true;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      to = Opcode::fetch_add;
      return true;
    default:
      return false;
  }
}

/// Gathers the bytes of an inline request; the number of bytes, or -1 where they are too many.
std::int64_t gather_inline(const ibv_send_wr& request, std::span<std::byte> to) {
  std::size_t bytes = 0;
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& part = request.sg_list[i];
    if (part.length > to.size() - bytes) return -1;
    std::memcpy(to.data() + bytes, reinterpret_cast<const void*>(part.addr), part.length);
    bytes += part.length;
  }
  return static_cast<std::int64_t>(bytes);
}

void write_atomic(RequestWriter& writer, Opcode opcode, const ibv_send_wr& request) {
  AtomicOperands operands{.opcode = opcode};
  if (opcode == Opcode::compare_swap) {
    operands.compare = request.wr.atomic.compare_add;
    operands.swap_or_add = request.wr.atomic.swap;
  } else {
    operands.swap_or_add = request.wr.atomic.compare_add;
  }
  writer.remote(request.wr.atomic.remote_addr, request.wr.atomic.rkey).atomic(operands);
}

}  // namespace

int Qp::write_request(const ibv_send_wr& request) {
  Opcode opcode;
  if (!opcode_of(request.opcode, opcode)) return EOPNOTSUPP;
  if (full()) return ENOMEM;
  if (request.num_sge < 0 || static_cast<std::uint32_t>(request.num_sge) > most_segments)
    return EINVAL;
  const bool is_inline = (request.send_flags & IBV_SEND_INLINE) != 0;
  const bool fetches = opcode == Opcode::read || is_atomic(opcode);
  std::array<std::byte, 1024> bytes;
  std::int64_t inline_bytes = 0;
  if (is_inline) {
    if (fetches) return EINVAL;
    inline_bytes = gather_inline(request, std::span(bytes).first(most_inline));
    if (inline_bytes < 0) return ENOMEM;
  }
  writer->start(
      opcode, {.signalled = signal_all || (request.send_flags & IBV_SEND_SIGNALED) != 0,
               .solicited = (request.send_flags & IBV_SEND_SOLICITED) != 0,
               .fenced = (request.send_flags & IBV_SEND_FENCE) != 0,
               .immediate = opcode == Opcode::send_invalidate ? swap_bytes(request.invalidate_rkey)
                                                              : request.imm_data});
  if (is_atomic(opcode))
    write_atomic(*writer, opcode, request);
  else if (!is_send(opcode))
    writer->remote(request.wr.rdma.remote_addr, request.wr.rdma.rkey);
  if (is_inline) {
    if (inline_bytes != 0)
      writer->inline_data(std::span(bytes).first(static_cast<std::size_t>(inline_bytes)));
  } else {
    for (int i = 0; i < request.num_sge; ++i) {
      const ibv_sge& part = request.sg_list[i];
      if (part.length != 0) writer->data(part.addr, part.length, part.lkey);
    }
  }
  finish_request(request.wr_id);
  return 0;
}

void Qp::finish_request(std::uint64_t id) {
  const std::uint16_t index = writer->finish();
  sent[index & (blocks - 1)] = {id, posted++};
}

void Qp::ring() {
  store_shared_be32(record + 4, writer->posted());  // the NIC reads the requests once it sees it
}

int Qp::post_send(ibv_send_wr* request, ibv_send_wr** bad) {
  int error = 0;
  {
    const std::lock_guard lock(send_mutex);
    const bool accepts =
        blocks != 0 && (handle()->state == IBV_QPS_RTS || handle()->state == IBV_QPS_ERR);
    if (!accepts) error = EINVAL;
    for (; request != nullptr && error == 0; request = request->next) {
      error = write_request(*request);
      if (error != 0) break;
    }
    if (accepts) ring();
  }
  if (error != 0) *bad = request;
  context->runtime->ring(handle()->qp_num);
  return error;
}

std::uint64_t Qp::completed_send(std::uint16_t index) {
  const SentRequest& request = sent[index & (blocks - 1)];
  completed.store(request.number + 1, std::memory_order_release);
  return request.id;
}

int Qp::post_receive(ibv_recv_wr* request, ibv_recv_wr** bad) {
  int error = 0;
  {
    const std::lock_guard lock(receive_mutex);
    for (; request != nullptr; request = request->next) {
      const std::uint32_t waiting =
          receives_posted - receives_completed.load(std::memory_order_acquire);
      if (receive_size == 0 || handle()->state == IBV_QPS_RESET || request->num_sge < 0 ||
          static_cast<std::uint32_t>(request->num_sge) > receive_segments)
        error = EINVAL;
      else if (waiting >= most_receives)
        error = ENOMEM;
      if (error != 0) break;
      const std::uint32_t slot = receives_posted++ & (receive_size - 1);
      write_receive(receive_ring + std::size_t{slot} * receive_stride,
                    receive_stride / kSegmentBytes, *request);
      receive_ids[slot] = request->wr_id;
    }
    store_shared_be32(record, receives_posted & 0xffff);
  }
  if (error != 0) *bad = request;
  // Receives that are posted in the error state are flushed at once.
  if (pair->state() == QpState::error) context->runtime->ring(handle()->qp_num);
  return error;
}

std::uint64_t Qp::completed_receive(std::uint16_t index) {
  const std::uint64_t id = receive_ids[index & (receive_size - 1)];
  receives_completed.fetch_add(1, std::memory_order_release);
  return id;
}

}  // namespace shoal::emulator
