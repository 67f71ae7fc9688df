// SPDX-License-Identifier: Apache-2.0
// combine.cu: combine between nodes.
//
// Moves: for each token that this rank forwarded, the rows of the ranks of this node to their sum,
// and the sums to the rail peer that sent the token, in chunks. For each token of this rank, the
// sums of all nodes to one row of `out`.
//
// Order of additions, all in float32: inside a node the ranks in the order of the routing
// (expert-major: top-k slots ascending), rounded to the type of the rows; then biases and the nodes
// by the last top-k slot that names each, rounded once. The node of this rank is summed and rounded
// like the others. With CombineOptions::quantize the rounded sums of other nodes travel encoded,
// and that of this node passes through the encoding.
//
// Waits: `entered` of all ranks; `arrived` and `read` of chunks; in the block that ends last,
// `finished` of the ranks of this node: they have read this rank's expert output. Publishes:
// notices and `entered`; chunks with `arrived`; `read` of a chunk whose sums have all been added;
// `finished`.
#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/normal/device/combine_counts.cuh"
#include "ep/cuda/normal/device/encoded_units.cuh"
#include "ep/cuda/normal/internode/rail.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kOperation = static_cast<std::uint32_t>(detail::Operation::combine);
/// Tokens that are summed when all their sums are there: a lane looks for those of one. At most the
/// sums of a chunk, so that the tokens span two chunks of a peer at most.
constexpr std::uint32_t kTile = 32;

struct CombineState {
  // Expert output and weights of the ranks of this node.
  const std::byte* rows[kMaxDeviceRanks];
  const std::byte* weights[kMaxDeviceRanks];
  std::uint32_t weight_stride[kMaxDeviceRanks];
  std::uint32_t send_sums[kMaxDeviceRanks], receive_sums[kMaxDeviceRanks];  ///< by node
  detail::DeviceNotice notice;
  RailWork work;
};

template <class Network, class Format, int kPerLane>
class Combine {
 public:
  /// Rows of a token, or sums of nodes: pack_copy each.
  using Rows = NumberedValues<kPerLane>;

  __device__ Combine(const InternodeCombine& params, CombineState& state, std::uint64_t epoch,
                     bool leader)
      : all_(params),
        params_(params.normal),
        rail_{params.normal.group, params.grid},
        state_(state),
        epoch_(epoch),
        leader_(leader),
        message_(static_cast<std::uint32_t>(travelling_bytes(params.normal)),
                 static_cast<std::uint32_t>(params.normal.group.top_k),
                 params.normal.out_weights != nullptr),
        room_(static_cast<std::uint32_t>(params.grid.layout.chunk_bytes / message_.total)),
        tile_(min(kTile, room_)) {}

  __device__ void announce() {
    if (threadIdx.x == 0)
      state_.notice = {params_.y,
                       params_.y_weights,
                       *params_.handle.epoch,
                       params_.y_rows,
                       kOperation,
                       params_.dtype,
                       params_.row_bytes,
                       0,
                       params_.out_weights != nullptr,
                       params_.weight_stride,
                       gridDim.x,
                       0,
                       params_.quantize};
    __syncthreads();
    publish_to_nodes<Network, false>(rail_, epoch_, Phase::combine_notify, state_.notice, nullptr,
                                     nullptr, [](std::int32_t) { return 0; });
  }

  /// True if the operation takes place. The whole block calls.
  __device__ bool find() {
    const DeviceGroup& group = params_.group;
    const NodeGrid& grid = all_.grid;
    if (!await_notices(group, epoch_, Phase::combine_notify, kOperation, leader_)) return false;
    bool good = true;
    for (std::int32_t rank = threadIdx.x; rank < group.ranks; rank += blockDim.x) {
      good = good && agrees(group, epoch_, rank);
      if (!grid.here(rank)) continue;
      const auto& notice = notice_of(group, epoch_, rank);
      state_.rows[rank] = group.block[rank] + notice.region;
      state_.weights[rank] = group.block[rank] + notice.weights;
      state_.weight_stride[rank] = notice.weight_stride;
    }
    if (!__syncthreads_and(good)) {
      if (leader_ && threadIdx.x == 0) report_mismatch(group, epoch_, Phase::combine_notify);
      return false;
    }
    for (std::int32_t node = threadIdx.x; node < grid.nodes; node += blockDim.x) {
      const bool remote = node != grid.mine;
      state_.send_sums[node] = remote ? static_cast<std::uint32_t>(all_.rail.counts[node]) : 0;
      state_.receive_sums[node] =
          remote ? static_cast<std::uint32_t>(all_.routing.counts[node]) : 0;
    }
    __syncthreads();
    return true;
  }

