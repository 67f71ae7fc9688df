// SPDX-License-Identifier: Apache-2.0
// shoal-bench-verbs: measures RDMA verbs alone between two processes of this host, on the emulated
// NIC: the baseline of "shoal-bench rma" with SHOAL_TRANSPORT_INSIDE=verbs. The rows have the same
// names and meanings.
//
// "put + quiet" is a write and its completion; "put_signal round trip" is a write and a fetch-and-
// add after it, in both directions. The peer polls its completion queue meanwhile, as a PE does
// that waits. --interface devx does the same without libibverbs: the baseline of
// SHOAL_VERBS_INTERFACE=devx.
#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>

#include "base/check.hpp"
#include "raw_loop.hpp"
#include "report.hpp"
#include "run/cores.hpp"
#include "shoal_bench.hpp"
#include "verbs_raw_direct.hpp"

namespace shoal::bench {
namespace {

constexpr std::uint32_t kInline = 64;
constexpr std::chrono::seconds kLimit{30};  ///< without any completion
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                        IBV_ACCESS_REMOTE_ATOMIC;

void check(const char* call, int code) {
  require(code == 0, Code::system, "{}: {}", call, std::strerror(code));
}

template <typename T>
T* made(const char* call, T* object) {
  require(object != nullptr, Code::system, "{}: {}", call, std::strerror(errno));
  return object;
}

/// The registered memory of a process.
struct Memory {
  alignas(4096) char target[kLargest];
  alignas(4096) char source[kLargest];
  alignas(64) std::uint64_t signals;
  alignas(64) std::uint64_t sink;  ///< of atomics: the value before
};

/// What the two processes exchange outside the network.
struct Blackboard {
  struct Entry {
    std::atomic<bool> ready, connected;
    std::uint32_t queue_pair, key;
    std::uint16_t lid;
    std::uint64_t base;
  };
  Entry of[2];
  std::atomic<std::uint64_t> measured;  ///< measurements of process 0 alone that have ended
  std::atomic<bool> finished[2];
};

/// A queue pair that counts its completions. Lives until the process ends.
class Raw {
 public:
  /// `direct`: without libibverbs once they are connected.
  Raw(Blackboard& board, int me, bool direct);

  void write(std::size_t bytes) {
    auto request = data(IBV_WR_RDMA_WRITE, bytes);
    request.send_flags = IBV_SEND_SIGNALED;
    if (bytes <= kInline) request.send_flags |= IBV_SEND_INLINE;
    post(request, 1);
  }
  void read(std::size_t bytes) {
    auto request = data(IBV_WR_RDMA_READ, bytes);
    request.send_flags = IBV_SEND_SIGNALED;
    post(request, 1);
  }
  /// A fetch-and-add in the peer's memory, executed by its NIC.
  void fetch_add();
  void write_and_signal(std::size_t bytes);
  /// Returns when all requests are complete.
  void drain() {
    while (completed_ != posted_) progress();
  }
  void wait_signal() {
    ++awaited_;
    const std::atomic_ref<std::uint64_t> signals(memory_->signals);
    while (signals.load(std::memory_order_acquire) < awaited_) progress();
  }
  /// Makes progress for the peer.
  void serve() {
    poll();
    last_ = std::chrono::steady_clock::now();
  }

 private:
  void connect(Blackboard::Entry& mine, const Blackboard::Entry& theirs, ibv_mtu mtu);
  ibv_send_wr data(ibv_wr_opcode opcode, std::size_t bytes);
  ibv_send_wr add_one(std::size_t offset);
  void post(ibv_send_wr& first, std::uint64_t completions);
  int poll();
  void progress();

