// SPDX-License-Identifier: Apache-2.0
// dispatch.cu: dispatch between nodes.
//
// Moves: of each token, one row with its side payload (RailToken) to every remote node that has
// experts for it, in chunks; from there and from local tokens, a row and a side record to each rank
// (expert-major: each expert) on the node.
//
// Waits: `entered` of all ranks; `arrived` and `read` of chunks; in the block that ends last,
// `finished` of the ranks of this node. Publishes: notices and `entered`; chunks with `arrived`;
// `read` of chunks that have been forwarded; `finished`.
#include "ep/cuda/normal/device/dispatch_records.cuh"
#include "ep/cuda/normal/internode/rail.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kOperation = static_cast<std::uint32_t>(detail::Operation::dispatch);
constexpr std::uint32_t kLocalTokens = 4;  ///< of a warp, in a piece of local tokens

/// Values in shared memory that the blocks compute from the notices.
struct DispatchState {
  DispatchTargets targets;                  ///< of this rank's tokens
  DispatchTargets here;                     ///< of row 0 and record 0, at the ranks of this node
  std::int32_t first_row[kMaxDeviceRanks];  ///< of this rank's rows there, if rank-major
  std::uint32_t send_tokens[kMaxDeviceRanks], receive_tokens[kMaxDeviceRanks];  ///< by node
  RailWork work;
};

template <class Network, bool kExpertMajor, int kPerLane>
class Dispatch {
 public:
  using Token = DispatchToken<kPerLane>;

  __device__ Dispatch(const InternodeDispatch& params, DispatchState& state, std::byte* tables,
                      std::uint64_t epoch, bool leader)
      : all_(params),
        params_(params.normal),
        rail_{params.normal.group, params.grid},
        state_(state),
        epoch_(epoch),
        leader_(leader),
        record_(params.normal.scale_count * 4, kExpertMajor ? 1 : params.normal.group.top_k),
        message_(params.normal.row_bytes, params.normal.scale_count * 4,
                 static_cast<std::uint32_t>(params.normal.group.top_k),
                 params.normal.weights != nullptr),
        room_(static_cast<std::uint32_t>(params.grid.layout.chunk_bytes / message_.total)),
        expert_rows_(reinterpret_cast<std::int32_t*>(tables)),
        rail_rows_(expert_rows_ + (kExpertMajor ? params.normal.group.experts : 0)) {}

  __device__ void announce() {
    detail::DeviceNotice& notice = state_.targets.notice;
    if (threadIdx.x == 0)
      notice = {params_.region,
                detail::kNoRoom,
                params_.cached ? *params_.handle.epoch : 0,
                params_.region_rows,
                kOperation,
                params_.dtype,
                params_.row_bytes,
                params_.scale_count * 4,
                params_.weights == nullptr ? 0u
                : params_.all_weights != 0 ? 2u
                                           : 1u,
                0,
                gridDim.x,
                kExpertMajor ? params_.expert_alignment : 0,
                params_.quantize,
                announced_scale(params_)};
    __syncthreads();
    publish_to_nodes<Network, kExpertMajor>(
        rail_, epoch_, Phase::dispatch_notify, notice,
        params_.cached ? nullptr : params_.routing.rank_counts, params_.routing.expert_counts,
        [&](std::int32_t node) { return all_.routing.counts[node]; });
  }

