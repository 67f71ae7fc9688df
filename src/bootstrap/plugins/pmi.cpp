// SPDX-License-Identifier: Apache-2.0
// pmi.cpp: PMI-1. Hydra (MPICH, Intel MPI) and srun --mpi=pmi2 serve its wire protocol: lines of
// key=value over an inherited socket (PMI_FD). This file implements the protocol itself, with
// deadlines. Tasks of srun without a PMI server use Slurm's libpmi, which asks srun whatever the
// option --mpi says.
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>

#include "common.hpp"

namespace shoal::plugins {
namespace {

/// The reason of a failed call, thrown to the functions of the plug-in's table.
struct Failure : std::runtime_error {
  Failure(int what, const std::string& reason) : std::runtime_error(reason), status(what) {}
  int status;
};

/// The functions of PMI-1. They throw Failure.
class Pmi {
 public:
  virtual ~Pmi() = default;
  virtual void put(const std::string& key, const std::string& value,
                   Clock::time_point deadline) = 0;
  virtual void barrier(Clock::time_point deadline) = 0;
  virtual std::string get(const std::string& key, Clock::time_point deadline) = 0;
  virtual void finalize() noexcept = 0;

  int pe = -1, n_pes = -1;
};

/// The value of `name` in "cmd=x name=value ...", or nullopt. Values of PMI-1 contain no spaces.
std::optional<std::string> field(const std::string& line, const std::string& name) {
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    if (line.compare(at, name.size() + 1, name + "=") == 0)
      return line.substr(at + name.size() + 1, end - at - name.size() - 1);
    at = end + 1;
  }
  return std::nullopt;
}

int to_int(const std::string& text, const char* what) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0)
    throw Failure(SHOAL_BOOTSTRAP_FAILED,
                  std::string(what) + " is \"" + text + "\"; allowed: an integer from 0");
  return value;
}

class Wire final : public Pmi {
 public:
  Wire(int fd, int rank, int size, Clock::time_point deadline) : fd_(fd) {
    pe = rank;
    n_pes = size;
    ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", deadline);
    const std::string maxes = ask("cmd=get_maxes", "maxes", deadline);
    const int room = to_int(field(maxes, "vallen_max").value_or(""), "the launcher's vallen_max");
    if (room < SHOAL_BOOTSTRAP_TEXT_SIZE)
      throw Failure(SHOAL_BOOTSTRAP_FAILED,
                    "the launcher keeps values of " + std::to_string(room) +
                        " bytes; needed: " + std::to_string(SHOAL_BOOTSTRAP_TEXT_SIZE));
    store_ = field(ask("cmd=get_my_kvsname", "my_kvsname", deadline), "kvsname").value_or("");
  }

  void put(const std::string& key, const std::string& value, Clock::time_point deadline) override {
    ask("cmd=put kvsname=" + store_ + " key=" + key + " value=" + value, "put_result", deadline);
  }
  void barrier(Clock::time_point deadline) override {
    ask("cmd=barrier_in", "barrier_out", deadline);
  }
  std::string get(const std::string& key, Clock::time_point deadline) override {
    return field(ask("cmd=get kvsname=" + store_ + " key=" + key, "get_result", deadline), "value")
        .value_or("");
  }
  void finalize() noexcept override {
    try {
      if (!broken_) ask("cmd=finalize", "finalize_ack", Clock::now() + std::chrono::seconds(2));
    } catch (const std::exception&) {  // the process ends anyway, and the launcher sees it
    }
  }

 private:
  /// Sends a line and returns the reply, which must be of kind `expected`.
  std::string ask(const std::string& line, const std::string& expected,
                  Clock::time_point deadline) {
    if (broken_)
      throw Failure(SHOAL_BOOTSTRAP_FAILED,
                    "the connection to the launcher is no longer usable after an earlier failure");
    // True until the reply arrives: a late reply would be taken for that of the next request.
    broken_ = true;
    send(line + "\n", deadline);
    const std::string answer = receive(line, deadline);
    if (field(answer, "cmd") != expected || field(answer, "rc").value_or("0") != "0")
      throw Failure(SHOAL_BOOTSTRAP_FAILED,
                    "the launcher answers \"" + answer + "\" to \"" + shown(line) + "\"");
    broken_ = false;
    return answer;
  }

