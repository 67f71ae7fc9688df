// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devx/queue_pair.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "base/check.hpp"
#include "base/mlx5/host_bus.hpp"
#include "transport/verbs/devx/path.hpp"

namespace shoal::transport::verbs::devx {
namespace {

namespace f = mlx5::qp_context;
constexpr std::uint32_t kMigrated = 3;       ///< paths have no alternative
constexpr std::uint32_t kNoReceives = 3;     ///< type of receive queue
constexpr std::uint32_t kAtomicsOfIb = 1;    ///< 8 bytes
constexpr std::uint32_t kLogAckRequest = 3;  ///< packets between requests for an acknowledgement
constexpr std::uint32_t kLogLongest = 30;    ///< message
constexpr int kMostParts = 16;

std::uint32_t log_of(std::uint32_t value) {
  return static_cast<std::uint32_t>(std::bit_width(value)) - 1;
}

mlx5::Command command_for(ibv_qp_state state) {
  switch (state) {
    case IBV_QPS_INIT:
      return mlx5::Command::reset_to_init;
    case IBV_QPS_RTR:
      return mlx5::Command::init_to_rtr;
    case IBV_QPS_RTS:
      return mlx5::Command::rtr_to_rts;
    default:
      return mlx5::Command::to_error;
  }
}

void set_access(std::byte* at, int access) {
  mlx5::set(at, f::kRemoteRead, (access & IBV_ACCESS_REMOTE_READ) != 0);
  mlx5::set(at, f::kRemoteWrite, (access & IBV_ACCESS_REMOTE_WRITE) != 0);
  mlx5::set(at, f::kRemoteAtomic, (access & IBV_ACCESS_REMOTE_ATOMIC) != 0);
  mlx5::set(at, f::kAtomicMode, kAtomicsOfIb);
}

/// Writes what libibverbs takes from these attributes in a change to their state. The path is
/// path.hpp's.
void set_attributes(std::byte* at, const ibv_qp_attr& from) {
  mlx5::set(at, f::kMigration, kMigrated);
  switch (from.qp_state) {
    case IBV_QPS_INIT:
      mlx5::set(at, f::kPort, from.port_num);
      set_access(at, static_cast<int>(from.qp_access_flags));
      break;
    case IBV_QPS_RTR:
      mlx5::set(at, f::kMtu, from.path_mtu);
      mlx5::set(at, f::kLogMaxMessage, kLogLongest);
      mlx5::set(at, f::kRemoteQp, from.dest_qp_num);
      mlx5::set(at, f::kReceivePsn, from.rq_psn);
      mlx5::set(at, f::kLogRemoteReads, log_of(from.max_dest_rd_atomic));
      mlx5::set(at, f::kAtomicMode, kAtomicsOfIb);
      mlx5::set(at, f::kMinRnr, from.min_rnr_timer);
      break;
    case IBV_QPS_RTS:
      mlx5::set(at, f::kSendPsn, from.sq_psn);
      mlx5::set(at, f::kAckTimeout, from.timeout);
      mlx5::set(at, f::kRetryCount, from.retry_cnt);
      mlx5::set(at, f::kRnrRetry, from.rnr_retry);
      mlx5::set(at, f::kLogReads, log_of(from.max_rd_atomic));
      mlx5::set(at, f::kLogAckRequest, kLogAckRequest);
      break;
    default:
      break;
  }
}

std::size_t memory_bytes(const Device& device, const QueueLimits& limits) {
  return std::size_t{ring_blocks(device, limits)} * mlx5::kBlockBytes +
         sizeof(mlx5::DoorbellRecord);
}

mlx5::Flags flags_of(const ibv_send_wr& request) {
  return {.signalled = (request.send_flags & IBV_SEND_SIGNALED) != 0,
          .fenced = (request.send_flags & IBV_SEND_FENCE) != 0};
}

}  // namespace

std::uint32_t ring_blocks(const Device& device, const QueueLimits& limits) {
  const std::uint32_t most =
      std::min(mlx5::kMostInline, std::max(device.most_request_bytes(), mlx5::kBlockBytes) -
                                      2 * mlx5::kSegmentBytes - mlx5::kInlineHeader);
  require(limits.inline_bytes <= most, Code::unsupported,
          "SHOAL-N383: SHOAL_VERBS_INLINE is {}; requests of {} hold at most {} bytes",
          limits.inline_bytes, device.place().label, most);
  const std::uint32_t each = mlx5::blocks_of(mlx5::inline_segments(limits.inline_bytes));
  const std::uint32_t blocks = std::bit_ceil(limits.depth * each);
  require(
      blocks <= device.most_blocks(), Code::unsupported,
      "SHOAL-N383: {} requests with {} inline bytes need {} blocks; queue pairs of {} have at most "
      "{}. Settings: SHOAL_VERBS_DEPTH, SHOAL_VERBS_INLINE",
      limits.depth, limits.inline_bytes, blocks, device.place().label, device.most_blocks());
  return blocks;
}

CommandQueuePair::CommandQueuePair(const CommandPort& port, const QueueLimits& limits,
                                   const QueuePairName& name, std::size_t existing)
    : QueuePair(port, limits, name),
      device_(port.commands()),
      memory_(device_.library(), device_.place(), memory_bytes(device_, limits), std::byte{0},
              describe()) {
  lay_out();
  ids_.resize(queue_.blocks);
  create(existing, device_.queue());
  to_init();
  device_.add(*this);
}

CommandQueuePair::CommandQueuePair(const CommandPort& port, const QueueLimits& limits,
                                   const QueuePairName& name, std::size_t existing,
                                   const CompletionQueue& completions)
    : QueuePair(port, limits, name),
      device_(port.commands()),
      memory_(device_.library(), device_.place(), memory_bytes(device_, limits), std::byte{0},
              describe()) {
  lay_out();
  create(existing, completions.number());
  to_init();
}

void CommandQueuePair::lay_out() {
  inline_bytes_ = limits_.inline_bytes;
  queue_.blocks = ring_blocks(device_, limits_);
  queue_.ring = reinterpret_cast<mlx5::Segment*>(memory_.at(0));
  auto* const record = reinterpret_cast<mlx5::DoorbellRecord*>(
      memory_.at(std::size_t{queue_.blocks} * mlx5::kBlockBytes));
  queue_.record = &record->sends;
  queue_.doorbell = device_.doorbell();
}

CommandQueuePair::~CommandQueuePair() {
  device_.remove(queue_.number);
}

void CommandQueuePair::create(std::size_t existing, std::uint32_t completions) {
  Command command(mlx5::Command::create_qp, f::kCommandBytes);
  std::byte* const in = command.in();
  std::byte* const at = in + f::kAt;
  mlx5::set(at, f::kMigration, kMigrated);
  mlx5::set(at, f::kDomain, device_.domain());
  mlx5::set(at, f::kLogSendBlocks, log_of(queue_.blocks));
  mlx5::set(at, f::kUarPage, device_.doorbell_page());
  mlx5::set(at, f::kUserIndex, static_cast<std::uint32_t>(existing));
  mlx5::set(at, f::kSendCq, completions);
  mlx5::set(at, f::kReceiveCq, completions);
  mlx5::set(at, f::kReceiveType, kNoReceives);
  mlx5::set(at, f::kRecordUmemValid, 1);
  mlx5::set(at, f::kRecordUmem, memory_.number());
  mlx5::set64(at, f::kRecordOffset, std::uint64_t{queue_.blocks} * mlx5::kBlockBytes);
  mlx5::set(in, f::kUmemValid, 1);
  mlx5::set(in, f::kUmem, memory_.number());
  mlx5::set64(in, f::kUmemOffset, 0);
  std::string problem;
  object_ = device_.create(command, problem);
  if (object_ == nullptr) refuse_creation(problem, existing);
  queue_.number = command.object();
}

std::string CommandQueuePair::modify(ibv_qp_attr& attributes, int /*mask*/) {
  Command command(command_for(attributes.qp_state), f::kCommandBytes);
  mlx5::set(command.in(), mlx5::command::kObject, queue_.number);
  std::byte* const at = command.in() + f::kAt;
  set_attributes(at, attributes);
  if (attributes.qp_state == IBV_QPS_RTR) {
    const std::uint16_t udp_source = udp_source_port(queue_.number, attributes.dest_qp_num);
    const std::string problem =
        set_path(at, device_.library(), port_, attributes.ah_attr, udp_source);
    if (!problem.empty()) return problem;
  }
  const int code = device_.library().obj_modify(object_.get(), command.in(), command.in_bytes(),
                                                command.out(), command.out_bytes());
  return code == 0 ? std::string() : command.problem(code);
}

std::string CommandQueuePair::state() const {
  constexpr std::array kNames = {"RESET", "INIT", "RTR", "RTS", "SQE", "SQD", "ERR"};
  Command command(mlx5::Command::query_qp, mlx5::command::kResponseBytes, f::kAt + f::kBytes);
  mlx5::set(command.in(), mlx5::command::kObject, queue_.number);
  const int code = device_.library().obj_query(object_.get(), command.in(), command.in_bytes(),
                                               command.out(), command.out_bytes());
  if (code != 0) return command.problem(code);
  const std::uint32_t state = mlx5::get(command.out() + f::kAt, f::kState);
  return state < kNames.size() ? kNames[state] : "ERR";
}

void CommandQueuePair::stop() noexcept {
  auto attributes = zeroed<ibv_qp_attr>();
  attributes.qp_state = IBV_QPS_ERR;
  modify(attributes, IBV_QP_STATE);
}

int CommandQueuePair::write(const ibv_send_wr& request, mlx5::Posted& posted) noexcept {
  const bool writes = request.opcode == IBV_WR_RDMA_WRITE;
  const mlx5::Flags flags = flags_of(request);
  if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
      request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    const auto& atomic = request.wr.atomic;
    const bool swaps = request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    const ibv_sge& before = *request.sg_list;
    posted = mlx5::write_atomic(
        queue_, posted_, swaps ? mlx5::Opcode::compare_swap : mlx5::Opcode::fetch_add,
        {atomic.remote_addr, atomic.rkey}, swaps ? atomic.swap : atomic.compare_add,
        swaps ? atomic.compare_add : 0, {before.addr, before.lkey}, flags);
    return 0;
  }
  if (!writes && request.opcode != IBV_WR_RDMA_READ) return EOPNOTSUPP;
  const mlx5::Memory remote{request.wr.rdma.remote_addr, request.wr.rdma.rkey};
  if ((request.send_flags & IBV_SEND_INLINE) != 0) {
    if (!writes || request.num_sge > 1) return EINVAL;
    const ibv_sge source = request.num_sge == 1 ? *request.sg_list : ibv_sge{};
    if (source.length > inline_bytes_) return EINVAL;
    posted =
        mlx5::write_inline(queue_, posted_, remote, reinterpret_cast<const std::byte*>(source.addr),
                           source.length, flags);
    return 0;
  }
  mlx5::Part parts[kMostParts];
  if (request.num_sge < 0 || request.num_sge > kMostParts) return EINVAL;
  const auto count = static_cast<std::uint32_t>(request.num_sge);
  for (std::uint32_t i = 0; i < count; ++i) {
    const ibv_sge& part = request.sg_list[i];
    parts[i] = {{part.addr, part.lkey}, part.length};
  }
  posted = mlx5::write_data(queue_, posted_, writes ? mlx5::Opcode::write : mlx5::Opcode::read,
                            remote, parts, count, flags);
  return 0;
}