  /// True if the operation takes place; then all targets are known. The whole block calls.
  __device__ bool find() {
    const DeviceGroup& group = params_.group;
    if (!await_notices(group, epoch_, Phase::dispatch_notify, kOperation, leader_) ||
        !find_targets<kExpertMajor>(params_, epoch_, record_, leader_, state_.targets,
                                    expert_rows_))
      return false;
    const NodeGrid& grid = all_.grid;
    for (std::int32_t r = threadIdx.x; r < grid.size; r += blockDim.x) {
      const std::int32_t rank = grid.first_here() + r;
      const auto& notice = notice_of(group, epoch_, rank);
      const detail::RegionLayout layout(static_cast<std::uint64_t>(notice.rows), params_.row_bytes,
                                        record_.bytes);
      std::byte* const region = group.block[rank] + notice.region;
      state_.here.rows[rank] = region;
      state_.here.records[rank] = region + layout.records;
      state_.first_row[rank] = static_cast<std::int32_t>(
          static_cast<std::uint64_t>(state_.targets.records[rank] - state_.here.records[rank]) /
          record_.bytes);
    }
    for (std::int32_t node = threadIdx.x; node < grid.nodes; node += blockDim.x) {
      const bool remote = node != grid.mine;
      const auto received =
          remote ? static_cast<std::uint32_t>(notice_of(group, epoch_, grid.peer(node)).staged) : 0;
      state_.send_tokens[node] = remote ? static_cast<std::uint32_t>(all_.routing.counts[node]) : 0;
      state_.receive_tokens[node] = received;
      if (leader_ && !params_.cached) all_.rail.counts[node] = static_cast<std::int32_t>(received);
    }
    if (!params_.cached) place_rail_tokens();
    __syncthreads();
    return true;
  }

  __device__ void run() {
    for (;;) {
      if (threadIdx.x == 0) state_.work = next();
      __syncthreads();
      const RailWork work = state_.work;
      switch (work.action) {
        case RailAction::end:
          return;
        case RailAction::send:
          send(work.node, work.chunk);
          break;
        case RailAction::receive:
          receive(work.node, work.chunk);
          break;
        case RailAction::local:
          send_local(work.chunk);
          break;
      }
      __syncthreads();
    }
  }

  __device__ void settle() const {
    for (std::int32_t node = threadIdx.x; node < all_.grid.nodes; node += blockDim.x)
      settle_rail(all_.grid, node, chunks_of(state_.send_tokens[node], room_),
                  chunks_of(state_.receive_tokens[node], room_));
  }

  /// Counts the tokens that go to other nodes. One block calls.
  __device__ void count_network_rows() const {
    KernelRecord* const record = params_.group.record;
    if (record == nullptr) return;
    for (std::int32_t node = threadIdx.x; node < all_.grid.nodes; node += blockDim.x) {
      if (node == all_.grid.mine) continue;
      RankRecord& peer = record->ranks[all_.grid.peer(node)];
      count_up(&peer.network_rows, state_.send_tokens[node]);
      count_up(&peer.network_bytes, std::uint64_t{state_.send_tokens[node]} * params_.row_bytes);
    }
  }

  __device__ const detail::SideRecord& record() const { return record_; }
  __device__ const Rail& rail() const { return rail_; }

 private:
  /// Computes the first row of each rail peer's tokens at the ranks (expert-major: experts) of this
  /// node: rail_rows_[node][rank or expert of this node].
  __device__ void place_rail_tokens() {
    const DeviceGroup& group = params_.group;
    const NodeGrid& grid = all_.grid;
    const std::int32_t here = targets_here(),
                       first_here = kExpertMajor ? grid.first_expert : grid.first_here();
    const std::int32_t offset = kExpertMajor ? group.ranks : 0;
    for (std::int32_t i = threadIdx.x; i < grid.nodes * here; i += blockDim.x) {
      const std::int32_t peer = grid.peer(i / here), target = first_here + i % here;
      std::int32_t before = 0, before_me = 0;
      for (std::int32_t source = 0; source < max(peer, group.me); ++source) {
        const std::int32_t rows =
            ptx::ld_relaxed_sys_global(counts_of(group, epoch_, source) + offset + target);
        if (source < peer) before += rows;
        if (source < group.me) before_me += rows;
      }
      rail_rows_[i] = kExpertMajor ? expert_rows_[target] - before_me + before : before;
    }
  }
  __device__ std::int32_t targets_here() const {
    return kExpertMajor ? all_.grid.experts : all_.grid.size;
  }

