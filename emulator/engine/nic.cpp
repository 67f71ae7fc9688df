// SPDX-License-Identifier: Apache-2.0
#include "engine/nic.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace shoal::emulator {
namespace {

Counters& operator+=(Counters& sum, const Counters& more) {
  sum.doorbells += more.doorbells;
  sum.requests += more.requests;
  sum.completions += more.completions;
  sum.errors += more.errors;
  sum.packets_sent += more.packets_sent;
  sum.packets_received += more.packets_received;
  sum.bytes_sent += more.bytes_sent;
  sum.bytes_received += more.bytes_received;
  sum.resent += more.resent;
  sum.duplicates += more.duplicates;
  sum.out_of_order += more.out_of_order;
  sum.timeouts += more.timeouts;
  sum.naks += more.naks;
  sum.receiver_not_ready += more.receiver_not_ready;
  return sum;
}

template <typename Object>
Status destroy(std::map<std::uint32_t, std::shared_ptr<Object>>& objects, std::uint32_t number) {
  const auto at = objects.find(number);
  if (at == objects.end()) return Status::bad_resource;
  if (at->second->users != 0) return Status::bad_resource_state;
  objects.erase(at);
  return Status::ok;
}

template <typename Object>
Object* find_in(const std::map<std::uint32_t, std::shared_ptr<Object>>& objects,
                std::uint32_t number) {
  const auto at = objects.find(number);
  return at == objects.end() ? nullptr : at->second.get();
}

void add_users(const QueuePairAttributes& attributes, std::int32_t change) {
  const auto add = [change](auto& object) {
    if (object) object->users += static_cast<std::uint32_t>(change);
  };
  add(attributes.send_completions);
  add(attributes.receive_completions);
  add(attributes.receives);
}

}  // namespace

Nic::Nic(NicOptions options, Wire& wire)
    : options_(std::move(options)),
      wire_(wire),
      keys_(options_.limits.keys),
      random_(options_.seed),
      next_pair_(options_.first_queue_pair) {}

Counters Nic::counters() const {
  Counters sum = of_destroyed_;
  for (const auto& [number, pair] : pairs_) sum += pair->counters();
  return sum;
}

Created<CompletionQueue> Nic::create_completion_queue(const CompletionQueueAttributes& attributes) {
  if (attributes.entries == nullptr || !std::has_single_bit(attributes.size))
    return {Status::bad_parameter, nullptr};
  if (completion_queues_.size() >= options_.limits.completion_queues ||
      attributes.size > options_.limits.completion_entries)
    return {Status::limit_exceeded, nullptr};
  auto queue = std::make_shared<CompletionQueue>(next_completion_queue_++, attributes);
  completion_queues_[queue->number()] = queue;
  return {Status::ok, std::move(queue)};
}

Created<ReceiveQueue> Nic::create_receive_queue(const ReceiveQueueAttributes& attributes) {
  const std::uint32_t head = attributes.shared ? kSegmentBytes : 0;
  if (attributes.memory == nullptr || attributes.doorbell_record == nullptr ||
      !std::has_single_bit(attributes.size) || attributes.stride < head + kSegmentBytes ||
      attributes.stride % kSegmentBytes != 0)
    return {Status::bad_parameter, nullptr};
  if (receive_queues_.size() >= options_.limits.receive_queues ||
      attributes.size > options_.limits.receive_requests)
    return {Status::limit_exceeded, nullptr};
  auto queue = std::make_shared<ReceiveQueue>(next_receive_queue_++, attributes);
  receive_queues_[queue->number()] = queue;
  return {Status::ok, std::move(queue)};
}

Created<QueuePair> Nic::create_queue_pair(const QueuePairAttributes& attributes) {
  const std::uint32_t blocks = attributes.ring.blocks;
  if (blocks != 0 && (!std::has_single_bit(blocks) || attributes.ring.memory == nullptr ||
                      attributes.doorbell_record == nullptr))
    return {Status::bad_parameter, nullptr};
  if (pairs_.size() >= std::min(options_.limits.queue_pairs, options_.queue_pair_numbers) ||
      blocks > options_.limits.queue_blocks)
    return {Status::limit_exceeded, nullptr};
  auto pair = std::make_shared<QueuePair>(take_pair_number(), attributes,
                                          Services{options_, keys_, wire_, random_, relaxed_});
  add_users(attributes, 1);
  pairs_[pair->number()] = pair;
  by_number_.push_back(pair.get());
  return {Status::ok, std::move(pair)};
}

/// A free number exists.
std::uint32_t Nic::take_pair_number() {
  while (true) {
    const std::uint32_t number = next_pair_++;
    if (next_pair_ == options_.lowest_queue_pair + options_.queue_pair_numbers)
      next_pair_ = options_.lowest_queue_pair;
    if (!pairs_.contains(number)) return number;
  }
}