  __device__ void run() {
    for (;;) {
      if (threadIdx.x < 32) {
        const RailWork work = next();
        if (threadIdx.x == 0) state_.work = work;
      }
      __syncthreads();
      const RailWork work = state_.work;
      if (work.action == RailAction::end) return;
      if (work.action == RailAction::send)
        send(work.node, work.chunk);
      else
        sum_tile(work.chunk);
      __syncthreads();
    }
  }

  __device__ void settle() const {
    for (std::int32_t node = threadIdx.x; node < all_.grid.nodes; node += blockDim.x)
      settle_rail(all_.grid, node, chunks_of(state_.send_sums[node], room_),
                  chunks_of(state_.receive_sums[node], room_));
    if (threadIdx.x == 0) *all_.grid.tiles = 0;
  }
  __device__ const Rail& rail() const { return rail_; }

 private:
  static constexpr int kParts = 4;  ///< of a row, loaded at a time by a lane

  /// The first warp calls; lane 0 has the result.
  __device__ RailWork next() const {
    IdleWait idle(rail_, {Phase::combine_rail, kOperation, epoch_}, leader_);
    const RailWork work = find_work(idle);
    if (lane_id() == 0) idle.end(work);
    return work;
  }
  __device__ RailWork find_work(IdleWait& idle) const {
    const NodeGrid& grid = all_.grid;
    for (;;) {
      RailWork work{};
      std::int32_t awaited = -1;
      bool found = false;
      for (std::int32_t i = 1; lane_id() == 0 && !found && i < grid.nodes; ++i) {
        work.node = (grid.mine + i) % grid.nodes;
        bool left = false;
        found = rail_.take_send(work.node, chunks_of(state_.send_sums[work.node], room_),
                                work.chunk, left);
        if (left) awaited = work.node;
      }
      work.action = RailAction::send;
      if (__shfl_sync(~0u, found ? 1 : 0, 0) != 0) return work;
      const std::uint32_t tile = __shfl_sync(
          ~0u, lane_id() == 0 ? *static_cast<volatile std::uint32_t*>(grid.tiles) : 0u, 0);
      bool tiles_left = false;
      if (tile * tile_ < static_cast<std::uint32_t>(params_.tokens)) {
        tiles_left = true;
        const std::int32_t missing = missing_sums(tile * tile_ + lane_id());
        const std::uint32_t waiting = __ballot_sync(~0u, missing >= 0);
        if (waiting == 0) {
          const bool taken = lane_id() == 0 && atomicCAS(grid.tiles, tile, tile + 1) == tile;
          work.action = RailAction::local;
          work.chunk = tile;
          if (__shfl_sync(~0u, taken ? 1 : 0, 0) != 0) return work;
          continue;
        }
        const std::int32_t node = __shfl_sync(~0u, missing, __ffs(static_cast<int>(waiting)) - 1);
        if (lane_id() == 0) awaited = node;
      }
      bool proceed = false;
      if (lane_id() == 0) proceed = awaited >= 0 && idle.wait(awaited);
      if (__shfl_sync(~0u, proceed ? 1 : 0, 0) == 0) return RailWork{};
    }
  }

