// SPDX-License-Identifier: Apache-2.0
#include "fake_ucp/fake_ucp.hpp"

#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

namespace {

using Bytes = std::vector<std::byte>;

struct Worker {
  std::uint64_t id = 0;
  ucp_am_recv_callback_t handler = nullptr;
  void* handler_argument = nullptr;
  struct Delivery {
    std::uint64_t from, number;
    Bytes bytes;
  };
  std::vector<Delivery> inbox;
  std::vector<struct Endpoint*> endpoints;
};

struct Request {
  ucp_request_param_t param{};
  void complete(ucs_status_t status) {
    if ((param.op_attr_mask & UCP_OP_ATTR_FIELD_CALLBACK) != 0)
      param.cb.send(this, status, param.user_data);
  }
};

struct Operation {
  enum class Kind { message, put, get, flush } kind;
  std::uint64_t number = 0;
  Request* request = nullptr;  // nullptr: already complete for its caller
  std::byte* local = nullptr;
  std::byte* remote = nullptr;
  std::size_t bytes = 0;
  bool taken = false;  // a put whose local buffer has been read: its request is complete, its data
                       // are not at the target
  Bytes data = {};
};

struct Endpoint {
  Worker* from = nullptr;
  std::uint64_t to = 0;
  std::list<Operation> operations;
};

std::mutex mutex;
std::mt19937 dice;
std::map<std::uint64_t, Worker*> workers;
std::uint64_t next_id = 0, next_number = 0;
shoal::test::FakeUcpCounts counts;
using shoal::test::FakeUcpFault;
FakeUcpFault fault = FakeUcpFault::none;
std::atomic<bool> broken = false;
ucs_status_ptr_t failed() {
  return reinterpret_cast<ucs_status_ptr_t>(static_cast<std::intptr_t>(UCS_ERR_IO_ERROR));
}

bool one_in(unsigned n) {
  return dice() % n == 0;
}

Endpoint& endpoint_of(ucp_ep_h handle) {
  return *reinterpret_cast<Endpoint*>(handle);
}
Worker& worker_of(ucp_worker_h handle) {
  return *reinterpret_cast<Worker*>(handle);
}

bool is_transfer(const Operation& operation) {
  return operation.kind == Operation::Kind::put || operation.kind == Operation::Kind::get;
}

void count(const Endpoint& endpoint) {
  const auto how_many = [&](auto&& which) {
    return static_cast<std::size_t>(
        std::count_if(endpoint.operations.begin(), endpoint.operations.end(), which));
  };
  const auto raise = [](std::size_t& most, std::size_t now) { most = std::max(most, now); };
  raise(counts.most_transfers,
        how_many([](const auto& o) { return is_transfer(o) && o.request != nullptr; }));
  raise(counts.most_flushes,
        how_many([](const auto& o) { return o.kind == Operation::Kind::flush; }));
  std::size_t messages = how_many([](const auto& o) { return o.kind == Operation::Kind::message; });
  if (const auto to = workers.find(endpoint.to); to != workers.end())
    messages += static_cast<std::size_t>(
        std::count_if(to->second->inbox.begin(), to->second->inbox.end(),
                      [&](const auto& d) { return d.from == endpoint.from->id; }));
  raise(counts.most_messages, messages);
}

void deliver(Endpoint& endpoint, std::uint64_t number, const std::byte* bytes, std::size_t length) {
  if (const auto to = workers.find(endpoint.to); to != workers.end())
    to->second->inbox.push_back({endpoint.from->id, number, Bytes(bytes, bytes + length)});
}

ucs_status_ptr_t add(Endpoint& endpoint, Operation operation, const ucp_request_param_t* param) {
  operation.number = ++next_number;
  operation.request = new Request{*param};
  ++counts.requests_left;
  Request* const request = operation.request;
  endpoint.operations.push_back(std::move(operation));
  count(endpoint);
  return request;
}

/// Work that one step of progress has found, to be done after the lock is released.
struct Found {
  Request* completed = nullptr;
  Worker::Delivery delivery;
  bool delivered = false;
};

void apply(const Operation& operation) {
  if (operation.kind == Operation::Kind::put) {
    std::memcpy(operation.remote, operation.data.data(), operation.bytes);
  } else {
    std::memcpy(operation.local, operation.remote, operation.bytes);
  }
}

/// Advances one operation of the endpoint by one step; false: there is none.
bool step(Endpoint& endpoint, Found& found) {
  using Kind = Operation::Kind;
  auto& all = endpoint.operations;
  if (all.empty()) return false;
  auto at = std::next(all.begin(), static_cast<std::ptrdiff_t>(dice() % all.size()));
  if (at->kind == Kind::message) {
    deliver(endpoint, at->number, at->local, at->bytes);
  } else if (at->kind == Kind::put && !at->taken) {
    at->data.assign(at->local, at->local + at->bytes);
    at->taken = true;
    found.completed = at->request;
    at->request = nullptr;
    return true;
  } else if (at->kind == Kind::flush) {
    const auto older = std::find_if(
        all.begin(), at, [](const Operation& operation) { return is_transfer(operation); });
    if (older == at) {
      found.completed = at->request;
      all.erase(at);
      return true;
    }
    at = older;  // what the flush waits for, one at a time
    if (at->kind == Kind::put && !at->taken) at->data.assign(at->local, at->local + at->bytes);
    apply(*at);
  } else {
    if (!one_in(64)) return true;  // RMA is slow
    apply(*at);
  }
  found.completed = at->request;
  all.erase(at);
  return true;
}

Bytes* packed(std::uint64_t value) {
  auto* const bytes = new Bytes(sizeof value);
  std::memcpy(bytes->data(), &value, sizeof value);
  return bytes;
}

std::map<const void*, std::unique_ptr<Bytes>> blobs;  // handed out until they are released

void hand_out(std::uint64_t value, void** data, std::size_t* length) {
  std::unique_ptr<Bytes> bytes(packed(value));
  *data = bytes->data();
  *length = bytes->size();
  blobs.emplace(*data, std::move(bytes));
}

void free_worker(Worker* worker) {
  for (Endpoint* endpoint : worker->endpoints) delete endpoint;
  delete worker;
}

}  // namespace

