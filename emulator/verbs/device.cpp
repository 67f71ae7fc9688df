// SPDX-License-Identifier: Apache-2.0
// The list of devices, contexts, and queries.
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "engine/big_endian.hpp"
#include "verbs/objects.hpp"

// Macros of the header for functions that this file defines.
#undef ibv_query_port
#undef ibv_get_device_list

namespace shoal::emulator {
namespace {

constexpr std::uint32_t kVendor = 0x02c9, kPart = 4129;       // ConnectX-7
constexpr std::uint32_t kSoftwareVendor = 0xffffff;           // as soft-RoCE
constexpr std::uint64_t kGuidPrefix = 0x0253'686f'6100'0000;  // then the device and the process
constexpr std::uint8_t kLinkUp = 5, kDisabled = 3;            // physical states
constexpr std::uint16_t kDefaultPartition = 0xffff;

using Devices = std::array<Device, kMostDevices>;

/// All devices that a process can have, whether the settings make them or not.
Devices& devices() {
  static Devices all = [] {
    Devices made;
    for (std::uint32_t i = 0; i < kMostDevices; ++i) {
      Device& device = made[i];
      ibv_device& base = device.base;
      base.node_type = IBV_NODE_CA;
      base.transport_type = IBV_TRANSPORT_IB;
      (void)std::snprintf(base.name, sizeof base.name, "mlx5_%u", i);
      (void)std::snprintf(base.dev_name, sizeof base.dev_name, "uverbs%u", i);
      (void)std::snprintf(base.dev_path, sizeof base.dev_path,
                          "/sys/class/infiniband_verbs/uverbs%u", i);
      (void)std::snprintf(base.ibdev_path, sizeof base.ibdev_path, "/sys/class/infiniband/mlx5_%u",
                          i);
      device.guid =
          swap_bytes(kGuidPrefix | i << 16 | (static_cast<std::uint64_t>(getpid()) & 0xffff));
      device.number = i;
    }
    return made;
  }();
  return all;
}

Device& device_of(ibv_device* device) {
  return *reinterpret_cast<Device*>(device);
}

void fill_device(const Context& context, ibv_device_attr& to) {
  const NicOptions& options = context.runtime->settings().nic;
  const NicLimits& limits = options.limits;
  to = {};
  std::strcpy(to.fw_ver, "28.0.0001");
  to.node_guid = to.sys_image_guid = device_of(context.verbs.context.device).guid;
  to.max_mr_size = ~std::uint64_t{0};
  to.page_size_cap = ~std::uint64_t{0xfff};
  to.vendor_id = options.whole_words ? kVendor : kSoftwareVendor;
  to.vendor_part_id = kPart;
  to.max_qp = static_cast<int>(limits.queue_pairs);
  to.max_qp_wr = static_cast<int>(limits.queue_blocks);
  to.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID;
  to.max_sge = to.max_sge_rd = static_cast<int>(limits.segments);
  to.max_cq = static_cast<int>(limits.completion_queues);
  to.max_cqe = static_cast<int>(limits.completion_entries - 1);
  to.max_mr = static_cast<int>(limits.keys);
  to.max_pd = 1 << 24;
  to.max_qp_rd_atom = to.max_qp_init_rd_atom = static_cast<int>(limits.reads_and_atomics);
  to.max_res_rd_atom = static_cast<int>(std::min<std::uint64_t>(
      std::uint64_t{limits.queue_pairs} * limits.reads_and_atomics, 0x7fffffff));
  // ConnectX NICs report the same. UCX does not use the atomics of devices that report
  // IBV_ATOMIC_GLOB.
  to.atomic_cap = IBV_ATOMIC_HCA;
  to.max_srq = static_cast<int>(limits.receive_queues);
  to.max_srq_wr = static_cast<int>(limits.receive_requests - 1);
  to.max_srq_sge = static_cast<int>(limits.segments);
  to.max_pkeys = 1;
  to.local_ca_ack_delay = 16;
  to.phys_port_cnt = 1;
}

void fill_port(const Context& context, ibv_port_attr& to) {
  to = {};
  const Attachment& attachment = context.runtime->attachment();
  const bool up = attachment.link_up();
  to.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  to.max_mtu = IBV_MTU_4096;
  to.active_mtu = static_cast<ibv_mtu>(std::bit_width(attachment.mtu()) - 8);
  to.gid_tbl_len = Attachment::kGids;
  to.max_msg_sz = static_cast<std::uint32_t>(context.runtime->settings().nic.limits.message_bytes);
  to.pkey_tbl_len = 1;
  to.lid = attachment.is_ethernet() ? 0 : attachment.lid();
  to.sm_lid = 1;
  to.max_vl_num = 1;
  to.subnet_timeout = 18;
  to.active_width = 2;    // four lanes
  to.active_speed = 128;  // NDR: 100 Gb/s a lane
  to.phys_state = up ? kLinkUp : kDisabled;
  to.link_layer = attachment.is_ethernet() ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
}

void fill_gid(const Context& context, ibv_gid& gid) {
  const Gid own = context.runtime->attachment().gid();
  static_assert(sizeof gid == sizeof own);
  std::memcpy(&gid, own.data(), own.size());
}

void set_operations(Context& context) {
  verbs_context& verbs = context.verbs;
  verbs.sz = sizeof verbs;
  verbs.query_port = query_port;
  verbs.query_device_ex = query_device_extended;
  verbs.create_cq_ex = create_cq_extended;
  verbs.create_qp_ex = create_qp_extended;
  verbs.create_srq_ex = create_srq_extended;
  verbs.get_srq_num = [](ibv_srq* queue, std::uint32_t* number) {
    *number = of(queue).queue->number();
    return 0;
  };
  ibv_context& base = verbs.context;
  base.ops.poll_cq = poll_cq;
  base.ops.req_notify_cq = request_notification;
  base.ops.post_send = [](ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
    return of(pair).post_send(request, bad);
  };
  base.ops.post_recv = [](ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
    return of(pair).post_receive(request, bad);
  };
  base.ops.post_srq_recv = [](ibv_srq* queue, ibv_recv_wr* request, ibv_recv_wr** bad) {
    return of(queue).post(request, bad);
  };
  base.ops.alloc_mw = [](ibv_pd*, ibv_mw_type) -> ibv_mw* { return fail_with(EOPNOTSUPP); };
  base.ops.bind_mw = [](ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; };
  base.ops.dealloc_mw = [](ibv_mw*) { return EOPNOTSUPP; };
  base.cmd_fd = -1;
  base.async_fd = context.events.fd();
  base.num_comp_vectors = 1;
  base.abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&base.mutex, nullptr);
}

}  // namespace