int CommandQueuePair::post(ibv_send_wr& first) noexcept {
  const std::uint32_t before = posted_;
  mlx5::Posted posted;
  int code = 0;
  for (const ibv_send_wr* request = &first; request != nullptr && code == 0;
       request = request->next) {
    const auto parts = static_cast<std::uint32_t>(std::max(request->num_sge, 0));
    const bool is_inline = (request->send_flags & IBV_SEND_INLINE) != 0;
    const std::uint32_t segments =
        is_inline ? mlx5::inline_segments(inline_bytes_) : std::max(2 + parts, 4u);
    if (posted_ - completed_ + mlx5::blocks_of(segments) > queue_.blocks) {
      code = ENOMEM;
      break;
    }
    code = write(*request, posted);
    if (code != 0) break;
    ids_[posted_ & (queue_.blocks - 1)] = request->wr_id;
    posted_ = posted.next;
  }
  if (code != 0) {
    posted_ = before;
    return code;
  }
  const mlx5::HostBus bus;
  mlx5::publish(queue_, posted, bus);
  return 0;
}

std::uint64_t CommandQueuePair::completed(std::uint16_t index) noexcept {
  completed_ = mlx5::completed_after(queue_, completed_, posted_, index);
  return ids_[index & (queue_.blocks - 1)];
}

}  // namespace shoal::transport::verbs::devx
