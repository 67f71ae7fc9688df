// SPDX-License-Identifier: Apache-2.0
// shoal-bench-ofi: measures libfabric alone between two processes of this host: the baseline of
// "shoal-bench rma" with SHOAL_TRANSPORT_INSIDE=ofi. The rows have the same names and meanings.
//
// "put + quiet" is a write, a message after it and a reply; "put_signal round trip" is the same in
// both directions.
#include <fmt/format.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.hpp"
#include "report.hpp"
#include "rma_rows.hpp"

namespace shoal::bench {
namespace {

constexpr std::size_t kMessage = 64;        ///< bytes
constexpr std::chrono::seconds kLimit{30};  ///< without any completion

void check(const char* call, long code) {
  require(code >= 0, Code::system, "{}: {}", call, fi_strerror(static_cast<int>(-code)));
}

/// Data that the two processes exchange before the network is up.
struct Blackboard {
  struct Entry {
    std::atomic<bool> ready;
    char name[256];
    std::uint64_t base, key;
  };
  Entry of[2];
};

/// An endpoint that counts its completions. Lives until the process ends.
class Raw {
 public:
  Raw(const std::string& provider, Blackboard& board, int me);

  void write(std::size_t bytes) {
    post("fi_write", [&] {
      return fi_write(endpoint_, local_.data(), bytes, nullptr, peer_, base_, key_, next_context());
    });
  }
  void read(std::size_t bytes) {
    post("fi_read", [&] {
      return fi_read(endpoint_, local_.data(), bytes, nullptr, peer_, base_, key_, next_context());
    });
    const std::uint64_t wanted = ++issued_reads_;
    while (reads_ < wanted) progress();
  }
  void send() {
    post("fi_inject", [&] { return fi_inject(endpoint_, message_, kMessage, peer_); });
  }
  void wait_message() {
    ++awaited_;
    while (received_ < awaited_) progress();
  }
  /// Returns when at most `most` writes are incomplete.
  void limit_writes(std::uint64_t issued, std::uint64_t most) {
    while (issued - written_ > most) progress();
  }

 private:
  template <typename Call>
  void post(const char* name, Call call) {
    ssize_t code;
    while ((code = call()) == -FI_EAGAIN) progress();
    check(name, code);
  }
  void* next_context() { return &contexts_[context_++ % std::size(contexts_)]; }
  void post_receive(std::size_t i) {
    check("fi_recv",
          fi_recv(endpoint_, inbox_[i], kMessage, nullptr, FI_ADDR_UNSPEC, &receives_[i]));
  }
  void progress();

  std::vector<char> memory_ = std::vector<char>(kLargest, 1),
                    local_ = std::vector<char>(kLargest, 2);
  fid_ep* endpoint_ = nullptr;
  fid_cq* queue_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::uint64_t base_ = 0, key_ = 0;
  std::uint64_t written_ = 0, reads_ = 0, received_ = 0, issued_reads_ = 0, awaited_ = 0,
                context_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  fi_context2 contexts_[64], receives_[64];
  char inbox_[64][kMessage] = {}, message_[kMessage] = {};
};

Raw::Raw(const std::string& provider, Blackboard& board, int me) {
  fi_info* const hints = fi_allocinfo();
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  fi_info* info = nullptr;
  check("fi_getinfo", fi_getinfo(FI_VERSION(1, 14), "127.0.0.1", nullptr, FI_SOURCE, hints, &info));
  fi_freeinfo(hints);
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_av* peers = nullptr;
  fid_mr* region = nullptr;
  fi_cq_attr queue{};
  queue.size = 1024;
  queue.format = FI_CQ_FORMAT_MSG;
  fi_av_attr table{};
  table.type = FI_AV_TABLE;
  check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, nullptr));
  check("fi_domain", fi_domain(fabric, info, &domain, nullptr));
  check("fi_cq_open", fi_cq_open(domain, &queue, &queue_, nullptr));
  check("fi_av_open", fi_av_open(domain, &table, &peers, nullptr));
  check("fi_endpoint", fi_endpoint(domain, info, &endpoint_, nullptr));
  check("fi_ep_bind", fi_ep_bind(endpoint_, &peers->fid, 0));
  check("fi_ep_bind", fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV));
  check("fi_enable", fi_enable(endpoint_));
  check("fi_mr_reg",
        fi_mr_reg(domain, memory_.data(), memory_.size(), FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
                  static_cast<std::uint64_t>(me) + 1, 0, &region, nullptr));
  Blackboard::Entry &mine = board.of[me], &theirs = board.of[1 - me];
  std::size_t bytes = sizeof mine.name;
  check("fi_getname", fi_getname(&endpoint_->fid, mine.name, &bytes));
  mine.base = (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0
                  ? reinterpret_cast<std::uintptr_t>(memory_.data())
                  : 0;
  mine.key = fi_mr_key(region);
  mine.ready = true;
  while (!theirs.ready) sched_yield();
  base_ = theirs.base;
  key_ = theirs.key;
  require(fi_av_insert(peers, theirs.name, 1, &peer_, 0, nullptr) == 1, Code::system,
          "fi_av_insert failed");
  fi_freeinfo(info);
  for (std::size_t i = 0; i < std::size(receives_); ++i) post_receive(i);
}