bool is_emulated(const ibv_device* one) {
  return std::ranges::any_of(devices(), [&](const Device& device) { return one == &device.base; });
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes,
               std::size_t size) {
  if (port != 1) return EINVAL;
  ibv_port_attr all;
  fill_port(of(context), all);
  std::memset(attributes, 0, size);
  std::memcpy(attributes, &all, std::min(size, sizeof all));
  return 0;
}

int query_device_extended(ibv_context* context, const ibv_query_device_ex_input* input,
                          ibv_device_attr_ex* attributes, std::size_t size) {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  ibv_device_attr_ex all = {};
  fill_device(of(context), all.orig_attr);
  all.completion_timestamp_mask = ~std::uint64_t{0};
  all.hca_core_clock = 1'000'000;  // kHz
  all.device_cap_flags_ex = all.orig_attr.device_cap_flags;
  if (of(context).runtime->settings().nic.global_atomics)
    all.pci_atomic_caps.fetch_add = all.pci_atomic_caps.compare_swap =
        IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP;
  all.phys_port_cnt_ex = 1;
  std::memset(attributes, 0, size);
  std::memcpy(attributes, &all, std::min(size, sizeof all));
  return 0;
}

}  // namespace shoal::emulator

using namespace shoal::emulator;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  const std::uint32_t found = device_count();
  auto** const list = static_cast<ibv_device**>(std::calloc(found + 1, sizeof(ibv_device*)));
  if (list == nullptr) return fail_with(ENOMEM);
  for (std::uint32_t i = 0; i < found; ++i) list[i] = &devices()[i].base;
  if (count != nullptr) *count = static_cast<int>(found);
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  std::free(list);
}

