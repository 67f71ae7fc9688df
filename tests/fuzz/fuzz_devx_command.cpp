// SPDX-License-Identifier: Apache-2.0
// Any device commands (DEVX) to the emulated NIC, and doorbells of what they create: each command
// succeeds or says why not, the NIC writes only to registered memory, and everything that was
// created can be destroyed.
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "fuzz.hpp"
#include "mlx5/devx.hpp"

#undef ibv_get_device_list

using namespace shoal::emulator;
using namespace shoal::mlx5;
using shoal::fuzz::check;

namespace {

constexpr std::size_t kMemory = 16384, kGuard = 4096, kMostObjects = 8;
constexpr std::byte kUntouched{0x5a};

struct Setup {
  Setup() {
    std::string folder = "/tmp/shoal-fuzz-XXXXXX";
    check(mkdtemp(folder.data()) != nullptr, "a folder for the wire");
    setenv("SHOAL_EMULATOR_DIRECTORY", folder.c_str(), 1);
    ibv_device** const list = ibv_get_device_list(nullptr);
    context = ibv_open_device(list[0]);
    check(context != nullptr, "the device opens");
    ibv_free_device_list(list);
    std::filesystem::remove_all(folder);  // the wire is mapped
    memory = static_cast<std::byte*>(std::aligned_alloc(4096, kMemory + 2 * kGuard));
    umem = mlx5dv_devx_umem_reg(context, memory + kGuard, kMemory, IBV_ACCESS_LOCAL_WRITE);
    page = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
  }
  ibv_context* context;
  std::byte* memory;
  mlx5dv_devx_umem* umem;
  mlx5dv_devx_uar* page;
};

/// A command that was created, with what refers to it.
struct Made {
  mlx5dv_devx_obj* object;
  Command opcode;
  std::uint32_t number;
};

class Session {
 public:
  Session(Setup& setup, const std::uint8_t* data, std::size_t size)
      : setup_(setup), data_(data), left_(size) {
    std::fill_n(setup.memory, kMemory + 2 * kGuard, kUntouched);
  }
  ~Session() {
    for (const bool queues : {false, true})  // queue pairs use completion queues
      for (const Made& made : made_)
        if ((made.opcode == Command::create_cq) == queues)
          check(mlx5dv_devx_obj_destroy(made.object) == 0, "what was created can be destroyed");
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    const std::byte* const end = setup_.memory + kGuard + kMemory;
    check(std::all_of(setup_.memory, setup_.memory + kGuard, untouched), "the guard before");
    check(std::all_of(end, end + kGuard, untouched), "the guard behind");
  }
  /// False at the end of the input.
  bool step() {
    if (left_ < 3) return false;
    const std::uint8_t action = take();
    constexpr std::array kCreate = {Command::create_cq, Command::create_qp, Command::create_mkey};
    constexpr std::array kModify = {Command::reset_to_init, Command::init_to_rtr,
                                    Command::rtr_to_rts, Command::to_error, Command::to_reset};
    constexpr std::array kGeneral = {Command::query_hca_cap, Command::query_vport,
                                     Command::alloc_pd};
    const std::uint8_t which = take();
    switch (action % 6) {
      case 0:
        create(kCreate[which % kCreate.size()]);
        break;
      case 1:
        modify(kModify[which % kModify.size()]);
        break;
      case 2:
        query();
        break;
      case 3:
        execute(kGeneral[which % kGeneral.size()]);
        break;
      case 4:
        execute(static_cast<Command>(which << 8 | take()));
        break;
      default:
        ring();
    }
    return true;
  }