  /// Never prints values: they are secret.
  static std::string shown(const std::string& line) { return line.substr(0, line.find(" value=")); }

  void send(const std::string& text, Clock::time_point deadline) {
    for (std::size_t at = 0; at < text.size();) {
      wait(POLLOUT, text, deadline);
      const ssize_t count = ::send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (count > 0) at += static_cast<std::size_t>(count);
      if (count < 0 && errno != EINTR && errno != EAGAIN)
        throw Failure(SHOAL_BOOTSTRAP_FAILED,
                      std::string("writing to the launcher (PMI_FD): ") + std::strerror(errno));
    }
  }

  std::string receive(const std::string& question, Clock::time_point deadline) {
    std::string line;
    for (char c = 0; c != '\n';) {
      wait(POLLIN, question, deadline);
      const ssize_t count = ::read(fd_, &c, 1);
      if (count == 0)
        throw Failure(SHOAL_BOOTSTRAP_FAILED, "the launcher has closed its connection (PMI_FD)");
      if (count < 0 && errno != EINTR && errno != EAGAIN)
        throw Failure(SHOAL_BOOTSTRAP_FAILED,
                      std::string("reading from the launcher (PMI_FD): ") + std::strerror(errno));
      if (count == 1 && c != '\n') line += c;
    }
    return line;
  }

  void wait(short events, const std::string& question, Clock::time_point deadline) const {
    while (true) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0)
        throw Failure(SHOAL_BOOTSTRAP_TIMEOUT,
                      "no answer from the launcher to \"" + shown(question) +
                          "\" in time: a PE does not open this world, or the launcher hangs");
      pollfd entry{fd_, events, 0};
      if (poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000))) > 0) return;
    }
  }

  int fd_;
  std::string store_;
  bool broken_ = false;
};

/// Slurm's libpmi. Its calls have no deadlines: Shoal abandons them when they are late.
class SlurmLibrary final : public Pmi {
 public:
  SlurmLibrary() {
    // RTLD_GLOBAL: the plug-ins that libslurm loads use its functions.
    void* const library = dlopen("libpmi.so.0", RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (library == nullptr)
      throw Failure(SHOAL_BOOTSTRAP_ABSENT,
                    std::string("srun offers no PMI server (PMI_FD is not set) and Slurm's own "
                                "library is not there: ") +
                        dlerror() + ". Start the program with srun --mpi=pmi2 or --mpi=pmix");
    int spawned = 0;
    char name[kName] = "";
    check("PMI_Init", function<int(int*)>(library, "PMI_Init")(&spawned));
    check("PMI_Get_rank", function<int(int*)>(library, "PMI_Get_rank")(&pe));
    check("PMI_Get_size", function<int(int*)>(library, "PMI_Get_size")(&n_pes));
    check("PMI_KVS_Get_my_name",
          function<int(char*, int)>(library, "PMI_KVS_Get_my_name")(name, kName));
    store_ = name;
    put_ = function<int(const char*, const char*, const char*)>(library, "PMI_KVS_Put");
    commit_ = function<int(const char*)>(library, "PMI_KVS_Commit");
    barrier_ = function<int()>(library, "PMI_Barrier");
    get_ = function<int(const char*, const char*, char*, int)>(library, "PMI_KVS_Get");
    finalize_ = function<int()>(library, "PMI_Finalize");
  }

  void put(const std::string& key, const std::string& value, Clock::time_point) override {
    check("PMI_KVS_Put", put_(store_.c_str(), key.c_str(), value.c_str()));
    check("PMI_KVS_Commit", commit_(store_.c_str()));
  }
  void barrier(Clock::time_point) override { check("PMI_Barrier", barrier_()); }
  std::string get(const std::string& key, Clock::time_point) override {
    char value[SHOAL_BOOTSTRAP_TEXT_SIZE] = "";
    check("PMI_KVS_Get", get_(store_.c_str(), key.c_str(), value, sizeof value));
    return value;
  }
  void finalize() noexcept override { finalize_(); }

 private:
  static constexpr int kName = 256;  ///< bytes of a name, with its NUL

  template <typename Type>
  static Type* function(void* library, const char* name) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr)
      throw Failure(SHOAL_BOOTSTRAP_ABSENT, std::string("libpmi.so.0 has no function ") + name);
    return reinterpret_cast<Type*>(symbol);
  }
  static void check(const char* call, int status) {
    if (status != 0)
      throw Failure(SHOAL_BOOTSTRAP_FAILED,
                    std::string(call) + " of libpmi.so.0 returned " + std::to_string(status));
  }

  std::string store_;
  int (*put_)(const char*, const char*, const char*) = nullptr;
  int (*commit_)(const char*) = nullptr;
  int (*barrier_)() = nullptr;
  int (*get_)(const char*, const char*, char*, int) = nullptr;
  int (*finalize_)() = nullptr;
};