  __device__ RailWork next() const {
    IdleWait idle(rail_, {Phase::dispatch_rail, kOperation, epoch_}, leader_);
    const RailWork work = find_work(idle);
    idle.end(work);
    return work;
  }
  __device__ RailWork find_work(IdleWait& idle) const {
    const NodeGrid& grid = all_.grid;
    const std::uint32_t piece = blockDim.x / 32 * kLocalTokens;
    std::uint32_t* const pieces =
        &params_.group.memory->counters[static_cast<std::uint32_t>(KernelKind::normal)].work;
    for (;;) {
      std::int32_t awaited = -1;
      RailWork work{};
      for (std::int32_t i = 1; i < grid.nodes; ++i) {  // not all to the same node at once
        work.node = (grid.mine + i) % grid.nodes;
        bool left = false;
        work.action = RailAction::receive;
        if (rail_.take_received(work.node, chunks_of(state_.receive_tokens[work.node], room_),
                                work.chunk, left))
          return work;
        work.action = RailAction::send;
        if (rail_.take_send(work.node, chunks_of(state_.send_tokens[work.node], room_), work.chunk,
                            left))
          return work;
        if (left) awaited = work.node;
      }
      work.action = RailAction::local;
      if (*static_cast<volatile std::uint32_t*>(pieces) * piece <
          static_cast<std::uint32_t>(params_.tokens)) {
        work.chunk = atomicAdd(pieces, 1u);
        if (work.chunk * piece < static_cast<std::uint32_t>(params_.tokens)) return work;
      }
      if (awaited < 0 || !idle.wait(awaited)) return RailWork{};
    }
  }

  __device__ Token load(std::int32_t token) const {
    return load_token<kExpertMajor, kPerLane>(params_, token);
  }

  __device__ void send(std::int32_t node, std::uint32_t chunk) {
    const std::uint64_t number = all_.grid.rails[node].sent + chunk;
    std::byte* const out = rail_.out(node, number);
    const std::uint32_t first = chunk * room_, end = min(first + room_, state_.send_tokens[node]);
    for (std::uint32_t i = first + threadIdx.x / 32; i < end; i += blockDim.x / 32)
      write_message(out + (i - first) * message_.total,
                    all_.routing.tokens[node * all_.routing.stride + i]);
    __syncthreads();
    if (threadIdx.x == 0)
      rail_.template send<Network>(node, number, (end - first) * message_.total, epoch_,
                                   Phase::dispatch_rail, kOperation);
  }

