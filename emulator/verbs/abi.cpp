// SPDX-License-Identifier: Apache-2.0
// The layout that binaries of rdma-core's clients expect (x86-64 and 64-bit Arm, rdma-core 44).
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstddef>

#include "verbs/address_handle.hpp"
#include "verbs/objects.hpp"

static_assert(sizeof(ibv_context) == 328);
static_assert(offsetof(ibv_context, ops) == 8);
static_assert(offsetof(ibv_context, ops.poll_cq) == 96);
static_assert(offsetof(ibv_context, ops.req_notify_cq) == 104);
static_assert(offsetof(ibv_context, ops.post_srq_recv) == 168);
static_assert(offsetof(ibv_context, ops.post_send) == 208);
static_assert(offsetof(ibv_context, ops.post_recv) == 216);
static_assert(offsetof(ibv_context, async_fd) == 268);
static_assert(offsetof(ibv_context, abi_compat) == 320);

// verbs_context grows downwards from the ibv_context at its end.
constexpr auto kContext = static_cast<std::ptrdiff_t>(offsetof(verbs_context, context));
static_assert(static_cast<std::ptrdiff_t>(offsetof(verbs_context, sz)) - kContext == -8);
static_assert(static_cast<std::ptrdiff_t>(offsetof(verbs_context, create_qp_ex)) - kContext == -56);
static_assert(static_cast<std::ptrdiff_t>(offsetof(verbs_context, query_device_ex)) - kContext ==
              -104);
static_assert(static_cast<std::ptrdiff_t>(offsetof(verbs_context, create_cq_ex)) - kContext ==
              -120);
static_assert(static_cast<std::ptrdiff_t>(offsetof(verbs_context, query_port)) - kContext == -320);
static_assert(sizeof(verbs_context) >= 648);

static_assert(sizeof(ibv_device) == 664);
static_assert(sizeof(ibv_qp) == 160 && offsetof(ibv_qp, qp_num) == 52);
static_assert(offsetof(ibv_qp, state) == 56 && offsetof(ibv_qp, qp_type) == 60);
static_assert(sizeof(ibv_qp_ex) == 352 && offsetof(ibv_qp_ex, wr_id) == 168);
static_assert(sizeof(ibv_cq) == 128 && sizeof(ibv_cq_ex) == 288);
static_assert(sizeof(ibv_mr) == 48 && offsetof(ibv_mr, lkey) == 36 && offsetof(ibv_mr, rkey) == 40);
static_assert(sizeof(ibv_wc) == 48 && sizeof(ibv_send_wr) == 128);
static_assert(sizeof(ibv_device_attr) == 232 && sizeof(ibv_device_attr_ex) == 400);
static_assert(sizeof(ibv_port_attr) == 52 && sizeof(ibv_qp_attr) == 144);
static_assert(sizeof(mlx5dv_qp) == 96 && sizeof(mlx5dv_cq) == 48 && sizeof(mlx5dv_srq) == 48);
static_assert(sizeof(mlx5dv_obj) == 112 && sizeof(mlx5dv_devx_uar) == 40);
static_assert(sizeof(mlx5dv_devx_umem_in) == 48);
static_assert(sizeof(ibv_ah) == 24 && sizeof(mlx5dv_ah) == 16 && sizeof(mlx5_wqe_av) == 48);
static_assert(offsetof(mlx5_wqe_av, rmac) == 20 && offsetof(mlx5_wqe_av, rgid) == 32);

// Handles are the beginning of the objects behind them.
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
static_assert(offsetof(shoal::emulator::Context, verbs) == 0);
static_assert(offsetof(shoal::emulator::Qp, base) == 0);
static_assert(offsetof(shoal::emulator::Cq, base) == 0);
static_assert(offsetof(shoal::emulator::Srq, base) == 0);
static_assert(offsetof(shoal::emulator::Ah, base) == 0);
static_assert(offsetof(shoal::emulator::Channel, base) == 0);