const char* ibv_get_device_name(ibv_device* of_device) {
  return of_device->name;
}

__be64 ibv_get_device_guid(ibv_device* of_device) {
  return device_of(of_device).guid;
}

int ibv_get_device_index(ibv_device* of_device) {
  return static_cast<int>(device_of(of_device).number);
}

ibv_context* ibv_open_device(ibv_device* to_open) {
  try {
    auto context = std::make_unique<Context>();
    context->runtime = Runtime::acquire(device_of(to_open).number);
    set_operations(*context);
    context->base()->device = to_open;
    context->runtime->watch_link(context.get(), [made = context.get()](bool up) {
      ibv_async_event event{};
      event.event_type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
      event.element.port_num = 1;
      made->events.push(event);
    });
    return context.release()->base();
  } catch (const std::exception& error) {
    report("%s cannot be opened: %s", to_open->name, error.what());
    return fail_with(EIO);
  }
}

int ibv_close_device(ibv_context* context) {
  // Clients may destroy objects after it, or never: perftest forgets a completion queue. Then the
  // context stays.
  if (of(context).objects != 0) return 0;
  of(context).runtime->unwatch_link(&of(context));
  delete &of(context);
  return 0;
}

ibv_context* ibv_import_device(int) {
  return fail_with(EOPNOTSUPP);
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  fill_device(of(context), *attributes);
  return 0;
}

int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attributes) {
  // The short form ends before `flags`.
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attributes),
                    offsetof(ibv_port_attr, flags));
}

int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  fill_gid(of(context), *gid);
  return 0;
}

int ibv_query_pkey(ibv_context*, std::uint8_t port, int index, __be16* key) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *key = kDefaultPartition;
  return 0;
}

int ibv_get_pkey_index(ibv_context*, std::uint8_t port, __be16 key) {
  if (port == 1 && (key & 0xff7f) == (kDefaultPartition & 0xff7f)) return 0;
  errno = EINVAL;
  return -1;
}

int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index,
                      ibv_gid_entry* entry, std::uint32_t flags, std::size_t size) {
  if (port != 1 || index != 0 || flags != 0) return EINVAL;
  ibv_gid_entry all = {};
  fill_gid(of(context), all.gid);
  all.port_num = 1;
  const Attachment& attachment = of(context).runtime->attachment();
  all.gid_type = attachment.is_ethernet() ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
  all.ndev_ifindex = if_nametoindex(attachment.interface().c_str());
  std::memcpy(entry, &all, std::min(size, sizeof all));
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t most,
                             std::uint32_t flags, std::size_t size) {
  if (most == 0) return -EINVAL;
  const int error = _ibv_query_gid_ex(context, 1, 0, entries, flags, size);
  return error != 0 ? -error : 1;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  return of(context).events.pop(*event) ? 0 : -1;
}

void ibv_ack_async_event(ibv_async_event*) {}

int ibv_fork_init() {
  return 0;
}

ibv_fork_status ibv_is_fork_initialized() {
  return IBV_FORK_UNNEEDED;
}

/// Makes the NIC of a device progress. Clients of device commands, which poll completion queues in
/// memory, may call it as ibv_poll_cq does: latency then needs no switch of threads.
__attribute__((visibility("default"))) void shoal_emulator_poll(ibv_context* context) {
  of(context).runtime->poll();
}

}  // extern "C"