  __device__ std::int32_t node_copy(std::uint32_t token, std::int32_t c) const {
    return all_.routing
        .copies[static_cast<std::int64_t>(token) * all_.routing.copies_per_token + c];
  }
  /// Number of the chunk with the sum of a token, and the sum.
  __device__ std::uint64_t chunk_number(std::int32_t copy) const {
    return all_.grid.rails[copy_rank(copy)].received +
           static_cast<std::uint32_t>(copy_row_index(copy)) / room_;
  }
  __device__ const std::byte* sum_of(std::int32_t copy) const {
    return rail_.in(copy_rank(copy), chunk_number(copy)) +
           static_cast<std::uint32_t>(copy_row_index(copy)) % room_ * message_.total;
  }

  /// A node whose sum of this lane's token has not arrived; -1: none.
  __device__ std::int32_t missing_sums(std::uint32_t token) const {
    if (lane_id() >= tile_ || token >= static_cast<std::uint32_t>(params_.tokens)) return -1;
    for (std::int32_t c = 0; c < all_.routing.copies_per_token; ++c) {
      const std::int32_t copy = node_copy(token, c);
      if (copy == kNoCopy) return -1;
      const std::int32_t node = copy_rank(copy);
      if (node != all_.grid.mine && !rail_.has_arrived(node, chunk_number(copy))) return node;
    }
    return -1;
  }

  __device__ const uint4* row_vectors(std::int32_t copy) const {
    return reinterpret_cast<const uint4*>(state_.rows[copy_rank(copy)] +
                                          static_cast<std::int64_t>(copy_row_index(copy)) *
                                              params_.row_bytes);
  }
  __device__ const float* weights_of(std::int32_t copy) const {
    return reinterpret_cast<const float*>(state_.weights[copy_rank(copy)] +
                                          static_cast<std::int64_t>(copy_row_index(copy)) *
                                              state_.weight_stride[copy_rank(copy)]);
  }