void Raw::progress() {
  fi_cq_msg_entry entries[32];
  const ssize_t count = fi_cq_read(queue_, entries, std::size(entries));
  const auto now = std::chrono::steady_clock::now();
  if (count == -FI_EAGAIN) {
    require(now - last_ < kLimit, Code::timeout, "no operation completed for {} s", kLimit.count());
    sched_yield();
    return;
  }
  last_ = now;
  check("fi_cq_read", count);
  for (ssize_t i = 0; i < count; ++i) {
    if ((entries[i].flags & FI_RECV) != 0) {
      ++received_;
      post_receive(
          static_cast<std::size_t>(static_cast<fi_context2*>(entries[i].op_context) - receives_));
    } else {
      ++((entries[i].flags & FI_WRITE) != 0 ? written_ : reads_);
    }
  }
}

/// The loop of one process: 0 measures, 1 takes the other end.
class RawBench {
 public:
  RawBench(Raw& raw, int me, std::int64_t iterations)
      : raw_(raw), me_(me), iterations_(iterations) {}

  std::vector<Measurement> run() {
    for (const std::size_t bytes : kSizes) {
      const auto size = static_cast<double>(bytes);
      time(put_name(bytes), bytes, size, [&] { put_and_flush(bytes, 1); });
      if (me_ == 0) {
        time(get_name(bytes), bytes, size, [&] { raw_.read(bytes); });
        raw_.send();
      } else {
        raw_.wait_message();
      }
      time(window_name(bytes), bytes, size * kWindow, [&] { put_and_flush(bytes, kWindow); });
    }
    for (const std::size_t bytes : kRoundTripSizes)
      time(round_trip_name(bytes), bytes, 0, [&] { round_trip(bytes); });
    return std::move(measurements_);
  }

 private:
  /// Runs `body` once, then as often as its transfers of `bytes` allow; the mean of those.
  template <typename Body>
  void time(const std::string& name, std::size_t bytes, double moved, Body body) {
    const std::int64_t count = repetitions(bytes, iterations_);
    body();
    const Times start = now();
    for (std::int64_t i = 0; i < count; ++i) body();
    measurements_.push_back({name, (now() - start) / static_cast<double>(count), moved});
  }
  void put_and_flush(std::size_t bytes, std::uint64_t writes) {
    if (me_ == 0) {
      for (std::uint64_t i = 0; i < writes; ++i) raw_.write(bytes);
      issued_ += writes;
      raw_.send();
      raw_.wait_message();
      raw_.limit_writes(issued_, 0);
    } else {
      raw_.wait_message();
      raw_.send();
    }
  }
  void round_trip(std::size_t bytes) {
    if (me_ == 1) raw_.wait_message();
    raw_.write(bytes);
    raw_.send();
    if (me_ == 0) raw_.wait_message();
  }

  Raw& raw_;
  const int me_;
  const std::int64_t iterations_;
  std::uint64_t issued_ = 0;
  std::vector<Measurement> measurements_;
};

/// Measures in this process (0), with a child as the other one (1).
void run(const std::string& provider, std::int64_t iterations, const std::string& json_path) {
  void* const shared =
      mmap(nullptr, sizeof(Blackboard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail_errno("mmap");
  auto* const board = new (shared) Blackboard{};
  const pid_t child = fork();
  if (child < 0) fail_errno("fork");
  const int me = child == 0 ? 1 : 0;
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  Raw raw(provider, *board, me);
  const std::vector<Measurement> measurements = RawBench(raw, me, iterations).run();
  if (me == 1) _exit(0);  // the process's end closes the network, which could wait forever
  int status = 0;
  waitpid(child, &status, 0);
  Report report{.program = "shoal-bench-ofi",
                .basis = "bytes of the transfers of one process",
                .pes = 1,
                .setup = {{"provider", provider}}};
  publish(report, measurements, [](const std::vector<double>& mine) { return mine; }, json_path);
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  CLI::App app(
      "Measures libfabric alone, between two processes of this host on the loopback interface.",
      "shoal-bench-ofi");
  std::string provider = "tcp;ofi_rxm", json_path;
  std::int64_t iterations = 1000;
  app.add_option("--provider", provider, "libfabric provider")->capture_default_str();
  app.add_option("--iterations", iterations, "repetitions of each small operation")
      ->capture_default_str();
  app.add_option("--json", json_path, "also write the results to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::bench::run(provider, iterations, json_path);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal-bench-ofi: {}\n", error.what());
    return 1;
  }
}
