// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/port/library_port.hpp"

#include <algorithm>
#include <cerrno>

#include "base/check.hpp"
#include "transport/verbs/port/queue_pair.hpp"

namespace shoal::transport::verbs {
namespace {

class LibraryQueuePair final : public QueuePair {
 public:
  LibraryQueuePair(const Port& port, ibv_cq* queue, const QueueLimits& limits,
                   const QueuePairName& name, std::size_t existing)
      : QueuePair(port, limits, name) {
    auto wanted = zeroed<ibv_qp_init_attr>();
    wanted.send_cq = wanted.recv_cq = queue;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap.max_send_wr = limits.depth;
    wanted.cap.max_send_sge = 1;
    wanted.cap.max_inline_data = limits.inline_bytes;
    handle_ = {port.library().create_qp(port.domain(), &wanted), port.library().destroy_qp};
    if (handle_ == nullptr) refuse_creation(error_text(errno), existing);
    inline_bytes_ = wanted.cap.max_inline_data;
    to_init();
  }
  std::uint32_t number() const noexcept override { return handle_->qp_num; }
  bool is(const ibv_qp* handle) const noexcept override { return handle_.get() == handle; }
  std::string state() const override {
    auto attributes = zeroed<ibv_qp_attr>();
    auto init = zeroed<ibv_qp_init_attr>();
    const int code = port_.library().query_qp(handle_.get(), &attributes, IBV_QP_STATE, &init);
    return code == 0 ? name_of(attributes.qp_state) : error_text(code);
  }
  void stop() noexcept override {
    auto attributes = zeroed<ibv_qp_attr>();
    attributes.qp_state = IBV_QPS_ERR;
    port_.library().modify_qp(handle_.get(), &attributes, IBV_QP_STATE);
  }
  int post(ibv_send_wr& first) noexcept override {
    ibv_send_wr* refused = nullptr;
    return ibv_post_send(handle_.get(), &first, &refused);
  }

 private:
  std::string modify(ibv_qp_attr& attributes, int mask) override {
    const int code = port_.library().modify_qp(handle_.get(), &attributes, mask);
    return code == 0 ? std::string() : error_text(code);
  }

  Handle<ibv_qp> handle_{nullptr, nullptr};
};

class LibraryPort final : public Port {
 public:
  LibraryPort(const std::shared_ptr<const Library>& library, const PortOffer& offer,
              const Settings& settings, std::size_t completions)
      : Port(library, offer, settings,
             [&](ibv_device* found) { return open_device(*library, found); }) {
    const auto entries = static_cast<int>(
        std::min<std::size_t>(completions, static_cast<std::size_t>(device().max_cqe)));
    queue_ = {library->create_cq(context(), entries, nullptr, nullptr, 0), library->destroy_cq};
    require(
        queue_ != nullptr, Code::unsupported,
        "SHOAL-N383: a completion queue of {} entries (device {}: at most {}) cannot be created: "
        "{}. Settings: SHOAL_VERBS_DEPTH, SHOAL_VERBS_QUEUE_PAIRS",
        entries, label(), device().max_cqe, error_text(errno));
  }

  std::size_t completions() const noexcept override {
    return static_cast<std::size_t>(queue_->cqe);
  }
  std::unique_ptr<QueuePair> make_queue_pair(const QueueLimits& limits, const QueuePairName& name,
                                             std::size_t existing) const override {
    return std::make_unique<LibraryQueuePair>(*this, queue_.get(), limits, name, existing);
  }
  int poll(std::span<ibv_wc> completions) const noexcept override {
    return ibv_poll_cq(queue_.get(), static_cast<int>(completions.size()), completions.data());
  }

 private:
  Handle<ibv_cq> queue_{nullptr, nullptr};
};

}  // namespace

std::unique_ptr<Port> open_library_port(const std::shared_ptr<const Library>& library,
                                        const PortOffer& offer, const Settings& settings,
                                        std::size_t completions) {
  return std::make_unique<LibraryPort>(library, offer, settings, completions);
}

}  // namespace shoal::transport::verbs