  /// Adds parts of a row, from vector `first` on, 32 vectors apart.
  __device__ void add_row(float (&sums)[kParts][Format::kCount], const uint4* row,
                          std::uint32_t first, std::uint32_t vectors) const {
    uint4 parts[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (first + 32 * i < vectors) parts[i] = __ldcg(row + first + 32 * i);
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (first + 32 * i < vectors) add_vector<Format>(sums[i], parts[i]);
  }
  __device__ void add_rows(float (&sums)[kParts][Format::kCount], const Rows& rows,
                           std::uint32_t first, std::uint32_t vectors) const {
    rows.each([&](std::int32_t copy) { add_row(sums, row_vectors(copy), first, vectors); });
  }
  __device__ void store_row(uint4* to, const float (&sums)[kParts][Format::kCount],
                            std::uint32_t first, std::uint32_t vectors) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (first + 32 * i < vectors) to[first + 32 * i] = Format::narrow(sums[i]);
  }
  /// Adds the weights of the rows to `sums`, which have a value for each top-k slot.
  __device__ void add_weights(float (&sums)[kPerLane], const Rows& rows) const {
    if (params_.expert_major != 0) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (rows.value[i] != kNoCopy)
          sums[i] = ptx::ld_relaxed_sys_global(weights_of(rows.value[i]));
      return;
    }
    rows.each([&](std::int32_t from) {
      for_slots([&](int i, std::uint32_t slot) {
        sums[i] = numeric::add(sums[i], ptx::ld_relaxed_sys_global(weights_of(from) + slot));
      });
    });
  }
  /// Calls f(turn, slot) for this lane's top-k slots.
  template <typename F>
  __device__ void for_slots(F&& f) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (number_of_lane(i) < static_cast<std::uint32_t>(params_.group.top_k))
        f(i, number_of_lane(i));
  }

  __device__ void send(std::int32_t node, std::uint32_t chunk) {
    const std::uint64_t number = all_.grid.rails[node].sent + chunk;
    std::byte* const out = rail_.out(node, number);
    const std::uint32_t first = chunk * room_, end = min(first + room_, state_.send_sums[node]);
    for (std::uint32_t i = first + threadIdx.x / 32; i < end; i += blockDim.x / 32)
      sum_for_peer(node, i, out + (i - first) * message_.total);
    __syncthreads();
    if (threadIdx.x == 0)
      rail_.template send<Network>(node, number,
                                   static_cast<std::size_t>(end - first) * message_.total, epoch_,
                                   Phase::combine_rail, kOperation);
  }

  __device__ void sum_for_peer(std::int32_t node, std::uint32_t index, std::byte* to) const {
    const auto top_k = static_cast<std::uint32_t>(params_.group.top_k);
    const std::int32_t* const kept =
        all_.rail.rows + (node * all_.rail.stride + index) * static_cast<std::int64_t>(top_k);
    const Rows rows([&](std::uint32_t slot) { return slot < top_k ? kept[slot] : kNoCopy; });
    if constexpr (kIsEncoded<Format>)
      encode_sum(rows, to);
    else
      store_sum(rows, to);
    if (params_.out_weights == nullptr) return;
    float weights[kPerLane] = {};
    add_weights(weights, rows);
    for_slots([&](int i, std::uint32_t slot) {
      reinterpret_cast<float*>(to + message_.weights)[slot] = weights[i];
    });
  }

  __device__ void store_sum(const Rows& rows, std::byte* to) const {
    const std::uint32_t vectors = params_.row_bytes / 16;
    for (std::uint32_t first = lane_id(); first < vectors + lane_id(); first += 32 * kParts) {
      float sums[kParts][Format::kCount] = {};
      add_rows(sums, rows, first, vectors);
      store_row(reinterpret_cast<uint4*>(to), sums, first, vectors);
    }
  }

  // Sums that travel encoded take 16 channels a lane.

  /// The sum of the rows in the unit of a lane.
  __device__ UnitSum sum_unit(const Rows& rows, std::uint32_t unit, bool inside) const {
    UnitSum sum;
    rows.each([&](std::int32_t copy) {
      const uint4* const row = row_vectors(copy);
      if (inside) sum.add(__ldcg(row + 2 * unit), __ldcg(row + 2 * unit + 1));
    });
    return sum;
  }
  __device__ void encode_sum(const Rows& rows, std::byte* to) const {
    const std::uint32_t hidden = params_.row_bytes / 2;
    const auto load = [&](std::uint32_t unit, bool inside, uint4& low, uint4& high) {
      const UnitSum sum = sum_unit(rows, unit, inside);
      low = sum.low();
      high = sum.high();
    };
    encode_units<Format::kQuantize>(load, to, to + hidden, hidden, 1);
  }
  /// Writes the sum of a token over `nodes`, this node's from `local`.
  __device__ void sum_encoded(std::int64_t start, const Rows& nodes, const Rows& local) const {
    constexpr Quantize kQuantize = Format::kQuantize;
    const std::uint32_t hidden = params_.row_bytes / 2, units = hidden / kUnit;
    auto* const out = reinterpret_cast<uint4*>(params_.out + start);
    for (std::uint32_t unit = lane_id(); unit < units + lane_id(); unit += 32) {
      const bool inside = unit < units;
      UnitSum sum;
      for (const std::byte* const bias : params_.bias) {
        const auto* const vectors = reinterpret_cast<const uint4*>(bias + start);
        if (inside && bias != nullptr)
          sum.add(__ldcg(vectors + 2 * unit), __ldcg(vectors + 2 * unit + 1));
      }
      nodes.each([&](std::int32_t copy) {
        if (copy_rank(copy) == all_.grid.mine) {
          const UnitSum level = sum_unit(local, unit, inside);
          sum.add_passed<kQuantize>(level.low(), level.high());
        } else if (inside) {
          EncodedUnit<kQuantize> arrived;
          arrived.load(sum_of(copy), hidden, unit, [](const auto* at) { return __ldcg(at); });
          arrived.add_to(sum, unit);
        }
      });
      if (!inside) continue;
      out[2 * unit] = sum.low();
      out[2 * unit + 1] = sum.high();
    }
  }

  /// Row `number` of a token of this rank, if it is on this node.
  __device__ std::int32_t local_copy(std::uint32_t token, std::uint32_t number) const {
    if (number >= static_cast<std::uint32_t>(params_.copies_per_token)) return kNoCopy;
    const std::int64_t i = static_cast<std::int64_t>(token) * params_.copies_per_token + number;
    if (params_.expert_major != 0) {
      const auto expert = static_cast<std::int32_t>(params_.topk_idx[i]);
      const std::int32_t rank = params_.group.expert_table.rank_or_none(expert);
      return rank >= 0 && all_.grid.here(rank)
                 ? pack_copy(rank,
                             params_.handle.expert_rows[expert] + params_.expert_row_indices[i])
                 : kNoCopy;
    }
    const std::int32_t copy = params_.copies[i];
    if (copy == kNoCopy || !all_.grid.here(copy_rank(copy))) return kNoCopy;
    return pack_copy(copy_rank(copy),
                     params_.handle.first_row[copy_rank(copy)] + copy_row_index(copy));
  }

  __device__ void sum_tile(std::uint32_t tile) {
    const std::uint32_t first = tile * tile_,
                        end = min(first + tile_, static_cast<std::uint32_t>(params_.tokens));
    for (std::uint32_t token = first + threadIdx.x / 32; token < end; token += blockDim.x / 32)
      sum_token(token);
  }

  __device__ void sum_token(std::uint32_t token) {
    const Rows local([&](std::uint32_t number) { return local_copy(token, number); });
    const Rows nodes([&](std::uint32_t number) {
      return number < static_cast<std::uint32_t>(all_.routing.copies_per_token)
                 ? node_copy(token, static_cast<std::int32_t>(number))
                 : kNoCopy;
    });
    const std::int64_t start = static_cast<std::int64_t>(token) * params_.row_bytes;
    if constexpr (kIsEncoded<Format>)
      sum_encoded(start, nodes, local);
    else
      sum_nodes(start, nodes, local);
    if (params_.out_weights != nullptr) sum_weights(token, nodes, local);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (nodes.value[i] != kNoCopy && copy_rank(nodes.value[i]) != all_.grid.mine)
        count_consumed(nodes.value[i]);
  }

  /// sum_encoded for sums that are not encoded.
  __device__ void sum_nodes(std::int64_t start, const Rows& nodes, const Rows& local) const {
    const std::uint32_t vectors = params_.row_bytes / 16;
    for (std::uint32_t first = lane_id(); first < vectors + lane_id(); first += 32 * kParts) {
      float sums[kParts][Format::kCount] = {};
      for (const std::byte* const bias : params_.bias)
        if (bias != nullptr)
          add_row(sums, reinterpret_cast<const uint4*>(bias + start), first, vectors);
      nodes.each([&](std::int32_t copy) {
        if (copy_rank(copy) != all_.grid.mine)
          return add_row(sums, reinterpret_cast<const uint4*>(sum_of(copy)), first, vectors);
        float level[kParts][Format::kCount] = {};
        add_rows(level, local, first, vectors);
#pragma unroll
        for (int i = 0; i < kParts; ++i) add_vector<Format>(sums[i], Format::narrow(level[i]));
      });
      store_row(reinterpret_cast<uint4*>(params_.out + start), sums, first, vectors);
    }
  }

  __device__ void sum_weights(std::uint32_t token, const Rows& nodes, const Rows& local) const {
    float sums[kPerLane] = {};
    nodes.each([&](std::int32_t copy) {
      if (copy_rank(copy) == all_.grid.mine) return add_weights(sums, local);
      for_slots([&](int i, std::uint32_t slot) {
        const auto* const weights = reinterpret_cast<const float*>(sum_of(copy) + message_.weights);
        sums[i] = numeric::add(sums[i], __ldcg(weights + slot));
      });
    });
    for_slots([&](int i, std::uint32_t slot) {
      params_.out_weights[static_cast<std::int64_t>(token) * params_.group.top_k + slot] = sums[i];
    });
  }

  /// Counts a sum that has been added; who counts the last one of a chunk releases it.
  __device__ void count_consumed(std::int32_t copy) const {
    const std::int32_t node = copy_rank(copy);
    const std::uint32_t chunk = static_cast<std::uint32_t>(copy_row_index(copy)) / room_;
    const std::uint64_t number = chunk_number(copy);
    std::uint32_t& count = all_.grid.rails[node].consumed[number % all_.grid.layout.depth];
    const std::uint32_t sums = min(room_, state_.receive_sums[node] - chunk * room_);
    if (ptx::atom_acq_rel_gpu_global_add(&count, 1) + 1 != sums) return;
    count = 0;
    rail_.template release<Network>(node, number, epoch_, Phase::combine_rail, kOperation);
  }

  const InternodeCombine& all_;
  const NormalCombine& params_;
  const Rail rail_;
  CombineState& state_;
  const std::uint64_t epoch_;
  const bool leader_;
  const detail::RailSum message_;
  const std::uint32_t room_;  ///< sums of a chunk
  const std::uint32_t tile_;  ///< tokens of a tile
};

