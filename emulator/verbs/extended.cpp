// SPDX-License-Identifier: Apache-2.0
// The functions that clients call through ibv_qp_ex (ibv_wr_*) and ibv_cq_ex (ibv_start_poll).
#include <cerrno>
#include <cstring>

#include "engine/big_endian.hpp"
#include "verbs/objects.hpp"

namespace shoal::emulator {
namespace {

void fail(Qp& qp, int error) {
  if (qp.pending_error == 0) qp.pending_error = error;
}

/// Ends the request that is being built; its data were set.
void end_request(Qp& qp) {
  if (!qp.building) return;
  qp.building = false;
  qp.finish_request(qp.base.wr_id);
}

/// Begins a request; the data segments follow by another call.
bool begin(Qp& qp, Opcode opcode, std::uint32_t immediate = 0) {
  if (qp.pending_error != 0) return false;
  if (qp.full()) {
    fail(qp, ENOMEM);
    return false;
  }
  const unsigned flags = qp.base.wr_flags;
  qp.writer->start(opcode, {.signalled = qp.signal_all || (flags & IBV_SEND_SIGNALED) != 0,
                            .solicited = (flags & IBV_SEND_SOLICITED) != 0,
                            .fenced = (flags & IBV_SEND_FENCE) != 0,
                            .immediate = immediate});
  qp.building = true;
  return true;
}

void begin_remote(ibv_qp_ex* pair, Opcode opcode, std::uint32_t key, std::uint64_t address,
                  std::uint32_t immediate = 0) {
  Qp& qp = of(pair);
  if (begin(qp, opcode, immediate)) qp.writer->remote(address, key);
}

void atomic(ibv_qp_ex* pair, std::uint32_t key, std::uint64_t address,
            const AtomicOperands& operands) {
  Qp& qp = of(pair);
  if (begin(qp, operands.opcode)) qp.writer->remote(address, key).atomic(operands);
}

void set_segments(ibv_qp_ex* pair, std::size_t count, const ibv_sge* list) {
  Qp& qp = of(pair);
  if (qp.pending_error != 0 || !qp.building) return;
  if (count > qp.most_segments) return fail(qp, EINVAL);
  for (std::size_t i = 0; i < count; ++i)
    if (list[i].length != 0) qp.writer->data(list[i].addr, list[i].length, list[i].lkey);
  end_request(qp);
}

void set_inline(ibv_qp_ex* pair, std::size_t count, const ibv_data_buf* list) {
  Qp& qp = of(pair);
  if (qp.pending_error != 0 || !qp.building) return;
  std::array<std::byte, 1024> bytes;
  std::size_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (list[i].length > qp.most_inline - total) return fail(qp, ENOMEM);
    std::memcpy(bytes.data() + total, list[i].addr, list[i].length);
    total += list[i].length;
  }
  if (total != 0) qp.writer->inline_data(std::span(bytes).first(total));
  end_request(qp);
}

void start(ibv_qp_ex* pair) {
  Qp& qp = of(pair);
  qp.send_mutex.lock();
  qp.saved_writer = qp.writer;
  qp.saved_posted = qp.posted;
  qp.building = false;
  const ibv_qp_state state = qp.handle()->state;
  qp.pending_error = qp.blocks != 0 && (state == IBV_QPS_RTS || state == IBV_QPS_ERR) ? 0 : EINVAL;
}

void take_back(Qp& qp) {
  qp.writer = qp.saved_writer;
  qp.posted = qp.saved_posted;
  qp.building = false;
}

int complete(ibv_qp_ex* pair) {
  Qp& qp = of(pair);
  end_request(qp);  // an operation whose data were not set: none
  const int error = qp.pending_error;
  if (error != 0)
    take_back(qp);
  else
    qp.ring();
  qp.send_mutex.unlock();
  if (error == 0) qp.context->runtime->ring(qp.handle()->qp_num);
  return error;
}

void unsupported(Qp& qp) {
  fail(qp, EOPNOTSUPP);
}

}  // namespace