  const std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::optional<DirectQueues> direct_;
  ibv_sge part_{}, sink_{};
  std::uint64_t base_ = 0;  ///< of the peer's memory
  std::uint32_t key_ = 0;
  std::uint64_t posted_ = 0, completed_ = 0, awaited_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

Raw::Raw(Blackboard& board, int me, bool direct) {
  ibv_device** const devices = made("ibv_get_device_list", ibv_get_device_list(nullptr));
  require(devices[0] != nullptr, Code::unsupported, "there is no RDMA device");
  ibv_context* const context = made("ibv_open_device", ibv_open_device(devices[0]));
  ibv_pd* const domain = made("ibv_alloc_pd", ibv_alloc_pd(context));
  queue_ = made("ibv_create_cq", ibv_create_cq(context, 128, nullptr, nullptr, 0));
  region_ = made("ibv_reg_mr", ibv_reg_mr(domain, memory_.get(), sizeof(Memory), kAccess));
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = queue_;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {.max_send_wr = 64,
                .max_recv_wr = 0,
                .max_send_sge = 1,
                .max_recv_sge = 0,
                .max_inline_data = kInline};
  pair_ = made("ibv_create_qp", ibv_create_qp(domain, &wanted));
  ibv_port_attr port{};
  check("ibv_query_port", ibv_query_port(context, 1, &port));
  require(port.link_layer == IBV_LINK_LAYER_INFINIBAND, Code::unsupported,
          "port 1 of {} is Ethernet; this program connects by LID",
          ibv_get_device_name(devices[0]));
  Blackboard::Entry &mine = board.of[me], &theirs = board.of[1 - me];
  mine.queue_pair = pair_->qp_num;
  mine.key = region_->rkey;
  mine.lid = port.lid;
  mine.base = reinterpret_cast<std::uintptr_t>(memory_.get());
  mine.ready = true;
  while (!theirs.ready) sched_yield();
  base_ = theirs.base;
  key_ = theirs.key;
  connect(mine, theirs, port.active_mtu);
  if (direct) direct_.emplace(pair_, queue_);
}

void Raw::connect(Blackboard::Entry& mine, const Blackboard::Entry& theirs, ibv_mtu mtu) {
  ibv_qp_attr init{}, receive{}, send{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = 1;
  init.qp_access_flags = kAccess;
  check("ibv_modify_qp to INIT",
        ibv_modify_qp(pair_, &init,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = mtu;
  receive.dest_qp_num = theirs.queue_pair;
  receive.max_dest_rd_atomic = 16;
  receive.min_rnr_timer = 12;
  receive.ah_attr.dlid = theirs.lid;
  receive.ah_attr.port_num = 1;
  check("ibv_modify_qp to RTR",
        ibv_modify_qp(pair_, &receive,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  send.qp_state = IBV_QPS_RTS;
  send.timeout = 16;
  send.retry_cnt = 7;
  send.rnr_retry = 7;
  send.max_rd_atomic = 16;
  check("ibv_modify_qp to RTS",
        ibv_modify_qp(pair_, &send,
                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                          IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
  mine.connected = true;
  while (!theirs.connected) sched_yield();
}

ibv_send_wr Raw::data(ibv_wr_opcode opcode, std::size_t bytes) {
  part_ = {reinterpret_cast<std::uintptr_t>(memory_->source), static_cast<std::uint32_t>(bytes),
           region_->lkey};
  ibv_send_wr request{};
  request.sg_list = &part_;
  request.num_sge = 1;
  request.opcode = opcode;
  request.wr.rdma.remote_addr = base_ + offsetof(Memory, target);
  request.wr.rdma.rkey = key_;
  return request;
}

ibv_send_wr Raw::add_one(std::size_t offset) {
  sink_ = {reinterpret_cast<std::uintptr_t>(&memory_->sink), sizeof memory_->sink, region_->lkey};
  ibv_send_wr request{};
  request.sg_list = &sink_;
  request.num_sge = 1;
  request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.atomic.remote_addr = base_ + offset;
  request.wr.atomic.rkey = key_;
  request.wr.atomic.compare_add = 1;
  return request;
}

void Raw::fetch_add() {
  auto request = add_one(offsetof(Memory, target));
  post(request, 1);
}

void Raw::write_and_signal(std::size_t bytes) {
  while (posted_ - completed_ >= kWindow) progress();
  auto write = data(IBV_WR_RDMA_WRITE, bytes);
  if (bytes <= kInline) write.send_flags = IBV_SEND_INLINE;
  auto signal = add_one(offsetof(Memory, signals));
  write.next = &signal;
  post(write, 1);
}

void Raw::post(ibv_send_wr& first, std::uint64_t completions) {
  posted_ += completions;
  if (direct_) return direct_->post(first);
  ibv_send_wr* refused = nullptr;
  check("ibv_post_send", ibv_post_send(pair_, &first, &refused));
}

int Raw::poll() {
  ibv_wc completions[32];
  const int count = direct_ ? direct_->poll() : ibv_poll_cq(queue_, 32, completions);
  require(count >= 0, Code::system, "ibv_poll_cq fails");
  for (int i = 0; i < count && !direct_; ++i)
    require(completions[i].status == IBV_WC_SUCCESS, Code::system, "a request failed: {}",
            ibv_wc_status_str(completions[i].status));
  completed_ += static_cast<std::uint64_t>(count);
  return count;
}

void Raw::progress() {
  if (poll() != 0) {
    last_ = std::chrono::steady_clock::now();
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  require(now - last_ < kLimit, Code::timeout, "no operation completed for {} s", kLimit.count());
}

class RawBench {
 public:
  RawBench(Raw& raw, Blackboard& board, int me, const RmaOptions& options)
      : raw_(raw), board_(board), options_(options), loop_(me, options.iterations) {}

  std::vector<Measurement> run() {
    for (const std::size_t bytes : kSizes) {
      if (!options_.has(bytes)) continue;
      const std::int64_t count = loop_.repetitions(bytes);
      const auto size = static_cast<double>(bytes);
      alone(put_name(bytes), count, size, [&] { raw_.write(bytes); });
      alone(get_name(bytes), count, size, [&] { raw_.read(bytes); });
      alone(window_name(bytes), count, size * kWindow, [&] {
        for (std::uint64_t i = 0; i < kWindow; ++i) raw_.write(bytes);
      });
    }
    alone("atomic fetch_add", loop_.iterations(), 0, [&] { raw_.fetch_add(); });
    for (const std::size_t bytes : kRoundTripSizes)
      loop_.time(round_trip_name(bytes), loop_.repetitions(bytes), 0, [&] { round_trip(bytes); });
    raw_.drain();
    board_.finished[loop_.me()] = true;
    while (!board_.finished[1 - loop_.me()]) raw_.serve();
    return loop_.take();
  }

 private:
  /// `post` and its completion, in process 0.
  template <typename Post>
  void alone(const std::string& name, std::int64_t count, double bytes, Post post) {
    ++number_;
    const bool other = loop_.me() != 0;
    while (other && board_.measured.load(std::memory_order_acquire) < number_) raw_.serve();
    if (other) return;
    loop_.time(name, count, bytes, [&] {
      post();
      raw_.drain();
    });
    board_.measured.store(number_, std::memory_order_release);
  }
  void round_trip(std::size_t bytes) {
    if (loop_.me() == 1) raw_.wait_signal();
    raw_.write_and_signal(bytes);
    if (loop_.me() == 0) raw_.wait_signal();
  }

  Raw& raw_;
  Blackboard& board_;
  const RmaOptions& options_;
  RawLoop loop_;
  std::uint64_t number_ = 0;
};

/// Binds this thread, and threads that it starts, as shoal-run --bind core binds PE `me` of two.
void bind_to_share(int me) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const auto shares = run::share_cores(run::available_processors(), 2);
  for (const int processor : shares[static_cast<std::size_t>(me)])
    CPU_SET(static_cast<std::size_t>(processor), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail_errno("cannot bind to cores");
}

void run(const RmaOptions& options, const std::string& interface, const std::string& bind,
         const std::string& json_path) {
  Report report;
  report.program = "shoal-bench-verbs";
  report.setup.emplace_back("device", "the first of libibverbs");
  report.setup.emplace_back("interface", interface);
  report.setup.emplace_back("bind", bind);
  std::unique_ptr<Raw> raw;
  run_two_processes<Blackboard>(report, json_path, [&](Blackboard& board, int me) {
    if (bind == "core") bind_to_share(me);
    raw = std::make_unique<Raw>(board, me, interface == "devx");
    return RawBench(*raw, board, me, options).run();
  });
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  CLI::App app("Measures RDMA verbs alone, between two processes of this host.",
               "shoal-bench-verbs");
  std::string json_path, interface = "verbs", bind = "none";
  shoal::bench::RmaOptions options;
  app.add_option("--interface", interface,
                 "verbs: post and poll by libibverbs; devx: in memory, as "
                 "SHOAL_VERBS_INTERFACE=devx")
      ->check(CLI::IsMember({"verbs", "devx"}))
      ->capture_default_str();
  app.add_option("--bind", bind, "core: bind the two processes as shoal-run --bind core does")
      ->check(CLI::IsMember({"none", "core"}))
      ->capture_default_str();
  app.add_option("--iterations", options.iterations, "repetitions of each small operation")
      ->capture_default_str();
  app.add_option("--sizes", options.sizes, "sizes of puts and gets, in bytes; default: all");
  app.add_option("--json", json_path, "also write the results to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::bench::run(options, interface, bind, json_path);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal-bench-verbs: {}\n", error.what());
    return 1;
  }
}
