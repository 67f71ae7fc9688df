// SPDX-License-Identifier: Apache-2.0
#include "transport/message/network_transport.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "transport/message/handshake.hpp"

namespace shoal::transport::message {
namespace {

Request signal_request(std::size_t offset, SignalOp op, std::uint64_t value) {
  Request request;
  request.message.set_signal(offset, op, value);
  request.after = After::writes;
  return request;
}

}  // namespace

NetworkTransport::NetworkTransport(const Context& context, std::unique_ptr<Engine> engine,
                                   const Traits& traits, HeapRegistration* heap)
    : context_(context),
      traits_(traits),
      reach_(static_cast<std::size_t>(context.n_pes)),
      engine_(std::move(engine)) {
  if (heap != nullptr) heap_.emplace(*engine_, *heap, context.my_pe);
  for (Reach& reach : reach_) reach.reason = "not needed: another transport reaches it";
}

NetworkTransport::~NetworkTransport() {
  engine_->leave();
}

void NetworkTransport::open(std::span<const std::vector<std::byte>> addresses) {
  opened_ = true;
  for (Pe pe = 0; pe < context_.n_pes; ++pe) {
    const auto i = static_cast<std::size_t>(pe);
    if (!context_.wanted[i]) continue;
    reach_[i].reason = fmt::format("transport {} is not available there", traits_.name);
    if (addresses[i].empty()) continue;
    try {
      engine_->add_peer(pe, addresses[i]);
      reach_[i].reason.clear();
    } catch (const Error& error) {
      reach_[i].reason = error.reason();
    }
  }
  engine_->listen();
}

void NetworkTransport::connect(std::span<const std::vector<std::byte>> addresses) {
  if (!opened_) open(addresses);
  progress_.emplace(*engine_, fmt::format("shoal-{}", traits_.name), progress_core());
  Handshake handshake(*engine_);
  // Half of the time, so that a PE whose attempts all fail is not late for the next step.
  handshake.run(context_.timeout / 2, context_.check);
  for (std::size_t i = 0; i < reach_.size(); ++i) {
    if (!context_.wanted[i] || !reach_[i].reason.empty()) continue;
    reach_[i].reason = handshake.reason(static_cast<Pe>(i));
    if (reach_[i].reason.empty()) reach_[i].capabilities = capability::all_operations;
  }
}

/// SHOAL_PROGRESS_CORE for the first PE of a host, the next core for the next PE.
std::int64_t NetworkTransport::progress_core() const {
  const std::int64_t first = engine_->settings().progress_core;
  if (first < 0) return -1;
  const auto end = context_.host_of.begin() + context_.my_pe;
  return first + std::count(context_.host_of.begin(), end, *end);
}

Engine& NetworkTransport::engine(Pe pe, const char* operation) const {
  const Reach& reach = reach_[static_cast<std::size_t>(pe)];
  require(reach.capabilities != 0, Code::unsupported,
          "SHOAL-N316: {} to PE {}: transport {} does not reach it: {}", operation, pe,
          traits_.name, reach.reason);
  return *engine_;
}

/// `body(batch)` starts operations; their use of local memory has ended when this returns.
template <typename Body>
void NetworkTransport::blocking(const Operation& operation, Pe pe, Body&& body) {
  Batch batch;
  try {
    body(&batch);
    engine_->finish(operation, pe, batch);
  } catch (...) {
    engine_->abandon(batch);
    throw;
  }
}

bool NetworkTransport::is_word_at(std::size_t offset, std::size_t bytes) const {
  return is_word(context_.segment->base() + offset, bytes);  // segments are aligned alike
}

/// The request that stores `bytes` bytes; none at all for 0.
Request NetworkTransport::put_request(std::size_t offset, const void* source,
                                      std::size_t bytes) const {
  Request request;
  Message& message = request.message;
  message.offset = offset;
  if (is_word_at(offset, bytes)) {
    message.kind = Kind::store;
    message.width = static_cast<std::uint8_t>(bytes);
    std::memcpy(&message.word.operand, source, bytes);
  } else if (bytes != 0) {
    message.kind = Kind::put;
    message.elements = {static_cast<std::uint32_t>(bytes), 1, 0};
    request.payload = {bytes_of(source), bytes, 1, 0};
  }
  return request;
}

void NetworkTransport::put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  Engine& to = engine(pe, "put");
  if (bytes == 0) return;
  const Operation operation{"put", bytes};
  // A quiet is likely to follow: it then finds the acknowledgement asked for.
  if (bytes <= traits_.put_bytes) {
    Request request = put_request(offset, source, bytes);
    request.ask = Ask::now;
    return to.request(operation, pe, request);
  }
  blocking(operation, pe, [&](Batch* batch) {
    to.transfer(operation, pe,
                {.direction = Direction::write,
                 .offset = offset,
                 .local = bytes_of(source),
                 .bytes = bytes,
                 .batch = batch},
                Ask::now);
  });
}