  __device__ void write_message(std::byte* to, std::int32_t token) const {
    copy_row_to(params_.x + static_cast<std::int64_t>(token) * params_.row_bytes, params_.row_bytes,
                1, [&](std::uint32_t) { return to; });
    const std::uint32_t* const scales = params_.scales + token * params_.scale_stride;
    for (std::uint32_t i = lane_id(); i < params_.scale_count; i += 32)
      reinterpret_cast<std::uint32_t*>(to + message_.scales)[i] = scales[i * params_.scale_step];
    const Token t = load(token);
    if (lane_id() == 0) *reinterpret_cast<std::int32_t*>(to + message_.token) = token;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const std::uint32_t slot = number_of_lane(i);
      if (!has_slot(slot)) return;
      reinterpret_cast<std::int32_t*>(to + message_.experts)[slot] = t.expert[i];
      reinterpret_cast<std::int32_t*>(to + message_.copies)[slot] = t.copy[i];
      if (params_.weights != nullptr)
        reinterpret_cast<float*>(to + message_.weights)[slot] = t.weight[i];
    }
  }
  __device__ bool has_slot(std::uint32_t slot) const {
    return slot < static_cast<std::uint32_t>(params_.group.top_k);
  }

  __device__ void receive(std::int32_t node, std::uint32_t chunk) {
    const std::uint64_t number = all_.grid.rails[node].received + chunk;
    const std::byte* const in = rail_.in(node, number);
    const std::uint32_t first = chunk * room_,
                        end = min(first + room_, state_.receive_tokens[node]);
    for (std::uint32_t i = first + threadIdx.x / 32; i < end; i += blockDim.x / 32)
      forward(node, i, in + (i - first) * message_.total);
    __syncthreads();
    if (threadIdx.x == 0)
      rail_.template release<Network>(node, number, epoch_, Phase::dispatch_rail, kOperation);
  }

  /// Replaces the copies of a token by those on this node: pack_copy(rank, row there). Rank-major,
  /// they become the first numbers. expert_row(expert) and first_row(rank): where the rows of the
  /// token's source start, counted from row 0 there.
  template <typename ExpertRow, typename FirstRow>
  __device__ void find_rows_here(Token& t, ExpertRow&& expert_row, FirstRow&& first_row) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      std::int32_t rank = -1;
      if constexpr (kExpertMajor)
        rank = params_.group.expert_table.rank_or_none(t.expert[i]);
      else if (t.copy[i] != kNoCopy)
        rank = copy_rank(t.copy[i]);
      if (rank < 0 || !all_.grid.here(rank))
        t.copy[i] = kNoCopy;
      else if constexpr (kExpertMajor)
        t.copy[i] = pack_copy(rank, expert_row(t.expert[i]) + t.copy[i]);
      else
        t.copy[i] = pack_copy(rank, first_row(rank) + copy_row_index(t.copy[i]));
    }
    if constexpr (!kExpertMajor) compact(t.copy, t.copies(), kNoCopy);
  }

  __device__ void forward(std::int32_t node, std::uint32_t index, const std::byte* message) {
    const NodeGrid& grid = all_.grid;
    const std::int32_t top_k = params_.group.top_k;
    Token t;
    t.number = __ldcg(reinterpret_cast<const std::int32_t*>(message + message_.token));
    std::int32_t* const kept =
        all_.rail.rows + (node * all_.rail.stride + index) * static_cast<std::int64_t>(top_k);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const std::uint32_t slot = number_of_lane(i);
      if (!has_slot(slot)) break;
      t.expert[i] =
          __ldcg(reinterpret_cast<const std::int32_t*>(message + message_.experts) + slot);
      t.copy[i] =
          params_.cached
              ? kept[slot]
              : __ldcg(reinterpret_cast<const std::int32_t*>(message + message_.copies) + slot);
      if (params_.weights != nullptr)
        t.weight[i] = __ldcg(reinterpret_cast<const float*>(message + message_.weights) + slot);
    }
    if (!params_.cached) {
      const std::int32_t* const first = rail_rows_ + node * targets_here();
      find_rows_here(
          t, [&](std::int32_t expert) { return first[expert - grid.first_expert]; },
          [&](std::int32_t rank) { return first[rank - grid.first_here()]; });
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (has_slot(number_of_lane(i))) kept[number_of_lane(i)] = t.copy[i];
    }
    store(t, message, reinterpret_cast<const std::uint32_t*>(message + message_.scales), 1);
  }

  __device__ void send_local(std::uint32_t piece) {
    const std::uint32_t tokens = blockDim.x / 32 * kLocalTokens;
    const std::uint32_t first = piece * tokens,
                        end = min(first + tokens, static_cast<std::uint32_t>(params_.tokens));
    for (std::uint32_t i = first + threadIdx.x / 32; i < end; i += blockDim.x / 32) {
      const auto token = static_cast<std::int32_t>(i);
      Token t = load(token);
      find_rows_here(
          t, [&](std::int32_t expert) { return expert_rows_[expert]; },
          [&](std::int32_t rank) { return state_.first_row[rank]; });
      store(t, params_.x + static_cast<std::int64_t>(token) * params_.row_bytes,
            params_.scales + token * params_.scale_stride, params_.scale_step);
    }
  }

  /// Stores a token's row and record at each of its copies on this node (find_rows_here).
  __device__ void store(const Token& t, const std::byte* row, const std::uint32_t* scales,
                        std::int64_t scale_step) {
    TopkSlotTargets<kPerLane> to{};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (t.copy[i] == kNoCopy) continue;
      const std::int32_t rank = copy_rank(t.copy[i]);
      const std::int64_t at = copy_row_index(t.copy[i]);
      to.row[i] = state_.here.rows[rank] + at * params_.row_bytes;
      to.record[i] = state_.here.records[rank] + at * record_.bytes;
    }
    const NumberSet<kPerLane> exist = t.copies();
    if (!exist.any()) return;
    const std::uint32_t copies =
        kExpertMajor ? static_cast<std::uint32_t>(params_.group.top_k) : exist.count();
    copy_row_to(row, params_.row_bytes, copies,
                [&](std::uint32_t c) { return value_of(to.row, c); });
    if constexpr (kExpertMajor) {
      write_topk_slot_records(params_, record_, to, t);
    } else {
      write_records(params_, record_, state_.here, t, copies);
    }
    for (std::uint32_t c = 0; params_.scale_count > 0 && c < copies; ++c) {
      auto* const to_scales = reinterpret_cast<std::uint32_t*>(value_of(to.record, c));
      if (to_scales == nullptr) continue;
      for (std::uint32_t i = lane_id(); i < params_.scale_count; i += 32)
        to_scales[i] = scales[i * scale_step];
    }
  }

  const InternodeDispatch& all_;
  const NormalDispatch& params_;
  const Rail rail_;
  DispatchState& state_;
  const std::uint64_t epoch_;
  const bool leader_;
  const detail::SideRecord record_;
  const detail::RailToken message_;
  const std::uint32_t room_;  ///< messages of a chunk
  std::int32_t* const expert_rows_;
  std::int32_t* const rail_rows_;
};