namespace shoal::test {

FakeUcpCounts fake_ucp_counts() {
  const std::lock_guard lock(mutex);
  return counts;
}

void reset_fake_ucp(unsigned seed, FakeUcpFault fails) {
  const std::lock_guard lock(mutex);
  // Shoal makes no call to a UCX that failed, not even to free its objects.
  for (const auto& [id, worker] : workers) {
    for (Endpoint* endpoint : worker->endpoints)
      for (const Operation& operation : endpoint->operations) delete operation.request;
    free_worker(worker);
  }
  workers.clear();
  blobs.clear();
  dice.seed(seed);
  fault = fails;
  broken = false;
  counts = {};
}
void break_fake_ucp() {
  broken = true;
}

}  // namespace shoal::test

extern "C" {

ucs_global_opts_t ucs_global_opts{};
void ucs_debug_disable_signal(int) {}
ucs_status_t ucs_global_opts_get_value(const char*, char*, size_t) {
  return UCS_ERR_NO_ELEM;
}
ucs_status_t ucs_global_opts_set_value(const char*, const char*) {
  return UCS_OK;
}
const char* ucs_status_string(ucs_status_t) {
  return "made up";
}
const char* ucp_get_version_string(void) {
  return "made up";
}

ucs_status_t ucp_config_read(const char*, const char*, ucp_config_t** config) {
  static int nothing;
  *config = reinterpret_cast<ucp_config_t*>(&nothing);
  return UCS_OK;
}
ucs_status_t ucp_config_modify(ucp_config_t*, const char*, const char*) {
  return UCS_OK;
}
void ucp_config_release(ucp_config_t*) {}
ucs_status_t ucp_init_version(unsigned, unsigned, const ucp_params_t*, const ucp_config_t*,
                              ucp_context_h* context) {
  static int nothing;
  *context = reinterpret_cast<ucp_context_h>(&nothing);
  return UCS_OK;
}
void ucp_cleanup(ucp_context_h) {}

ucs_status_t ucp_worker_create(ucp_context_h, const ucp_worker_params_t*, ucp_worker_h* handle) {
  const std::lock_guard lock(mutex);
  auto* const worker = new Worker;
  worker->id = ++next_id;
  workers.emplace(worker->id, worker);
  *handle = reinterpret_cast<ucp_worker_h>(worker);
  return UCS_OK;
}
void ucp_worker_destroy(ucp_worker_h handle) {
  const std::lock_guard lock(mutex);
  Worker& worker = worker_of(handle);
  workers.erase(worker.id);
  free_worker(&worker);
}
ucs_status_t ucp_worker_get_address(ucp_worker_h handle, ucp_address_t** address, size_t* length) {
  const std::lock_guard lock(mutex);
  void* data = nullptr;
  hand_out(worker_of(handle).id, &data, length);
  *address = static_cast<ucp_address_t*>(data);
  return UCS_OK;
}
void ucp_worker_release_address(ucp_worker_h, ucp_address_t* address) {
  const std::lock_guard lock(mutex);
  blobs.erase(address);
}
ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h handle,
                                            const ucp_am_handler_param_t* param) {
  worker_of(handle).handler = param->cb;
  worker_of(handle).handler_argument = param->arg;
  return UCS_OK;
}

extern "C" void ucs_fatal_error_format(const char* file, unsigned line, const char* function,
                                       const char* format, ...);

