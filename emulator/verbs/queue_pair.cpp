// SPDX-License-Identifier: Apache-2.0
// Queue pairs: sizes, creation, states.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>

#include "engine/big_endian.hpp"
#include "verbs/objects.hpp"

namespace shoal::emulator {
namespace {

/// Bytes of a send request, as the mlx5 driver of rdma-core sizes them: room for every operation of
/// a reliable connection, or only for those that the client names.
std::uint32_t request_bytes(std::uint32_t segments, std::uint32_t inline_bytes, bool small) {
  constexpr std::uint32_t kControlAndRemote = 32, kAtomic = 16, kLargest = 192;
  const std::uint32_t head = small ? kControlAndRemote + kAtomic : kLargest;
  const std::uint32_t with_data = head + segments * static_cast<std::uint32_t>(kSegmentBytes);
  const std::uint32_t with_inline =
      kControlAndRemote + (inline_bytes == 0 ? 0 : (inline_bytes + 4 + 15) / 16 * 16);
  return (std::max(with_data, with_inline) + 63) / 64 * 64;
}

struct Sizes {
  std::uint32_t request = 0;  ///< bytes
  std::uint32_t blocks = 0;
  std::uint32_t receive_stride = 0, receives = 0;
};

/// The rings for these capabilities, which become what the rings allow; false where the device has
/// none so large.
bool size_rings(const NicLimits& limits, bool small, bool own_receives, ibv_qp_cap& cap,
                Sizes& sizes) {
  if (cap.max_send_wr > limits.queue_blocks || cap.max_recv_wr > limits.receive_requests ||
      cap.max_send_sge > limits.segments || cap.max_recv_sge > limits.segments ||
      cap.max_inline_data > limits.inline_bytes)
    return false;
  sizes.request = request_bytes(std::max(1U, cap.max_send_sge), cap.max_inline_data, small);
  if (cap.max_send_wr != 0) {
    const std::uint64_t bytes = std::uint64_t{cap.max_send_wr} * sizes.request;
    sizes.blocks = static_cast<std::uint32_t>(std::bit_ceil((bytes + 63) / 64));
    if (sizes.blocks > limits.queue_blocks) return false;
    cap.max_send_wr = sizes.blocks * static_cast<std::uint32_t>(kBlockBytes) / sizes.request;
    cap.max_inline_data = std::min(sizes.request - 36, limits.inline_bytes);
    cap.max_send_sge = std::max(1U, cap.max_send_sge);
  }
  if (!own_receives) {
    cap.max_recv_wr = cap.max_recv_sge = 0;
    return true;
  }
  if (cap.max_recv_wr == 0) return true;
  cap.max_recv_sge = std::max(1U, cap.max_recv_sge);
  sizes.receive_stride =
      std::bit_ceil(cap.max_recv_sge * static_cast<std::uint32_t>(kSegmentBytes));
  sizes.receives = std::bit_ceil(cap.max_recv_wr);
  cap.max_recv_wr = sizes.receives;
  return true;
}

/// Computes the layout of a queue pair's memory.
void lay_out(Qp& qp, const Sizes& sizes) {
  const std::size_t receive = std::size_t{sizes.receives} * sizes.receive_stride;
  const std::size_t aligned = (receive + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const std::size_t send = std::size_t{sizes.blocks} * kBlockBytes;
  qp.memory = Pages(aligned + send + 128);
  qp.receive_ring = qp.memory.data();
  qp.send_ring = qp.memory.data() + aligned;
  qp.record = qp.send_ring + send;
  qp.doorbell_register = reinterpret_cast<std::uint64_t*>(qp.record + 64);
  qp.blocks = sizes.blocks;
  qp.receive_size = sizes.receives;
  qp.receive_stride = sizes.receive_stride;
  qp.sent.resize(sizes.blocks);
  qp.receive_ids.resize(sizes.receives);
}

Status create_in_nic(Nic& nic, Qp& qp) {
  if (qp.receive_size != 0)
    qp.receives =
        std::make_shared<ReceiveQueue>(0, ReceiveQueueAttributes{.memory = qp.receive_ring,
                                                                 .size = qp.receive_size,
                                                                 .stride = qp.receive_stride,
                                                                 .doorbell_record = qp.record,
                                                                 .domain = qp.domain->number});
  if (qp.srq != nullptr) qp.receives = qp.srq->queue;
  const auto created = nic.create_queue_pair(
      {.domain = qp.domain->number,
       .send_completions = qp.send_queue == nullptr ? nullptr : qp.send_queue->queue,
       .receive_completions = qp.receive_queue == nullptr ? nullptr : qp.receive_queue->queue,
       .ring = {qp.send_ring, qp.blocks},
       .doorbell_record = qp.record,
       .receives = qp.receives});
  qp.pair = created.object;
  return created.status;
}

/// No receive of the shared queue belongs to the queue pair any more.
void report_last_request(Qp& qp) {
  ibv_async_event event{};
  event.element.qp = qp.handle();
  event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
  qp.context->events.push(event);
}

/// A request of the peer was refused.
void report_refusal(Qp& qp, std::uint8_t code) {
  ibv_async_event event{};
  event.element.qp = qp.handle();
  event.event_type = code == AckCode::access_error      ? IBV_EVENT_QP_ACCESS_ERR
                     : code == AckCode::invalid_request ? IBV_EVENT_QP_REQ_ERR
                                                        : IBV_EVENT_QP_FATAL;
  qp.context->events.push(event);
}

bool is_of_queue_pair(const ibv_async_event& event) {
  return event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED ||
         event.event_type == IBV_EVENT_QP_ACCESS_ERR || event.event_type == IBV_EVENT_QP_REQ_ERR ||
         event.event_type == IBV_EVENT_QP_FATAL;
}

ibv_qp* create_qp(Pd& domain, ibv_qp_init_attr& init, bool small, bool extended) {
  Context& context = *domain.context;
  if (init.qp_type != IBV_QPT_RC) return fail_with(EOPNOTSUPP);
  if (init.send_cq == nullptr || init.recv_cq == nullptr) return fail_with(EINVAL);
  auto qp = std::make_unique<Qp>();
  qp->context = &context;
  qp->domain = &domain;
  qp->send_queue = &of(init.send_cq);
  qp->receive_queue = &of(init.recv_cq);
  qp->srq = init.srq == nullptr ? nullptr : &of(init.srq);
  qp->extended = extended;
  qp->signal_all = init.sq_sig_all != 0;
  Sizes sizes;
  const NicLimits& limits = context.runtime->settings().nic.limits;
  if (!size_rings(limits, small, init.srq == nullptr, init.cap, sizes)) return fail_with(EINVAL);
  lay_out(*qp, sizes);
  const Status status =
      context.runtime->with_nic([&](Nic& nic) { return create_in_nic(nic, *qp); });
  if (status != Status::ok) return fail_with(errno_of(status));
  qp->most_requests = init.cap.max_send_wr;
  qp->most_segments = init.cap.max_send_sge;
  qp->most_inline = init.cap.max_inline_data;
  qp->most_receives = init.cap.max_recv_wr;
  qp->receive_segments = init.cap.max_recv_sge;
  if (qp->srq != nullptr) qp->pair->on_error = [made = qp.get()] { report_last_request(*made); };
  qp->pair->on_refused = [made = qp.get()](std::uint8_t code) { report_refusal(*made, code); };
  qp->writer.emplace(qp->send_ring, qp->blocks, qp->pair->number());
  qp->init = init;
  qp->attributes.cap = init.cap;
  ibv_qp& base = *qp->handle();
  base.context = context.base();
  base.qp_context = init.qp_context;
  base.pd = &domain.base;
  base.send_cq = init.send_cq;
  base.recv_cq = init.recv_cq;
  base.srq = init.srq;
  base.handle = base.qp_num = qp->pair->number();
  base.state = IBV_QPS_RESET;
  base.qp_type = init.qp_type;
  pthread_mutex_init(&base.mutex, nullptr);
  pthread_cond_init(&base.cond, nullptr);
  if (extended) set_request_functions(qp->base);
  context.qps.set(base.qp_num, qp.get());
  ++domain.users;
  return qp.release()->handle();
}

/// Attributes that a transition needs in addition to the state (InfiniBand, table 91).
int required_for(ibv_qp_state from, ibv_qp_state to) {
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
    return IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
    return IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
    return IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
           IBV_QP_MAX_QP_RD_ATOMIC;
  return 0;
}

bool to_state(ibv_qp_state state, QpState& to) {
  switch (state) {
    case IBV_QPS_RESET:
      to = QpState::reset;
      return true;
    case IBV_QPS_INIT:
      to = QpState::init;
      return true;
    case IBV_QPS_RTR:
      to = QpState::ready_to_receive;
      return true;
    case IBV_QPS_RTS:
      to = QpState::ready_to_send;
      return true;
    case IBV_QPS_ERR:
      to = QpState::error;
      return true;
    default:
      return false;
  }
}

/// Reads what `mask` names. False for values that no device accepts.
bool apply(const ibv_qp_attr& from, int mask, ibv_qp_attr& kept, Connection& to) {
  const auto has = [mask](int bit) { return (mask & bit) != 0; };
  if (has(IBV_QP_PKEY_INDEX) && (kept.pkey_index = from.pkey_index) != 0) return false;
  if (has(IBV_QP_PORT) && (kept.port_num = from.port_num) != 1) return false;
  if (has(IBV_QP_ACCESS_FLAGS)) {
    kept.qp_access_flags = from.qp_access_flags;
    to.access =
        from.qp_access_flags & (Access::remote_write | Access::remote_read | Access::remote_atomic);
  }
  if (has(IBV_QP_AV)) {
    kept.ah_attr = from.ah_attr;
    if (from.ah_attr.port_num != 0 && from.ah_attr.port_num != 1) return false;
    if (from.ah_attr.is_global != 0 && from.ah_attr.grh.sgid_index >= Attachment::kGids)
      return false;
  }
  if (has(IBV_QP_PATH_MTU)) {
    if (from.path_mtu < IBV_MTU_256 || from.path_mtu > IBV_MTU_4096) return false;
    kept.path_mtu = from.path_mtu;
    to.mtu = 128U << from.path_mtu;
  }
  if (has(IBV_QP_DEST_QPN)) to.remote_qp = (kept.dest_qp_num = from.dest_qp_num) & kPsnMask;
  if (has(IBV_QP_RQ_PSN)) to.receive_psn = (kept.rq_psn = from.rq_psn & kPsnMask);
  if (has(IBV_QP_SQ_PSN)) to.send_psn = (kept.sq_psn = from.sq_psn & kPsnMask);
  if (has(IBV_QP_MAX_DEST_RD_ATOMIC))
    to.remote_reads_and_atomics = kept.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if (has(IBV_QP_MAX_QP_RD_ATOMIC)) to.reads_and_atomics = kept.max_rd_atomic = from.max_rd_atomic;
  if (has(IBV_QP_MIN_RNR_TIMER)) to.min_rnr_timer = kept.min_rnr_timer = from.min_rnr_timer;
  if (has(IBV_QP_TIMEOUT)) to.ack_timeout = kept.timeout = from.timeout;
  if (has(IBV_QP_RETRY_CNT)) to.retry_count = kept.retry_cnt = from.retry_cnt;
  if (has(IBV_QP_RNR_RETRY)) to.rnr_retry = kept.rnr_retry = from.rnr_retry;
  if (has(IBV_QP_PATH_MIG_STATE)) kept.path_mig_state = from.path_mig_state;
  return true;
}

constexpr int kKnownMask = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS |
                           IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_AV | IBV_QP_PATH_MTU |
                           IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_PATH_MIG_STATE | IBV_QP_DEST_QPN;

/// Finds the peer that `kept` names. Says why there is none.
bool find_path(const Qp& qp, const ibv_qp_attr& kept, Connection& to) {
  Runtime& runtime = *qp.context->runtime;
  const ibv_ah_attr& path = kept.ah_attr;
  Gid gid;
  std::memcpy(gid.data(), path.grh.dgid.raw, gid.size());
  const auto lid = runtime.route(path.dlid, path.is_global != 0 ? &gid : nullptr, to.remote_qp);
  const std::uint32_t most = runtime.attachment().mtu();
  if (!lid)
    report("queue pair %#x cannot reach queue pair %#x: %s", qp.pair->number(), to.remote_qp,
           runtime.attachment().obstacle().c_str());
  else if (to.mtu > most)
    report("queue pair %#x has a path MTU of %u; this port has %u", qp.pair->number(), to.mtu,
           most);
  to.remote_lid = lid.value_or(0);
  return lid && to.mtu <= most;
}

ibv_qp_state current_state(const Qp& qp) {
  switch (qp.pair->state()) {
    case QpState::reset:
      return IBV_QPS_RESET;
    case QpState::init:
      return IBV_QPS_INIT;
    case QpState::ready_to_receive:
      return IBV_QPS_RTR;
    case QpState::ready_to_send:
      return IBV_QPS_RTS;
    default:
      return IBV_QPS_ERR;
  }
}

/// Removes the CQEs of a queue pair from its completion queues. With the lock of the NIC.
void forget_completions(Qp& qp) {
  const std::uint32_t number = qp.handle()->qp_num;
  qp.send_queue->forget(number);
  if (qp.receive_queue != qp.send_queue) qp.receive_queue->forget(number);
}

/// use(nic) with the locks of both completion queues and of the NIC.
template <typename Use>
auto with_queues(Qp& qp, Use use) {
  std::unique_lock<std::mutex> first(qp.send_queue->mutex, std::defer_lock), second;
  if (qp.receive_queue != qp.send_queue) {
    second = std::unique_lock<std::mutex>(qp.receive_queue->mutex, std::defer_lock);
    std::lock(first, second);
  } else {
    first.lock();
  }
  return qp.context->runtime->with_nic(use);
}

}  // namespace

void Qp::reset() {
  writer->reset();
  posted = receives_posted = 0;
  completed = receives_completed = 0;
  store_be(record, std::uint64_t{0});
}

ibv_qp* create_qp_extended(ibv_context*, ibv_qp_init_attr_ex* attributes) {
  constexpr std::uint32_t kKnown =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  constexpr std::uint64_t kKnownOperations =
      IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
      IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
      IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV;
  const std::uint32_t mask = attributes->comp_mask;
  if ((mask & ~kKnown) != 0) return fail_with(EOPNOTSUPP);
  if ((mask & IBV_QP_INIT_ATTR_PD) == 0 || attributes->pd == nullptr) return fail_with(EINVAL);
  if ((mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attributes->create_flags != 0)
    return fail_with(EOPNOTSUPP);
  const bool extended = (mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if (extended && (attributes->send_ops_flags & ~kKnownOperations) != 0)
    return fail_with(EOPNOTSUPP);
  ibv_qp_init_attr init;
  std::memcpy(&init, attributes, sizeof init);  // the same layout up to sq_sig_all
  ibv_qp* const pair =
      or_no_memory([&] { return create_qp(of(attributes->pd), init, extended, extended); });
  if (pair != nullptr) attributes->cap = init.cap;
  return pair;
}

}  // namespace shoal::emulator

using namespace shoal::emulator;

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* init) {
  return or_no_memory([&] { return create_qp(of(domain), *init, false, false); });
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* pair) {
  return of(pair).extended ? &of(pair).base : nullptr;
}

int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  Qp& qp = of(pair);
  if ((mask & ~kKnownMask) != 0) return EINVAL;
  return with_queues(qp, [&](Nic& nic) {
    const ibv_qp_state from = current_state(qp);
    if ((mask & IBV_QP_CUR_STATE) != 0 && attributes->cur_qp_state != from) return EINVAL;
    const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : from;
    QpState state;
    const int required = required_for(from, to);
    if (!to_state(to, state) || (mask & required) != required) return EINVAL;
    Connection connection = qp.connection;
    ibv_qp_attr kept = qp.attributes;
    if (!apply(*attributes, mask, kept, connection)) return EINVAL;
    if ((mask & (IBV_QP_AV | IBV_QP_PATH_MTU)) != 0 && !find_path(qp, kept, connection))
      return EINVAL;
    connection.ordering = qp.context->runtime->settings().ordering;
    const Status status = qp.pair->modify(state, connection);
    if (status != Status::ok) return errno_of(status);
    if (state == QpState::reset) {
      forget_completions(qp);
      qp.reset();
    }
    qp.connection = connection;
    qp.attributes = kept;
    qp.handle()->state = to;
    if (state == QpState::ready_to_send) nic.doorbell(pair->qp_num);
    return 0;
  });
}

int ibv_query_qp(ibv_qp* pair, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) {
  Qp& qp = of(pair);
  qp.context->runtime->with_nic([&](Nic&) {
    *attributes = qp.attributes;
    attributes->qp_state = attributes->cur_qp_state = pair->state = current_state(qp);
    *init = qp.init;
    return 0;
  });
  return 0;
}

int ibv_destroy_qp(ibv_qp* pair) {
  Qp& qp = of(pair);
  if (qp.watched) qp.context->runtime->unwatch(&qp);
  const Status status = with_queues(qp, [&](Nic& nic) {
    const Status destroyed = nic.destroy_queue_pair(pair->qp_num);
    if (destroyed != Status::ok) return destroyed;
    forget_completions(qp);
    qp.context->qps.set(pair->qp_num, nullptr);
    return destroyed;
  });
  if (status != Status::ok) return errno_of(status);
  qp.context->events.remove([&](const ibv_async_event& event) {
    return is_of_queue_pair(event) && event.element.qp == pair;
  });
  --qp.domain->users;
  delete &qp;
  return 0;
}

int ibv_query_qp_data_in_order(ibv_qp* pair, ibv_wr_opcode opcode, std::uint32_t) {
  return opcode == IBV_WR_RDMA_WRITE &&
         of(pair).context->runtime->settings().ordering == Ordering::strict;
}

int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
  *ece = {};
  return 0;
}

int ibv_set_ece(ibv_qp*, ibv_ece* ece) {
  return ece->vendor_id == 0 ? 0 : EOPNOTSUPP;
}

}  // extern "C"
