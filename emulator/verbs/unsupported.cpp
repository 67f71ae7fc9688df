// SPDX-License-Identifier: Apache-2.0
// Functions that clients need at load time, for what the emulator does not have: unreliable
// datagrams, multicast, imported objects, and the interface between rdma-core's libraries and the
// kernel, which other drivers (libefa) and librdmacm link to.
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>

#include "verbs/objects.hpp"

using shoal::emulator::fail_with;
using shoal::emulator::of;
using shoal::emulator::report;

extern "C" {

int ibv_init_ah_from_wc(ibv_context*, std::uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  errno = EOPNOTSUPP;
  return -1;
}
ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, std::uint8_t) {
  report("datagrams are not emulated, so none has an address to reply to");
  return fail_with(EOPNOTSUPP);
}
int ibv_attach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) {
  return EOPNOTSUPP;
}
int ibv_detach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) {
  return EOPNOTSUPP;
}
ibv_pd* ibv_import_pd(ibv_context*, std::uint32_t) {
  return fail_with(EOPNOTSUPP);
}
void ibv_unimport_pd(ibv_pd*) {}
ibv_mr* ibv_import_mr(ibv_pd*, std::uint32_t) {
  return fail_with(EOPNOTSUPP);
}
void ibv_unimport_mr(ibv_mr*) {}
ibv_dm* ibv_import_dm(ibv_context*, std::uint32_t) {
  return fail_with(EOPNOTSUPP);
}
void ibv_unimport_dm(ibv_dm*) {}

// No sysfs: the device exists in this process alone.
const char* ibv_get_sysfs_path() {
  return "/sys";
}
int ibv_read_sysfs_file(const char*, const char*, char*, std::size_t) {
  errno = ENOENT;
  return -1;
}
int ibv_query_gid_type(ibv_context* context, std::uint8_t, unsigned, unsigned* type) {
  constexpr unsigned kInfiniBand = 0, kRoceV2 = 1;
  *type = of(context).runtime->attachment().is_ethernet() ? kRoceV2 : kInfiniBand;
  return 0;
}
int ibv_dontfork_range(void*, std::size_t) {
  return 0;
}
int ibv_dofork_range(void*, std::size_t) {
  return 0;
}

// Functions of librdmacm, for answers of the kernel that never arrive.
void ibv_copy_ah_attr_from_kern() {}
void ibv_copy_path_rec_from_kern() {}
void ibv_copy_path_rec_to_kern() {}
void ibv_copy_qp_attr_from_kern() {}

// Functions of drivers, which register when they are loaded and are never used: their devices are
// not listed.
void ibv_register_driver() {}
void verbs_register_driver_34(const void*) {}
void verbs_set_ops(void*, const void*) {}
void verbs_uninit_context(void*) {}
void* _verbs_init_and_alloc_context(ibv_device*, int, std::size_t, void*, std::uint32_t) {
  return fail_with(EOPNOTSUPP);
}
void __verbs_log(void*, std::uint32_t, const char*, ...) {}

#define SHOAL_UNSUPPORTED(name) \
  int name() {                  \
    return EOPNOTSUPP;          \
  }
SHOAL_UNSUPPORTED(ibv_cmd_alloc_pd)
SHOAL_UNSUPPORTED(ibv_cmd_create_ah)
SHOAL_UNSUPPORTED(ibv_cmd_create_cq_ex)
SHOAL_UNSUPPORTED(ibv_cmd_create_qp_ex)
SHOAL_UNSUPPORTED(ibv_cmd_dealloc_pd)
SHOAL_UNSUPPORTED(ibv_cmd_dereg_mr)
SHOAL_UNSUPPORTED(ibv_cmd_destroy_ah)
SHOAL_UNSUPPORTED(ibv_cmd_destroy_cq)
SHOAL_UNSUPPORTED(ibv_cmd_destroy_qp)
SHOAL_UNSUPPORTED(ibv_cmd_get_context)
SHOAL_UNSUPPORTED(ibv_cmd_modify_qp)
SHOAL_UNSUPPORTED(ibv_cmd_query_device_any)
SHOAL_UNSUPPORTED(ibv_cmd_query_port)
SHOAL_UNSUPPORTED(ibv_cmd_query_qp)
SHOAL_UNSUPPORTED(ibv_cmd_reg_dmabuf_mr)
SHOAL_UNSUPPORTED(ibv_cmd_reg_mr)
#undef SHOAL_UNSUPPORTED

}  // extern "C"
