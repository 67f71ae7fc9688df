// SPDX-License-Identifier: Apache-2.0
#include "fake_ibverbs/fake_ibverbs.hpp"

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>

#undef ibv_query_port
#undef ibv_reg_mr

namespace shoal::test {
namespace {

struct Piece {
  std::size_t offset, bytes;
};

/// A posted request. Data are read from local memory when they are placed, as a NIC may.
struct Request {
  ibv_send_wr wr{};
  ibv_sge local{};
  std::vector<std::byte> inlined{};
  std::vector<Piece> pieces{};  ///< not placed yet
  bool done = false;
  ibv_wc_status status = IBV_WC_SUCCESS;
};

struct Queue : ibv_cq {
  std::deque<std::pair<ibv_wc, std::size_t>> entries{};  ///< with the requests that each covers
};

struct QueuePair : ibv_qp {
  std::uint32_t depth = 0, inline_bytes = 0;
  std::uint32_t peer = 0;
  std::deque<Request> requests{};
  std::size_t in_queue = 0;   ///< until a completion that covers them has been polled
  std::size_t uncovered = 0;  ///< executed without a completion
};

struct Fake {
  std::mutex mutex;
  FakeVerbsOptions options;
  FakeVerbsCounts counts;
  bool stalled = false;
  std::mt19937 random{1};
  std::vector<std::unique_ptr<ibv_device>> devices;
  std::map<std::uint32_t, QueuePair*> pairs;
  std::set<ibv_context*> told;  ///< of the event
  std::map<std::uint32_t, ibv_mr*> regions;
  std::map<std::uint32_t, bool> remote_access;
  std::uint32_t next_number = 0x100, next_key = 0x5000;
  int open_pairs = 0;
};

Fake& fake() {
  static Fake* const instance = new Fake;
  return *instance;
}

void count_object(int change) {
  const std::lock_guard lock(fake().mutex);
  fake().counts.objects_left += static_cast<std::size_t>(change);
}

std::size_t draw(std::size_t below) {
  return fake().random() % below;
}

bool covers(std::uint32_t key, std::uint64_t address, std::size_t bytes, bool remote) {
  const auto found = fake().regions.find(key);
  if (found == fake().regions.end() || (remote && !fake().remote_access[key])) return false;
  const auto start = reinterpret_cast<std::uintptr_t>(found->second->addr);
  return address >= start && address + bytes <= start + found->second->length;
}

/// Aligned words are one store or load.
void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  auto* const target = reinterpret_cast<std::byte*>(to);
  auto* const source = reinterpret_cast<std::byte*>(from);
  if (bytes == 8 && to % 8 == 0 && from % 8 == 0) {
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(target))
        .store(std::atomic_ref(*reinterpret_cast<std::uint64_t*>(source)).load());
  } else {
    std::memcpy(target, source, bytes);
  }
}

std::uint64_t source_of(const Request& request) {
  return request.inlined.empty() ? request.local.addr
                                 : reinterpret_cast<std::uintptr_t>(request.inlined.data());
}

/// Pieces in random order, often the last one first.
void cut(Request& request) {
  const std::size_t bytes = request.local.length;
  const std::size_t size = std::max<std::size_t>(64, (bytes / 5 + 63) / 64 * 64);
  for (std::size_t at = 0; at < bytes; at += size)
    request.pieces.push_back({at, std::min(size, bytes - at)});
  std::shuffle(request.pieces.begin(), request.pieces.end(), fake().random);
  request.done = request.pieces.empty();
}

void complete(QueuePair& pair) {
  Fake& f = fake();
  auto& queue = *static_cast<Queue*>(pair.send_cq);
  while (!pair.requests.empty() && pair.requests.front().done) {
    const Request& request = pair.requests.front();
    ++pair.uncovered;
    if (request.status != IBV_WC_SUCCESS || (request.wr.send_flags & IBV_SEND_SIGNALED) != 0) {
      ibv_wc completion{};
      completion.wr_id = request.wr.wr_id;
      completion.status = request.status;
      completion.vendor_err = request.status == IBV_WC_SUCCESS ? 0 : 0x81;
      completion.qp_num = pair.qp_num;
      if (queue.entries.size() >= static_cast<std::size_t>(queue.cqe)) {
        ++f.counts.overruns;
      } else {
        queue.entries.emplace_back(completion, pair.uncovered);
        ++f.counts.completions;
      }
      pair.uncovered = 0;
    }
    pair.requests.pop_front();
  }
}