template <class Network, class Format, int kPerLane>
__global__ void __launch_bounds__(kRailWarps * 32, 1)
    internode_combine_impl(const __grid_constant__ InternodeCombine params) {
  __shared__ CombineState state;
  const DeviceGroup& group = params.normal.group;
  const std::uint64_t epoch = group.memory->epoch + 1;
  const bool leader = take_ticket(group, KernelKind::normal) == 0;
  Combine<Network, Format, kPerLane> combine(params, state, epoch, leader);
  if (leader) {
    if (threadIdx.x == 0) note_start(group, KernelKind::normal, epoch, RecordedOperation::combine);
    combine.announce();
    if (group.record != nullptr && threadIdx.x == blockDim.x - 1)
      add_last_launch(group, KernelKind::normal, epoch);
  }
  const bool good = combine.find();
  if (good) combine.run();
  if (good && leader) count_rows(params.normal, epoch, params.normal.row_bytes);
  finish_on_node<Network>(combine.rail(), epoch, good, Phase::combine_finish, kOperation, [&] {
    if (good) combine.settle();
  });
}

using CombineKernel = void (*)(InternodeCombine);

template <class Network, int kPerLane>
CombineKernel kernel_for(DataType dtype, Quantize quantize) {
  if (quantize == Quantize::fp8)
    return internode_combine_impl<Network, EncodedRows<Quantize::fp8>, kPerLane>;
  if (quantize == Quantize::mxfp8)
    return internode_combine_impl<Network, EncodedRows<Quantize::mxfp8>, kPerLane>;
  switch (dtype) {
    case DataType::float32:
      return internode_combine_impl<Network, Float32Vector, kPerLane>;
    case DataType::float16:
      return internode_combine_impl<Network, Float16Vector, kPerLane>;
    default:
      return internode_combine_impl<Network, Bfloat16Vector, kPerLane>;
  }
}
template <int kPerLane>
CombineKernel kernel_of(NetworkPath path, DataType dtype, Quantize quantize) {
  return path == NetworkPath::nic ? kernel_for<ByNic, kPerLane>(dtype, quantize)
                                  : kernel_for<ByProxy, kPerLane>(dtype, quantize);
}

}  // namespace

void launch_internode_combine(const InternodeCombine& params, const NormalPlan& plan,
                              cudaStream_t stream) {
  const auto kernel =
      params.normal.group.top_k <= kOnePerLane ? kernel_of<1> : kernel_of<kMostPerLane>;
  launch(kernel(params.grid.path, static_cast<DataType>(params.normal.dtype),
                static_cast<Quantize>(params.normal.quantize)),
         params, plan, stream);
}

void preload_internode_combine(bool many_slots) {
  cudaFuncAttributes attributes;
  const auto kernel = many_slots ? kernel_of<kMostPerLane> : kernel_of<1>;
  for (const NetworkPath path : {NetworkPath::proxy, NetworkPath::nic}) {
    for (const DataType dtype : {DataType::float32, DataType::float16, DataType::bfloat16})
      (void)cudaFuncGetAttributes(&attributes, kernel(path, dtype, Quantize::none));
    for (const Quantize quantize : {Quantize::fp8, Quantize::mxfp8})
      (void)cudaFuncGetAttributes(&attributes, kernel(path, DataType::bfloat16, quantize));
  }
}

}  // namespace shoal::ep::cuda
