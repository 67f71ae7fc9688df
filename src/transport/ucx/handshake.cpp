// SPDX-License-Identifier: Apache-2.0
// How PEs describe themselves to each other, and the proof that a pair works both ways before it is
// relied on: a put into scratch memory of the peer, a flush, a message that the peer answers after
// looking at what was put, and a get of it and of the peer's segment.
#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "transport/ucx/engine.hpp"

namespace shoal::transport::ucx {
namespace {

using Pattern = std::array<std::uint64_t, 8>;

/// What `from` puts at `to`: nothing that lies about by chance, or from another world.
Pattern pattern(std::uint64_t world, Pe from, Pe to) {
  Pattern words;
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = (world + i) * 0x9E3779B97F4A7C15u ^ (static_cast<std::uint64_t>(from) << 32) ^
               static_cast<std::uint64_t>(to);
  return words;
}

constexpr std::uint64_t kFormat = 1;

/// Fixed part of what a PE tells the others; three blobs follow.
struct Fixed {
  std::uint64_t format = kFormat;
  std::uint64_t segment = 0, segment_bytes = 0, scratch = 0, depth = 1;
  std::uint64_t worker_bytes = 0, segment_key_bytes = 0, scratch_key_bytes = 0;
};

}  // namespace

struct Engine::Description {
  Fixed fixed;
  std::vector<std::byte> worker, segment_key, scratch_key;

  std::vector<std::byte> pack() const {
    std::vector<std::byte> bytes(sizeof fixed);
    std::memcpy(bytes.data(), &fixed, sizeof fixed);
    for (const auto* blob : {&worker, &segment_key, &scratch_key})
      bytes.insert(bytes.end(), blob->begin(), blob->end());
    return bytes;
  }

  static Description unpack(std::span<const std::byte> bytes) {
    Description description;
    Fixed& fixed = description.fixed;
    require(bytes.size() >= sizeof fixed, Code::mismatch, "it describes itself in {} bytes",
            bytes.size());
    std::memcpy(&fixed, bytes.data(), sizeof fixed);
    require(fixed.format == kFormat, Code::mismatch, "its description has format {}, expected {}",
            fixed.format, kFormat);
    bytes = bytes.subspan(sizeof fixed);
    const auto take = [&](std::uint64_t length) {
      require(length <= bytes.size(), Code::mismatch, "its description is cut off");
      const auto part = bytes.first(length);
      bytes = bytes.subspan(length);
      return std::vector<std::byte>(part.begin(), part.end());
    };
    description.worker = take(fixed.worker_bytes);
    description.segment_key = take(fixed.segment_key_bytes);
    description.scratch_key = take(fixed.scratch_key_bytes);
    return description;
  }
};

/// The handshake with one peer.
struct Engine::Greeting {
  enum class Step { ask, await_answer, read_back, done };
  Peer& peer;
  Step step = Step::ask;
  ucp_rkey_h scratch_key = nullptr;
  RmaTarget scratch{};  ///< this PE's place there
  std::uint64_t request = 0;
  std::uint64_t get_number = 0;
  Pattern seen{};
  std::uint64_t word = 0;

  explicit Greeting(Peer& to) : peer(to) {}
  ~Greeting() {
    if (scratch_key != nullptr) ucp_rkey_destroy(scratch_key);
  }
  Greeting(const Greeting&) = delete;
  Greeting& operator=(const Greeting&) = delete;
  bool over() const { return peer.ended || (step == Step::done && peer.hello_good); }
};

void Engine::DeleteGreeting::operator()(Greeting* greeting) const {
  delete greeting;
}

std::vector<std::byte> Engine::address() const {
  Description description;
  description.worker = library_->address();
  description.segment_key = segment_memory_->packed_key();
  description.scratch_key = scratch_memory_->packed_key();
  Fixed& fixed = description.fixed;
  fixed.segment = reinterpret_cast<std::uint64_t>(context_.segment->base());
  fixed.segment_bytes = context_.segment->size();
  fixed.scratch = reinterpret_cast<std::uint64_t>(scratch_.data());
  fixed.depth = depth_;
  fixed.worker_bytes = description.worker.size();
  fixed.segment_key_bytes = description.segment_key.size();
  fixed.scratch_key_bytes = description.scratch_key.size();
  return description.pack();
}

bool Engine::hello_is_good(const Peer& from) const {
  return scratch_[static_cast<std::size_t>(from.pe)] == pattern(world_, from.pe, context_.my_pe);
}

void Engine::answer_hello(Peer& peer) {
  if (!peer.hello_request || peer.endpoint == nullptr || peer.ended) return;
  Header question;
  question.kind = Kind::hello;
  question.request = *peer.hello_request;
  peer.hello_request.reset();
  answer(peer, question, peer.hello_good ? 1 : 0);
}

void Engine::create_endpoint(Peer& peer, const Description& description) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_USER_DATA;
  params.address = reinterpret_cast<const ucp_address_t*>(description.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&Callbacks::on_error, &peer};
  params.user_data = &peer;
  ucs_status_t status = ucp_ep_create(library_->worker(), &params, &peer.endpoint);
  if (status !=
      UCS_OK) {  // transports that do not notice the end of a peer: the world's deadlines remain
    params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    status = ucp_ep_create(library_->worker(), &params, &peer.endpoint);
  }
  if (status != UCS_OK) peer.endpoint = nullptr;
  require(status == UCS_OK, Code::unsupported, "UCX makes no connection: {}. Settings: {}",
          text_of(status), library_->selection());
}

