// SPDX-License-Identifier: Apache-2.0
// Device commands: creation, states and queries of queue pairs, completion queues and keys.
#include <algorithm>
#include <bit>

#include "mlx5/devx.hpp"

namespace shoal::emulator {
namespace {

Command opcode_of(std::span<const std::byte> in) {
  return static_cast<Command>(get(in.data(), command::kOpcode));
}

/// [offset, offset + bytes) of a umem; nullptr where this device has none or it is smaller.
std::byte* find_umem(const DevxObject& object, std::uint32_t number, std::uint64_t offset,
                     std::uint64_t bytes) {
  DevxTables& tables = DevxTables::get();
  const std::lock_guard lock(tables.mutex);
  const auto at = tables.umems.find(number);
  if (at == tables.umems.end()) return nullptr;
  const Umem& umem = *at->second;
  if (umem.context->runtime != object.context->runtime) return nullptr;
  if (offset > umem.bytes || bytes > umem.bytes - offset) return nullptr;
  return umem.memory + offset;
}

Uar* find_uar(const DevxObject& object, std::uint32_t number) {
  DevxTables& tables = DevxTables::get();
  const std::lock_guard lock(tables.mutex);
  const auto at = tables.uars.find(number);
  const bool found =
      at != tables.uars.end() && at->second->context->runtime == object.context->runtime;
  return found ? at->second : nullptr;
}

template <typename Object>
std::shared_ptr<Object> share(Object* object) {
  // The NIC owns it, and keeps it while queue pairs use it.
  return object == nullptr ? nullptr : object->shared_from_this();
}

Status create_cq(DevxObject& object, const std::byte* in) {
  namespace f = cq_context;
  const std::byte* const at = in + f::kAt;
  if (get(at, f::kEntrySize) != 0 || get(at, f::kCompressed) != 0 || get(in, f::kUmemValid) == 0 ||
      get(at, f::kRecordUmemValid) == 0)
    return Status::bad_parameter;
  CompletionQueueAttributes attributes{.size = 1U << get(at, f::kLogSize),
                                       .collapsed = get(at, f::kCollapsed) != 0,
                                       .ignore_overrun = get(at, f::kIgnoreOverrun) != 0};
  // A collapsed queue has one entry in memory.
  const std::uint64_t entries = attributes.collapsed ? 1 : attributes.size;
  attributes.entries =
      find_umem(object, get(in, f::kUmem), get64(in, f::kUmemOffset), entries * kCqeBytes);
  attributes.doorbell_record =
      find_umem(object, get(at, f::kRecordUmem), get64(at, f::kRecordOffset), 8);
  if (attributes.entries == nullptr || attributes.doorbell_record == nullptr)
    return Status::bad_resource;
  return object.context->runtime->with_nic([&](Nic& nic) {
    const auto created = nic.create_completion_queue(attributes);
    if (created.object) object.number = created.object->number();
    object.kind = DevxObject::Kind::completion_queue;
    return created.status;
  });
}

/// The rings that a queue pair's context describes; the receive ring lies before the send ring.
Status find_rings(DevxObject& object, const std::byte* in, std::uint32_t domain,
                  QueuePairAttributes& attributes, ReceiveQueueAttributes& receives) {
  namespace f = qp_context;
  const std::byte* const at = in + f::kAt;
  enum ReceiveType : std::uint32_t { kOwn = 0, kShared = 1, kNone = 3 };
  if (get(in, f::kUmemValid) == 0 || get(at, f::kRecordUmemValid) == 0)
    return Status::bad_parameter;
  object.log_blocks = get(at, f::kLogSendBlocks);
  object.log_receives = get(at, f::kLogReceives);
  const std::uint32_t blocks = get(at, f::kNoSendQueue) != 0 ? 0 : 1U << object.log_blocks;
  const bool own = get(at, f::kReceiveType) == kOwn;
  if (own)
    receives = {.size = 1U << object.log_receives,
                .stride = 16U << get(at, f::kLogReceiveStride),
                .domain = domain};
  const std::uint64_t receive_bytes = std::uint64_t{receives.size} * receives.stride;
  std::byte* const ring = find_umem(object, get(in, f::kUmem), get64(in, f::kUmemOffset),
                                    receive_bytes + std::uint64_t{blocks} * kBlockBytes);
  attributes.doorbell_record =
      find_umem(object, get(at, f::kRecordUmem), get64(at, f::kRecordOffset), 8);
  if (ring == nullptr || attributes.doorbell_record == nullptr) return Status::bad_resource;
  attributes.ring = {ring + receive_bytes, blocks};
  receives.memory = ring;
  receives.doorbell_record = attributes.doorbell_record;
  return Status::ok;
}

Status create_qp(DevxObject& object, const std::byte* in) {
  namespace f = qp_context;
  constexpr std::uint32_t kReliableConnection = 0;
  const std::byte* const at = in + f::kAt;
  object.kind = DevxObject::Kind::queue_pair;
  if (get(at, f::kService) != kReliableConnection) return Status::bad_parameter;
  object.uar = find_uar(object, get(at, f::kUarPage));
  if (object.uar == nullptr) return Status::bad_resource;
  QueuePairAttributes attributes;
  attributes.domain = get(at, f::kDomain);
  attributes.user_index = get(at, f::kUserIndex);
  ReceiveQueueAttributes receives;
  const Status found = find_rings(object, in, attributes.domain, attributes, receives);
  if (found != Status::ok) return found;
  return object.context->runtime->with_nic([&](Nic& nic) {
    attributes.send_completions = share(nic.find_completion_queue(get(at, f::kSendCq)));
    attributes.receive_completions = share(nic.find_completion_queue(get(at, f::kReceiveCq)));
    if (attributes.ring.blocks != 0 && !attributes.send_completions) return Status::bad_resource;
    if (receives.size != 0)
      attributes.receives = std::make_shared<ReceiveQueue>(0, receives);
    else if (get(at, f::kReceiveType) == 1)
      attributes.receives = share(nic.find_receive_queue(get(at, f::kSrq)));
    const auto created = nic.create_queue_pair(attributes);
    if (!created.object) return created.status;
    object.number = created.object->number();
    object.uar->pairs.insert(object.number);
    return Status::ok;
  });
}

Status create_key(DevxObject& object, const std::byte* in) {
  namespace f = key_context;
  object.kind = DevxObject::Kind::memory_key;
  const std::byte* const at = in + f::kAt;
  if (get(in, f::kUmemValid) == 0 || get(at, f::kMode) != f::kTranslated)
    return Status::bad_parameter;
  KeyAttributes attributes{.domain = get(at, f::kDomain),
                           .address = get64(at, f::kStart),
                           .length = get64(at, f::kLength),
                           .variant = static_cast<std::uint8_t>(get(at, f::kVariant))};
  attributes.memory =
      find_umem(object, get(in, f::kUmem), get64(in, f::kUmemOffset), attributes.length);
  if (attributes.memory == nullptr) return Status::bad_resource;
  const auto grant = [&](Field field, std::uint32_t access) {
    if (get(at, field) != 0) attributes.access |= access;
  };
  grant(f::kLocalWrite, Access::local_write);
  grant(f::kRemoteWrite, Access::remote_write);
  grant(f::kRemoteRead, Access::remote_read);
  grant(f::kAtomic, Access::remote_atomic);
  grant(f::kRelaxed, Access::relaxed_ordering);
  object.number =
      object.context->runtime->with_nic([&](Nic& nic) { return nic.keys().create(attributes); });
  return object.number == 0 ? Status::limit_exceeded : Status::ok;
}

void read_access(const std::byte* at, Connection& to) {
  namespace f = qp_context;
  to.access = (get(at, f::kRemoteRead) != 0 ? Access::remote_read : 0) |
              (get(at, f::kRemoteWrite) != 0 ? Access::remote_write : 0) |
              (get(at, f::kRemoteAtomic) != 0 ? Access::remote_atomic : 0);
}

/// The ordering that a context asks for, unless the administrator's is not to be overridden.
bool read_ordering(const std::byte* at, Ordering administrators, Ordering& to) {
  namespace f = qp_context;
  const std::uint32_t value = get(at, f::kOrdering1) << 1 | get(at, f::kOrdering0);
  if (value > static_cast<std::uint32_t>(Ordering::unordered)) return false;
  const bool own = value != 0 || get(at, f::kOrderingForce) != 0;
  to = own ? static_cast<Ordering>(value) : administrators;
  return true;
}

Status read_transition(Command opcode, const std::byte* in, const DeviceSettings& settings,
                       QpState& state, Connection& to) {
  namespace f = qp_context;
  const std::byte* const at = in + f::kAt;
  const std::uint32_t optional = get(in, f::kOptional);
  switch (opcode) {
    case Command::reset_to_init:
      state = QpState::init;
      to = {};
      read_access(at, to);
      return Status::ok;
    case Command::init_to_rtr:
      state = QpState::ready_to_receive;
      if (get(at, f::kMtu) == 0 || get(at, f::kMtu) > 5) return Status::bad_parameter;
      to.mtu = 128U << get(at, f::kMtu);
      to.remote_qp = get(at, f::kRemoteQp);
      to.remote_lid = static_cast<std::uint16_t>(get(at, f::kRemoteLid));
      to.receive_psn = get(at, f::kReceivePsn);
      to.min_rnr_timer = static_cast<std::uint8_t>(get(at, f::kMinRnr));
      to.remote_reads_and_atomics = static_cast<std::uint8_t>(1U << get(at, f::kLogRemoteReads));
      if ((optional & (f::kSetsRemoteRead | f::kSetsRemoteWrite | f::kSetsRemoteAtomic)) != 0)
        read_access(at, to);
      return read_ordering(at, settings.ordering, to.ordering) ? Status::ok : Status::bad_parameter;
    case Command::rtr_to_rts:
      state = QpState::ready_to_send;
      to.send_psn = get(at, f::kSendPsn);
      to.retry_count = static_cast<std::uint8_t>(get(at, f::kRetryCount));
      to.rnr_retry = static_cast<std::uint8_t>(get(at, f::kRnrRetry));
      to.ack_timeout = static_cast<std::uint8_t>(get(at, f::kAckTimeout));
      to.reads_and_atomics = static_cast<std::uint8_t>(1U << get(at, f::kLogReads));
      return Status::ok;
    case Command::to_error:
      state = QpState::error;
      return Status::ok;
    case Command::to_reset:
      state = QpState::reset;
      return Status::ok;
    default:
      return Status::bad_operation;
  }
}

/// The peer by the path in the context: on an Ethernet by GID and MAC address, otherwise by LID.
/// Packets to a MAC address that is not the one of the GID get lost. UDP source port, traffic class
/// and hop limit have no effect here. On an Ethernet the bit for a global header is reserved.
Status find_path(Runtime& runtime, const std::byte* at, Connection& to) {
  namespace f = qp_context;
  const Attachment& attachment = runtime.attachment();
  const bool global = attachment.is_ethernet() || get(at, f::kGlobal) != 0;
  if (get(at, f::kPort) > 1) return Status::bad_parameter;  // 0: that of RST2INIT
  if (global && get(at, f::kSourceGid) >= Attachment::kGids) return Status::bad_index;
  Gid gid;
  std::memcpy(gid.data(), at + f::kRemoteGid, gid.size());
  const auto lid = runtime.route(to.remote_lid, &gid, to.remote_qp);
  if (!lid || to.mtu > attachment.mtu()) return Status::bad_parameter;
  to.remote_lid = *lid;
  if (!attachment.is_ethernet()) return Status::ok;
  Mac mac;
  std::memcpy(mac.data(), at + f::kRemoteMac, mac.size());
  to.misaddressed = mac != Attachment::mac_of(gid);
  return Status::ok;
}

std::uint32_t state_number(QpState state) {
  constexpr std::uint32_t kError = 6;
  return state == QpState::error ? kError : static_cast<std::uint32_t>(state);
}

void write_context(const QueuePair& pair, const DevxObject& object, std::byte* at) {
  namespace f = qp_context;
  const Connection& connection = pair.connection();
  const auto log = [](std::uint32_t value) {
    return value == 0 ? 0U : static_cast<std::uint32_t>(std::bit_width(value) - 1);
  };
  const auto ordering = static_cast<std::uint32_t>(connection.ordering);
  set(at, f::kState, state_number(pair.state()));
  set(at, f::kDomain, pair.attributes().domain);
  set(at, f::kMtu, log(connection.mtu) - 7);
  set(at, f::kLogReceives, object.log_receives);
  set(at, f::kLogSendBlocks, object.log_blocks);
  set(at, f::kUserIndex, pair.attributes().user_index);
  set(at, f::kRemoteQp, connection.remote_qp);
  std::memcpy(at + f::kPath, object.path.data(), object.path.size());
  set(at, f::kAckTimeout, connection.ack_timeout);
  set(at, f::kLogReads, log(connection.reads_and_atomics));
  set(at, f::kRetryCount, connection.retry_count);
  set(at, f::kRnrRetry, connection.rnr_retry);
  set(at, f::kSendPsn, connection.send_psn);
  set(at, f::kLogRemoteReads, log(connection.remote_reads_and_atomics));
  set(at, f::kRemoteRead, (connection.access & Access::remote_read) != 0);
  set(at, f::kRemoteWrite, (connection.access & Access::remote_write) != 0);
  set(at, f::kRemoteAtomic, (connection.access & Access::remote_atomic) != 0);
  set(at, f::kOrdering0, ordering & 1);
  set(at, f::kOrdering1, ordering >> 1);
  set(at, f::kMinRnr, connection.min_rnr_timer);
  set(at, f::kReceivePsn, connection.receive_psn);
}

void write_general(const NicLimits& limits, bool ethernet, std::byte* at) {
  namespace f = capability;
  const auto log = [](std::uint32_t value) {
    return static_cast<std::uint32_t>(std::bit_width(value) - 1);
  };
  set(at, f::kLogMaxQpSize, log(limits.queue_blocks));
  set(at, f::kLogMaxQp, log(limits.queue_pairs));
  set(at, f::kLogMaxCqSize, log(limits.completion_entries));
  set(at, f::kLogMaxCq, log(limits.completion_queues));
  set(at, f::kLogReads, log(limits.reads_and_atomics));
  set(at, f::kLogRemoteReads, log(limits.reads_and_atomics));
  set(at, f::kPortType, ethernet);
  set(at, f::kHasRoce, ethernet);
  set(at, f::kPorts, 1);
  set(at, f::kLogMaxMessage, 30);
  set(at, f::kOutOfOrderWrites, 1);
  set(at, f::kOutOfOrderAll, 1);
  set(at, f::kCqeVersion, 1);
  set(at, f::kHasAtomics, 1);
  set(at, f::kIgnoreOverrun, 1);
  set(at, f::kLogRegister, 9);
  set(at, f::kMaxRequestBytes, 1024);
}

void write_roce(std::byte* at) {
  namespace f = capability;
  constexpr std::uint32_t kVersion2 = 4, kIpv4 = 2, kPort = 4791;
  set(at, f::kChoosesUdpSource, 1);
  set(at, f::kRoceVersions, kVersion2);
  set(at, f::kL3Types, kIpv4);
  set(at, f::kUdpTarget, kPort);
  set(at, f::kLeastUdpSource, 0xc000);
  set(at, f::kMostUdpSource, 0xffff);
  set(at, f::kAddresses, Attachment::kGids);
}

Status query_capabilities(const Context& context, std::span<const std::byte> in,
                          std::span<std::byte> out) {
  namespace f = capability;
  if (out.size() < f::kResponseBytes) return Status::bad_output_length;
  std::byte* const at = out.data() + f::kAt;
  const bool ethernet = context.runtime->attachment().is_ethernet();
  switch (get(in.data(), command::kModifier) >> 1) {
    case f::kGeneral:
      write_general(context.runtime->settings().nic.limits, ethernet, at);
      return Status::ok;
    case f::kAtomic:
      set(at, f::kHostEndian, 1);  // 8-byte results come in the host's order
      set(at, f::kOperations, 0xf);
      set(at, f::kSizes, 4 | 8);
      set(at, f::kPciAtomics, context.runtime->settings().nic.global_atomics ? 0xf : 0);
      return Status::ok;
    case f::kGeneral2:
      set(at, f::kOrderingForce, 1);
      return Status::ok;
    case f::kRoce:
      if (ethernet) write_roce(at);
      return Status::ok;
    case f::kOdp:
      return Status::ok;  // none
    default:
      return Status::bad_parameter;
  }
}

}  // namespace

Status create_object(Context& context, std::span<const std::byte> in, std::span<std::byte> out,
                     std::unique_ptr<DevxObject>& object) {
  auto made = std::make_unique<DevxObject>();
  made->context = &context;
  Status status = Status::bad_operation;
  const auto create = [&](std::size_t least, auto function) {
    status = in.size() < least ? Status::bad_input_length : function(*made, in.data());
  };
  switch (opcode_of(in)) {
    case Command::create_cq:
      create(cq_context::kCommandBytes, create_cq);
      break;
    case Command::create_qp:
      create(qp_context::kCommandBytes, create_qp);
      break;
    case Command::create_mkey:
      create(key_context::kCommandBytes, create_key);
      break;
    default:
      break;
  }
  if (status != Status::ok) return status;
  const bool key = made->kind == DevxObject::Kind::memory_key;
  set(out.data(), command::kObject, key ? made->number >> 8 : made->number);
  ++context.objects;
  object = std::move(made);
  return Status::ok;
}

Status modify_object(DevxObject& object, std::span<const std::byte> in) {
  if (object.kind != DevxObject::Kind::queue_pair) return Status::bad_operation;
  if (in.size() < qp_context::kAt + qp_context::kBytes && opcode_of(in) != Command::to_error &&
      opcode_of(in) != Command::to_reset)
    return Status::bad_input_length;
  if (get(in.data(), command::kObject) != object.number) return Status::bad_resource;
  QpState state = QpState::reset;
  Connection connection = object.connection;
  Runtime& runtime = *object.context->runtime;
  const Status read =
      read_transition(opcode_of(in), in.data(), runtime.settings(), state, connection);
  if (read != Status::ok) return read;
  return runtime.with_nic([&](Nic& nic) {
    QueuePair* const pair = nic.find(object.number);
    if (pair == nullptr) return Status::bad_resource;
    const std::byte* const at = in.data() + qp_context::kAt;
    const bool has_path = state == QpState::ready_to_receive;
    const Status found = has_path ? find_path(runtime, at, connection) : Status::ok;
    if (found != Status::ok) return found;
    const Status status = pair->modify(state, connection);
    if (status != Status::ok) return status;
    if (has_path) std::memcpy(object.path.data(), at + qp_context::kPath, object.path.size());
    object.connection = connection;
    if (state == QpState::ready_to_send) nic.doorbell(object.number);
    return Status::ok;
  });
}

Status query_object(DevxObject& object, std::span<const std::byte> in, std::span<std::byte> out) {
  if (object.kind != DevxObject::Kind::queue_pair || opcode_of(in) != Command::query_qp)
    return Status::bad_operation;
  if (out.size() < qp_context::kAt + qp_context::kBytes) return Status::bad_output_length;
  return object.context->runtime->with_nic([&](Nic& nic) {
    const QueuePair* const pair = nic.find(object.number);
    if (pair == nullptr) return Status::bad_resource;
    write_context(*pair, object, out.data() + qp_context::kAt);
    return Status::ok;
  });
}

Status destroy_object(DevxObject& object) {
  const Status status = object.context->runtime->with_nic([&](Nic& nic) {
    switch (object.kind) {
      case DevxObject::Kind::completion_queue:
        return nic.destroy_completion_queue(object.number);
      case DevxObject::Kind::memory_key:
        return nic.keys().destroy(object.number) ? Status::ok : Status::bad_resource;
      default:
        object.uar->pairs.erase(object.number);
        return nic.destroy_queue_pair(object.number);
    }
  });
  if (status == Status::ok) --object.context->objects;
  return status;
}

Status execute(Context& context, std::span<const std::byte> in, std::span<std::byte> out) {
  switch (opcode_of(in)) {
    case Command::query_hca_cap:
      return query_capabilities(context, in, out);
    case Command::query_vport:
      if (out.size() < vport::kResponseBytes) return Status::bad_output_length;
      set(out.data(), vport::kLid,
          context.runtime->attachment().is_ethernet() ? 0 : context.runtime->lid());
      return Status::ok;
    case Command::alloc_pd:
      set(out.data(), command::kObject, context.next_domain++);
      return Status::ok;
    default:
      return Status::bad_operation;
  }
}

}  // namespace shoal::emulator