/// The request ends with this status, and all behind it are flushed.
void break_pair(QueuePair& pair, Request& broken, ibv_wc_status status) {
  pair.state = IBV_QPS_ERR;
  bool behind = false;
  for (Request& request : pair.requests) {
    if (&request == &broken)
      request.status = status, behind = true;
    else if (behind || !request.done)
      request.status = IBV_WC_WR_FLUSH_ERR;
    request.done = true;
  }
  complete(pair);
}

void execute(QueuePair& pair, Request& request) {
  const bool atomic = request.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  const std::uint64_t remote =
      atomic ? request.wr.wr.atomic.remote_addr : request.wr.wr.rdma.remote_addr;
  const std::uint32_t key = atomic ? request.wr.wr.atomic.rkey : request.wr.wr.rdma.rkey;
  if (static_cast<int>(request.wr.opcode) == fake().options.fail_opcode)
    return break_pair(pair, request, IBV_WC_REM_OP_ERR);
  if (request.local.length != 0 && !covers(key, remote, request.local.length, true))
    return break_pair(pair, request, IBV_WC_REM_ACCESS_ERR);
  if (request.inlined.empty() && request.local.length != 0 &&
      !covers(request.local.lkey, request.local.addr, request.local.length, false))
    return break_pair(pair, request, IBV_WC_LOC_PROT_ERR);
  if (atomic) {
    const std::uint64_t before = std::atomic_ref(*reinterpret_cast<std::uint64_t*>(remote))
                                     .fetch_add(request.wr.wr.atomic.compare_add);
    std::memcpy(reinterpret_cast<void*>(request.local.addr), &before, sizeof before);
    request.done = true;
  } else if (request.wr.opcode == IBV_WR_RDMA_READ) {
    copy(request.local.addr, remote, request.local.length);
    request.done = true;
  } else {
    const Piece piece = request.pieces.back();
    for (const Piece& other : request.pieces)
      if (other.offset < piece.offset) ++fake().counts.reordered;
    request.pieces.pop_back();
    copy(remote + piece.offset, source_of(request) + piece.offset, piece.bytes);
    request.done = request.pieces.empty();
  }
  complete(pair);
}

/// Executes one request of the pair, or a piece of it: any before the first atomic to come.
void step(QueuePair& pair) {
  Fake& f = fake();
  if (pair.state != IBV_QPS_RTS || pair.requests.empty()) return;
  const auto peer = f.pairs.find(pair.peer);
  const bool gone = peer == f.pairs.end() || peer->second->state == IBV_QPS_ERR;
  if (gone || f.counts.requests > f.options.fail_after)
    return break_pair(pair, pair.requests.front(), IBV_WC_RETRY_EXC_ERR);
  if (peer->second->state != IBV_QPS_RTR && peer->second->state != IBV_QPS_RTS) return;
  std::vector<Request*> ready;
  for (Request& request : pair.requests) {
    const bool atomic = request.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (!request.done && (!atomic || ready.empty())) ready.push_back(&request);
    if (!request.done && atomic) break;
  }
  if (ready.empty()) return;
  Request& chosen = *ready[draw(2) == 0 ? ready.size() - 1 : draw(ready.size())];
  if (&chosen != ready.front()) ++f.counts.reordered;
  execute(pair, chosen);
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  auto& pair = *static_cast<QueuePair*>(qp);
  ++f.counts.doorbells;
  for (; wr != nullptr; wr = wr->next) {
    *bad = wr;
    if (pair.in_queue == pair.depth) return ++f.counts.refused, ENOMEM;
    Request request;
    request.wr = *wr;
    if (wr->num_sge != 0) request.local = wr->sg_list[0];
    if ((wr->send_flags & IBV_SEND_INLINE) != 0) {
      if (request.local.length > pair.inline_bytes) return EINVAL;
      const auto* const start = reinterpret_cast<const std::byte*>(request.local.addr);
      request.inlined.assign(start, start + request.local.length);
    }
    if (wr->opcode == IBV_WR_RDMA_WRITE) cut(request);
    ++f.counts.requests;
    f.counts.most_in_queue = std::max(f.counts.most_in_queue, ++pair.in_queue);
    pair.requests.push_back(std::move(request));
    if (pair.state == IBV_QPS_ERR) break_pair(pair, pair.requests.back(), IBV_WC_WR_FLUSH_ERR);
  }
  complete(pair);
  return 0;
}

