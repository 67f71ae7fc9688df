// SPDX-License-Identifier: Apache-2.0
// The module "ucx" over the real module "ofi", with the fault of SHOAL_TEST_FAULT (README.md).
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "base/check.hpp"
#include "transport/heap_rma.hpp"
#include "transport/module.hpp"
#include "transport/polled.hpp"
#include "transport/scoped_timeout.hpp"

namespace shoal::transport {
namespace {

struct Fault {
  std::string step = "none";
  Pe from = -1, to = -1;

  bool hits(std::string_view what, Pe my_pe, Pe pe) const {
    return step == what && (from < 0 || from == my_pe) && (to < 0 || to == pe);
  }
};

Fault read_fault() {
  Fault fault;
  const char* const text = std::getenv("SHOAL_TEST_FAULT");
  std::istringstream(text == nullptr ? "" : text) >> fault.step >> fault.from >> fault.to;
  return fault;
}

/// Claims to access heaps in GPU memory, and does nothing.
class LostHeap final : public HeapRma {
 public:
  explicit LostHeap(std::function<bool(Pe)> reaches) : reaches_(std::move(reaches)) {}

  std::vector<std::byte> add(std::size_t, std::size_t) override { return {}; }
  void connect(std::span<const std::vector<std::byte>>) override {}
  void roll_back(std::size_t) noexcept override {}
  bool reaches(Pe pe, std::size_t, const void*, std::size_t) override { return reaches_(pe); }
  std::string describe(Pe) override { return "lost"; }
  void put(Pe, std::size_t, const void*, std::size_t) override {}
  void get(void*, Pe, std::size_t, std::size_t) override {}
  void put_nbi(Pe, std::size_t, const void*, std::size_t) override {}
  void get_nbi(void*, Pe, std::size_t, std::size_t) override {}

 private:
  const std::function<bool(Pe)> reaches_;
};

class FaultyTransport final : public Transport, public PolledOperations {
 public:
  FaultyTransport(Fault fault, const Context& context, std::unique_ptr<Transport> inner)
      : fault_(std::move(fault)),
        my_pe_(context.my_pe),
        timeout_(context.settings->timeout),
        inner_(std::move(inner)) {}

  std::string_view name() const noexcept override { return "ucx"; }
  std::vector<std::byte> address() override {
    refuse("address");
    return inner_->address();
  }
  void open(std::span<const std::vector<std::byte>> addresses) override {
    refuse("open");
    inner_->open(addresses);
  }
  void connect(std::span<const std::vector<std::byte>> addresses) override {
    refuse("connect");
    inner_->connect(addresses);
  }
  Reach reach(Pe pe) const override {
    if (fault_.hits("unreached", my_pe_, pe)) return {0, "a made-up fault of the connection"};
    return inner_->reach(pe);
  }

  void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override {
    if (!loses("put", pe)) inner_->put(pe, offset, source, bytes);
  }
  void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override {
    if (!loses("put", pe)) inner_->put_nbi(pe, offset, source, bytes);
  }
  void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) override {
    if (!loses("get", pe)) inner_->get(target, pe, offset, bytes);
  }
  void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) override {
    if (!loses("get", pe)) inner_->get_nbi(target, pe, offset, bytes);
  }
  std::uint64_t atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                       std::uint64_t compare, std::size_t width) override {
    return loses("atomic", pe) ? 0 : inner_->atomic(pe, op, offset, operand, compare, width);
  }
  void atomic_nbi(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                  std::uint64_t compare, std::size_t width, std::uint64_t* before) override {
    if (!loses("atomic", pe))
      inner_->polled().atomic_nbi(pe, op, offset, operand, compare, width, before);
  }
  void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) override {
    if (!loses("signal", pe)) inner_->signal(pe, offset, op, value);
  }
  void put_strided(Pe pe, std::size_t offset, std::size_t target_stride, const void* source,
                   std::size_t source_stride, std::size_t element, std::size_t count) override {
    if (!loses("put", pe))
      inner_->put_strided(pe, offset, target_stride, source, source_stride, element, count);
  }
  void get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                   std::size_t source_stride, std::size_t element, std::size_t count) override {
    if (!loses("get", pe))
      inner_->get_strided(target, target_stride, pe, offset, source_stride, element, count);
  }

  PolledOperations& polled() override { return *this; }
  bool has_room(Pe pe) override { return inner_->polled().has_room(pe); }
  bool reached(Pe pe, Point& point) override { return inner_->polled().reached(pe, point); }

  void fence(Pe pe) override { inner_->fence(pe); }
  void quiet() override {
    if (hangs_) {
      std::this_thread::sleep_until(wait_deadline(timeout_));
      fail(Code::timeout, "a made-up operation hangs");
    }
    inner_->quiet();
  }
  bool progress() noexcept override { return inner_->progress(); }
  GpuAccess gpu_access() noexcept override {
    GpuAccess access = inner_->gpu_access();
    if (fault_.step == "lose-heap") access.heaps = &lost_heap_;
    return access;
  }
  std::span<const Ended> ended() noexcept override { return inner_->ended(); }

 private:
  void refuse(std::string_view step) const {
    require(!fault_.hits(step, my_pe_, fault_.to), Code::system, "a made-up fault of {}", step);
  }
  /// True if the operation has no effect. Throws where it fails.
  bool loses(const std::string& operation, Pe pe) {
    require(!fault_.hits(operation, my_pe_, pe), Code::peer_failed, "a made-up fault of {}",
            operation);
    hangs_ = hangs_ || fault_.hits("hang-" + operation, my_pe_, pe);
    return fault_.hits("hang-" + operation, my_pe_, pe) ||
           fault_.hits("lose-" + operation, my_pe_, pe);
  }

  const Fault fault_;
  const Pe my_pe_;
  const std::chrono::milliseconds timeout_;
  bool hangs_ = false;
  LostHeap lost_heap_{[this](Pe pe) { return fault_.hits("lose-heap", my_pe_, pe); }};
  const std::unique_ptr<Transport> inner_;
};

std::unique_ptr<Transport> make_faulty(const Context& context) {
  Fault fault = read_fault();
  require(!fault.hits("start", context.my_pe, fault.to), Code::unsupported,
          "a made-up fault of the start");
  return std::make_unique<FaultyTransport>(std::move(fault), context,
                                           load_module("ofi", *context.settings).make(context));
}

}  // namespace
}  // namespace shoal::transport

extern "C" __attribute__((visibility("default")))
const shoal::transport::Module shoal_transport_module = {
    shoal::transport::kModuleVersion, "ucx", "a made-up library", shoal::transport::make_faulty};