/// A process can use PMI once, from its first world until it ends.
struct Process {
  std::unique_ptr<Pmi> pmi;
  unsigned worlds = 0;  ///< equal on all PEs; part of the keys
};

Process& process() {
  static Process& the = *new Process;  // never destroyed: used until the process ends
  return the;
}

/// An MPI in this process uses PMI over the same socket.
bool mpi_runs() {
  auto* const initialised = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "MPI_Initialized"));
  int yes = 0;
  return initialised != nullptr && initialised(&yes) == 0 && yes != 0;
}

std::unique_ptr<Pmi> start(const shoal_bootstrap_context* context) {
  const std::string fd = variable(context, "PMI_FD");
  if (!fd.empty()) {
    if (mpi_runs())
      throw Failure(
          SHOAL_BOOTSTRAP_FAILED,
          "MPI runs in this process and speaks over the launcher's connection (PMI_FD) already: "
          "open the world with connect_mpi of shoal/mpi.hpp, or World.from_mpi4py");
    return std::make_unique<Wire>(
        to_int(fd, "PMI_FD"), to_int(variable(context, "PMI_RANK"), "PMI_RANK"),
        to_int(variable(context, "PMI_SIZE"), "PMI_SIZE"), deadline_of(context));
  }
  if (variable(context, "SLURM_STEP_ID").empty())
    throw Failure(
        SHOAL_BOOTSTRAP_ABSENT,
        "SHOAL-N127: no launcher speaks PMI-1 to this process (neither PMI_FD nor SLURM_STEP_ID is "
        "set): start it with Hydra's mpiexec or with srun. SHOAL_BOOTSTRAP=pmi2 and pmix are the "
        "newer protocols");
  return std::make_unique<SlurmLibrary>();
}

int open(shoal_bootstrap_context* context, void** job, std::int32_t* pe, std::int32_t* n_pes) {
  try {
    Process& own = process();
    if (own.pmi == nullptr) {
      own.pmi = start(context);
      at_good_end([] { process().pmi->finalize(); });
    }
    *job = own.pmi.get();
    *pe = own.pmi->pe;
    *n_pes = own.pmi->n_pes;
    return SHOAL_BOOTSTRAP_OK;
  } catch (const Failure& failure) {
    return report(context, failure.status, failure.what());
  }
}

int broadcast(shoal_bootstrap_context* context, void*, char* text) {
  try {
    Process& own = process();
    const auto deadline = deadline_of(context);
    const std::string key = "shoal-" + std::to_string(own.worlds++);
    if (own.pmi->pe == 0) own.pmi->put(key, text, deadline);
    own.pmi->barrier(deadline);
    store(text, own.pmi->get(key, deadline));
    return SHOAL_BOOTSTRAP_OK;
  } catch (const Failure& failure) {
    return report(context, failure.status, failure.what());
  }
}

void close(void*) {}

}  // namespace
}  // namespace shoal::plugins

const shoal_bootstrap_plugin shoal_bootstrap_plugin_table = {
    SHOAL_BOOTSTRAP_PLUGIN_VERSION,
    0,
    sizeof(shoal_bootstrap_plugin),
    "pmi",
    "PMI-1: the wire protocol, or Slurm's libpmi.so.0",
    shoal::plugins::open,
    shoal::plugins::broadcast,
    shoal::plugins::close};