template <class Network, bool kExpertMajor, int kPerLane>
__global__ void __launch_bounds__(kRailWarps * 32, 1)
    internode_dispatch_impl(const __grid_constant__ InternodeDispatch params) {
  __shared__ DispatchState state;
  const NormalDispatch& normal = params.normal;
  const DeviceGroup& group = normal.group;
  const std::uint64_t epoch = group.memory->epoch + 1;
  const std::uint32_t ticket = take_ticket(group, KernelKind::normal);
  const bool leader = ticket == 0;
  Dispatch<Network, kExpertMajor, kPerLane> dispatch(params, state, ptx::dynamic_shared(), epoch,
                                                     leader);
  if (leader) {
    if (threadIdx.x == 0) note_start(group, KernelKind::normal, epoch, RecordedOperation::dispatch);
    dispatch.announce();
    if (group.record != nullptr && threadIdx.x == blockDim.x - 1)
      add_last_launch(group, KernelKind::normal, epoch);
  }
  const bool good = dispatch.find();
  if (good) {
    if (leader) publish_sizes<kExpertMajor>(normal, epoch, state.targets);
    dispatch.run();
    if (normal.fill)
      fill_rest<kExpertMajor>(normal, dispatch.record(), state.targets.received[group.me], ticket);
    if constexpr (kExpertMajor) {
      __syncthreads();  // fill_gaps reads the counts that this block has written
      if (leader) fill_gaps(normal, dispatch.record());
    }
    if (leader) {
      count_rows<kExpertMajor>(normal, epoch, state.targets.received[group.me]);
      dispatch.count_network_rows();
    }
  }
  finish_on_node<Network>(dispatch.rail(), epoch, good, Phase::dispatch_receive, kOperation, [&] {
    if (good) dispatch.settle();
  });
}

using DispatchKernel = void (*)(InternodeDispatch);

template <int kPerLane>
DispatchKernel kernel_for(NetworkPath path, bool expert_major) {
  if (path == NetworkPath::nic)
    return expert_major ? internode_dispatch_impl<ByNic, true, kPerLane>
                        : internode_dispatch_impl<ByNic, false, kPerLane>;
  return expert_major ? internode_dispatch_impl<ByProxy, true, kPerLane>
                      : internode_dispatch_impl<ByProxy, false, kPerLane>;
}

}  // namespace

void launch_internode_dispatch(const InternodeDispatch& params, const NormalPlan& plan,
                               cudaStream_t stream) {
  const auto of_lanes =
      params.normal.group.top_k <= kOnePerLane ? kernel_for<1> : kernel_for<kMostPerLane>;
  launch(of_lanes(params.grid.path, params.normal.expert_alignment > 0), params, plan, stream);
}

void preload_internode_dispatch(bool many_slots) {
  cudaFuncAttributes attributes;
  const auto of_lanes = many_slots ? kernel_for<kMostPerLane> : kernel_for<1>;
  for (const NetworkPath path : {NetworkPath::proxy, NetworkPath::nic})
    for (const bool expert_major : {false, true})
      (void)cudaFuncGetAttributes(&attributes, of_lanes(path, expert_major));
}

}  // namespace shoal::ep::cuda
