// SPDX-License-Identifier: Apache-2.0
// objects.hpp: the objects behind the handles of libibverbs.
//
// Each begins with the structure of <infiniband/verbs.h> that clients see. Rings, doorbell records
// and completion queues are memory in the mlx5 formats, which both the functions of this library
// and clients of mlx5dv write.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "engine/big_endian.hpp"
#include "engine/request_writer.hpp"
#include "verbs/runtime.hpp"

namespace shoal::emulator {

/// Zeroed memory that begins at a page.
class Pages {
 public:
  Pages() = default;
  explicit Pages(std::size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Objects by a number of up to 24 bits. find() needs no lock.
template <typename Object>
class NumberTable {
 public:
  ~NumberTable() {
    for (auto& leaf : leaves_) delete leaf.load();
  }
  Object* find(std::uint32_t number) const {
    const Leaf* const leaf = leaves_[number >> 12 & 0xfff].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr : (*leaf)[number & 0xfff].load(std::memory_order_acquire);
  }
  void set(std::uint32_t number, Object* object) {
    const std::lock_guard lock(mutex_);
    auto& leaf = leaves_[number >> 12 & 0xfff];
    if (leaf.load() == nullptr) leaf.store(new Leaf{}, std::memory_order_release);
    (*leaf.load())[number & 0xfff].store(object, std::memory_order_release);
  }

 private:
  using Leaf = std::array<std::atomic<Object*>, 4096>;
  std::mutex mutex_;
  std::array<std::atomic<Leaf*>, 4096> leaves_{};
};

/// Events that wait to be fetched through a file descriptor, which is readable while there are any.
template <typename Event>
class EventQueue {
 public:
  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  int fd() const { return fd_; }
  void push(const Event& event);
  /// Waits for an event unless the descriptor is in non-blocking mode; false with errno set.
  bool pop(Event& event);
  /// Removes what `pick` selects.
  template <typename Pick>
  void remove(Pick pick) {
    const std::lock_guard lock(mutex_);
    std::erase_if(events_, pick);
  }

 private:
  int fd_;
  std::mutex mutex_;
  std::deque<Event> events_;
};

struct Qp;
struct Srq;

struct Device {
  ibv_device base{};
  std::uint64_t guid = 0;
  std::uint32_t number = 0;
};

struct Context {
  verbs_context verbs{};
  std::shared_ptr<Runtime> runtime;
  NumberTable<Qp> qps;
  NumberTable<Srq> srqs;
  EventQueue<ibv_async_event> events;
  std::atomic<std::uint32_t> objects{0};
  /// All contexts of a device share its NIC.
  static inline std::atomic<std::uint32_t> next_domain{1};

  ibv_context* base() { return &verbs.context; }
};

struct Pd {
  ibv_pd base{};
  Context* context = nullptr;
  std::uint32_t number = 0;
  std::atomic<std::uint32_t> users{0};
};

struct Mr {
  ibv_mr base{};
  Pd* domain = nullptr;
  void* mapped = nullptr;  ///< pages of a dma-buf, which this object maps
  std::size_t mapped_bytes = 0;
};

struct Channel {
  ibv_comp_channel base{};
  EventQueue<struct Cq*> events;
};

struct Cq {
  ibv_cq_ex base{};
  Context* context = nullptr;
  Pages memory;  ///< entries, then the doorbell record
  std::uint32_t size = 0;
  std::byte* record = nullptr;
  Pages notification_page;  ///< for clients of mlx5dv, where the runtime watches it
  std::shared_ptr<CompletionQueue> queue;
  Qp* last_qp = nullptr;  ///< of the last CQE
  std::mutex mutex;       ///< of what follows
  std::uint32_t consumed = 0;
  std::uint32_t arm_sequence = 0;
  bool polling = false;  ///< between start_poll and end_poll
  ibv_wc current{};
  std::uint64_t current_time = 0;

  /// Takes the next CQE, if there is one.
  bool next(ibv_wc& completion);
  /// Makes CQEs of a queue pair, or of an SRQ's receives of it, invisible. With the mutex and the
  /// NIC's lock.
  void forget(std::uint32_t qp_number);

 private:
  bool resolve(const std::byte* entry, ibv_wc& completion);
  void publish() const;
};

/// Request of a request number.
struct SentRequest {
  std::uint64_t id = 0;
  std::uint32_t number = 0;  ///< of requests, not blocks
};

struct Srq {
  ibv_srq base{};
  Context* context = nullptr;
  Pd* domain = nullptr;
  Pages memory;
  std::uint32_t size = 0, stride = 0, most_segments = 0, most_requests = 0;
  std::byte* record = nullptr;
  std::shared_ptr<ReceiveQueue> queue;
  std::mutex mutex;
  std::vector<std::uint64_t> ids;
  std::uint16_t head = 0, tail = 0;  ///< of the list of free requests; the tail is kept
  std::uint32_t free = 0;
  std::uint16_t posted = 0;

  int post(ibv_recv_wr* request, ibv_recv_wr** bad);
  /// The request at `index` was used; returns its id.
  std::uint64_t used(std::uint16_t index);
};

struct Qp {
  ibv_qp_ex base{};
  Context* context = nullptr;
  Pd* domain = nullptr;
  Cq *send_queue = nullptr, *receive_queue = nullptr;
  Srq* srq = nullptr;
  bool extended = false, signal_all = false;
  Pages memory;  ///< receive ring, send ring, doorbell record, doorbell register
  std::byte* record = nullptr;
  std::uint64_t* doorbell_register = nullptr;
  bool watched = false;  ///< the runtime watches the register
  std::shared_ptr<QueuePair> pair;
  std::shared_ptr<ReceiveQueue> receives;
  Connection connection;
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};

  // Send queue.
  std::mutex send_mutex;
  std::byte* send_ring = nullptr;
  std::uint32_t blocks = 0, most_requests = 0, most_segments = 0, most_inline = 0;
  std::optional<RequestWriter> writer;
  std::vector<SentRequest> sent;  ///< by block
  std::uint32_t posted = 0;
  std::atomic<std::uint32_t> completed{0};
  // Between wr_start and wr_complete.
  std::optional<RequestWriter> saved_writer;
  std::uint32_t saved_posted = 0;
  int pending_error = 0;
  bool building = false;

  // Receive queue of its own.
  std::mutex receive_mutex;
  std::byte* receive_ring = nullptr;
  std::uint32_t receive_size = 0, receive_stride = 0, receive_segments = 0, most_receives = 0;
  std::vector<std::uint64_t> receive_ids;
  std::uint32_t receives_posted = 0;
  std::atomic<std::uint32_t> receives_completed{0};

  ibv_qp* handle() { return &base.qp_base; }
  int post_send(ibv_send_wr* request, ibv_send_wr** bad);
  int post_receive(ibv_recv_wr* request, ibv_recv_wr** bad);
  /// Publishes what was written and rings.
  void ring();
  bool full() const { return posted - completed.load(std::memory_order_acquire) >= most_requests; }
  /// Ends the request that `writer` holds; its completion has `id`.
  void finish_request(std::uint64_t id);
  /// The request of a CQE with this index, whose completion frees all before it.
  std::uint64_t completed_send(std::uint16_t index);
  std::uint64_t completed_receive(std::uint16_t index);
  void reset();

 private:
  int write_request(const ibv_send_wr& request);
};

inline Context& of(ibv_context* context) {
  return *reinterpret_cast<Context*>(reinterpret_cast<std::byte*>(context) -
                                     offsetof(verbs_context, context));
}
inline Pd& of(ibv_pd* domain) {
  return *reinterpret_cast<Pd*>(domain);
}
inline Mr& of(ibv_mr* region) {
  return *reinterpret_cast<Mr*>(region);
}
inline Channel& of(ibv_comp_channel* channel) {
  return *reinterpret_cast<Channel*>(channel);
}
inline Cq& of(ibv_cq* queue) {
  return *reinterpret_cast<Cq*>(queue);
}
inline Cq& of(ibv_cq_ex* queue) {
  return *reinterpret_cast<Cq*>(queue);
}
inline Srq& of(ibv_srq* queue) {
  return *reinterpret_cast<Srq*>(queue);
}
inline Qp& of(ibv_qp* pair) {
  return *reinterpret_cast<Qp*>(pair);
}
inline Qp& of(ibv_qp_ex* pair) {
  return *reinterpret_cast<Qp*>(pair);
}

/// errno value of a command's status.
int errno_of(Status status);
/// Sets errno; returns nullptr.
inline std::nullptr_t fail_with(int error) {
  errno = error;
  return nullptr;
}
/// create(); where that finds no memory, nullptr with errno ENOMEM. Exceptions must not reach C.
template <typename Create>
auto or_no_memory(Create create) -> decltype(create()) {
  try {
    return create();
  } catch (const std::bad_alloc&) {
    return fail_with(ENOMEM);
  }
}
/// One line on stderr, as users see nothing but errno otherwise.
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// True if the range is memory of processors, which the kernel could pin: all pages are mapped, the
/// first and the last byte can be read.
bool is_memory(const void* address, std::size_t length);

/// Writes data segments and the end mark of a receive request.
void write_receive(std::byte* to, std::uint32_t most_segments, const ibv_recv_wr& request);

// Functions that clients call through the context or an object.
int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes,
               std::size_t size);
/// True if a device is that of this library.
bool is_emulated(const ibv_device* device);
int query_device_extended(ibv_context* context, const ibv_query_device_ex_input* input,
                          ibv_device_attr_ex* attributes, std::size_t size);
ibv_cq_ex* create_cq_extended(ibv_context* context, ibv_cq_init_attr_ex* attributes);
ibv_qp* create_qp_extended(ibv_context* context, ibv_qp_init_attr_ex* attributes);
ibv_srq* create_srq_extended(ibv_context* context, ibv_srq_init_attr_ex* attributes);
int poll_cq(ibv_cq* queue, int most, ibv_wc* completions);
int request_notification(ibv_cq* queue, int solicited_only);
void set_request_functions(ibv_qp_ex& pair);
void set_poll_functions(ibv_cq_ex& queue);

}  // namespace shoal::emulator