int poll_cq(ibv_cq* cq, int most, ibv_wc* completions) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  for (const auto& [number, pair] : f.pairs)
    for (std::size_t steps = draw(8); steps != 0 && !f.stalled; --steps) step(*pair);
  auto& queue = *static_cast<Queue*>(cq);
  int count = 0;
  for (; count < most && !queue.entries.empty(); ++count) {
    const auto& [completion, covered] = queue.entries.front();
    completions[count] = completion;
    if (const auto pair = f.pairs.find(completion.qp_num); pair != f.pairs.end())
      pair->second->in_queue -= covered;
    queue.entries.pop_front();
  }
  return count;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void fake_ibverbs_reset(const FakeVerbsOptions& options) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  f.options = options;
  const std::size_t left = f.counts.objects_left;
  f.counts = {};
  f.counts.objects_left = left;
  f.told.clear();
  f.random.seed(options.seed);
}

__attribute__((visibility("default"))) FakeVerbsCounts fake_ibverbs_counts() {
  const std::lock_guard lock(fake().mutex);
  return fake().counts;
}

__attribute__((visibility("default"))) void fake_ibverbs_stall(bool stalled) {
  const std::lock_guard lock(fake().mutex);
  fake().stalled = stalled;
}

ibv_device** ibv_get_device_list(int* count) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  const auto n = static_cast<std::size_t>(f.options.devices);
  while (f.devices.size() < n) {
    f.devices.push_back(std::make_unique<ibv_device>());
    std::snprintf(f.devices.back()->name, sizeof f.devices.back()->name, "fake_%zu",
                  f.devices.size() - 1);
  }
  auto** const list = new ibv_device*[n + 1]();
  for (std::size_t i = 0; i < n; ++i) {
    list[i] = f.devices[i].get();
    // Written only when it changes: other threads read the device without a lock.
    const auto type = f.options.connections ? IBV_TRANSPORT_IB : IBV_TRANSPORT_UNSPECIFIED;
    if (list[i]->transport_type != type) list[i]->transport_type = type;
  }
  if (count != nullptr) *count = f.options.devices;
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  delete[] list;
}

const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}

ibv_context* ibv_open_device(ibv_device* device) {
  count_object(1);
  auto* const context = new ibv_context{};
  context->device = device;
  context->async_fd = -1;
  context->ops.poll_cq = poll_cq;
  context->ops.post_send = post_send;
  return context;
}

int ibv_close_device(ibv_context* context) {
  count_object(-1);
  delete context;
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  const FakeVerbsOptions& options = fake().options;
  *attributes = {};
  attributes->phys_port_cnt = 1;
  attributes->max_qp = options.max_qp;
  attributes->max_qp_wr = options.max_qp_wr;
  attributes->max_cqe = options.max_cqe;
  attributes->max_qp_rd_atom = attributes->max_qp_init_rd_atom = options.max_atomics;
  attributes->max_res_rd_atom = options.most_reads_and_atomics;
  attributes->max_mr = 100;
  attributes->max_mr_size = SIZE_MAX;
  attributes->atomic_cap = options.atomics ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE;
  return 0;
}

int ibv_query_port(ibv_context*, std::uint8_t, _compat_ibv_port_attr* compatible) {
  const FakeVerbsOptions& options = fake().options;
  auto& attributes = *reinterpret_cast<ibv_port_attr*>(compatible);
  attributes.state = options.active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attributes.max_mtu = attributes.active_mtu = IBV_MTU_4096;
  attributes.max_msg_sz = 1 << 30;
  attributes.lid = options.ethernet ? 0 : 7;
  attributes.gid_tbl_len = 4;
  attributes.link_layer = options.ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  return 0;
}

int ibv_query_gid(ibv_context*, std::uint8_t, int index, ibv_gid* gid) {
  *gid = {};
  if (index == 3) {
    gid->raw[10] = gid->raw[11] = 0xff;
    gid->raw[12] = 10;
    gid->raw[15] = 1;
  } else if (index != 2) {
    gid->raw[0] = 0xfe;
    gid->raw[1] = 0x80;
    gid->raw[15] = 1;
  }
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index,
                      ibv_gid_entry* entry, std::uint32_t, std::size_t) {
  *entry = {};
  ibv_query_gid(context, static_cast<std::uint8_t>(port), static_cast<int>(index), &entry->gid);
  entry->gid_index = index;
  entry->gid_type = index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
  return 0;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  count_object(1);
  auto* const pd = new ibv_pd{};
  pd->context = context;
  return pd;
}