void set_request_functions(ibv_qp_ex& pair) {
  pair.wr_start = start;
  pair.wr_complete = complete;
  pair.wr_abort = [](ibv_qp_ex* qp) {
    take_back(of(qp));
    of(qp).send_mutex.unlock();
  };
  pair.wr_rdma_write = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address) {
    begin_remote(qp, Opcode::write, key, address);
  };
  pair.wr_rdma_write_imm = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address,
                              __be32 immediate) {
    begin_remote(qp, Opcode::write_immediate, key, address, immediate);
  };
  pair.wr_rdma_read = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address) {
    begin_remote(qp, Opcode::read, key, address);
  };
  pair.wr_send = [](ibv_qp_ex* qp) { (void)begin(of(qp), Opcode::send); };
  pair.wr_send_imm = [](ibv_qp_ex* qp, __be32 immediate) {
    (void)begin(of(qp), Opcode::send_immediate, immediate);
  };
  pair.wr_send_inv = [](ibv_qp_ex* qp, std::uint32_t key) {
    (void)begin(of(qp), Opcode::send_invalidate, swap_bytes(key));
  };
  pair.wr_atomic_cmp_swp = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address,
                              std::uint64_t compare, std::uint64_t swap) {
    atomic(qp, key, address,
           {.opcode = Opcode::compare_swap, .swap_or_add = swap, .compare = compare});
  };
  pair.wr_atomic_fetch_add = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address,
                                std::uint64_t add) {
    atomic(qp, key, address, {.opcode = Opcode::fetch_add, .swap_or_add = add});
  };
  pair.wr_set_sge = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address,
                       std::uint32_t length) {
    const ibv_sge one{.addr = address, .length = length, .lkey = key};
    set_segments(qp, 1, &one);
  };
  pair.wr_set_sge_list = set_segments;
  pair.wr_set_inline_data = [](ibv_qp_ex* qp, void* address, std::size_t length) {
    const ibv_data_buf one{.addr = address, .length = length};
    set_inline(qp, 1, &one);
  };
  pair.wr_set_inline_data_list = set_inline;
  pair.wr_bind_mw = [](ibv_qp_ex* qp, ibv_mw*, std::uint32_t, const ibv_mw_bind_info*) {
    unsupported(of(qp));
  };
  pair.wr_local_inv = [](ibv_qp_ex* qp, std::uint32_t) { unsupported(of(qp)); };
  pair.wr_send_tso = [](ibv_qp_ex* qp, void*, std::uint16_t, std::uint16_t) {
    unsupported(of(qp));
  };
  pair.wr_set_ud_addr = [](ibv_qp_ex* qp, ibv_ah*, std::uint32_t, std::uint32_t) {
    unsupported(of(qp));
  };
  pair.wr_set_xrc_srqn = [](ibv_qp_ex* qp, std::uint32_t) { unsupported(of(qp)); };
  pair.wr_atomic_write = [](ibv_qp_ex* qp, std::uint32_t, std::uint64_t, const void*) {
    unsupported(of(qp));
  };
}

namespace {

int take_next(ibv_cq_ex* handle) {
  Cq& queue = of(handle);
  if (!queue.next(queue.current)) return ENOENT;
  handle->wr_id = queue.current.wr_id;
  handle->status = queue.current.status;
  return 0;
}

int start_poll(ibv_cq_ex* handle, ibv_poll_cq_attr* attributes) {
  if (attributes->comp_mask != 0) return EINVAL;
  Cq& queue = of(handle);
  queue.mutex.lock();
  if (take_next(handle) == 0) return 0;
  queue.mutex.unlock();
  queue.context->runtime->poll();
  queue.mutex.lock();
  if (take_next(handle) == 0) return 0;
  queue.mutex.unlock();
  return ENOENT;
}

}  // namespace

void set_poll_functions(ibv_cq_ex& queue) {
  queue.start_poll = start_poll;
  queue.next_poll = take_next;
  queue.end_poll = [](ibv_cq_ex* handle) { of(handle).mutex.unlock(); };
  queue.read_opcode = [](ibv_cq_ex* handle) { return of(handle).current.opcode; };
  queue.read_vendor_err = [](ibv_cq_ex* handle) { return of(handle).current.vendor_err; };
  queue.read_byte_len = [](ibv_cq_ex* handle) { return of(handle).current.byte_len; };
  // Readers of an invalidated key swap this word.
  queue.read_imm_data = [](ibv_cq_ex* handle) -> __be32 {
    const ibv_wc& current = of(handle).current;
    return (current.wc_flags & IBV_WC_WITH_INV) != 0 ? swap_bytes(current.invalidated_rkey)
                                                     : current.imm_data;
  };
  queue.read_qp_num = [](ibv_cq_ex* handle) { return of(handle).current.qp_num; };
  queue.read_src_qp = [](ibv_cq_ex* handle) { return of(handle).current.src_qp; };
  queue.read_wc_flags = [](ibv_cq_ex* handle) -> unsigned { return of(handle).current.wc_flags; };
  queue.read_slid = [](ibv_cq_ex* handle) -> std::uint32_t { return of(handle).current.slid; };
  queue.read_sl = [](ibv_cq_ex*) -> std::uint8_t { return 0; };
  queue.read_dlid_path_bits = [](ibv_cq_ex*) -> std::uint8_t { return 0; };
  queue.read_completion_ts = [](ibv_cq_ex* handle) { return of(handle).current_time; };
  queue.read_completion_wallclock_ns = [](ibv_cq_ex* handle) { return of(handle).current_time; };
}

}  // namespace shoal::emulator
