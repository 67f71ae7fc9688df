// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devx/device.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/mlx5/host_bus.hpp"
#include "base/system_error.hpp"
#include "transport/verbs/devx/queue_pair.hpp"

namespace shoal::transport::verbs::devx {
namespace {

ibv_wc_status status_of(mlx5::Syndrome syndrome) {
  using mlx5::Syndrome;
  static constexpr std::pair<Syndrome, ibv_wc_status> kStatus[] = {
      {Syndrome::none, IBV_WC_SUCCESS},
      {Syndrome::local_length, IBV_WC_LOC_LEN_ERR},
      {Syndrome::local_qp_operation, IBV_WC_LOC_QP_OP_ERR},
      {Syndrome::local_protection, IBV_WC_LOC_PROT_ERR},
      {Syndrome::flushed, IBV_WC_WR_FLUSH_ERR},
      {Syndrome::memory_window_bind, IBV_WC_MW_BIND_ERR},
      {Syndrome::bad_response, IBV_WC_BAD_RESP_ERR},
      {Syndrome::local_access, IBV_WC_LOC_ACCESS_ERR},
      {Syndrome::remote_invalid_request, IBV_WC_REM_INV_REQ_ERR},
      {Syndrome::remote_access, IBV_WC_REM_ACCESS_ERR},
      {Syndrome::remote_operation, IBV_WC_REM_OP_ERR},
      {Syndrome::retry_exceeded, IBV_WC_RETRY_EXC_ERR},
      {Syndrome::rnr_retry_exceeded, IBV_WC_RNR_RETRY_EXC_ERR},
      {Syndrome::remote_aborted, IBV_WC_REM_ABORT_ERR}};
  for (const auto& [value, status] : kStatus)
    if (value == syndrome) return status;
  return IBV_WC_GENERAL_ERR;
}

std::uint32_t number_of(const Library& library, ibv_pd* domain, const std::string& label) {
  mlx5dv_pd out{};
  mlx5dv_obj object{};
  object.pd.in = domain;
  object.pd.out = &out;
  const int code = library.init_obj(&object, MLX5DV_OBJ_PD);
  require(code == 0, Code::unsupported,
          "SHOAL-N380: {} does not report the number of a protection domain of {}: {}",
          library.file, label, errno_text(code));
  return out.pdn;
}

}  // namespace

QueueMemory::QueueMemory(const Library& library, const Place& place, std::size_t bytes,
                         std::byte fill, const std::string& what) {
  const std::size_t size = bytes_ = align_up(bytes, kPageBytes);
  memory_ = allocate_pages(bytes, fill);
  umem_ = {library.umem_reg(place.context, memory_.get(), size, IBV_ACCESS_LOCAL_WRITE),
           library.umem_dereg};
  require(
      umem_ != nullptr, Code::unsupported,
      "SHOAL-N401: {} bytes of {} cannot be registered with {}: {}. Limit: locked memory (ulimit "
      "-l)",
      size, what, place.label, errno_text(errno));
}

Device::Device(std::shared_ptr<const Library> library, Place place, std::size_t completions)
    : library_(std::move(library)),
      place_(std::move(place)),
      domain_(number_of(*library_, place_.domain, place_.label)) {
  query_limits();
  // Prefers pages without write combining, where the device has such pages.
  for (const std::uint32_t type : {MLX5DV_UAR_ALLOC_TYPE_NC, MLX5DV_UAR_ALLOC_TYPE_BF}) {
    page_ = {library_->alloc_uar(place_.context, type), library_->free_uar};
    if (page_ != nullptr) break;
  }
  require(page_ != nullptr, Code::unsupported, "SHOAL-N382: {} gives no doorbell page: {}",
          place_.label, errno_text(errno));
  const auto entries = static_cast<std::uint32_t>(
      std::min<std::size_t>(std::bit_ceil(completions + 1), most_entries_));
  queue_ = std::make_unique<CompletionQueue>(*this, entries, Overrun::error);
}

void Device::query_limits() {
  namespace f = mlx5::capability;
  Command command(mlx5::Command::query_hca_cap, mlx5::command::kResponseBytes, f::kResponseBytes);
  constexpr std::uint32_t kCurrent = 1;
  mlx5::set(command.in(), mlx5::command::kModifier, f::kGeneral << 1 | kCurrent);
  const int code = library_->general_cmd(place_.context, command.in(), command.in_bytes(),
                                         command.out(), command.out_bytes());
  require(code == 0, Code::unsupported, "SHOAL-N380: the limits of {} cannot be read: {}",
          place_.label, command.problem(code));
  const std::byte* const at = command.out() + f::kAt;
  const auto power = [&](mlx5::Field field) {
    return std::uint32_t{1} << std::min(mlx5::get(at, field), std::uint32_t{24});
  };
  most_blocks_ = std::min(power(f::kLogMaxQpSize), mlx5::kMostBlocks);
  most_entries_ = power(f::kLogMaxCqSize);
  most_request_bytes_ = mlx5::get(at, f::kMaxRequestBytes);
}

Object Device::create(Command& command, std::string& problem) const {
  errno = 0;
  Object object(library_->obj_create(place_.context, command.in(), command.in_bytes(),
                                     command.out(), command.out_bytes()),
                library_->obj_destroy);
  if (object == nullptr) problem = command.problem(errno);
  return object;
}

CompletionQueue::CompletionQueue(const Device& device, std::uint32_t entries, Overrun overrun)
    : memory_(device.library(), device.place(),
              entries * sizeof(mlx5::CompletionEntry) + sizeof(mlx5::CompletionRecord),
              std::byte{mlx5::kUnusedEntry}, "a completion queue") {
  namespace f = mlx5::cq_context;
  const std::size_t record = entries * sizeof(mlx5::CompletionEntry);
  auto* const record_at = new (memory_.at(record)) mlx5::CompletionRecord{};
  ring_ = {reinterpret_cast<const mlx5::CompletionEntry*>(memory_.at(0)),
           static_cast<std::uint32_t>(std::bit_width(entries) - 1), &record_at->consumed};
  std::uint32_t events = 0;
  const int code = device.library().query_eqn(device.place().context, 0, &events);
  require(code == 0, Code::unsupported, "SHOAL-N382: {} has no event queue: {}",
          device.place().label, errno_text(code));
  Command command(mlx5::Command::create_cq, f::kCommandBytes + 0xb0);
  std::byte* const in = command.in();
  std::byte* const at = in + f::kAt;
  mlx5::set(at, f::kLogSize, ring_.log_size);
  mlx5::set(at, f::kIgnoreOverrun, overrun == Overrun::ignored);
  mlx5::set(at, f::kUarPage, device.doorbell_page());
  mlx5::set(at, f::kEventQueue, events);
  mlx5::set(at, f::kRecordUmemValid, 1);
  mlx5::set(at, f::kRecordUmem, memory_.number());
  mlx5::set64(at, f::kRecordOffset, record);
  mlx5::set(in, f::kUmemValid, 1);
  mlx5::set(in, f::kUmem, memory_.number());
  mlx5::set64(in, f::kUmemOffset, 0);
  std::string problem;
  object_ = device.create(command, problem);
  require(
      object_ != nullptr, Code::unsupported,
      "SHOAL-N383: a completion queue of {} entries (device {}: at most {}) cannot be created: {}. "
      "Settings: SHOAL_VERBS_DEPTH, SHOAL_VERBS_QUEUE_PAIRS",
      entries, device.place().label, device.most_entries(), problem);
  number_ = command.object();
}

void Device::add(CommandQueuePair& pair) {
  pairs_[pair.number()] = &pair;
}

int Device::poll(std::span<ibv_wc> completions) noexcept {
  if (library_->poll_emulator != nullptr) library_->poll_emulator(place_.context);
  const mlx5::HostBus bus;
  mlx5::Completion entry;
  std::size_t count = 0;
  const std::uint32_t before = consumed_;
  while (count < completions.size() && mlx5::next(queue_->ring(), consumed_, bus, entry)) {
    const auto pair = pairs_.find(entry.queue_pair);
    if (pair == pairs_.end()) continue;  // destroyed
    ibv_wc& to = completions[count++];
    std::memset(&to, 0, sizeof to);
    to.wr_id = pair->second->completed(entry.index);
    to.status = entry.failed ? status_of(entry.syndrome) : IBV_WC_SUCCESS;
    to.vendor_err = entry.vendor;
    to.qp_num = entry.queue_pair;
  }
  if (consumed_ != before) mlx5::release(queue_->ring(), consumed_, bus);
  return static_cast<int>(count);
}

}  // namespace shoal::transport::verbs::devx
