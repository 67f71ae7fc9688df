// SPDX-License-Identifier: Apache-2.0
// mlx5dv without DEVX: what the device is, and where the rings of verbs objects lie.
#include <infiniband/mlx5dv.h>

#include <cerrno>
#include <cstring>

#include "verbs/address_handle.hpp"
#include "verbs/objects.hpp"

namespace shoal::emulator {
namespace {

void show(Qp& qp, mlx5dv_qp& out) {
  if (!qp.watched) {
    qp.watched = true;
    qp.context->runtime->watch(
        &qp, qp.doorbell_register,
        [number = qp.handle()->qp_num](Nic& nic, std::uint64_t) { nic.doorbell(number); });
  }
  const std::uint64_t asked = out.comp_mask;
  out.dbrec = reinterpret_cast<__be32*>(qp.record);
  out.sq = {.buf = qp.send_ring, .wqe_cnt = qp.blocks, .stride = kBlockBytes};
  out.rq = {.buf = qp.receive_ring, .wqe_cnt = qp.receive_size, .stride = qp.receive_stride};
  out.bf = {.reg = qp.doorbell_register, .size = 0};  // no BlueFlame: 8-byte doorbells
  out.comp_mask = asked & MLX5DV_QP_MASK_UAR_MMAP_OFFSET;
  if (out.comp_mask != 0) out.uar_mmap_offset = 0;
}

void show(Cq& queue, mlx5dv_cq& out) {
  out.buf = queue.memory.data();
  out.dbrec = reinterpret_cast<__be32*>(queue.record);
  out.cqe_cnt = queue.size;
  out.cqe_size = kCqeBytes;
  // Clients add the offset of the register for notification requests.
  constexpr std::size_t kArmOffset = 0x20;
  if (queue.notification_page.data() == nullptr) {
    queue.notification_page = Pages(4096);
    queue.context->runtime->watch(
        &queue, reinterpret_cast<std::uint64_t*>(queue.notification_page.data() + kArmOffset),
        [cq = queue.queue](Nic&, std::uint64_t word) {
          cq->arm(swap_bytes(static_cast<std::uint32_t>(word)));
        });
  }
  out.cq_uar = queue.notification_page.data();
  out.cqn = queue.queue->number();
  out.comp_mask = 0;
}

void show(Srq& queue, mlx5dv_srq& out) {
  const std::uint64_t asked = out.comp_mask;
  out.buf = queue.memory.data();
  out.dbrec = reinterpret_cast<__be32*>(queue.record);
  out.stride = queue.stride;
  out.head = queue.head;
  out.tail = queue.tail;
  out.comp_mask = asked & MLX5DV_SRQ_MASK_SRQN;
  if (out.comp_mask != 0) out.srqn = queue.queue->number();
}

}  // namespace
}  // namespace shoal::emulator

using namespace shoal::emulator;

extern "C" {

bool mlx5dv_is_supported(ibv_device* device) {
  return is_emulated(device);
}

ibv_context* mlx5dv_open_device(ibv_device* device, mlx5dv_context_attr* attributes) {
  constexpr std::uint32_t kKnown = MLX5DV_CONTEXT_FLAGS_DEVX;
  if (!is_emulated(device)) return fail_with(EOPNOTSUPP);
  if ((attributes->flags & ~kKnown) != 0 || attributes->comp_mask != 0)
    return fail_with(EOPNOTSUPP);
  return ibv_open_device(device);
}

int mlx5dv_query_device(ibv_context*, mlx5dv_context* out) {
  *out = {};
  out->flags = MLX5DV_CONTEXT_FLAGS_CQE_V1;
  return 0;
}

int mlx5dv_init_obj(mlx5dv_obj* object, std::uint64_t types) {
  constexpr std::uint64_t kKnown =
      MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ | MLX5DV_OBJ_AH | MLX5DV_OBJ_PD;
  if ((types & ~kKnown) != 0) return EOPNOTSUPP;
  if ((types & MLX5DV_OBJ_QP) != 0) show(of(object->qp.in), *object->qp.out);
  if ((types & MLX5DV_OBJ_CQ) != 0) show(of(object->cq.in), *object->cq.out);
  if ((types & MLX5DV_OBJ_SRQ) != 0) show(of(object->srq.in), *object->srq.out);
  if ((types & MLX5DV_OBJ_AH) != 0)
    *object->ah.out = {.av = &of(object->ah.in).vector, .comp_mask = 0};
  if ((types & MLX5DV_OBJ_PD) != 0)
    *object->pd.out = {.pdn = of(object->pd.in).number, .comp_mask = 0};
  return 0;
}

int mlx5dv_set_context_attr(ibv_context*, mlx5dv_set_ctx_attr_type, void*) {
  return EOPNOTSUPP;
}

ibv_cq_ex* mlx5dv_create_cq(ibv_context* context, ibv_cq_init_attr_ex* attributes,
                            mlx5dv_cq_init_attr* direct) {
  constexpr std::uint64_t kSize = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
  if (direct != nullptr && ((direct->comp_mask & ~kSize) != 0 ||
                            ((direct->comp_mask & kSize) != 0 && direct->cqe_size != kCqeBytes)))
    return fail_with(EOPNOTSUPP);
  return create_cq_extended(context, attributes);
}

ibv_qp* mlx5dv_create_qp(ibv_context* context, ibv_qp_init_attr_ex* attributes,
                         mlx5dv_qp_init_attr* direct) {
  // Small data are never scattered to CQEs, which clients may forbid or allow.
  constexpr std::uint32_t kScatter =
      MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE | MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE;
  if (direct != nullptr && ((direct->comp_mask & ~MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS) != 0 ||
                            (direct->create_flags & ~kScatter) != 0))
    return fail_with(EOPNOTSUPP);
  return create_qp_extended(context, attributes);
}

mlx5dv_qp_ex* mlx5dv_qp_ex_from_ibv_qp_ex(ibv_qp_ex*) {
  return fail_with(EOPNOTSUPP);
}

// Memory keys that are described by work requests, and encryption.
mlx5dv_mkey* mlx5dv_create_mkey(mlx5dv_mkey_init_attr*) {
  return fail_with(EOPNOTSUPP);
}
int mlx5dv_destroy_mkey(mlx5dv_mkey*) {
  return EOPNOTSUPP;
}
int mlx5dv_crypto_login(ibv_context*, mlx5dv_crypto_login_attr*) {
  return EOPNOTSUPP;
}
mlx5dv_dek* mlx5dv_dek_create(ibv_context*, mlx5dv_dek_init_attr*) {
  return fail_with(EOPNOTSUPP);
}
int mlx5dv_dek_destroy(mlx5dv_dek*) {
  return EOPNOTSUPP;
}

}  // extern "C"