unsigned ucp_worker_progress(ucp_worker_h handle) {
  if (broken) ucs_fatal_error_format("fake.c", 7, "progress", "Assertion `%s' failed", "made up");
  Worker& worker = worker_of(handle);
  Found found;
  bool any = false;
  {
    const std::lock_guard lock(mutex);
    // Mostly holds back a single message until another one can overtake it, which may take long on
    // a busy machine.
    if (!worker.inbox.empty() && one_in(worker.inbox.size() > 1 ? 2 : 64)) {
      const auto at =
          worker.inbox.begin() + static_cast<std::ptrdiff_t>(dice() % worker.inbox.size());
      found.delivery = std::move(*at);
      worker.inbox.erase(at);
      counts.overtaken +=
          std::any_of(worker.inbox.begin(), worker.inbox.end(), [&](const auto& other) {
            return other.from == found.delivery.from && other.number < found.delivery.number;
          });
      found.delivered = any = true;
    } else if (!worker.endpoints.empty()) {
      any = step(*worker.endpoints[dice() % worker.endpoints.size()], found);
    }
  }
  if (found.delivered) {
    const ucp_am_recv_param_t param{};
    worker.handler(worker.handler_argument, nullptr, 0, found.delivery.bytes.data(),
                   found.delivery.bytes.size(), &param);
  }
  if (found.completed != nullptr) found.completed->complete(UCS_OK);
  return any ? 1 : 0;
}

ucs_status_t ucp_mem_map(ucp_context_h, const ucp_mem_map_params_t* params, ucp_mem_h* memory) {
  *memory = reinterpret_cast<ucp_mem_h>(params->address);
  return UCS_OK;
}
ucs_status_t ucp_mem_unmap(ucp_context_h, ucp_mem_h) {
  return UCS_OK;
}
ucs_status_t ucp_rkey_pack(ucp_context_h, ucp_mem_h, void** data, size_t* length) {
  const std::lock_guard lock(mutex);
  hand_out(0, data, length);
  return UCS_OK;
}
void ucp_rkey_buffer_release(void* data) {
  const std::lock_guard lock(mutex);
  blobs.erase(data);
}
ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h, const void*, ucp_rkey_h* key) {
  if (fault == FakeUcpFault::key) return UCS_ERR_UNREACHABLE;
  static int nothing;
  *key = reinterpret_cast<ucp_rkey_h>(&nothing);
  return UCS_OK;
}
void ucp_rkey_destroy(ucp_rkey_h) {}

ucs_status_t ucp_ep_create(ucp_worker_h handle, const ucp_ep_params_t* params, ucp_ep_h* endpoint) {
  const std::lock_guard lock(mutex);
  if (fault == FakeUcpFault::connect) return UCS_ERR_UNREACHABLE;
  auto* const made = new Endpoint;
  made->from = &worker_of(handle);
  std::memcpy(&made->to, params->address, sizeof made->to);
  made->from->endpoints.push_back(made);
  *endpoint = reinterpret_cast<ucp_ep_h>(made);
  return UCS_OK;
}

ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h handle, const ucp_request_param_t*) {
  std::list<Operation> dropped;
  {
    const std::lock_guard lock(mutex);
    dropped.swap(endpoint_of(handle).operations);
  }
  for (const Operation& operation : dropped)
    if (operation.request != nullptr) operation.request->complete(UCS_ERR_CANCELED);
  return nullptr;
}

ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h handle, const ucp_request_param_t* param) {
  const std::lock_guard lock(mutex);
  if (fault == FakeUcpFault::flush) return failed();
  Endpoint& endpoint = endpoint_of(handle);
  const auto& all = endpoint.operations;
  if (std::none_of(all.begin(), all.end(), is_transfer) && one_in(2)) return nullptr;
  return add(endpoint, {.kind = Operation::Kind::flush}, param);
}

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h handle, const void* buffer, size_t bytes, uint64_t remote,
                             ucp_rkey_h, const ucp_request_param_t* param) {
  const std::lock_guard lock(mutex);
  if (fault == FakeUcpFault::put) return failed();
  auto* const local = static_cast<std::byte*>(const_cast<void*>(buffer));
  return add(endpoint_of(handle),
             {.kind = Operation::Kind::put,
              .local = local,
              .remote = reinterpret_cast<std::byte*>(remote),
              .bytes = bytes},
             param);
}

ucs_status_ptr_t ucp_get_nbx(ucp_ep_h handle, void* buffer, size_t bytes, uint64_t remote,
                             ucp_rkey_h, const ucp_request_param_t* param) {
  const std::lock_guard lock(mutex);
  if (fault == FakeUcpFault::get) return failed();
  return add(endpoint_of(handle),
             {.kind = Operation::Kind::get,
              .local = static_cast<std::byte*>(buffer),
              .remote = reinterpret_cast<std::byte*>(remote),
              .bytes = bytes},
             param);
}

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h handle, unsigned, const void*, size_t, const void* buffer,
                                 size_t bytes, const ucp_request_param_t* param) {
  const std::lock_guard lock(mutex);
  if (fault == FakeUcpFault::message) return failed();
  Endpoint& endpoint = endpoint_of(handle);
  auto* const local = static_cast<std::byte*>(const_cast<void*>(buffer));
  if (!one_in(3))
    return add(endpoint, {.kind = Operation::Kind::message, .local = local, .bytes = bytes}, param);
  deliver(endpoint, ++next_number, local, bytes);
  count(endpoint);
  return nullptr;
}

ucs_status_t ucp_request_check_status(void*) {
  return UCS_OK;
}
void ucp_request_free(void* request) {
  const std::lock_guard lock(mutex);
  --counts.requests_left;
  delete static_cast<Request*>(request);
}

}  // extern "C"