 private:
  std::uint8_t take() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  /// A command of some length; pairs of (word, value) from the input change its words.
  std::vector<std::byte>& command(Command opcode, std::size_t bytes) {
    in_.assign(bytes, std::byte{0});
    prepare(opcode);
    const std::uint8_t changes = take() % 16;
    for (std::uint8_t i = 0; i < changes; ++i) {
      const std::size_t at = take() * std::size_t{4} + take() % 4;
      const std::uint8_t value = take();
      if (at < in_.size()) in_[at] = static_cast<std::byte>(value);
    }
    if ((changes & 8) != 0) in_.resize(std::min<std::size_t>(in_.size(), 16 + take()));
    if (in_.size() >= 4) set(in_.data(), command::kOpcode, static_cast<std::uint32_t>(opcode));
    return in_;
  }
  /// Sets the fields without which every command is refused.
  void prepare(Command opcode) {
    std::byte* const in = in_.data();
    if (in_.size() < qp_context::kCommandBytes) return;
    if (opcode == Command::create_cq) {
      set(in + cq_context::kAt, cq_context::kRecordUmemValid, 1);
      set(in + cq_context::kAt, cq_context::kRecordUmem, setup_.umem->umem_id);
      set64(in + cq_context::kAt, cq_context::kRecordOffset, 8192);
      set(in, cq_context::kUmemValid, 1);
      set(in, cq_context::kUmem, setup_.umem->umem_id);
    } else if (opcode == Command::create_qp) {
      std::byte* const at = in + qp_context::kAt;
      set(at, qp_context::kUarPage, setup_.page->page_id);
      set(at, qp_context::kReceiveType, 3);
      set(at, qp_context::kRecordUmemValid, 1);
      set(at, qp_context::kRecordUmem, setup_.umem->umem_id);
      set64(at, qp_context::kRecordOffset, 8256);
      set(in, qp_context::kUmemValid, 1);
      set(in, qp_context::kUmem, setup_.umem->umem_id);
      for (const Made& made : made_)
        if (made.opcode == Command::create_cq) {
          set(at, qp_context::kSendCq, made.number);
          set(at, qp_context::kReceiveCq, made.number);
        }
    } else if (opcode == Command::create_mkey) {
      set(in, key_context::kUmemValid, 1);
      set(in, key_context::kUmem, setup_.umem->umem_id);
      set(in + key_context::kAt, key_context::kMode, key_context::kTranslated);
    }
  }
  void judge(int code) {
    const std::uint32_t status = get(out_.data(), command::kStatus);
    check(code == 0 || code == EREMOTEIO || code == EINVAL, "the error number is known");
    check((code == EREMOTEIO) == (status != 0), "a refused command has a status");
  }
  void create(Command opcode) {
    if (made_.size() == kMostObjects) return;
    const std::vector<std::byte>& in = command(opcode, 272);
    out_.fill(std::byte{0});
    errno = 0;
    mlx5dv_devx_obj* const object =
        mlx5dv_devx_obj_create(setup_.context, in.data(), in.size(), out_.data(), out_.size());
    judge(object != nullptr ? 0 : errno);
    if (object != nullptr) made_.push_back({object, opcode, get(out_.data(), command::kObject)});
  }
  const Made* chosen() {
    const std::uint8_t which = take();
    return made_.empty() ? nullptr : &made_[which % made_.size()];
  }
  void modify(Command opcode) {
    const Made* const made = chosen();
    if (made == nullptr) return;
    std::vector<std::byte>& in = command(opcode, 272);
    if (in.size() >= 12 && (take() & 3) != 0) {
      set(in.data(), command::kObject, made->number);
      if (in.size() > 64) {  // to itself
        set(in.data() + qp_context::kAt, qp_context::kRemoteQp, made->number);
        set(in.data() + qp_context::kAt, qp_context::kRemoteLid, of(setup_.context).runtime->lid());
      }
    }
    out_.fill(std::byte{0});
    judge(mlx5dv_devx_obj_modify(made->object, in.data(), in.size(), out_.data(), out_.size()));
  }
  void query() {
    const Made* const made = chosen();
    if (made == nullptr) return;
    const std::vector<std::byte>& in = command(Command::query_qp, 16);
    out_.fill(std::byte{0});
    judge(mlx5dv_devx_obj_query(made->object, in.data(), in.size(), out_.data(),
                                take() % 2 == 0 ? out_.size() : 16));
  }
  void execute(Command opcode) {
    const std::vector<std::byte>& in = command(opcode, 32);
    out_.fill(std::byte{0});
    judge(mlx5dv_devx_general_cmd(setup_.context, in.data(), in.size(), out_.data(), out_.size()));
  }
  /// Fills some of the memory, such as a ring, and rings.
  void ring() {
    const Made* const made = chosen();
    const std::size_t at = take() * std::size_t{64}, bytes = take() % 64;
    for (std::size_t i = 0; i < bytes && at + i < kMemory; ++i)
      setup_.memory[kGuard + at + i] = static_cast<std::byte>(take());
    Runtime& runtime = *of(setup_.context).runtime;
    if (made != nullptr && made->opcode == Command::create_qp)
      runtime.with_nic([&](Nic& nic) { nic.doorbell(made->number); });
    for (int i = 0; i < 4; ++i) runtime.poll();
  }

  Setup& setup_;
  const std::uint8_t* data_;
  std::size_t left_;
  std::vector<std::byte> in_;
  alignas(8) std::array<std::byte, 4112> out_{};
  std::vector<Made> made_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Setup* const setup = new Setup;  // the NIC ends with the process
  Session session(*setup, data, size);
  while (session.step()) {
  }
  return 0;
}