Status Nic::destroy_completion_queue(std::uint32_t number) {
  return destroy(completion_queues_, number);
}

Status Nic::destroy_receive_queue(std::uint32_t number) {
  return destroy(receive_queues_, number);
}

Status Nic::destroy_queue_pair(std::uint32_t number) {
  const auto at = pairs_.find(number);
  if (at == pairs_.end()) return Status::bad_resource;
  add_users(at->second->attributes(), -1);
  of_destroyed_ += at->second->counters();
  at->second->trace(TraceEvent::Kind::destroyed, 0);
  const QueuePair::Schedule& schedule = at->second->schedule;
  if (schedule.ready) ready_.erase({schedule.rank, number});
  if (schedule.look != kNever) timers_.erase({schedule.look, number});
  by_number_[number - options_.first_queue_pair] = nullptr;
  pairs_.erase(at);
  return Status::ok;
}

QueuePair* Nic::find(std::uint32_t qp_number) {
  const std::uint32_t index = qp_number - options_.first_queue_pair;  // wraps below the first
  return index < by_number_.size() ? by_number_[index] : nullptr;
}
CompletionQueue* Nic::find_completion_queue(std::uint32_t number) {
  return find_in(completion_queues_, number);
}
ReceiveQueue* Nic::find_receive_queue(std::uint32_t number) {
  return find_in(receive_queues_, number);
}

void Nic::doorbell(std::uint32_t qp_number) {
  QueuePair* const pair = find(qp_number);
  if (pair == nullptr) return;
  ++pair->count().doorbells;
  pair->trace(TraceEvent::Kind::doorbell, 0);
  pair->doorbell();
  ready(*pair);
}

void Nic::receive(Packet&& packet) {
  QueuePair* const pair = find(packet.target_qp);
  if (pair == nullptr) return;
  pair->receive(std::move(packet));
  update_timer(*pair);
  ready(*pair);
}

void Nic::ready(QueuePair& pair) {
  QueuePair::Schedule& schedule = pair.schedule;
  if (schedule.ready || !pair.wants_to_send()) return;
  schedule.ready = true;
  schedule.rank = options_.arbitration == Arbitration::oldest_doorbell ? arrivals_++ : 0;
  ready_.insert({schedule.rank, pair.number()});
}

QueuePair* Nic::next_pair() {
  if (left_in_turn_ != 0)
    if (QueuePair* const pair = find(current_); pair != nullptr && pair->schedule.ready)
      return pair;
  if (ready_.empty()) return nullptr;
  auto next = ready_.begin();
  if (options_.arbitration == Arbitration::by_number) {
    next = ready_.upper_bound({0, current_});
    if (next == ready_.end()) next = ready_.begin();
  } else if (options_.arbitration == Arbitration::random) {
    next = std::next(next, static_cast<std::ptrdiff_t>(random_() % ready_.size()));
  }
  current_ = next->second;
  left_in_turn_ = std::max(1U, options_.quantum);
  return find(current_);
}

void Nic::end_turn(QueuePair& pair) {
  QueuePair::Schedule& schedule = pair.schedule;
  if (!schedule.ready) return;
  const bool more = pair.wants_to_send();
  const bool goes_behind =
      options_.arbitration == Arbitration::oldest_doorbell && left_in_turn_ == 0;
  if (more && !goes_behind) return;
  ready_.erase({schedule.rank, pair.number()});
  schedule.ready = false;
  left_in_turn_ = 0;
  if (more) ready(pair);
}

/// A timer that moves back, as with every acknowledgement, keeps its entry: it moves when its time
/// is reached.
void Nic::update_timer(QueuePair& pair) {
  const Time wanted = pair.next_timer();
  Time& look = pair.schedule.look;
  if (wanted >= look) return;
  if (look != kNever) timers_.erase({look, pair.number()});
  look = wanted;
  timers_.insert({wanted, pair.number()});
}

bool Nic::progress() {
  bool worked = false;
  const Time now = wire_.now();
  relaxed_.run(now);
  while (!timers_.empty() && timers_.begin()->first <= now) {
    QueuePair& pair = *find(timers_.begin()->second);
    timers_.erase(timers_.begin());
    pair.schedule.look = kNever;
    if (pair.next_timer() <= now) {
      pair.run_timers();
      ready(pair);
      worked = true;
    }
    update_timer(pair);
  }
  while (wire_.ready()) {
    QueuePair* const pair = next_pair();
    if (pair == nullptr) break;
    if (pair->send_one()) {
      worked = true;
      if (left_in_turn_ != 0) --left_in_turn_;
    }
    update_timer(*pair);
    end_turn(*pair);
  }
  return worked;
}

Time Nic::next_timer() const {
  return std::min(relaxed_.next(), timers_.empty() ? kNever : timers_.begin()->first);
}

}  // namespace shoal::emulator
