// SPDX-License-Identifier: Apache-2.0
// Shared receive queues: a list of requests in memory, linked through their first segments.
#include <bit>
#include <cerrno>
#include <memory>

#include "engine/big_endian.hpp"
#include "verbs/objects.hpp"

namespace shoal::emulator {
namespace {

void link(Srq& queue, std::uint16_t from, std::uint16_t to) {
  store_be(queue.memory.data() + std::size_t{from} * queue.stride + 2, to);
}

std::uint16_t next_of(const Srq& queue, std::uint16_t index) {
  return load_be<std::uint16_t>(queue.memory.data() + std::size_t{index} * queue.stride + 2);
}

Srq* create_srq(Pd& domain, ibv_srq_attr& attributes, void* client_context) {
  Context& context = *domain.context;
  const NicLimits& limits = context.runtime->settings().nic.limits;
  if (attributes.max_wr == 0 || attributes.max_wr >= limits.receive_requests ||
      attributes.max_sge > limits.segments)
    return fail_with(EINVAL);
  auto queue = std::make_unique<Srq>();
  queue->context = &context;
  queue->domain = &domain;
  queue->most_segments = std::max(1U, attributes.max_sge);
  queue->size = std::bit_ceil(attributes.max_wr + 1);
  queue->stride = std::bit_ceil((queue->most_segments + 1) * std::uint32_t{kSegmentBytes});
  queue->memory = Pages(std::size_t{queue->size} * queue->stride + 64);
  queue->record = queue->memory.data() + std::size_t{queue->size} * queue->stride;
  queue->ids.resize(queue->size);
  for (std::uint32_t i = 0; i < queue->size; ++i)
    link(*queue, static_cast<std::uint16_t>(i),
         static_cast<std::uint16_t>((i + 1) & (queue->size - 1)));
  queue->tail = static_cast<std::uint16_t>(queue->size - 1);
  queue->free = queue->size - 1;
  const auto created = context.runtime->with_nic([&](Nic& nic) {
    return nic.create_receive_queue({.memory = queue->memory.data(),
                                     .size = queue->size,
                                     .stride = queue->stride,
                                     .doorbell_record = queue->record,
                                     .shared = true,
                                     .domain = domain.number});
  });
  if (created.status != Status::ok) return fail_with(errno_of(created.status));
  queue->queue = created.object;
  queue->most_requests = attributes.max_wr = queue->size - 1;
  attributes.max_sge = queue->most_segments;
  ibv_srq& base = queue->base;
  base.context = context.base();
  base.srq_context = client_context;
  base.pd = &domain.base;
  base.handle = created.object->number();
  pthread_mutex_init(&base.mutex, nullptr);
  pthread_cond_init(&base.cond, nullptr);
  context.srqs.set(created.object->number(), queue.get());
  ++domain.users;
  return queue.release();
}

}  // namespace

int Srq::post(ibv_recv_wr* request, ibv_recv_wr** bad) {
  const std::lock_guard lock(mutex);
  int error = 0;
  for (; request != nullptr; request = request->next) {
    if (request->num_sge < 0 || static_cast<std::uint32_t>(request->num_sge) > most_segments)
      error = EINVAL;
    else if (free == 0)
      error = ENOMEM;
    if (error != 0) {
      *bad = request;
      break;
    }
    write_receive(memory.data() + std::size_t{head} * stride + kSegmentBytes,
                  stride / kSegmentBytes - 1, *request);
    ids[head] = request->wr_id;
    head = next_of(*this, head);
    --free;
    ++posted;
  }
  store_shared_be32(record, posted);
  return error;
}

std::uint64_t Srq::used(std::uint16_t index) {
  const std::lock_guard lock(mutex);
  link(*this, tail, index);
  tail = index;
  ++free;
  return ids[index];
}

ibv_srq* create_srq_extended(ibv_context*, ibv_srq_init_attr_ex* attributes) {
  const bool basic = (attributes->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0 ||
                     attributes->srq_type == IBV_SRQT_BASIC;
  if (!basic || (attributes->comp_mask & ~(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD)) != 0)
    return fail_with(EOPNOTSUPP);
  if ((attributes->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0) return fail_with(EINVAL);
  Srq* const queue = or_no_memory(
      [&] { return create_srq(of(attributes->pd), attributes->attr, attributes->srq_context); });
  return queue == nullptr ? nullptr : &queue->base;
}

}  // namespace shoal::emulator

using namespace shoal::emulator;

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr* init) {
  Srq* const queue =
      or_no_memory([&] { return create_srq(of(domain), init->attr, init->srq_context); });
  return queue == nullptr ? nullptr : &queue->base;
}

int ibv_modify_srq(ibv_srq*, ibv_srq_attr*, int) {
  return EOPNOTSUPP;
}

int ibv_query_srq(ibv_srq* queue, ibv_srq_attr* attributes) {
  *attributes = {
      .max_wr = of(queue).most_requests, .max_sge = of(queue).most_segments, .srq_limit = 0};
  return 0;
}

int ibv_destroy_srq(ibv_srq* handle) {
  Srq& queue = of(handle);
  const Status status = queue.context->runtime->with_nic(
      [&](Nic& nic) { return nic.destroy_receive_queue(queue.queue->number()); });
  if (status != Status::ok) return errno_of(status);
  queue.context->srqs.set(handle->handle, nullptr);
  --queue.domain->users;
  delete &queue;
  return 0;
}

}  // extern "C"