void NetworkTransport::put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  Engine& to = engine(pe, "put_nbi");
  if (bytes == 0) return;
  const Operation operation{"put_nbi", bytes};
  if (bytes <= traits_.put_nbi_bytes || (traits_.words_are_messages && is_word_at(offset, bytes)))
    return to.request(operation, pe, put_request(offset, source, bytes));
  to.transfer(
      operation, pe,
      {.direction = Direction::write, .offset = offset, .local = bytes_of(source), .bytes = bytes});
}

void NetworkTransport::start_get(const Operation& operation, void* target, Pe pe,
                                 std::size_t offset, std::size_t bytes, Batch* batch) {
  const bool word = traits_.words_are_messages && is_word_at(offset, bytes);
  if (!word && bytes > traits_.get_bytes)
    return engine_->transfer(operation, pe,
                             {.direction = Direction::read,
                              .offset = offset,
                              .local = bytes_of(target),
                              .bytes = bytes,
                              .batch = batch});
  Request request;
  request.message.offset = offset;
  request.reply.target = bytes_of(target);
  request.reply.batch = batch;
  if (word) {
    request.message.kind = Kind::fetch;
    request.message.width = request.reply.width = static_cast<std::uint8_t>(bytes);
  } else {
    request.message.kind = Kind::get;
    request.message.elements = {static_cast<std::uint32_t>(bytes), 1, 0};
    request.reply.element = bytes;
    request.reply.count = 1;
  }
  engine_->request(operation, pe, request);
}

void NetworkTransport::get(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  engine(pe, "get");
  if (bytes == 0) return;
  const Operation operation{"get", bytes};
  blocking(operation, pe,
           [&](Batch* batch) { start_get(operation, target, pe, offset, bytes, batch); });
}

void NetworkTransport::get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  engine(pe, "get_nbi");
  if (bytes == 0) return;
  start_get({"get_nbi", bytes}, target, pe, offset, bytes, nullptr);
}

void NetworkTransport::put_strided(Pe pe, std::size_t offset, std::size_t target_stride,
                                   const void* source, std::size_t source_stride,
                                   std::size_t element, std::size_t count) {
  if (element == 0 || count == 0) return;
  Engine& to = engine(pe, "put_strided");
  const Operation operation{"put_strided", element * count};
  std::byte* const from = bytes_of(source);
  if (element > traits_.payload_bytes)
    return blocking(operation, pe, [&](Batch* batch) {
      for (std::size_t i = 0; i < count; ++i)
        to.transfer(operation, pe,
                    {.direction = Direction::write,
                     .offset = offset + i * target_stride,
                     .local = from + i * source_stride,
                     .bytes = element,
                     .batch = batch});
    });
  const std::size_t per_message = traits_.payload_bytes / element;
  for (std::size_t first = 0; first < count; first += per_message) {
    const std::size_t n = std::min(per_message, count - first);
    Request request;
    request.message.kind = Kind::put;
    request.message.offset = offset + first * target_stride;
    request.message.elements = {static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(n),
                                target_stride};
    request.payload = {from + first * source_stride, element, n, source_stride};
    to.request(operation, pe, request);
  }
}

