// SPDX-License-Identifier: Apache-2.0
// mpi.cpp: MPI_COMM_WORLD of the MPI that this file was built with. MPIs have no common ABI:
// programs with another MPI use shoal/mpi.hpp.
//
// If the program has initialized MPI, the program also finalizes it. Otherwise this plug-in
// initializes MPI and finalizes it when the process ends, since MPI cannot be initialized twice.
// MPI_Init has no deadline; the broadcast has one.
#include <mpi.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "common.hpp"

namespace shoal::plugins {
namespace {

#if defined(OPEN_MPI)
constexpr const char* kBuiltWith = "Open MPI";
#elif defined(MPICH_VERSION)
constexpr const char* kBuiltWith = "MPICH";
#else
constexpr const char* kBuiltWith = "";
#endif

/// The MPI library that this process uses. If the program is linked with another MPI, the linker
/// finds the program's functions first.
std::string running_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  return text;
}

int failed(shoal_bootstrap_context* context, const char* call, int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(error, text, &length);
  return report(context, SHOAL_BOOTSTRAP_FAILED, std::string(call) + ": " + text);
}

int start(shoal_bootstrap_context* context) {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0)
    return report(context, SHOAL_BOOTSTRAP_FAILED,
                  "MPI has been finalised in this process already");
  if (initialised != 0) return SHOAL_BOOTSTRAP_OK;
  int provided = 0;
  if (const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
      error != MPI_SUCCESS)
    return failed(context, "MPI_Init_thread", error);
  at_good_end([] {
    int over = 0;
    MPI_Finalized(&over);
    if (over == 0) MPI_Finalize();
  });
  return SHOAL_BOOTSTRAP_OK;
}

int open(shoal_bootstrap_context* context, void** job, std::int32_t* pe, std::int32_t* n_pes) {
  const std::string library = running_library();
  if (library.find(kBuiltWith) == std::string::npos)
    return report(context, SHOAL_BOOTSTRAP_ABSENT,
                  std::string("this plug-in is built for ") + kBuiltWith +
                      ", but the MPI of this process is \"" +
                      library.substr(0, library.find('\n')) +
                      "\": open the world with connect_mpi of shoal/mpi.hpp");
  if (const int status = start(context); status != SHOAL_BOOTSTRAP_OK) return status;
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  *job = nullptr;
  *pe = rank;
  *n_pes = size;
  return SHOAL_BOOTSTRAP_OK;
}

// NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker): it does not know that MPI_Test ends a request
int broadcast(shoal_bootstrap_context* context, void*, char* text) {
  const auto deadline = deadline_of(context);
  auto buffer = std::make_unique<char[]>(SHOAL_BOOTSTRAP_TEXT_SIZE);
  std::memcpy(buffer.get(), text, SHOAL_BOOTSTRAP_TEXT_SIZE);
  MPI_Request request = MPI_REQUEST_NULL;
  int error =
      MPI_Ibcast(buffer.get(), SHOAL_BOOTSTRAP_TEXT_SIZE, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
  for (int done = 0; error == MPI_SUCCESS && done == 0; usleep(20)) {
    error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0 && Clock::now() >= deadline) {
      static_cast<void>(buffer.release());  // MPI cannot cancel it, so the memory must stay
      return report(context, SHOAL_BOOTSTRAP_TIMEOUT,
                    "MPI_Ibcast did not end within " + std::to_string(context->timeout_ms) +
                        " ms: some PE of MPI_COMM_WORLD does not open this world");
    }
  }
  if (error != MPI_SUCCESS) return failed(context, "MPI_Ibcast", error);
  std::memcpy(text, buffer.get(), SHOAL_BOOTSTRAP_TEXT_SIZE);
  return SHOAL_BOOTSTRAP_OK;
}
// NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)

void close(void*) {}

}  // namespace
}  // namespace shoal::plugins

const shoal_bootstrap_plugin shoal_bootstrap_plugin_table = {
    SHOAL_BOOTSTRAP_PLUGIN_VERSION, SHOAL_BOOTSTRAP_SAME_THREAD,
    sizeof(shoal_bootstrap_plugin), "mpi",
#if defined(OPEN_MPI)
    "MPI_COMM_WORLD of Open MPI",
#elif defined(MPICH_VERSION)
    "MPI_COMM_WORLD of MPICH",
#else
                                                             "MPI_COMM_WORLD",
#endif
    shoal::plugins::open,           shoal::plugins::broadcast,
    shoal::plugins::close};
