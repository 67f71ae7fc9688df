// SPDX-License-Identifier: Apache-2.0
// Completion queues: creation, polling, notification.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>

#include "engine/big_endian.hpp"
#include "verbs/objects.hpp"

namespace shoal::emulator {
namespace {

constexpr std::uint32_t kRecordBytes = 8;

ibv_wc_status status_of(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::none:
      return IBV_WC_SUCCESS;
    case Syndrome::local_length:
      return IBV_WC_LOC_LEN_ERR;
    case Syndrome::local_qp_operation:
      return IBV_WC_LOC_QP_OP_ERR;
    case Syndrome::local_protection:
      return IBV_WC_LOC_PROT_ERR;
    case Syndrome::flushed:
      return IBV_WC_WR_FLUSH_ERR;
    case Syndrome::bad_response:
      return IBV_WC_BAD_RESP_ERR;
    case Syndrome::local_access:
      return IBV_WC_LOC_ACCESS_ERR;
    case Syndrome::remote_invalid_request:
      return IBV_WC_REM_INV_REQ_ERR;
    case Syndrome::remote_access:
      return IBV_WC_REM_ACCESS_ERR;
    case Syndrome::remote_operation:
      return IBV_WC_REM_OP_ERR;
    case Syndrome::retry_exceeded:
      return IBV_WC_RETRY_EXC_ERR;
    case Syndrome::rnr_retry_exceeded:
      return IBV_WC_RNR_RETRY_EXC_ERR;
    case Syndrome::remote_aborted:
      return IBV_WC_REM_ABORT_ERR;
  }
  return IBV_WC_GENERAL_ERR;
}

ibv_wc_opcode opcode_of(Opcode sent) {
  switch (sent) {
    case Opcode::write:
    case Opcode::write_immediate:
      return IBV_WC_RDMA_WRITE;
    case Opcode::read:
      return IBV_WC_RDMA_READ;
    case Opcode::compare_swap:
    case Opcode::masked_compare_swap:
      return IBV_WC_COMP_SWAP;
    case Opcode::fetch_add:
    case Opcode::masked_fetch_add:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

void read_received(CqeOpcode opcode, const std::byte* entry, ibv_wc& completion) {
  completion.opcode =
      opcode == CqeOpcode::response_write_immediate ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  completion.byte_len = load_be<std::uint32_t>(entry + 44);
  std::memcpy(&completion.imm_data, entry + 36, 4);
  if (opcode == CqeOpcode::response_write_immediate || opcode == CqeOpcode::response_send_immediate)
    completion.wc_flags = IBV_WC_WITH_IMM;
  if (opcode == CqeOpcode::response_send_invalidate) {
    completion.wc_flags = IBV_WC_WITH_INV;
    completion.invalidated_rkey = swap_bytes(std::uint32_t{completion.invalidated_rkey});
  }
}

Cq* create_cq(Context& context, std::uint32_t entries, ibv_comp_channel* channel,
              void* client_context) {
  const NicLimits& limits = context.runtime->settings().nic.limits;
  if (entries == 0 || entries >= limits.completion_entries) return fail_with(EINVAL);
  auto queue = std::make_unique<Cq>();
  queue->context = &context;
  queue->size = std::bit_ceil(entries + 1);
  queue->memory = Pages(queue->size * kCqeBytes + kRecordBytes);
  queue->record = queue->memory.data() + queue->size * kCqeBytes;
  for (std::uint32_t i = 0; i < queue->size; ++i)
    queue->memory.data()[i * kCqeBytes + 63] = std::byte{0xf0};
  Cq* const made = queue.get();
  const auto created = context.runtime->with_nic([&](Nic& nic) {
    auto result = nic.create_completion_queue(
        {.entries = queue->memory.data(), .size = queue->size, .doorbell_record = queue->record});
    if (result.object && channel != nullptr)
      result.object->on_event = [made, channel] { of(channel).events.push(made); };
    if (result.object)
      result.object->on_overrun = [made] {
        ibv_async_event event{};
        event.element.cq = reinterpret_cast<ibv_cq*>(&made->base);
        event.event_type = IBV_EVENT_CQ_ERR;
        made->context->events.push(event);
      };
    return result;
  });
  if (created.status != Status::ok) return fail_with(errno_of(created.status));
  queue->queue = created.object;
  ibv_cq_ex& base = queue->base;
  base.context = context.base();
  base.channel = channel;
  base.cq_context = client_context;
  base.handle = created.object->number();
  base.cqe = static_cast<int>(queue->size - 1);
  pthread_mutex_init(&base.mutex, nullptr);
  pthread_cond_init(&base.cond, nullptr);
  if (channel != nullptr) ++channel->refcnt;
  ++context.objects;
  return queue.release();
}

}  // namespace

bool Cq::resolve(const std::byte* entry, ibv_wc& completion) {
  const auto last = static_cast<std::uint8_t>(entry[63]);
  const auto opcode = static_cast<CqeOpcode>(last >> 4);
  const auto index = load_be<std::uint16_t>(entry + 60);
  const auto origin = load_be<std::uint32_t>(entry + 56);
  const std::uint32_t qp_number = origin & kPsnMask;
  if (last_qp == nullptr || last_qp->handle()->qp_num != qp_number)
    last_qp = context->qps.find(qp_number);
  if (last_qp == nullptr) return false;  // destroyed
  Qp& qp = *last_qp;
  const bool failed = opcode == CqeOpcode::request_error || opcode == CqeOpcode::response_error;
  completion = {};
  completion.qp_num = qp_number;
  completion.src_qp = load_be<std::uint32_t>(entry + 24) & kPsnMask;
  if (failed) {
    completion.status = status_of(static_cast<Syndrome>(entry[55]));
    completion.vendor_err = static_cast<std::uint32_t>(entry[54]);
  }
  current_time = load_be<std::uint64_t>(entry + 48);
  if (opcode == CqeOpcode::request || opcode == CqeOpcode::request_error) {
    completion.wr_id = qp.completed_send(index);
    completion.opcode = opcode_of(static_cast<Opcode>(origin >> 24));
    if (!failed) completion.byte_len = load_be<std::uint32_t>(entry + 44);
    return true;
  }
  completion.wr_id = qp.srq != nullptr ? qp.srq->used(index) : qp.completed_receive(index);
  completion.opcode = IBV_WC_RECV;
  if (!failed) read_received(opcode, entry, completion);
  return true;
}

void Cq::publish() const {
  store_shared_be32(record, consumed & kPsnMask);
}

bool Cq::next(ibv_wc& completion) {
  while (true) {
    const std::byte* const entry = memory.data() + std::size_t{consumed & (size - 1)} * kCqeBytes;
    auto* const word = reinterpret_cast<std::uint32_t*>(const_cast<std::byte*>(entry + 60));
    const std::uint32_t last =
        std::atomic_ref<std::uint32_t>(*word).load(std::memory_order_acquire) >> 24;
    const bool owner = (consumed & size) != 0;
    if (last >> 4 == static_cast<std::uint32_t>(CqeOpcode::invalid) || (last & 1) != owner)
      return false;
    const bool known = resolve(entry, completion);
    ++consumed;
    publish();
    if (known) return true;
  }
}

void Cq::forget(std::uint32_t qp_number) {
  if (last_qp != nullptr && last_qp->handle()->qp_num == qp_number) last_qp = nullptr;
  for (auto i = consumed; i != static_cast<std::uint32_t>(queue->produced()); ++i) {
    std::byte* const entry = memory.data() + std::size_t{i & (size - 1)} * kCqeBytes;
    if ((load_be<std::uint32_t>(entry + 56) & kPsnMask) != qp_number) continue;
    const auto opcode = static_cast<CqeOpcode>(static_cast<std::uint8_t>(entry[63]) >> 4);
    Qp* const qp = context->qps.find(qp_number);
    if (qp != nullptr && qp->srq != nullptr && opcode != CqeOpcode::request &&
        opcode != CqeOpcode::request_error)
      (void)qp->srq->used(load_be<std::uint16_t>(entry + 60));
    store_be(entry + 56, std::uint32_t{0});  // no queue pair has the number 0
  }
}

int poll_cq(ibv_cq* handle, int most, ibv_wc* completions) {
  Cq& queue = of(handle);
  int count = 0;
  {
    const std::lock_guard lock(queue.mutex);
    while (count < most && queue.next(completions[count])) ++count;
  }
  if (count != 0 || most == 0) return count;
  queue.context->runtime->poll();
  const std::lock_guard lock(queue.mutex);
  while (count < most && queue.next(completions[count])) ++count;
  return count;
}

int request_notification(ibv_cq* handle, int solicited_only) {
  Cq& queue = of(handle);
  const std::lock_guard lock(queue.mutex);
  const std::uint32_t word = (queue.arm_sequence & 3) << 28 |
                             std::uint32_t{solicited_only != 0} << 24 | (queue.consumed & kPsnMask);
  ++queue.arm_sequence;
  store_be(queue.record + 4, word);
  queue.context->runtime->with_nic([&](Nic&) { queue.queue->arm(word); });
  return 0;
}

ibv_cq_ex* create_cq_extended(ibv_context* context, ibv_cq_init_attr_ex* attributes) {
  constexpr std::uint32_t kKnownMask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  constexpr std::uint32_t kKnownFlags =
      IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  if ((attributes->comp_mask & ~kKnownMask) != 0 ||
      ((attributes->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 &&
       (attributes->flags & ~kKnownFlags) != 0))
    return fail_with(EOPNOTSUPP);
  if (attributes->comp_vector != 0) return fail_with(EINVAL);
  Cq* const queue = or_no_memory([&] {
    return create_cq(of(context), attributes->cqe, attributes->channel, attributes->cq_context);
  });
  if (queue == nullptr) return nullptr;
  set_poll_functions(queue->base);
  return &queue->base;
}

}  // namespace shoal::emulator

using namespace shoal::emulator;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  try {
    auto channel = std::make_unique<Channel>();
    channel->base = {.context = context, .fd = channel->events.fd(), .refcnt = 0};
    ++of(context).objects;
    return &channel.release()->base;
  } catch (const std::bad_alloc&) {
    return fail_with(EMFILE);
  }
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  if (channel->refcnt != 0) return EBUSY;
  --of(channel->context).objects;
  delete &of(channel);
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* client_context,
                      ibv_comp_channel* channel, int vector) {
  if (vector < 0 || vector >= context->num_comp_vectors || entries <= 0) return fail_with(EINVAL);
  Cq* const queue = or_no_memory([&] {
    return create_cq(of(context), static_cast<std::uint32_t>(entries), channel, client_context);
  });
  return queue == nullptr ? nullptr : reinterpret_cast<ibv_cq*>(&queue->base);
}

int ibv_resize_cq(ibv_cq* queue, int entries) {
  if (entries <= 0) return EINVAL;
  return entries <= queue->cqe ? 0 : EOPNOTSUPP;
}

int ibv_destroy_cq(ibv_cq* handle) {
  Cq& queue = of(handle);
  Context& context = *queue.context;
  const Status status = context.runtime->with_nic([&](Nic& nic) {
    const Status destroyed = nic.destroy_completion_queue(queue.queue->number());
    if (destroyed == Status::ok) queue.queue->on_event = queue.queue->on_overrun = nullptr;
    return destroyed;
  });
  if (status != Status::ok) return errno_of(status);
  context.events.remove([&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == handle;
  });
  if (queue.notification_page.data() != nullptr) context.runtime->unwatch(&queue);
  if (handle->channel != nullptr) {
    of(handle->channel).events.remove([&](const Cq* waiting) { return waiting == &queue; });
    --handle->channel->refcnt;
  }
  --context.objects;
  delete &queue;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** queue, void** client_context) {
  Cq* ready = nullptr;
  if (!of(channel).events.pop(ready)) return -1;
  *queue = reinterpret_cast<ibv_cq*>(&ready->base);
  *client_context = ready->base.cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* queue, unsigned count) {
  const std::lock_guard lock(of(queue).mutex);
  queue->comp_events_completed += count;
}

}  // extern "C"