ibv_ah* ibv_create_ah(ibv_pd*, ibv_ah_attr*) {
  return errno = EOPNOTSUPP, nullptr;
}

int ibv_destroy_ah(ibv_ah*) {
  return EOPNOTSUPP;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  count_object(-1);
  delete pd;
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int access) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  ++f.counts.objects_left;
  auto* const region = new ibv_mr{};
  region->context = pd->context;
  region->addr = address;
  region->length = length;
  region->lkey = region->rkey = f.next_key++;
  f.regions[region->lkey] = region;
  f.remote_access[region->lkey] = (access & IBV_ACCESS_REMOTE_ATOMIC) != 0;
  return region;
}

int ibv_dereg_mr(ibv_mr* region) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  --f.counts.objects_left;
  f.regions.erase(region->lkey);
  delete region;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void*, ibv_comp_channel*, int) {
  if (entries > fake().options.max_cqe) return errno = EINVAL, nullptr;
  const std::lock_guard lock(fake().mutex);
  ++fake().counts.objects_left;
  auto* const queue = new Queue{};
  queue->context = context;
  queue->cqe = entries;
  return queue;
}

int ibv_destroy_cq(ibv_cq* cq) {
  count_object(-1);
  delete static_cast<Queue*>(cq);
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  f.counts.receives += wanted->cap.max_recv_wr;
  if (f.open_pairs >= f.options.create_limit) return errno = ENOMEM, nullptr;
  if (static_cast<int>(wanted->cap.max_inline_data) > f.options.inline_limit ||
      static_cast<int>(wanted->cap.max_send_wr) > f.options.max_qp_wr)
    return errno = EINVAL, nullptr;
  ++f.counts.objects_left;
  ++f.open_pairs;
  auto* const pair = new QueuePair{};
  pair->context = pd->context;
  pair->send_cq = wanted->send_cq;
  pair->qp_type = wanted->qp_type;
  pair->qp_num = f.next_number++;
  pair->depth = wanted->cap.max_send_wr;
  pair->inline_bytes = wanted->cap.max_inline_data;
  f.pairs[pair->qp_num] = pair;
  f.counts.numbers.push_back(pair->qp_num);
  f.counts.peers.push_back(0);
  return pair;
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  auto& pair = *static_cast<QueuePair*>(qp);
  if (attributes->qp_state == f.options.refused_state) return EINVAL;
  pair.state = attributes->qp_state;
  if (pair.state == IBV_QPS_RTR) {
    pair.peer = attributes->dest_qp_num;
    const auto at = std::ranges::find(f.counts.numbers, pair.qp_num) - f.counts.numbers.begin();
    f.counts.peers[static_cast<std::size_t>(at)] = pair.peer;
  }
  if (pair.state == IBV_QPS_ERR && !pair.requests.empty())
    break_pair(pair, pair.requests.front(), IBV_WC_WR_FLUSH_ERR);
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  auto* const pair = static_cast<QueuePair*>(qp);
  --f.counts.objects_left;
  --f.open_pairs;
  f.pairs.erase(pair->qp_num);
  delete pair;
  return 0;
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr*) {
  const std::lock_guard lock(fake().mutex);
  attributes->qp_state = static_cast<QueuePair*>(qp)->state;
  return 0;
}

/// The event of the options, once for each context.
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  Fake& f = fake();
  const std::lock_guard lock(f.mutex);
  const auto own = std::ranges::find_if(
      f.pairs, [&](const auto& pair) { return pair.second->context == context; });
  if (f.options.event < 0 || f.counts.requests < f.options.event_after || own == f.pairs.end() ||
      !f.told.insert(context).second)
    return errno = EAGAIN, -1;
  *event = {};
  event->event_type = static_cast<ibv_event_type>(f.options.event);
  if (f.options.event_port != 0)
    event->element.port_num = f.options.event_port;
  else
    event->element.qp = own->second;
  return 0;
}

void ibv_ack_async_event(ibv_async_event*) {}

const char* ibv_wc_status_str(ibv_wc_status status) {
  return status == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded" : "an error";
}

}  // extern "C"

}  // namespace shoal::test