void Engine::greet(Greeting& greeting, const std::vector<std::byte>& blob) {
  Peer& peer = greeting.peer;
  const Description description = Description::unpack(blob);
  const Fixed& theirs = description.fixed;
  require(theirs.segment_bytes == context_.segment->size(), Code::mismatch,
          "its segment has {} bytes, expected {}", theirs.segment_bytes, context_.segment->size());
  peer.base = theirs.segment;
  peer.depth = theirs.depth;
  create_endpoint(peer, description);
  const auto unpack = [&](const std::vector<std::byte>& key, ucp_rkey_h& to) {
    const ucs_status_t status = ucp_ep_rkey_unpack(peer.endpoint, key.data(), &to);
    require(status == UCS_OK, Code::unsupported,
            "UCX cannot use the keys of its memory: {}. Settings: {}", text_of(status),
            library_->selection());
  };
  unpack(description.segment_key, peer.key);
  unpack(description.scratch_key, greeting.scratch_key);
  greeting.scratch = {theirs.scratch + static_cast<std::size_t>(context_.my_pe) * sizeof(Pattern),
                      greeting.scratch_key};
  answer_hello(peer);
}

/// The next step of the handshake where the one before is complete.
void Engine::advance(Greeting& greeting) {
  using Step = Greeting::Step;
  Peer& peer = greeting.peer;
  if (peer.ended) return;
  if (greeting.step == Step::ask) {
    greeting.seen = pattern(world_, context_.my_pe, peer.pe);
    probe(peer, Direction::put, greeting.scratch, &greeting.seen, sizeof greeting.seen);
    Slot& hello = take_slot(peer, Kind::hello);
    hello.message.header.acknowledge = true;
    greeting.request = post_request(hello.message, {.awaited = true}, peer.last_put);
    greeting.step = Step::await_answer;
  } else if (greeting.step == Step::await_answer) {
    const auto at = peer.requests.find(greeting.request);
    if (at == peer.requests.end() || !at->second.done) return;
    const bool good = at->second.value == 1;
    peer.requests.erase(at);
    if (!good) return end_peer(peer, "a put and a flush did not bring it what was put");
    greeting.seen = {};
    probe(peer, Direction::get, greeting.scratch, &greeting.seen, sizeof greeting.seen);
    probe(peer, Direction::get, {peer.base, peer.key}, &greeting.word, sizeof greeting.word);
    greeting.get_number = peer.issued;
    greeting.step = Step::read_back;
  } else if (greeting.step == Step::read_back) {
    flush(peer);
    if (peer.flushed < greeting.get_number || peer.in_flight != 0) return;
    if (greeting.seen != pattern(world_, context_.my_pe, peer.pe))
      return end_peer(peer, "a get did not bring back what was put");
    greeting.step = Step::done;
  }
}

void Engine::connect(Lock& lock, std::span<const std::vector<std::byte>> addresses) {
  for (Peer& peer : peers_) {
    const auto i = static_cast<std::size_t>(peer.pe);
    if (!peer.wanted) {
      peer.reason = "not needed: another transport reaches it";
      continue;
    }
    if (addresses[i].empty()) {
      end_peer(peer, "it has no ucx");
      continue;
    }
    greetings_.emplace_back(new Greeting(peer));
    try {
      greet(*greetings_.back(), addresses[i]);
    } catch (const std::exception& error) {
      end_peer(peer, error.what());
    }
  }
  Deadline deadline(Clock::now() + context_.timeout);
  auto next_check = Clock::now();
  Backoff backoff;
  for (std::int64_t polls = 0;; ++polls) {
    if (progress()) backoff.reset();
    for (const auto& greeting : greetings_) advance(*greeting);
    if (std::all_of(greetings_.begin(), greetings_.end(),
                    [](const auto& greeting) { return greeting->over(); }))
      break;
    const auto now = Clock::now();
    if (deadline.passed(now)) break;
    if (now >= next_check) {
      next_check = now + std::chrono::milliseconds(1);
      lock.release();
      struct Again {
        Lock& lock;
        ~Again() { lock.acquire(); }
      } const again{lock};
      context_.check();
    }
    let_others(lock, polls, backoff);
  }
  for (const auto& greeting : greetings_) {
    Peer& peer = greeting->peer;
    if (!greeting->over())
      end_peer(peer, fmt::format("{} within {} ms. Settings: SHOAL_BOOTSTRAP_TIMEOUT_MS, {}",
                                 greeting->step == Greeting::Step::done ? "it did not reach this PE"
                                                                        : "it did not answer",
                                 context_.timeout.count(), library_->selection()));
    peer.connected = !peer.ended;
  }
  std::erase_if(greetings_, [](const auto& greeting) { return greeting->peer.connected; });
}

}  // namespace shoal::transport::ucx
