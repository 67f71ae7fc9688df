// SPDX-License-Identifier: Apache-2.0
// Copies on one stream per PE. Local buffers may lie on the host, pinned or not, or on a GPU:
// addresses are unified.
#include "transport/cuda_p2p/cuda_p2p.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "transport/cuda_p2p/pipeline.hpp"

namespace shoal::transport {
namespace {

class CudaP2pTransport final : public HeapTransport, private HeapCopies {
 public:
  CudaP2pTransport(const Context& context, bool for_another_thread)
      : HeapCopies(context.device_heap),
        stream_(for_another_thread ? nullptr : device_.stream),
        my_pe_(context.my_pe) {
    // Every mapped heap is reached, also on another host of an NVLink domain. Only the nodes that
    // a host is split into for tests are kept apart.
    const auto me = static_cast<std::size_t>(my_pe_);
    for (std::size_t pe = 0; pe < context.node_of.size(); ++pe)
      split_off_.push_back(context.host_of[pe] == context.host_of[me] &&
                           context.node_of[pe] != context.node_of[me]);
  }

  std::string_view name() const noexcept override { return "cuda_p2p"; }
  std::vector<std::byte> address() override { return {}; }
  void connect(std::span<const std::vector<std::byte>>) override {
    started(kernels_.load(), "loading kernels");
    // Now, because the driver may wait for running kernels when it makes a stream, and these may
    // wait for the proxy.
    if (std::ranges::find(split_off_, true) != split_off_.end())
      pipeline_ = std::make_unique<CopyPipeline>(heap_, static_cast<Pe>(split_off_.size()));
  }
  Reach reach(Pe pe) const override;
  std::byte* base(Pe pe) const noexcept override {
    return split_off_[static_cast<std::size_t>(pe)] ? nullptr : heap_->base(pe);
  }

  void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override {
    put_nbi(pe, offset, source, bytes);
    wait("put");
  }
  void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) override {
    get_nbi(target, pe, offset, bytes);
    wait("get");
  }
  void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override;
  void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) override {
    copy(stream(), target, at(pe, offset), bytes, "get", pe);
  }
  void put_strided(Pe pe, std::size_t offset, std::size_t target_stride, const void* source,
                   std::size_t source_stride, std::size_t element, std::size_t count) override {
    copy_strided(at(pe, offset), target_stride, source, source_stride, element, count,
                 "put_strided", pe);
    wait("put_strided");
  }
  void get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                   std::size_t source_stride, std::size_t element, std::size_t count) override {
    copy_strided(target, target_stride, at(pe, offset), source_stride, element, count,
                 "get_strided", pe);
    wait("get_strided");
  }

  std::uint64_t atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                       std::uint64_t compare, std::size_t width) override {
    started(kernels_.atomic(stream(), at(pe, offset), op, operand, compare, width, words_),
            "atomic");
    wait("atomic");
    return *words_;
  }
  void signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) override {
    start_signal(pe, offset, op, value);
    wait("signal");
  }
  void put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                  std::size_t signal_offset, SignalOp op, std::uint64_t value) override {
    put_nbi(pe, offset, source, bytes);
    start_signal(pe, signal_offset, op, value);
    wait("put_signal");
  }

  PolledOperations& polled() override {
    if (pipeline_ == nullptr)
      pipeline_ = std::make_unique<CopyPipeline>(heap_, static_cast<Pe>(split_off_.size()));
    device_.activate();
    return *pipeline_;
  }

  void fence(Pe) override {}  // a stream keeps order
  void quiet() override {
    device_.activate();
    wait("quiet");
  }

 private:
  void wait(const char* what) { device_.synchronize(stream(), what); }
  CUstream stream() {
    if (stream_ != nullptr) return stream_;
    own_stream_ = memory::cuda::take_stream(device_, memory::cuda::StreamPriority::highest);
    return stream_ = own_stream_.get();
  }
  void start_signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
    auto* const word = reinterpret_cast<std::uint64_t*>(at(pe, offset));
    started(kernels_.signal(stream(), word, op, value), "signal");
  }
  void copy_strided(void* target, std::size_t target_stride, const void* source,
                    std::size_t source_stride, std::size_t element, std::size_t count,
                    const char* what, Pe pe);

  CUstream stream_;  ///< the device's; of another thread: its own, taken when first needed
  std::shared_ptr<CUstream_st> own_stream_;
  Pe my_pe_;
  std::vector<bool> split_off_;             // by PE: on this host, but not on this node
  std::unique_ptr<CopyPipeline> pipeline_;  ///< of the proxy's thread
};

Reach CudaP2pTransport::reach(Pe pe) const {
  if (!heap_->obstacle(pe).empty()) return {0, heap_->obstacle(pe)};
  const Capabilities near = split_off_[static_cast<std::size_t>(pe)] ? 0 : capability::load_store;
  if (!heap_->atomics(pe))
    return {near | capability::put | capability::get, "no atomics between these GPUs"};
  return {near | capability::all_operations, ""};
}

void CudaP2pTransport::put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  std::byte* const target = at(pe, offset);
  if (is_host_word(offset, source, bytes)) {
    std::uint64_t value = 0;
    std::memcpy(&value, source, bytes);
    return started(kernels_.store(stream(), target, value, bytes), "put");
  }
  copy(stream(), target, source, bytes, "put", pe);
}

void CudaP2pTransport::copy_strided(void* target, std::size_t target_stride, const void* source,
                                    std::size_t source_stride, std::size_t element,
                                    std::size_t count, const char* what, Pe pe) {
  if (element == 0 || count == 0) return;
  constexpr std::size_t kLargestPitch = (std::size_t{1} << 31) - 1;  // bytes
  if (target_stride < element || source_stride < element || target_stride > kLargestPitch ||
      source_stride > kLargestPitch) {  // beyond what a two-dimensional copy can express
    for (std::size_t i = 0; i < count; ++i)
      copy(stream(), static_cast<std::byte*>(target) + i * target_stride,
           static_cast<const std::byte*>(source) + i * source_stride, element, what, pe);
    return;
  }
  const memory::cuda::Elements to{static_cast<std::byte*>(target), element, count, target_stride};
  const memory::cuda::Elements from{static_cast<std::byte*>(const_cast<void*>(source)), element,
                                    count, source_stride};
  memory::cuda::check(driver_, start_copy(driver_, to, from, stream()), [&] {
    return fmt::format("SHOAL-N301: {} of {} elements of {} bytes with PE {}", what, count, element,
                       pe);
  });
}

}  // namespace

std::unique_ptr<HeapTransport> make_cuda_p2p(const Context& context) {
  return std::make_unique<CudaP2pTransport>(context, false);
}

std::unique_ptr<Transport> make_cuda_p2p_for_another_thread(const Context& context) {
  return std::make_unique<CudaP2pTransport>(context, true);
}

}  // namespace shoal::transport