void NetworkTransport::get_strided(void* target, std::size_t target_stride, Pe pe,
                                   std::size_t offset, std::size_t source_stride,
                                   std::size_t element, std::size_t count) {
  if (element == 0 || count == 0) return;
  Engine& from = engine(pe, "get_strided");
  const Operation operation{"get_strided", element * count};
  std::byte* const to = bytes_of(target);
  const std::size_t per_message = traits_.payload_bytes / element;
  blocking(operation, pe, [&](Batch* batch) {
    for (std::size_t i = 0; per_message == 0 && i < count; ++i)
      from.transfer(operation, pe,
                    {.direction = Direction::read,
                     .offset = offset + i * source_stride,
                     .local = to + i * target_stride,
                     .bytes = element,
                     .batch = batch});
    for (std::size_t first = 0; per_message != 0 && first < count; first += per_message) {
      const std::size_t n = std::min(per_message, count - first);
      Request request;
      request.message.kind = Kind::get;
      request.message.offset = offset + first * source_stride;
      request.message.elements = {static_cast<std::uint32_t>(element),
                                  static_cast<std::uint32_t>(n), source_stride};
      request.reply = {.target = to + first * target_stride,
                       .element = element,
                       .count = n,
                       .stride = target_stride,
                       .batch = batch};
      from.request(operation, pe, request);
    }
  });
}

Request NetworkTransport::atomic_request(AtomicOp op, std::size_t offset, std::uint64_t operand,
                                         std::uint64_t compare, std::size_t width, void* before) {
  Request request;
  request.message.kind = Kind::fetch;
  request.message.op = op;
  request.message.width = request.reply.width = static_cast<std::uint8_t>(width);
  request.message.offset = offset;
  request.message.word = {operand, compare};
  request.reply.target = bytes_of(before);
  return request;
}

std::uint64_t NetworkTransport::atomic(Pe pe, AtomicOp op, std::size_t offset,
                                       std::uint64_t operand, std::uint64_t compare,
                                       std::size_t width) {
  Engine& at = engine(pe, "atomic");
  const Operation operation{"atomic", width};
  std::uint64_t before = 0;
  Request request = atomic_request(op, offset, operand, compare, width, &before);
  blocking(operation, pe, [&](Batch* batch) {
    request.reply.batch = batch;
    at.request(operation, pe, request);
  });
  return before;
}

void NetworkTransport::atomic_nbi(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                                  std::uint64_t compare, std::size_t width, std::uint64_t* before) {
  Engine& at = engine(pe, "atomic");
  *before = 0;  // the reply has `width` bytes
  at.request({"atomic", width}, pe, atomic_request(op, offset, operand, compare, width, before));
}

void NetworkTransport::update(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                              std::size_t width) {
  Request request;
  request.message.kind = Kind::update;
  request.message.op = op;
  request.message.width = static_cast<std::uint8_t>(width);
  request.message.offset = offset;
  request.message.word.operand = operand;
  engine(pe, "atomic").request({"atomic", width}, pe, request);
}

void NetworkTransport::signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  engine(pe, "signal").request({"signal"}, pe, signal_request(offset, op, value));
}

void NetworkTransport::raise_flag(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  Request request = signal_request(offset, op, value);
  request.counted = false;
  engine(pe, "signal").request({"signal"}, pe, request);
}

void NetworkTransport::put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                                  std::size_t signal_offset, SignalOp op, std::uint64_t value) {
  Engine& to = engine(pe, "put_signal");
  const Operation operation{"put_signal", bytes};
  if (bytes <= std::max(traits_.put_bytes, traits_.put_signal_bytes)) {
    const std::byte* const from = bytes_of(source);
    std::size_t done = 0;
    for (; bytes - done > traits_.payload_bytes; done += traits_.payload_bytes)
      to.request(operation, pe, put_request(offset + done, from + done, traits_.payload_bytes));
    Request request = put_request(offset + done, from + done, bytes - done);
    request.message.set_signal(signal_offset, op, value);
    request.after = After::writes;
    return to.request(operation, pe, request);
  }
  blocking(operation, pe, [&](Batch* batch) {
    to.transfer(operation, pe,
                {.direction = Direction::write,
                 .offset = offset,
                 .local = bytes_of(source),
                 .bytes = bytes,
                 .batch = batch});
    to.request(operation, pe, signal_request(signal_offset, op, value));
  });
}

void NetworkTransport::fence(Pe pe) {
  engine(pe, "fence").fence(pe);
}

}  // namespace shoal::transport::message
